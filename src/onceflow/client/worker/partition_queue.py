"""A blocking writer's queue for one partition: batches in the order of their sequences, and how
many of them may be in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from onceflow.records import NewBatch, last_sequence, next_sequence
from onceflow.types import TopicPartition
from onceflow.wire import MAX_IN_FLIGHT

_NO_OFFSET: Final = -1
_ONE: Final = 1


class WriteResult(NamedTuple):
    """The records written to a partition: all are acknowledged, none is committed yet."""

    partition: TopicPartition
    records: int
    first_offset: int
    """-1 where nothing was written, or where the broker did not say."""
    last_offset: int
    last_sequence: int
    """-1 where nothing was written."""


class Pending:
    """A batch that is not acknowledged. Its bytes never change: the leader knows a retry by its
    sequences, and takes other records under the same ones for a duplicate."""

    __slots__ = ("batch", "buffer", "is_in_flight", "was_refused")

    def __init__(self, batch: NewBatch) -> None:
        self.batch = batch
        self.buffer = batch.buffer
        self.is_in_flight = False
        self.was_refused = False

    def sent(self) -> None:
        self.is_in_flight = True

    def refused(self) -> None:
        self.is_in_flight = False
        self.was_refused = True

    lost = refused


class PartitionQueue:
    """One partition."""

    __slots__ = (
        "_first_offset",
        "_first_sequence",
        "_has_ack",
        "_last_offset",
        "_pending",
        "_records",
        "next_sequence",
        "partition",
        "size",
    )

    def __init__(self, partition: TopicPartition, first_sequence: int) -> None:
        self.partition = partition
        self.next_sequence = first_sequence
        self.size = 0
        """Bytes that are not acknowledged."""
        self._pending: deque[Pending] = deque()
        self._has_ack = False
        self._records = 0
        self._first_offset = self._last_offset = _NO_OFFSET
        self._first_sequence = first_sequence

    def queue(self, batches: Iterable[NewBatch]) -> None:
        """Batches that continue the sequence."""
        for batch in batches:
            self._pending.append(Pending(batch))
            self.size += len(batch.buffer)
            self.next_sequence = next_sequence(self.next_sequence, batch.header.record_count)

    def next_to_send(self) -> Pending | None:
        """The next batch that may go now."""
        if not self._pending:
            return None
        # The rules of `producer.idempotence`, for one transaction that only aborts when something
        # goes wrong; change both. One batch until the first is acknowledged: a leader that does not
        # know the producer takes any number, and would take the second batch for the first. Then
        # five, as many as it remembers: the retry of an older batch would be refused as out of
        # sequence.
        careful = not self._has_ack or self._pending[0].was_refused
        window = _ONE if careful else MAX_IN_FLIGHT
        for pending, _ in zip(self._pending, range(window), strict=False):
            if not pending.is_in_flight:
                return pending
        return None

    def is_behind(self, pending: Pending) -> bool:
        """Whether a batch before it is still missing, so that its sequence cannot fit."""
        return self._pending[0] is not pending

    def acknowledged(self, pending: Pending, base_offset: int) -> None:
        """Notes that the batch is in the log. When a later batch is acknowledged first, the one
        before it is in the log too, although the leader answered it with an error: it is sent
        again, for its offset."""
        self._pending.remove(pending)
        header = pending.batch.header
        self.size -= len(pending.buffer)
        self._has_ack = True
        self._records += header.record_count
        if base_offset == _NO_OFFSET:
            return
        last = base_offset + header.last_offset_delta
        self._last_offset = max(self._last_offset, last)
        known = self._first_offset
        self._first_offset = base_offset if known == _NO_OFFSET else min(known, base_offset)

    def written(self) -> WriteResult:
        """The result; valid once everything is acknowledged."""
        last = last_sequence(self._first_sequence, self._records - 1) if self._records else -1
        return WriteResult(
            self.partition, self._records, self._first_offset, self._last_offset, last
        )
