"""One partition as its clients see it: a log with a leader epoch, the producers that write to it,
and the fetches that wait for new records.

Every append goes through here. So the producers' table is the fold over the log at every moment,
and waiting fetches wake as soon as new records are durable, and not before.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from onceflow.broker.requests import Slices
from onceflow.broker.topics.producer_snapshots import ProducerFiles, load_producers
from onceflow.log import LogStore, PartitionLog, Purpose, Ticket
from onceflow.records import Marker, NewBatch, StoredBatch

NO_EPOCH = -1


class EpochStart(NamedTuple):
    """A leader epoch began at this offset."""

    epoch: int
    offset: int


class LeaderEpochEnd(NamedTuple):
    """An epoch, and the offset behind its last record."""

    epoch: int
    offset: int


def next_epochs(
    epochs: tuple[EpochStart, ...], start_offset: int, end_offset: int
) -> tuple[EpochStart, ...]:
    """The epochs of a partition that begins a new one at its end. An epoch of which no record is
    left tells readers nothing and goes, so that a partition has as many as differ in its log."""
    kept = [each for each in epochs if each.offset < end_offset]
    ended = [each for each, following in pairwise(kept) if following.offset <= start_offset]
    return (*kept[len(ended) :], EpochStart(epochs[-1].epoch + 1, end_offset))


class HostedPartition:
    """Belongs to the broker's loop."""

    __slots__ = ("_announced", "_store", "_waiting", "epochs", "index", "log", "producers")

    def __init__(
        self, store: LogStore, log: PartitionLog, epochs: tuple[EpochStart, ...], slices: Slices
    ) -> None:
        self._store = store
        self._waiting: dict[Callable[[HostedPartition], None], None] = {}  # in the order they came
        self._announced: Ticket | None = None
        """The last group of the journal that will wake waiting fetches: many appends share one."""
        self.index = log.log_id.partition
        self.log = log
        self.epochs = epochs
        self.producers = load_producers(log)
        log.companion = ProducerFiles(log, self.producers, slices)

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1].epoch

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which read_committed readers may read."""
        return self.producers.last_stable_offset(self.log.high_watermark)

    def append(
        self,
        batch: NewBatch,
        *,
        log_append_time: int | None = None,
        marker: Marker | None = None,
        purpose: Purpose = Purpose.APPEND,
    ) -> tuple[StoredBatch, Ticket]:
        """Appends the batch, and writes its offset into its own bytes; a control batch comes with
        its marker. Raises what `LogStore.append` does."""
        offset, epoch = self.log.end_offset, self.leader_epoch
        if log_append_time is None:
            stored = batch.assign(offset, epoch)
        else:
            stored = batch.assign_log_append_time(offset, epoch, log_append_time)
        # Append, then apply, in one step. A refused append must leave no trace in the table: the
        # client sends the batch again, and a table that knew it would acknowledge what no log has.
        ticket = self._store.append(self.log, stored, purpose=purpose)
        if stored.header.producer_id >= 0:
            self.producers.apply(stored.header, marker)
            if marker is not None:
                self.producers.settle_if_many(self.log.high_watermark)
        if self._waiting and (ticket is not self._announced or ticket.done):
            self._announced = ticket
            ticket.add_done_callback(self._durable)
        return stored, ticket

    def once_durable(self, offset: int) -> Ticket | None:
        """Completes when the record at an offset is durable; None when it is."""
        return None if offset < self.log.high_watermark else self._store.flush()

    # --- waiting for more ---------------------------------------------------------------------

    def wait(self, callback: Callable[[HostedPartition], None]) -> None:
        """Calls back, each time, when there is more to read here."""
        if not self._waiting and self.log.end_offset > self.log.high_watermark:
            # No append will wake this fetch for the records that are already on their way.
            self._store.flush().add_done_callback(self._durable)
        self._waiting[callback] = None

    def stop_waiting(self, callback: Callable[[HostedPartition], None]) -> None:
        self._waiting.pop(callback, None)

    def _durable(self, error: Exception | None) -> None:
        if error is None:
            self.wake()

    def wake(self) -> None:
        """Makes all waiting fetches look again."""
        for callback in list(self._waiting):
            callback(self)

    # --- epochs -------------------------------------------------------------------------------

    def end_of_epoch(self, epoch: int) -> LeaderEpochEnd | None:
        """The largest epoch up to `epoch` that there was, and where it ended. None for one that
        is yet to come, and for none."""
        if epoch > self.leader_epoch or epoch == NO_EPOCH:
            return None
        end = self.log.high_watermark
        for start in reversed(self.epochs):
            if start.epoch <= epoch:
                return LeaderEpochEnd(start.epoch, end)
            end = start.offset
        return LeaderEpochEnd(epoch, end)

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the record at an offset was written."""
        return max(
            (start.epoch for start in self.epochs if start.offset <= offset),
            default=self.epochs[0].epoch,
        )
