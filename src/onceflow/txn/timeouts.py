"""Which open transactions have timed out, by a clock that nobody can set.

Deadlines are times of the monotonic clock, so a jump of the wall clock neither ends a transaction
early nor keeps it alive. That clock begins anew with each start; `remaining_ms` then says how much
time a transaction has left, which is never more than its timeout.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from onceflow.txn.state import TransactionMetadata

_FEW: Final = 64
"""So many stale entries do not justify a new heap."""


class _Entry(NamedTuple):
    deadline: float
    number: int
    """Settles ties in the order in which transactions began."""
    transactional_id: str
    epoch: int


class Deadlines:
    """When the open transactions have to end. A transaction that has ended leaves its entry in the
    heap until it comes up, or until such entries are the most: each step takes O(log n)."""

    __slots__ = ("_count", "_heap", "_open")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._open: dict[str, _Entry] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._open)

    def started(self, transactional_id: str, epoch: int, deadline: float) -> None:
        """Notes an open transaction. Its first deadline stands, however often this is called; a new
        epoch is a new transaction."""
        known = self._open.get(transactional_id)
        # A later deadline would let a producer hold back readers for ever by adding partitions.
        if known is not None and known.epoch == epoch:
            return
        self._count += 1
        entry = _Entry(deadline, self._count, transactional_id, epoch)
        self._open[transactional_id] = entry
        heapq.heappush(self._heap, entry)
        self._tidy()

    def ended(self, transactional_id: str) -> None:
        """Notes that this id has no open transaction any more."""
        if self._open.pop(transactional_id, None) is not None:
            self._tidy()

    def due(self, now: float) -> list[str]:
        """The ids that have timed out, in the order of their deadlines; returns each only once."""
        ids: list[str] = []
        while self._heap and self._heap[0].deadline <= now:
            entry = heapq.heappop(self._heap)
            if self._counts(entry):
                del self._open[entry.transactional_id]
                ids.append(entry.transactional_id)
        return ids

    def next_deadline(self) -> float | None:
        """When to look again."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0].deadline if self._heap else None

    def _counts(self, entry: _Entry) -> bool:
        return self._open.get(entry.transactional_id) is entry

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._open) + _FEW:
            self._heap = list(self._open.values())
            heapq.heapify(self._heap)


def remaining_ms(transaction: TransactionMetadata, wall_now_ms: int) -> int:
    """How much time an open transaction found at start has left, by the wall clock that recorded
    its beginning. A clock that went back gives it at most its whole timeout."""
    left = transaction.started_ms + transaction.timeout_ms - wall_now_ms
    return min(max(left, 0), transaction.timeout_ms)
