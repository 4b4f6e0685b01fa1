"""How `onceflow demo` looks: alive in a terminal, one line for each event elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from textwrap import indent
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from onceflow.demo.count import Sample, Watcher
from onceflow.demo.strikes import Strike, Survived

FRAMES_PER_SECOND: Final = 8
SLOT_S: Final = 0.5
"""What one block of the pulse stands for, or a multiple of it when there is much to show."""
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_STRIKE_MARK: Final = "✖"
_LABEL_COLUMNS: Final = 14


def pulse(samples: Sequence[Sample], strikes: Sequence[float], width: int) -> Text:
    """Rows committed over time, from the beginning on, as blocks in which strikes are marked."""
    slot_s = SLOT_S
    while samples[-1].at_s >= slot_s * width:
        slot_s *= 2
    rows: Counter[int] = Counter()
    for before, after in pairwise(samples):
        rows[int(after.at_s / slot_s)] += after.committed - before.committed
    marked = {int(at_s / slot_s) for at_s in strikes}
    highest = max([1, *rows.values()])
    text = Text()
    for slot in range(int(samples[-1].at_s / slot_s) + 1):
        if slot in marked:
            text.append(_STRIKE_MARK, "bold red")
        else:
            text.append(_BLOCKS[-(-rows[slot] * (len(_BLOCKS) - 1) // highest)], "green")
    return text


class Screen:
    """Shows how the demo goes on."""

    def __init__(self, console: Console, elapsed_s: Callable[[], float], planned: int) -> None:
        self._console = console
        self._elapsed_s = elapsed_s
        self._planned = planned
        self.survivals: list[Survived] = []
        self._strikes: list[float] = []
        self._status = Spinner("dots", "")
        self._watcher: Watcher | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """Redraws all the time, where there is somebody to see it."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=FRAMES_PER_SECOND,
        ):
            yield

    def watch(self, watcher: Watcher) -> None:
        """From now on it shows what this one sees."""
        self._watcher = watcher

    def show_file(self, text: str) -> None:
        """The pipeline that is run."""
        self._console.print(Text(f"\n{indent(text, '    ')}", "dim"), soft_wrap=True)

    def say(self, text: str) -> None:
        """What goes on."""
        self._status.update(text=Text(text))
        self._print(text)

    def struck(self, strike: Strike) -> None:
        self._strikes.append(self._elapsed_s())
        number = f"{len(self._strikes)}/{self._planned}"
        self.say(f"{number} {strike.words}; {strike.then}")

    def survived(self, event: Survived) -> None:
        self.survivals.append(event)
        note = f"; the first one is {event.note}" if event.note else ""
        self.say(f"    committed again after {event.again_after_s:.1f} s{note}")

    def _print(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{self._elapsed_s():6.1f} s  {text}", soft_wrap=True)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._facts()]
        if self.survivals:
            parts += ["", self._table()]
        return Padding(Group(*parts, "", self._status), (0, 2))

    def _facts(self) -> Table:
        samples = [Sample(0.0, 0, 0, 0)] if self._watcher is None else list(self._watcher.samples)
        now = samples[-1]
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", width=_LABEL_COLUMNS)
        facts.add_column()
        facts.add_row("time", f"{self._elapsed_s():>9.1f} s")
        facts.add_row("orders in", f"{now.orders:>9,}")
        facts.add_row("rows out", Text(f"{now.totals:>9,}", "bold"))
        facts.add_row("dead letters", f"{now.dead_letters:>9,}")
        width = max(10, self._console.width - _LABEL_COLUMNS - 8)
        facts.add_row("pulse", pulse(samples, self._strikes, width))
        return facts

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
        table.add_column("")
        table.add_column("what happened")
        table.add_column("again after", justify="right")
        for number, event in enumerate(self.survivals, 1):
            note = f" ({event.note})" if event.note else ""
            table.add_row(
                f"{number}/{self._planned}",
                event.strike.words + note,
                f"{event.again_after_s:.1f} s",
            )
        return table
