"""Collects records into batches, one queue for each partition, and follows each batch to its
outcome.

Without a clock, a connection or a wait: the caller passes times as monotonic seconds, takes batches
to send with `drain`, and reports what became of them with `answered`, `requeue` or `fail`. Every
batch ends in exactly one outcome, or in two parts that do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Self

from onceflow.client.producer.batch import (
    RECORD_OVERHEAD,
    Delivered,
    Headers,
    ProducerBatch,
    checked,
    checked_timestamp,
    split,
)
from onceflow.client.producer.idempotence import (
    BatchResponse,
    PartitionSequences,
    ProduceVerdict,
    Sequences,
    leaves_doubt,
)
from onceflow.client.settings import ProducerSettings
from onceflow.records import Codec, NewBatch
from onceflow.types import TopicPartition

CODECS: Final[Mapping[str, Codec]] = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Kafka's settings of the same names, times in seconds."""

    batch_size: int = 16384
    linger: float = 0.005
    buffer_memory: int = 32 << 20
    delivery_timeout: float = 120.0
    codec: Codec = Codec.NONE
    level: int | None = None

    @classmethod
    def of(cls, settings: ProducerSettings) -> Self:
        return cls(
            batch_size=settings.batch_size,
            linger=settings.linger_ms / 1000,
            buffer_memory=settings.buffer_memory,
            delivery_timeout=settings.delivery_timeout_ms / 1000,
            codec=CODECS[settings.compression_type],
        )


_NEVER: Final = float("inf")


class BatchQueue:
    """The batches of one partition that wait to be sent: those with a sequence number first, in the
    order of their numbers."""

    __slots__ = ("_open", "partition", "state", "waiting")

    def __init__(
        self,
        partition: TopicPartition,
        state: PartitionSequences,
        open_batches: dict[int, ProducerBatch],
    ) -> None:
        self.partition = partition
        self.state = state
        self.waiting: deque[ProducerBatch] = deque()
        self._open = open_batches

    @property
    def open(self) -> ProducerBatch | None:
        """The last one, while records may be added to it."""
        return self._open.get(self.partition.partition)

    def append(self, batch: ProducerBatch) -> None:
        """Puts a batch at the end, and closes the one before to new records."""
        self.close()
        self.waiting.append(batch)
        if batch.is_open:
            self._open[self.partition.partition] = batch

    def close(self) -> None:
        batch = self._open.pop(self.partition.partition, None)
        if batch is not None:
            batch.is_open = False

    def put_back(self, batch: ProducerBatch) -> None:
        """Puts a batch back for a retry."""
        # In front of all batches without a number, and behind those with earlier numbers: the
        # leader refuses any other order as out of sequence.
        flight = self.state.in_flight
        rank = flight.index(batch)
        position = 0
        for waiting in self.waiting:
            if waiting not in flight or flight.index(waiting) > rank:
                break
            position += 1
        self.waiting.insert(position, batch)


