"""How `onceflow demo` looks: alive in a terminal, one line for each event elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onceflow.cli.demo_clients import Place
from onceflow.cli.demo_ledger import Verdict
from onceflow.cli.demo_load import Load

FRAMES_PER_SECOND: Final = 10
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_KILL_MARK: Final = "✖"
_LABEL_COLUMNS: Final = 16


class Phase(Enum):
    """What the broker is doing, and how that is shown."""

    STARTING = ("◌", "starting", "yellow")
    UP = ("●", "up", "green")
    KILLED = ("✖", "killed", "red")
    READING_BACK = ("●", "up, everything is read back", "green")


class Kill(NamedTuple):
    """One kill, and what followed."""

    acknowledged: int
    in_flight: int
    listening_ms: float
    next_ack_ms: float


@dataclass(slots=True)
class Progress:
    """What there is to be shown; changed by the command while the screen reads it."""

    kills_planned: int
    phase: Phase = Phase.STARTING
    where: str = ""
    load: Load | None = None
    kills: list[Kill] = field(default_factory=list)
    found: dict[Place, int] = field(default_factory=dict)


class Pulse:
    """Acknowledgements over time, as a row of blocks in which kills are marked."""

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
    """Shows progress on a console."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._pulse = Pulse()

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

    def up(self, bootstrap: str, pid: int) -> None:
        self._progress.phase = Phase.UP
        self._progress.where = f"{bootstrap}, process {pid}"

    def killed(self) -> None:
        self._progress.phase = Phase.KILLED
        self._pulse.mark()

    def back(self, kill: Kill) -> None:
        self._progress.kills.append(kill)
        if not self._console.is_terminal:
            self._console.print(
                f"kill {len(self._progress.kills)}: {kill.acknowledged:,} acknowledged, "
                f"{kill.in_flight:,} in flight; listening again after {kill.listening_ms:.0f} ms, "
                f"next acknowledgement after {kill.next_ack_ms:.0f} ms",
                soft_wrap=True,
            )

    def _render(self) -> RenderableType:
        load = self._progress.load
        if load is not None:
            self._pulse.sample(len(load.acknowledged))
        parts: list[RenderableType] = [self._facts()]
        if self._progress.kills:
            parts += ["", self._table()]
        return Padding(Group(*parts), (0, 2))

    def _facts(self) -> Table:
        progress, load = self._progress, self._progress.load
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", width=_LABEL_COLUMNS)
        facts.add_column()
        sign, words, colour = progress.phase.value
        state = Text(f"{sign} {words}", colour)
        state.append(f"   {progress.where}", "dim")
        facts.add_row("broker", state)
        if load is not None:
            width = max(10, self._console.width - _LABEL_COLUMNS - 8)
            facts.add_row("acknowledged", Text(f"{len(load.acknowledged):>9,}", "bold"))
            facts.add_row("in flight", f"{load.in_flight:>9,}")
            facts.add_row("read", f"{len(load.seen):>9,}")
            if progress.found:
                facts.add_row("read back", Text(f"{len(progress.found):>9,}", "bold"))
            facts.add_row("pulse", self._pulse.render(width))
        return facts

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
        for name in ("kill", "acknowledged", "in flight", "listening after", "next ack after"):
            table.add_column(name, justify="right")
        for number, kill in enumerate(self._progress.kills, 1):
            table.add_row(
                f"{number} of {self._progress.kills_planned}",
                f"{kill.acknowledged:,}",
                f"{kill.in_flight:,}",
                f"{kill.listening_ms:,.0f} ms",
                f"{kill.next_ack_ms:,.0f} ms",
            )
        return table


def verdict_lines(verdict: Verdict, kills: int) -> list[str]:
    """The end of the story, in rich's markup."""
    if not verdict.is_good:
        broken = (
            f"[bold red]BROKEN:[/] of {verdict.acknowledged:,} acknowledged payments "
            f"{verdict.lost:,} are lost; {verdict.vanished:,} that were read have vanished; "
            f"{verdict.out_of_order:,} are out of order."
        )
        return [broken]
    good = (
        f"[bold green]Nothing lost:[/] {verdict.acknowledged:,} acknowledged payments survived "
        f"{kills} kills, each where it was acknowledged, all in order."
    )
    repeated = (
        f"{verdict.repeated:,} are there twice: stored when the broker was killed, not yet "
        "acknowledged, and so sent again. Without idempotence that is legal."
    )
    return [good, repeated] if verdict.repeated else [good]
