"""The producers of one partition: a fold over its batch headers, in the order of their offsets.

The same `apply` serves an append and a recovery, so a table rebuilt from the log, or from a
snapshot and the rest of the log, is the table that was lost. It rejects nothing: what is in the log
has been judged (`state.judge`) before it got there.

Invariant "the last stable offset never goes back": as long as the high watermark does not. A
transaction counts as unstable until the marker that ends it is durable, and new ones start behind
the high watermark.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from onceflow.errors import InvariantViolated
from onceflow.producers import snapshot
from onceflow.producers.aborted import Aborted, AbortedTransactions
from onceflow.producers.state import Producer, Written
from onceflow.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from onceflow.records.control import Marker, MarkerType
from onceflow.records.sequence import last_sequence

_new = tuple.__new__


class OpenTransaction(NamedTuple):
    """A transaction that no marker has ended in this partition."""

    producer_id: int
    epoch: int
    first_offset: int
    last_timestamp: int
    coordinator_epoch: int


class ProducerTable:
    """All that one partition knows of those who write to it."""

    __slots__ = (
        "_completed",
        "_log_start",
        "_newest_marker",
        "_open",
        "_producers",
        "_stable",
        "aborted",
    )

    def __init__(
        self, producers: Iterable[tuple[int, Producer]] = (), aborted: Iterable[Aborted] = ()
    ) -> None:
        self.aborted = AbortedTransactions(aborted)
        self._producers = dict(producers)
        begun = (
            (producer.transaction_start, producer_id)
            for producer_id, producer in self._producers.items()
            if producer.transaction_start is not None
        )
        # Producer id -> first offset. Transactions begin in offset order, so the first is the
        # earliest; a plain dict would search for it behind the places of those that are gone.
        self._open = OrderedDict((producer_id, start) for start, producer_id in sorted(begun))
        # First offset and marker of those whose marker may not be durable yet; a heap.
        self._completed: list[tuple[int, int]] = []
        self._newest_marker = -1
        self._log_start = 0
        self._stable = 0

    # --- the fold -----------------------------------------------------------------------------

    def apply(self, header: BatchHeader, marker: Marker | None) -> None:
        """Take in a batch that has its place in the log. `marker` is that of a control batch; None
        if it has none: compaction has emptied it, or its type is not known here."""
        # Positions instead of names: this runs for every batch of an idempotent producer.
        base, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, sequence, count = (
            header
        )
        if producer_id < 0:
            return
        if attributes & CONTROL_BIT:
            if marker is not None or count == 0:
                self._end(header, marker)
            return
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(epoch, timestamp)
        elif producer.epoch != epoch:
            producer.window.clear()
            producer.epoch = epoch
        producer.last_timestamp = timestamp
        if sequence >= 0:
            last = last_sequence(sequence, delta)
            producer.window.append(_new(Written, (sequence, last, base, base + delta, timestamp)))
        # A batch that compaction has emptied begins nothing: compaction stays behind the first
        # open transaction, so that batch's own has ended, and its marker may be gone.
        if attributes & TRANSACTIONAL_BIT and producer.transaction_start is None and count:
            producer.transaction_start = self._open[producer_id] = base

    def _end(self, header: BatchHeader, marker: Marker | None) -> None:
        """What a marker does; one that compaction has emptied ended a transaction without data."""
        epoch, producer_id = header.producer_epoch, header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(epoch, header.max_timestamp)
        elif producer.epoch != epoch:
            producer.window.clear()
            producer.epoch = epoch
        producer.last_timestamp = header.max_timestamp
        if marker is not None:
            producer.coordinator_epoch = marker.coordinator_epoch
        start = producer.transaction_start
        if start is None:
            return
        producer.transaction_start = None
        del self._open[producer_id]
        at = header.base_offset
        heappush(self._completed, (start, at))
        self._newest_marker = at
        if marker is not None and marker.type is MarkerType.ABORT:
            stable = next(iter(self._open.values()), at + 1)
            self.aborted.append(Aborted(producer_id, start, at, stable))

    def settle(self, high_watermark: int) -> None:
        """Everything below is durable: transactions that ended there are no longer unstable."""
        completed = self._completed
        if self._newest_marker < high_watermark:
            completed.clear()
        else:
            while completed and completed[0][1] < high_watermark:
                heappop(completed)

    # --- what a reader may see ----------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset that a read_committed reader may read up to."""
        stable = high_watermark
        if self._open or self._completed:
            unstable = self.first_unstable_offset(high_watermark)
            if unstable is not None and unstable < stable:
                stable = unstable
        if stable < self._stable:
            raise InvariantViolated(
                f"the last stable offset never goes back: {stable} after {self._stable}, "
                f"high watermark {high_watermark}"
            )
        self._stable = stable
        return stable

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the earliest transaction begins that is open or whose end is not durable; None if
        there is none. Never below the log's start."""
        self.settle(high_watermark)
        first = next(iter(self._open.values()), None)
        if self._completed and (first is None or self._completed[0][0] < first):
            first = self._completed[0][0]
        return None if first is None else max(first, self._log_start)

    # --- questions ----------------------------------------------------------------------------

    def find(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of that very epoch is open here."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.transaction_start is not None
            and producer.epoch == epoch
        )

    def producers(self) -> Iterator[tuple[int, Producer]]:
        """Every producer id that is remembered, with what is known of it."""
        return iter(self._producers.items())

    def open_transactions(self) -> list[OpenTransaction]:
        """The earliest first."""
        found = []
        for producer_id, start in self._open.items():
            producer = self._producers[producer_id]
            found.append(
                OpenTransaction(
                    producer_id,
                    producer.epoch,
                    start,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                )
            )
        return found

    # --- forgetting ---------------------------------------------------------------------------

    def expire(self, now_ms: int, older_than_ms: int) -> int:
        """Forget producers that wrote nothing for so long and have nothing open; how many."""
        latest = now_ms - older_than_ms
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.last_timestamp <= latest and producer.transaction_start is None
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def start_moved(self, log_start: int) -> None:
        """Records below are gone. Producers stay, and so do their open transactions: a repeat is
        still a repeat, and the marker is yet to come."""
        if log_start != self._log_start:
            self._log_start = log_start
            self.aborted.drop_before(log_start)

    # --- snapshots ----------------------------------------------------------------------------

    def to_bytes(self, offset: int) -> bytes:
        """A snapshot as of `offset`: exactly the batches below it have been applied."""
        return snapshot.encode(offset, sorted(self._producers.items()), list(self.aborted))

    @classmethod
    def from_bytes(cls, data: bytes, offset: int) -> ProducerTable:
        """The table as of `offset`, its transactions' ends durable; `SnapshotInvalid` if these
        bytes are not a snapshot of it. Where the log starts is not in it: see `start_moved`."""
        return cls(*snapshot.decode(data, offset))
