"""A blocking writer for worker processes: writes under a transaction that another process began.

Columns become batches, whose sequence numbers start at the partition's claim; a batch is sent with
the same bytes each time, so that the leader recognizes a duplicate. Until the first
acknowledgement of a partition one of its batches is in flight, then up to five; when the leader
refuses one, those behind it wait until it is acknowledged. A batch that the leader refuses for good
ends the attempt: the writer can do nothing more, and the transaction can only be aborted.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

from onceflow.client.codec import (
    NEWEST_WITHOUT_TRANSACTION_V2,
    SPOKEN,
    ProduceAnswer,
    VersionRange,
    read_produce,
    write_produce,
)
from onceflow.client.errors import (
    LOST,
    AbortableError,
    Action,
    BrokerError,
    ClientError,
    CrossedFork,
    DeliveryFailed,
    action_for,
)
from onceflow.client.net import Backoff, is_worth_it
from onceflow.client.settings import CODECS, ProducerSettings
from onceflow.client.transactions import Claim, OpenTransaction
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.connection import BlockingConnection
from onceflow.client.worker.partition_queue import PartitionQueue, Pending, WriteResult
from onceflow.errors import MessageMalformed
from onceflow.records import Codec
from onceflow.runtime import Clock, Rand, RealClock, RealRand
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode as E

if TYPE_CHECKING:
    import pyarrow as pa

    Columns: TypeAlias = pa.Table | pa.RecordBatch


_ENDS: Final = frozenset(
    {
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        E.INVALID_PRODUCER_EPOCH,
        E.INVALID_TXN_STATE,
        E.INVALID_PRODUCER_ID_MAPPING,
        E.PRODUCER_FENCED,
        E.TRANSACTION_ABORTABLE,
    }
)


class AttemptEnded(AbortableError):
    """The transaction no longer belongs to this attempt: it timed out, was taken over, or another
    attempt has written to the same partition. This epoch writes nothing more."""

    advice = "let the one who began the transaction abort it; then do all of its work in a new one"


def graver(one: ClientError | None, other: ClientError | None) -> ClientError | None:
    """Of two errors, the one that asks for new leaders."""
    is_worse = other is not None and (one is None or action_for(other) is Action.REFRESH)
    return other if is_worse else one


def worth_trying(error: ClientError) -> ClientError:
    """The error, if a retry may help; else raises it."""
    if not is_worth_it(error):
        raise error
    return error


def for_good(error: BrokerError, transaction: OpenTransaction) -> ClientError:
    """The error to raise for a refusal that no retry would change."""
    if error.code in _ENDS:
        return AttemptEnded(f"{error}, in the transaction of {transaction.identity}")
    return AbortableError(str(error), outcome=error.outcome)


MAX_BATCH_BYTES: Final = 512 << 10
"""Half of a topic's default limit, before compression."""
_MAX_REQUEST_BYTES: Final = 16 << 20
_WORTH_PUSHING: Final = 1 << 20
"""Less than this waits, so that one request takes it all."""
_PUSHED: Final = 4
"""Requests in flight while the application still makes rows: with more it would wait for the
broker."""
_ALL_REPLICAS: Final = -1


class _Flight(NamedTuple):
    """A Produce request that was sent."""

    connection: BlockingConnection
    version: int
    batches: Mapping[TopicPartition, Pending]


