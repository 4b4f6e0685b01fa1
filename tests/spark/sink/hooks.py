"""What is put at the sink's named points: a death, a pause, a lost answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from onceflow.client.transactions.retrier import Reply, RequestAttempt
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.spark.sink import task_plan
from onceflow.spark.sink.task_plan import TaskSecrets
from onceflow.wire.api import ApiKey

if TYPE_CHECKING:
    import pyarrow as pa

TASK_POINTS: Final = ("before claim", "mid-write", "after write")
DRIVER_POINTS: Final = ("before offsets", "before EndTxn", "after EndTxn")
UNANSWERED: Final = "EndTxn unanswered"
"""Between EndTxn and its answer."""


class Died(Exception):
    """Stands for the death of a driver: nothing of the sink may be done after it."""


@dataclass(frozen=True)
class Once:
    """Does something at a point, once for all processes that have the same mark."""

    point: str
    mark: Path
    action: Callable[[], None]

    def __call__(self, point: str) -> None:
        if point != self.point:
            return
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self.action()

    @property
    def has_happened(self) -> bool:
        return self.mark.exists()


@dataclass(frozen=True)
class Both:
    """Two hooks."""

    one: Callable[[str], None]
    other: Callable[[str], None]

    def __call__(self, point: str) -> None:
        self.one(point)
        self.other(point)


class DriverOnly:
    """A hook that stays with the driver: it holds what cannot be sent to tasks."""

    def __init__(self, hook: Callable[[str], None]) -> None:
        self._hook = hook

    def __call__(self, point: str) -> None:
        self._hook(point)

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


def _no_hook() -> Callable[[str], None]:
    return task_plan.nothing


@dataclass(frozen=True)
class Signal:
    """To a process; to the one that is at the point when `pid` is 0."""

    number: int = signal.SIGKILL
    pid: int = 0

    def __call__(self) -> None:
        os.kill(self.pid or os.getpid(), self.number)


@dataclass(frozen=True)
class DropShuffle:
    """Loses all rows that are on their way from one stage to the next, as a lost machine does."""

    local_dir: Path

    def __call__(self) -> None:
        for path in self.local_dir.rglob("shuffle_*"):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Attempts:
    """Another hook, and a note of each task attempt that wants to write: `(stage, task, attempt
    number, attempt id)`."""

    hook: Callable[[str], None]
    notes: Path

    def __call__(self, point: str) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and point == "before claim":
            numbers = (context.stageId(), context.partitionId(), context.attemptNumber())
            name = "-".join(map(str, (*numbers, context.taskAttemptId())))
            (self.notes / name).touch()
        self.hook(point)

    def noted(self) -> list[tuple[int, int, int, int]]:
        names = (each.name.split("-") for each in self.notes.iterdir())
        return sorted((int(a), int(b), int(c), int(d)) for a, b, c, d in names)


@dataclass(frozen=True)
class PiecesNoted:
    """What the tasks of a query do with rows, and a note of the bytes of each piece of rows that
    they are given at once."""

    function: Callable[[TaskSecrets, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    notes: Path

    def __call__(
        self, secrets: TaskSecrets, rows: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        return self.function(secrets, self._noted(rows))

    def _noted(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            (self.notes / f"{piece.nbytes}-{uuid4().hex}").touch()
            yield piece


def die() -> None:
    raise Died("for a test")


@contextmanager
def at_points(hook: Callable[[str], None]) -> Iterator[None]:
    """Has the hook called at all points, that of a lost answer included."""
    perform, reached = TransactionClient._perform, task_plan.reached

    def unanswered(self: TransactionClient, step: RequestAttempt) -> Reply:
        reply = perform(self, step)
        if step.request.api is ApiKey.END_TXN:
            hook(UNANSWERED)
        return reply

    TransactionClient._perform = unanswered  # type: ignore[method-assign]  # a driver that dies in between
    task_plan.reached = hook
    try:
        yield
    finally:
        TransactionClient._perform = perform  # type: ignore[method-assign]
        task_plan.reached = reached
