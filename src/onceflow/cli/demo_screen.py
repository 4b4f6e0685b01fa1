"""How `onceflow demo` looks: alive in a terminal, one line for each event elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onceflow.cli.demo_stage import Stage, Survived

FRAMES_PER_SECOND: Final = 10
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_KILL_MARK: Final = "✖"
_LABEL_COLUMNS: Final = 16


class Pulse:
    """Bookings over time, as a row of blocks in which deaths are marked."""

    def __init__(self) -> None:
        self._rates: list[int | None] = []
        self._count = 0

    def sample(self, count: int) -> None:
        self._rates.append(count - self._count)
        self._count = count

    def mark(self) -> None:
        self._rates.append(None)

    def render(self, width: int) -> Text:
        shown = self._rates[-width:]
        highest = max([rate for rate in shown if rate], default=1)
        text = Text()
        for rate in shown:
            if rate is None:
                text.append(_KILL_MARK, "bold red")
            else:
                text.append(_BLOCKS[-(-rate * (len(_BLOCKS) - 1) // highest)], "green")
        return text


class Screen:
    """Shows how the demo goes on."""

    def __init__(self, console: Console, planned: int) -> None:
        self._console = console
        self._planned = planned
        self._pulse = Pulse()
        self._survived: list[Survived] = []
        self._is_counting = False

    @contextmanager
    def live(self, stage: Stage) -> Iterator[None]:
        """Redraws all the time, where there is somebody to see it."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=lambda: self._render(stage),
            console=self._console,
            refresh_per_second=FRAMES_PER_SECOND,
        ):
            yield

    def survived(self, event: Survived) -> None:
        self._survived.append(event)
        self._pulse.mark()
        if not self._console.is_terminal:
            number = f"{len(self._survived)}/{self._planned}"
            self._console.print(f"{number} {self._words(event)}", soft_wrap=True)

    def counting(self) -> None:
        self._is_counting = True

    @staticmethod
    def _words(event: Survived) -> str:
        note = f" ({event.note})" if event.note else ""
        return f"{event.moment.words}{note}; booking again after {event.next_commit_ms:,.0f} ms"

    def _render(self, stage: Stage) -> RenderableType:
        self._pulse.sample(stage.booked)
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", width=_LABEL_COLUMNS)
        facts.add_column()
        state = "everything is booked and counted" if self._is_counting else "at work"
        facts.add_row("worker", Text(f"● {state}", "green"))
        facts.add_row("payments", f"{stage.payments:>9,}")
        facts.add_row("booked", Text(f"{stage.booked:>9,}", "bold"))
        width = max(10, self._console.width - _LABEL_COLUMNS - 8)
        facts.add_row("pulse", self._pulse.render(width))
        parts: list[RenderableType] = [facts]
        if self._survived:
            parts += ["", self._table()]
        return Padding(Group(*parts), (0, 2))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
        for name in ("", "what happened", "booked before", "booking again after"):
            table.add_column(name, justify="right" if "book" in name else "left")
        for number, event in enumerate(self._survived, 1):
            note = f" ({event.note})" if event.note else ""
            table.add_row(
                f"{number}/{self._planned}",
                event.moment.words + note,
                f"{event.booked:,}",
                f"{event.next_commit_ms:,.0f} ms",
            )
        return table