class Accumulator:
    """All records of one producer that have no outcome yet."""

    def __init__(self, limits: BatchLimits, sequences: Sequences) -> None:
        self.limits = limits
        self.sequences = sequences
        self._batch_size = limits.batch_size
        self.used = 0
        """Bytes that count against `buffer_memory`. As in Apache Kafka's producer, a batch takes
        its whole room when it is opened, which saves a check for every record."""
        self.flushing = 0
        """How many callers of `flush` wait; no batch lingers meanwhile."""
        self.closing = False
        self.open_batches: dict[str, dict[int, ProducerBatch]] = {}
        """The batches that take records, by topic and partition: for the producer's fast path."""
        self._queues: dict[TopicPartition, BatchQueue] = {}
        self._waiting: dict[TopicPartition, BatchQueue] = {}
        self._incomplete: dict[ProducerBatch, None] = {}
        self._first_expiry = _NEVER
        self._turn = 0

    # --- gathering ----------------------------------------------------------------------------

    @property
    def partitions_waiting(self) -> int:
        """How many partitions have a batch that waits to be sent."""
        return len(self._waiting)

    def waits_only_for(self, partitions: AbstractSet[TopicPartition]) -> bool:
        """Whether all waiting batches go to these partitions."""
        return self._waiting.keys() <= partitions

    @property
    def is_full(self) -> bool:
        """Whether `append` has to wait; the core itself never refuses a record."""
        return self.used >= self.limits.buffer_memory

    def append(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        now: float,
    ) -> tuple[ProducerBatch, int]:
        """Adds a record; returns its batch and its index there, which is 0 in a new batch.

        The timestamp is in milliseconds since 1970. Raises `RecordInvalid` before any change.
        """
        key, value, section, size = checked(key, value, headers)
        timestamp = checked_timestamp(timestamp)
        queue = self._queues.get(partition)
        batch = None if queue is None else queue.open
        if batch is None or batch.size + size > self._batch_size:
            batch = self._open(partition, size, now)
        return batch, batch.add(key, value, timestamp, section, size)

    def shut(self, partition: TopicPartition, size: int) -> bool:
        """Closes a partition's open batch, so that it is sent, unless it has room for a record with
        so many bytes of key and value; whether it closed one."""
        batch = self.open_batches.get(partition.topic, {}).get(partition.partition)
        if batch is None or batch.size + RECORD_OVERHEAD + size <= self._batch_size:
            return False
        self._queues[partition].close()
        return True

    def _open(self, partition: TopicPartition, size: int, now: float) -> ProducerBatch:
        """Opens a batch with room for a record of this size, and for more if that is small."""
        batch = ProducerBatch(partition, now)
        batch.held = max(self._batch_size, batch.size + size)
        self._enqueue(batch)
        return batch

    def add_encoded(
        self, partition: TopicPartition, encoded: Iterable[NewBatch], now: float
    ) -> list[ProducerBatch]:
        """Appends batches that are already encoded, behind all records so far."""
        batches = [ProducerBatch.of_encoded(partition, each, now) for each in encoded]
        for batch in batches:
            self._enqueue(batch)
        return batches

    def _enqueue(self, batch: ProducerBatch) -> None:
        partition = batch.partition
        queue = self._queues.get(partition)
        if queue is None:
            opened = self.open_batches.setdefault(partition.topic, {})
            queue = BatchQueue(partition, self.sequences.of(partition), opened)
            self._queues[partition] = queue
        queue.append(batch)
        self._waiting[partition] = queue
        self._track(batch)

    def _track(self, batch: ProducerBatch) -> None:
        self._incomplete[batch] = None
        self.used += batch.held
        self._first_expiry = min(self._first_expiry, batch.created + self.limits.delivery_timeout)

    def incomplete(self) -> list[ProducerBatch]:
        """All batches without an outcome, in the order in which they were opened."""
        return list(self._incomplete)

    # --- when ---------------------------------------------------------------------------------

    def ready(self, now: float) -> list[TopicPartition]:
        """The partitions that have a batch to send now."""
        return [
            partition
            for partition, queue in self._waiting.items()
            if self._due(queue) <= now and self.sequences.may_send(queue.state, queue.waiting[0])
        ]

    def is_under_way(self, partition: TopicPartition) -> bool:
        """Whether the response to a batch of this partition may still come."""
        queue = self._queues.get(partition)
        return queue is not None and queue.state.has_outstanding

    def next_deadline(self, now: float) -> float | None:
        """When, later than now, a batch becomes ready or expires by the passing of time alone."""
        first = self._first_expiry if self._first_expiry > now else _NEVER
        for queue in self._waiting.values():
            due = self._due(queue)
            if now < due < first and self.sequences.may_send(queue.state, queue.waiting[0]):
                first = due
        return first if first < _NEVER else None

    def _due(self, queue: BatchQueue) -> float:
        """When the queue's first batch may be sent: after `linger.ms`, or the pause of a retry."""
        head = queue.waiting[0]
        if (
            head.attempts
            or not head.is_open
            or head.size + RECORD_OVERHEAD > self.limits.batch_size
            or self.flushing
            or self.closing
            or self.is_full
        ):
            return head.retry_at
        return head.created + self.limits.linger

    # --- sending ------------------------------------------------------------------------------

    def close_all(self) -> None:
        """Closes all waiting batches to new records."""
        for queue in self._waiting.values():
            queue.close()

    def write_ahead(self) -> None:
        """Encodes all closed batches that wait, for a caller that has time now and none later."""
        for queue in self._waiting.values():
            for batch in queue.waiting:
                if not batch.is_open:
                    batch.write_ahead(self.limits.codec, self.limits.level)

    def drain(
        self, partitions: Sequence[TopicPartition], max_request_bytes: int, now: float
    ) -> list[ProducerBatch]:
        """At most one sealed batch of each partition, for one request to their leader.

        The caller leaves out partitions that are not in the transaction yet. The first batch is
        taken even if it alone is too large. Each call starts with another partition, so that none
        starves.
        """
        batches: list[ProducerBatch] = []
        size = 0
        start = self._turn % len(partitions) if partitions else 0
        self._turn += 1
        for partition in (*partitions[start:], *partitions[:start]):
            queue = self._waiting.get(partition)
            if queue is None:
                continue
            head = queue.waiting[0]
            if head.retry_at > now or not self.sequences.may_send(queue.state, head):
                continue
            size += head.size if head.sealed is None else len(head.sealed.buffer)
            if batches and size > max_request_bytes:
                break
            if self._take(queue, head):
                batches.append(head)
        return batches

    def _take(self, queue: BatchQueue, head: ProducerBatch) -> bool:
        """Takes a batch out to be sent; False if it needs a producer id first."""
        state = queue.state
        if state.must_restart and not self.sequences.restart(state):
            return False
        if head not in state.in_flight:
            self._seal(queue, head)
        queue.waiting.popleft()
        if not queue.waiting:
            del self._waiting[queue.partition]
        head.attempts += 1
        head.is_outstanding = True
        return True

    def _seal(self, queue: BatchQueue, batch: ProducerBatch) -> None:
        if batch is queue.open:
            queue.close()
        base_sequence = self.sequences.number(queue.state, batch)
        batch.seal(
            self.sequences.writer,
            base_sequence,
            transactional=self.sequences.transactional,
            codec=self.limits.codec,
            level=self.limits.level,
        )
        self.used -= batch.held - batch.size
        batch.held = batch.size

    # --- what became of it --------------------------------------------------------------------

    def answered(
        self, batch: ProducerBatch, answer: BatchResponse, retry_at: float
    ) -> ProduceVerdict:
        """Handles the leader's response. A batch that is sent again waits until `retry_at`.

        After REFUSED, ABORTABLE and FATAL the caller makes the error and calls `fail`.
        """
        batch.is_outstanding = False
        state = self._queues[batch.partition].state
        if batch.is_done:
            if answer.code == 0:
                state.acknowledge(batch, answer.base_offset)
                state.settle()
            return ProduceVerdict.LATE
        verdict = self.sequences.decide(state, batch, answer)
        if verdict is ProduceVerdict.DELIVERED:
            state.acknowledge(batch, answer.base_offset)
            self._finish(batch, Delivered(answer.base_offset, answer.timestamp))
        elif verdict is ProduceVerdict.SPLIT:
            self._split(batch)
        else:
            batch.in_doubt = batch.in_doubt or leaves_doubt(answer)
            if verdict is ProduceVerdict.RESTART:
                state.must_restart = True
            if verdict in (ProduceVerdict.RETRY, ProduceVerdict.RESTART):
                self._put_back(batch, retry_at)
        return verdict

    def requeue(self, batch: ProducerBatch, retry_at: float, *, in_doubt: bool) -> None:
        """No response came: the batch is sent again. `in_doubt` unless it was never sent."""
        # The batch keeps its bytes and its sequence number: the broker may have the first copy, and
        # knows the second only by these. Sealing it anew would write its records twice.
        batch.is_outstanding = False
        batch.in_doubt = batch.in_doubt or in_doubt
        if not batch.is_done:
            self._put_back(batch, retry_at)

    def fail(self, batch: ProducerBatch, error: BaseException) -> None:
        """The batch has failed, wherever it is. A response that still comes is `LATE`."""
        if batch.is_done:
            return
        batch.in_doubt = batch.in_doubt or batch.is_outstanding
        queue = self._queues[batch.partition]
        if batch in queue.waiting:
            queue.waiting.remove(batch)
            if not queue.waiting:
                del self._waiting[batch.partition]
        if batch is queue.open:
            queue.close()
        self._finish(batch, error)

    def expired(self, now: float) -> list[ProducerBatch]:
        """The batches older than `delivery.timeout.ms`; the caller makes the errors and calls
        `fail` for each.

        A batch that `is_outstanding` or `in_doubt` may be in the log; the others are not.
        """
        if now < self._first_expiry:
            return []
        timeout = self.limits.delivery_timeout
        expired = [batch for batch in self._incomplete if batch.created + timeout <= now]
        self._first_expiry = min(
            (each.created + timeout for each in self._incomplete if each.created + timeout > now),
            default=_NEVER,
        )
        return expired

    def _put_back(self, batch: ProducerBatch, retry_at: float) -> None:
        batch.retry_at = retry_at
        queue = self._queues[batch.partition]
        queue.put_back(batch)
        self._waiting[batch.partition] = queue

    def _split(self, batch: ProducerBatch) -> None:
        """Replaces a batch by two parts, which share its sequence numbers between them."""
        queue = self._queues[batch.partition]
        flight = queue.state.in_flight
        rank = flight.index(batch)
        flight[rank : rank + 1] = split(batch)
        self._forget(batch)
        for part in batch.parts:
            part.attempts = batch.attempts
            part.in_doubt = batch.in_doubt
            part.ordinal = batch.ordinal
            self._track(part)
            queue.put_back(part)
        self._waiting[batch.partition] = queue

    def _finish(self, batch: ProducerBatch, outcome: Delivered | BaseException) -> None:
        batch.outcome = outcome
        state = self._queues[batch.partition].state
        self.sequences.leave(state, batch, delivered=isinstance(outcome, Delivered))
        self._forget(batch)

    def _forget(self, batch: ProducerBatch) -> None:
        del self._incomplete[batch]
        self.used -= batch.held
