"""`onceflow serve` that dies by SIGKILL, from its own hand, at a named point of a commit.

    python -m tests.kill.doomed_broker POINT durable|gathered SERVE-ARGUMENTS...

All that ends a transaction is one group of the journal, so that no crash of a whole broker falls
between its parts. `durable` makes it fall there all the same: what has been appended up to the
point is made durable before the end. `gathered` leaves it in memory, where it dies too. The first
transaction that is committed goes well; the second one is the last.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any

from onceflow.broker.txn.markers import Markers
from onceflow.broker.txn.state_store import TransactionStateStore
from onceflow.cli import run
from onceflow.txn.state import TransactionState


class Point(Enum):
    """Where it dies."""

    BEFORE_PREPARE = "before-prepare"
    AFTER_PREPARE = "after-prepare"
    BETWEEN_MARKERS = "between-markers"
    BEFORE_COMPLETE = "before-complete"
    AFTER_COMPLETE = "after-complete"


class Doom:
    """Counts commits, and dies in the second one."""

    def __init__(self, point: Point, *, durable: bool) -> None:
        self._point = point
        self._durable = durable
        self._commits = 0
        self._markers: Markers | None = None

    def pass_by(self, point: Point) -> None:
        if point is self._point and self._commits == 2:
            if self._durable and self._markers is not None:
                self._markers._topics._store._quiesce()
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        write_marker, write = Markers.write, TransactionStateStore.write

        @wraps(write_marker)
        def marked(markers: Markers, *arguments: Any, **options: Any) -> Any:
            self._markers = markers
            written = write_marker(markers, *arguments, **options)
            self.pass_by(Point.BETWEEN_MARKERS)
            return written

        @wraps(write)
        def noted(book: TransactionStateStore, transaction: Any, purpose: Any) -> None:
            before, after = _points(transaction.state)
            self._commits += transaction.state is TransactionState.PREPARE_COMMIT
            _each(before, self.pass_by)
            write(book, transaction, purpose)
            _each(after, self.pass_by)

        for place, act in ((Markers, marked), (TransactionStateStore, noted)):
            setattr(place, "write", act)  # noqa: B010  # types do not matter to who dies


def _points(state: TransactionState) -> tuple[list[Point], list[Point]]:
    """The points before and after a state is written down."""
    if state is TransactionState.PREPARE_COMMIT:
        return [Point.BEFORE_PREPARE], [Point.AFTER_PREPARE]
    if state is TransactionState.COMPLETE_COMMIT:
        return [Point.BEFORE_COMPLETE], [Point.AFTER_COMPLETE]
    return [], []


def _each(points: list[Point], act: Callable[[Point], None]) -> None:
    for point in points:
        act(point)


if __name__ == "__main__":
    Doom(Point(sys.argv[1]), durable=sys.argv[2] == "durable").install()
    sys.exit(run(["serve", *sys.argv[3:]]))
