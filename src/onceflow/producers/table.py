"""The producers of one partition: a fold over its batch headers, in the order of their offsets.

The same `apply` serves appends and recovery, so a table rebuilt from the log, or from a snapshot
and the rest of the log, equals the table that was lost. It rejects nothing: `state.judge` judged
every batch before it got into the log.

Invariant "the last stable offset never goes back": as long as the high watermark does not. A
transaction counts as unstable until the marker that ends it is durable, and new ones start behind
the high watermark.

Invariant "a producer is remembered for as long as was promised, whatever its records say":
`expire` measures silence between two of its runs, by a clock that stops while the broker is down
and that nobody can set. A producer that a start reads from the log is silent from that start on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from onceflow.errors import InvariantViolated
from onceflow.producers import snapshot
from onceflow.producers.aborted import Aborted, AbortedTransactions
from onceflow.producers.draft import SnapshotDraft
from onceflow.producers.state import AWAKE, ProducerMemory, WrittenBatch
from onceflow.records import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Marker,
    MarkerType,
    last_sequence,
)
from onceflow.wire import MAX_IN_FLIGHT

_MANY_ENDED = 32
"""So many ended transactions the table keeps before it looks which of them are durable."""
_new = tuple.__new__


class OngoingTransaction(NamedTuple):
    """A transaction that no marker has ended in this partition."""

    producer_id: int
    epoch: int
    first_offset: int
    last_timestamp: int
    coordinator_epoch: int


class ProducerTable:
    """Everything that one partition knows of its producers."""

    __slots__ = (
        "_checks",
        "_drafts",
        "_ended_markers",
        "_ended_starts",
        "_log_start",
        "_looked_at_ms",
        "_open",
        "_producers",
        "_snapshots",
        "_stable",
        "aborted",
        "has_aged",
    )

    def __init__(
        self,
        producers: Iterable[tuple[int, ProducerMemory]] = (),
        aborted: AbortedTransactions | None = None,
    ) -> None:
        self.aborted = AbortedTransactions() if aborted is None else aborted
        self._producers = dict(producers)
        begun = (
            (producer.transaction_start, producer_id)
            for producer_id, producer in self._producers.items()
            if producer.transaction_start is not None
        )
        # Producer id -> first offset. Transactions begin in offset order, so the first is the
        # earliest; a plain dict would search for it past the slots of removed entries.
        self._open = OrderedDict((producer_id, start) for start, producer_id in sorted(begun))
        # First offset and marker of transactions whose marker may not be durable yet. They stay
        # unstable until it is: a reader must not see as committed what a crash can reopen. Both
        # ascend: a transaction that began after one which ended later holds no reader back.
        self._ended_starts: list[int] = []
        self._ended_markers: list[int] = []
        self._log_start = 0
        self._stable = 0
        self._looked_at_ms = 0
        self._drafts: list[SnapshotDraft] = []
        self._snapshots = 0
        self._checks = 1  # no producer that was loaded has seen one
        self.has_aged = False
        """Whether it changed since the last snapshot although nothing was written, because silent
        producers have aged or were forgotten."""

    # --- the fold -----------------------------------------------------------------------------

    def apply(self, header: BatchHeader, marker: Marker | None) -> None:
        """Applies a batch that has its place in the log. `marker` is the marker of a control batch;
        None if compaction has emptied the batch, or the type is unknown."""
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
            producer = self._add(producer_id, epoch, timestamp)
        else:
            if producer.checked != self._checks:
                self._before_change(producer_id, producer)
            if producer.epoch != epoch:
                producer.window.clear()
                producer.epoch = epoch
        producer.last_timestamp = timestamp
        if sequence >= 0:
            last = last_sequence(sequence, delta)
            window = producer.window
            # The compiled loop leaves out batches by the same count: see `replay_kernel`.
            if len(window) == MAX_IN_FLIGHT:
                del window[0]
            window.append(_new(WrittenBatch, (sequence, last, base, base + delta, timestamp)))
        # A batch that compaction has emptied begins nothing: compaction stays behind the first
        # open transaction, so that batch's own has ended, and its marker may be gone.
        if attributes & TRANSACTIONAL_BIT and producer.transaction_start is None and count:
            producer.transaction_start = self._open[producer_id] = base

    def _end(self, header: BatchHeader, marker: Marker | None) -> None:
        """Applies a marker; one that compaction has emptied ended a transaction without data."""
        epoch, producer_id = header.producer_epoch, header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch, header.max_timestamp)
        else:
            if producer.checked != self._checks:
                self._before_change(producer_id, producer)
            if producer.epoch != epoch:
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
        starts, markers = self._ended_starts, self._ended_markers
        while starts and starts[-1] > start:
            starts.pop()
            markers.pop()
        starts.append(start)
        markers.append(at)
        if marker is not None and marker.type is MarkerType.ABORT:
            stable = next(iter(self._open.values()), at + 1)
            self.aborted.append(Aborted(producer_id, start, at, stable))

    def _add(self, producer_id: int, epoch: int, timestamp: int) -> ProducerMemory:
        producer = ProducerMemory(epoch, timestamp, snapshot=self._snapshots, checked=self._checks)
        self._producers[producer_id] = producer
        return producer

    def _before_change(self, producer_id: int, producer: ProducerMemory) -> None:
        """Runs before the first change of a producer since the last `expire` or the beginning of a
        snapshot, and not for every batch: the drafts get it as it was, and it is silent no more."""
        if self._drafts:
            self._take_for_drafts(producer_id, producer)
        producer.silent_since = AWAKE
        producer.checked = self._checks

    def settle_if_many(self, high_watermark: int) -> None:
        """Calls `settle` once it is worth it. For every marker: without this, a partition without
        readers would keep every ended transaction for ever."""
        if len(self._ended_markers) > _MANY_ENDED:
            self.settle(high_watermark)

    def settle(self, high_watermark: int) -> None:
        """Notes that everything below is durable: transactions that ended there are stable."""
        markers = self._ended_markers
        if not markers or markers[0] >= high_watermark:
            return
        durable = bisect_left(markers, high_watermark)
        del self._ended_starts[:durable], markers[:durable]
        stable = self.last_stable_offset(high_watermark)
        if stable < self._stable:
            raise InvariantViolated(
                f"the last stable offset never goes back: {stable} after {self._stable}, "
                f"high watermark {high_watermark}"
            )
        self._stable = stable

    # --- what a reader may see ----------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset that a read_committed reader may read up to."""
        markers = self._ended_markers
        if not self._open and (not markers or markers[-1] < high_watermark):
            return high_watermark  # as mostly
        unstable = self.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of the earliest transaction that is open or whose end is not durable;
        None if there is none. Never below the log's start."""
        markers = self._ended_markers
        first = next(iter(self._open.values()), None) if self._open else None
        if markers and markers[-1] >= high_watermark:
            ended = self._ended_starts[bisect_left(markers, high_watermark)]
            first = ended if first is None or ended < first else first
        return None if first is None else max(first, self._log_start)

    # --- questions ----------------------------------------------------------------------------

    def find(self, producer_id: int) -> ProducerMemory | None:
        return self._producers.get(producer_id)

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction of exactly this epoch open here."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.transaction_start is not None
            and producer.epoch == epoch
        )

    def producers(self) -> Iterator[tuple[int, ProducerMemory]]:
        """Every remembered producer id, with what the table knows of it."""
        return iter(self._producers.items())

    def open_transactions(self) -> list[OngoingTransaction]:
        """The earliest first."""
        found = []
        for producer_id, start in self._open.items():
            producer = self._producers[producer_id]
            found.append(
                OngoingTransaction(
                    producer_id,
                    producer.epoch,
                    start,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                )
            )
        return found

    # --- forgetting ---------------------------------------------------------------------------

    def ids(self) -> Collection[int]:
        """Every remembered producer id; the collection changes with the table."""
        return self._producers.keys()

    def expire(self, now_ms: int, silent_ms: int, among: Iterable[int] | None = None) -> int:
        """Forgets producers, all or some, that wrote nothing for `silent_ms` and have no open
        transaction; returns how many. `now_ms` comes from a clock that runs only while the broker
        does: 0 when the table is made or loaded, and never less than at the last call."""
        self._looked_at_ms = now_ms
        self._checks += 1
        forgotten = 0
        for producer_id in list(self._producers) if among is None else among:
            producer = self._producers.get(producer_id)
            if producer is None:
                continue
            self.has_aged = True
            if producer.silent_since == AWAKE:
                # It has written since the last look, at an unknown time: perhaps right now.
                producer.silent_since = now_ms
            # Never one with an open transaction: its marker would find nothing to end, and the last
            # stable offset would stand still for ever.
            elif producer.transaction_start is None and (
                now_ms - producer.silent_since >= silent_ms
            ):
                if self._drafts:
                    self._take_for_drafts(producer_id, producer)
                del self._producers[producer_id]
                forgotten += 1
        return forgotten

    def start_moved(self, log_start: int) -> None:
        """Notes that the records below are gone. Producers and their open transactions stay: a
        repeat is still a repeat, and the marker is yet to come."""
        if log_start != self._log_start:
            self._log_start = log_start
            self.aborted.drop_before(log_start)

    # --- snapshots ----------------------------------------------------------------------------

    def draft(self, offset: int) -> SnapshotDraft:
        """Begins a snapshot as of `offset`: exactly the batches below it have been applied. It
        shows the table as it is now, whatever is applied before it is finished."""
        self._snapshots += 1
        self._checks += 1
        draft = SnapshotDraft(
            offset,
            self._snapshots,
            self._producers,
            self.aborted.to_bytes(),
            self._take_for_drafts,
            self._drafts.remove,
        )
        self._drafts.append(draft)
        self.has_aged = False
        return draft

    def _take_for_drafts(self, producer_id: int, producer: ProducerMemory) -> None:
        """Adds a producer that is about to change to every draft that lacks it."""
        if producer.snapshot < self._snapshots:
            encoded = snapshot.encode_producer(producer_id, producer, self._looked_at_ms)
            for draft in self._drafts:
                if producer.snapshot < draft.number:
                    draft.add(encoded)
            producer.snapshot = self._snapshots

    def to_bytes(self, offset: int) -> bytes:
        """A complete snapshot as of `offset`, in one go."""
        draft = self.draft(offset)
        draft.finish()
        return draft.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, offset: int) -> ProducerTable:
        """The table as of `offset`, its transactions' ends durable; `SnapshotInvalid` if these
        bytes are not a snapshot of it. Where the log starts is not in it: see `start_moved`."""
        return cls(*snapshot.decode(data, offset))