class BlockingWriter:
    """For one thread of one process. `write` queues and sends when much is queued; what counts is
    `flush`, which returns when everything is acknowledged.

    >>> import pyarrow as pa
    >>> from onceflow.blocking import Producer
    >>> with Producer(bootstrap, transactional_id="shop") as producer:
    ...     with producer.transaction():
    ...         opened = producer.open_transaction([TopicPartition("orders", 0)])
    ...         with BlockingWriter(opened) as writer:  # as a rule in another process
    ...             writer.write("orders", 0, pa.table({"value": [b"a", b"b"]}))
    ...             print([written.records for written in writer.flush()])
    [2]
    """

    def __init__(
        self,
        transaction: OpenTransaction,
        settings: ProducerSettings | None = None,
        *,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        clock: Clock | None = None,
        rand: Rand | None = None,
        cluster: BlockingCluster | None = None,
    ) -> None:
        """`cluster` is lent: its connections stay open for the next writer."""
        self._transaction = transaction
        self._settings = settings or ProducerSettings.of()
        self._max_batch_bytes = max_batch_bytes
        self._codec = Codec(CODECS.index(self._settings.compression_type))
        self._clock = clock or RealClock()
        self._rand = rand or RealRand()
        self._is_lent = cluster is not None
        self._cluster = cluster or BlockingCluster(
            transaction.bootstrap, self._settings, self._clock, self._rand, are_brokers=True
        )
        self._lanes: dict[TopicPartition, PartitionQueue] = {}
        self._flights: deque[_Flight] = deque()
        self._is_troubled = False
        """The leader refused a batch, and nothing is pushed until that one is acknowledged."""
        self._error: ClientError | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; lent ones only if responses are outstanding, which the next
        writer would read as its own. Records that were not flushed may not be written."""
        if not self._is_lent:
            self._cluster.close()
        elif self._flights:
            self._cluster.disconnect()
        self._flights.clear()

    @property
    def transaction(self) -> OpenTransaction:
        """The same transaction for the next writer, after `flush`."""
        claims = (
            Claim(each.partition, self._lanes[each.partition].next_sequence)
            if each.partition in self._lanes
            else each
            for each in self._transaction.claims
        )
        return replace(self._transaction, claims=tuple(claims))

    def write(self, topic: str, partition: int, data: Columns | Iterable[Columns]) -> None:
        """Rows with `key`, `value` and, if wanted, `headers` and `timestamp`. Raises `NotClaimed`,
        and whatever `flush` raises."""
        from onceflow.records import encode_all

        self._check()
        place = TopicPartition(topic, partition)
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = PartitionQueue(
                place, self._transaction.next_sequence(place)
            )
        for columns in _each(data):
            batches = encode_all(
                columns,
                max_batch_bytes=self._max_batch_bytes,
                codec=self._codec,
                producer_id=self._transaction.producer_id,
                producer_epoch=self._transaction.producer_epoch,
                base_sequence=lane.next_sequence,
                transactional=True,
                now_ms=self._clock.wall_ms(),
            )
            lane.queue(batches)
            if self._queued() >= _WORTH_PUSHING:
                self._push()
            if self._queued() > self._settings.buffer_memory:
                self._deliver(self._settings.buffer_memory // 2)

    def flush(self) -> tuple[WriteResult, ...]:
        """Returns when everything is acknowledged, with the result for each partition.

        Raises `AttemptEnded` or another error of which the transaction can only be aborted;
        `DeliveryFailed` when time is up (`delivery.timeout.ms`).
        """
        self._check()
        self._deliver(0)
        return tuple(lane.written() for _, lane in sorted(self._lanes.items()))

    # --- delivery -------------------------------------------------------------------------------

    def _queued(self) -> int:
        return sum(lane.size for lane in self._lanes.values())

    def _push(self) -> None:
        """Sends queued batches, so that brokers write them while the application makes the next
        rows. Retries are left to `_deliver`, which has time to wait."""
        if self._is_troubled:
            return
        deadline = self._clock.monotonic() + self._settings.transactional_retry.total_s
        with self._failing():
            trouble = None
            while trouble is None and self._flights and self._flights[0].connection.has_answer:
                trouble = self._settle(self._flights.popleft(), deadline)
            if trouble is None and len(self._flights) < _PUSHED:
                trouble = self._send_ready(deadline)
        self._is_troubled = trouble is not None

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Keeps an error for good: after it nothing more can be written."""
        try:
            yield
        except ClientError as error:
            self._error = error
            self.close()
            raise

    def _deliver(self, most: int) -> None:
        """Sends until at most that many bytes are queued."""
        policy = self._settings.transactional_retry
        deadline = self._clock.monotonic() + policy.total_s
        backoff = Backoff(policy, self._rand)
        with self._failing():
            while (before := self._queued()) > most:
                trouble = self._round(most, deadline)
                if trouble is None:
                    continue
                if self._queued() < before:
                    backoff.reset()
                pause_s = backoff.next_s()
                if self._clock.monotonic() + pause_s >= deadline:
                    raise self._too_late(trouble) from trouble
                time.sleep(pause_s)
                if action_for(trouble) is Action.REFRESH:
                    self._forget_leaders(deadline)
        self._is_troubled = False

    def _too_late(self, trouble: ClientError) -> DeliveryFailed:
        waiting = ", ".join(str(each) for each, lane in sorted(self._lanes.items()) if lane.size)
        limit_s = self._settings.transactional_retry.total_s
        return DeliveryFailed(
            f"not acknowledged within {limit_s:g} s: records for {waiting} ({trouble})",
            outcome="unknown",
            advice="let the one who began the transaction abort it; then do all of its work again",
        )

    def _round(self, most: int, deadline: float) -> ClientError | None:
        """Sends and receives until at most `most` bytes are queued, or until an error that is worth
        a retry: returns it, with nothing in flight."""
        trouble: ClientError | None = None
        while True:
            if trouble is None and self._queued() > most:
                trouble = self._send_ready(deadline)
            if not self._flights:
                return trouble
            trouble = graver(trouble, self._settle(self._flights.popleft(), deadline))

    def _settle(self, flight: _Flight, deadline: float) -> ClientError | None:
        """Receives the response to a request; returns an error that is worth a retry."""
        try:
            answers = self._receive(flight, deadline)
        except LOST as error:
            # In doubt, not failed: the same bytes go again, and the leader recognizes them if they
            # had arrived. New sequences would write the records twice.
            for each in flight.batches.values():
                each.lost()
            return error
        trouble: ClientError | None = None
        for answer in answers:
            trouble = graver(trouble, self._take(flight, answer))
        return trouble

    def _send_ready(self, deadline: float) -> ClientError | None:
        """Sends everything that may be sent, all partitions of a leader in one request. Returns an
        error that is worth a retry."""
        try:
            while self._send_next(deadline):
                continue
        except ClientError as error:
            return worth_trying(error)
        return None

    def _send_next(self, deadline: float) -> bool:
        """Sends the next request to each leader; returns whether there was any."""
        ready: dict[BlockingConnection, dict[TopicPartition, Pending]] = {}
        sizes: dict[BlockingConnection, int] = {}
        for partition, lane in self._lanes.items():
            pending = lane.next_to_send()
            if pending is None:
                continue
            leader = self._cluster.leader(partition, deadline)
            size = sizes.get(leader, 0) + len(pending.buffer)
            if size <= _MAX_REQUEST_BYTES or leader not in ready:
                ready.setdefault(leader, {})[partition] = pending
                sizes[leader] = size
        for leader, batches in ready.items():
            self._send(leader, batches, deadline)
        return bool(ready)

    def _send(
        self,
        leader: BlockingConnection,
        batches: Mapping[TopicPartition, Pending],
        deadline: float,
    ) -> None:
        version = leader.version_of(ApiKey.PRODUCE, self._versions())
        topics: dict[str, list[tuple[int, memoryview]]] = {}
        for (topic, number), pending in batches.items():
            topics.setdefault(topic, []).append((number, pending.buffer))
        body = write_produce(
            version,
            topics,
            transactional_id=self._transaction.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._settings.request_timeout_ms,
        )
        for pending in batches.values():
            pending.sent()
        # Noted before it is sent: a request that fails half-way may still have arrived, and its
        # batches are in doubt.
        flight = _Flight(leader, version, batches)
        self._flights.append(flight)
        try:
            leader.send(ApiKey.PRODUCE, version, body, self._cluster.soon(deadline))
        except ClientError as error:
            if error.outcome == "not applied":  # else it would take the next request's answer
                self._flights.remove(flight)
                for pending in batches.values():
                    pending.lost()
            raise

    def _versions(self) -> VersionRange:
        """The Produce versions of this transaction's protocol: a version of the other one would add
        partitions to it implicitly, or not at all."""
        spoken, older = SPOKEN[ApiKey.PRODUCE], NEWEST_WITHOUT_TRANSACTION_V2[ApiKey.PRODUCE]
        if self._transaction.has_own_epoch:
            return VersionRange(older + 1, spoken.newest)
        return VersionRange(spoken.oldest, older)

    def _receive(self, flight: _Flight, deadline: float) -> Sequence[ProduceAnswer]:
        connection, version, batches = flight
        buffer = connection.receive(self._cluster.soon(deadline))

        def read() -> Sequence[ProduceAnswer]:
            answers = read_produce(version, buffer)
            if {each.partition for each in answers} != batches.keys():
                raise MessageMalformed("not the partitions that were asked for")
            return answers

        return connection.understood(ApiKey.PRODUCE, read)

    def _take(self, flight: _Flight, answer: ProduceAnswer) -> ClientError | None:
        """Notes the result of a batch; returns an error that is worth a retry."""
        partition = answer.partition
        lane, pending = self._lanes[partition], flight.batches[partition]
        if not answer.error:
            lane.acknowledged(pending, answer.base_offset)
            return None
        error = BrokerError(
            answer.error, ApiKey.PRODUCE.name, f"partition {partition}", answer.message
        )
        if error.action is Action.DONE:
            lane.acknowledged(pending, answer.base_offset)
            return None
        pending.refused()
        is_behind = lane.is_behind(pending)
        if is_worth_it(error) or (error.code == E.OUT_OF_ORDER_SEQUENCE_NUMBER and is_behind):
            return error
        raise for_good(error, self._transaction) from error

    def _forget_leaders(self, deadline: float) -> None:
        topics = {partition.topic for partition, lane in self._lanes.items() if lane.size}
        try:
            self._cluster.refresh(topics, deadline)
        except ClientError as error:
            worth_trying(error)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise CrossedFork(
                f"this writer belongs to process {self._pid}: two that write under the same "
                "sequences would lose records; make one in each process, each with its own claims"
            )
        if self._error is not None:
            raise copy(self._error)


def _each(data: Columns | Iterable[Columns]) -> Iterable[Columns]:
    import pyarrow as pa

    return (data,) if isinstance(data, pa.Table | pa.RecordBatch) else data
