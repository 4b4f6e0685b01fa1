"""What a person sees of a running pipeline: a live table in a terminal, one plain line every few
seconds elsewhere, or JSON lines for programs.

Numbers are of this run. Rows that were read are counted by offsets, so control records (the markers
of transactions) count too.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from onceflow.spark.pipeline.progress import BatchProgress
from onceflow.spark.pipeline.sink import PipelineTotals

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FRAMES_PER_SECOND: Final = 4
_LOOK_S: Final = 0.25
_PLAIN_S: Final = 5.0
_JSON_S: Final = 1.0
_OVER_S: Final = 10.0
"""Rates are means over so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSnapshot:
    """How a pipeline is doing."""

    state: str
    batch: int | None = None
    batches: int = 0
    read: int = 0
    written: int = 0
    dead_letters: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    batch_ms: int | None = None
    last_commit: str | None = None
    state_rows: int = 0
    watermark: str = ""


class Running(Protocol):
    """What is looked at."""

    @property
    def is_active(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    @property
    def written(self) -> PipelineTotals: ...
    def progress(self) -> tuple[BatchProgress, int] | None: ...


class Watch:
    """Looks at a pipeline now and then; `clock` gives seconds."""

    def __init__(self, running: Running, clock: Callable[[], float] = time.monotonic) -> None:
        self._running = running
        self._clock = clock
        self._reads: deque[tuple[float, int]] = deque([(clock(), 0)])

    def look(self) -> PipelineSnapshot:
        written, progress = self._running.written, self._running.progress()
        batch, read = progress if progress is not None else (None, 0)
        return PipelineSnapshot(
            state=self._state(),
            batch=written.last_batch,
            batches=written.batches,
            read=read,
            written=written.rows,
            dead_letters=written.dead_letters,
            rows_per_second=round(self._rate(read), 1),
            lag=None if batch is None else batch.lag,
            batch_ms=None if batch is None else batch.batch_ms,
            last_commit=None if written.at is None else _moment(written.at),
            state_rows=0 if batch is None else batch.state_rows,
            watermark="" if batch is None else batch.watermark,
        )

    def _state(self) -> str:
        if not self._running.is_active:
            return "ended"
        return "stopping" if self._running.is_stopping else "running"

    def _rate(self, read: int) -> float:
        now = self._clock()
        self._reads.append((now, read))
        while len(self._reads) > 2 and now - self._reads[1][0] > _OVER_S:
            self._reads.popleft()
        then, before = self._reads[0]
        return (read - before) / (now - then) if now > then else 0.0


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Begun:
    """What there is to say when a pipeline has started."""

    name: str
    bootstrap: str
    log: str


class PipelineScreen(Protocol):
    """Shows snapshots, each time it is given one."""

    every_s: float

    def begin(self, begun: Begun) -> None: ...
    def show(self, snapshot: PipelineSnapshot) -> None: ...


class JsonScreen:
    """One line of JSON for each snapshot."""

    every_s = _JSON_S

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def begin(self, begun: Begun) -> None:
        self._print({"state": "started", **asdict(begun)})

    def show(self, snapshot: PipelineSnapshot) -> None:
        self._print(asdict(snapshot))

    def _print(self, document: dict[str, Any]) -> None:
        line = {"at": _moment(time.time()), **document}
        print(json.dumps(line), file=self._output, flush=True)


class PlainScreen:
    """One line of words."""

    every_s = _PLAIN_S

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def begin(self, begun: Begun) -> None:
        print(begun_line(begun), file=self._output, flush=True)

    def show(self, snapshot: PipelineSnapshot) -> None:
        print(plain_line(snapshot), file=self._output, flush=True)


def begun_line(begun: Begun) -> str:
    return f"{begun.name} runs on the brokers at {begun.bootstrap}; Spark's log is {begun.log}"


def plain_line(snapshot: PipelineSnapshot) -> str:
    parts = [
        snapshot.state,
        f"batch {'-' if snapshot.batch is None else snapshot.batch}",
        f"{snapshot.read:,} read",
        f"{snapshot.written:,} written",
        f"{snapshot.dead_letters:,} dead letters",
        f"{snapshot.rows_per_second:,.0f} rows/s",
        f"lag {'-' if snapshot.lag is None else format(snapshot.lag, ',')}",
    ]
    if snapshot.batch_ms is not None:
        parts.append(f"{snapshot.batch_ms:,} ms a batch")
    if snapshot.state_rows:
        parts.append(f"{snapshot.state_rows:,} rows of state")
    return ", ".join(parts)


class LiveScreen:
    """A table that is drawn again and again."""

    every_s = _LOOK_S

    def __init__(self, name: str, live: Any) -> None:
        self._name = name
        self._live = live

    def begin(self, begun: Begun) -> None:
        self._live.console.print(begun_line(begun), style="dim", soft_wrap=True)

    def show(self, snapshot: PipelineSnapshot) -> None:
        self._live.update(live_table(self._name, snapshot), refresh=True)


def live_table(name: str, snapshot: PipelineSnapshot) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    colour = {"running": "green", "stopping": "yellow"}.get(snapshot.state, "dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=14)
    table.add_column(justify="right", width=16)
    table.add_column(style="dim")
    dead = Text(f"{snapshot.dead_letters:,}", "red" if snapshot.dead_letters else "")
    lag = "-" if snapshot.lag is None else f"{snapshot.lag:,}"
    batch = "-" if snapshot.batch_ms is None else f"{snapshot.batch_ms:,} ms"
    rows: list[tuple[Any, ...]] = [
        (name, Text(f"● {snapshot.state}", colour)),
        ("read", f"{snapshot.read:,}", f"{snapshot.rows_per_second:,.0f} rows/s"),
        ("written", Text(f"{snapshot.written:,}", "bold"), f"{snapshot.batches:,} batches"),
        ("dead letters", dead),
        ("lag", lag, "offsets behind the last batch"),
        ("batch time", batch),
        ("last commit", (snapshot.last_commit or "-")[11:23]),
    ]
    if snapshot.state_rows:
        rows.append(("state", f"{snapshot.state_rows:,} rows", snapshot.watermark))
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 1))


@contextmanager
def screen_for(
    name: str, output: TextIO, console: Console, *, as_json: bool
) -> Iterator[PipelineScreen]:
    """The right one for a terminal, a pipe, or a program that reads JSON."""
    if as_json:
        yield JsonScreen(output)
    elif not console.is_terminal:
        yield PlainScreen(output)
    else:
        from rich.live import Live

        with Live(console=console, refresh_per_second=FRAMES_PER_SECOND) as live:
            yield LiveScreen(name, live)


class Showing:
    """Called all the time; looks and shows when it is time to."""

    def __init__(
        self, watch: Watch, screen: PipelineScreen, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watch = watch
        self._screen = screen
        self._clock = clock
        self._next = clock()

    def __call__(self) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + self._screen.every_s
            self.now()

    def now(self) -> None:
        self._screen.show(self._watch.look())
