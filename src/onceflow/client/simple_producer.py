"""Sends records to one topic and says at which offsets they are; every record is acknowledged by
all in-sync replicas (acks=all).

A record with a key goes where every Kafka client would send it (murmur2); records without one stay
with a partition until what is gathered has been sent, then with another. A batch whose answer is
lost is sent again: records may be doubled, never lost and never reordered within a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from onceflow.client.cluster import Cluster
from onceflow.client.errors import AnswerMalformed, BrokerError
from onceflow.client.model import Topic, TopicPartition
from onceflow.client.produce_wire import ProduceAnswer, read_produce, write_produce
from onceflow.errors import MessageMalformed
from onceflow.records.arrow import HEADERS
from onceflow.records.batch import Codec, NewBatch
from onceflow.records.columns import encode_all
from onceflow.records.murmur2 import partition_for_key
from onceflow.runtime.clock import Clock
from onceflow.runtime.rand import Rand
from onceflow.wire.api import ApiKey

MAX_BATCH_BYTES: Final = 512 << 10
"""Half of what a topic takes by default, before compression."""
_ALL_REPLICAS: Final = -1


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be sent; without a timestamp it gets the time of sending."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """Acknowledged records: how many, and the offsets of the first and the last."""

    partition: int
    records: int
    first_offset: int
    last_offset: int

    def after(self, before: Sent | None) -> Sent:
        """This and what was sent before it, together."""
        if before is None:
            return self
        records = before.records + self.records
        return Sent(self.partition, records, before.first_offset, self.last_offset)


class SimpleProducer:
    """For one topic. Call `send` with many records at once: a call is a round trip."""

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        *,
        clock: Clock,
        rand: Rand,
        codec: Codec = Codec.NONE,
        partition: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._clock = clock
        self._rand = rand
        self._codec = codec
        self._partition = partition

    async def send(self, records: Iterable[NewRecord]) -> list[Sent]:
        """Returns when all records are acknowledged, with one entry for each partition."""
        now_ms = self._clock.wall_ms()
        queues = {
            TopicPartition(self._topic.name, partition): encode_all(
                _columns(rows), max_batch_bytes=MAX_BATCH_BYTES, codec=self._codec, now_ms=now_ms
            )
            for partition, rows in self._distribute(records).items()
        }
        sent: dict[TopicPartition, Sent] = {}
        while queues:
            # One batch of each partition at a time: a request stays small, and the order is kept
            # when one of them has to be sent again.
            heads = {partition: batches[0] for partition, batches in queues.items()}
            for partition, offset in (await self._send_heads(heads)).items():
                count = heads[partition].header.record_count
                now = Sent(partition.partition, count, offset, offset + count - 1)
                sent[partition] = now.after(sent.get(partition))
            queues = {key: batches[1:] for key, batches in queues.items() if len(batches) > 1}
        return sorted(sent.values(), key=lambda each: each.partition)

    def _distribute(self, records: Iterable[NewRecord]) -> dict[int, list[NewRecord]]:
        count = len(self._topic.partitions)
        sticky = self._rand.randrange(count) if self._partition is None else self._partition
        rows: dict[int, list[NewRecord]] = {}
        for record in records:
            partition = sticky
            if self._partition is None and record.key is not None:
                partition = partition_for_key(record.key, count)
            rows.setdefault(partition, []).append(record)
        return rows

    async def _send_heads(
        self, heads: Mapping[TopicPartition, NewBatch]
    ) -> dict[TopicPartition, int]:
        """The offsets that the batches got; those that are acknowledged are not sent again."""
        offsets: dict[TopicPartition, int] = {}

        async def attempt() -> None:
            missing = [partition for partition in heads if partition not in offsets]
            leaders = await self._cluster.by_leader(missing)
            answers = await asyncio.gather(
                *(self._ask(leader, heads, led) for leader, led in leaders.items())
            )
            refused = []
            for answer in (each for part in answers for each in part):
                if answer.error:
                    refused.append(answer)
                else:
                    offsets[answer.partition] = answer.base_offset
            if refused:
                raise _refusal(refused[0])

        await self._cluster.retrying(attempt)
        return offsets

    async def _ask(
        self,
        leader: int,
        batches: Mapping[TopicPartition, NewBatch],
        partitions: list[TopicPartition],
    ) -> list[ProduceAnswer]:
        connection = await self._cluster.broker(leader)
        version = connection.version_of(ApiKey.PRODUCE)
        request = write_produce(
            version,
            {self._topic.name: [(each.partition, batches[each].buffer) for each in partitions]},
            transactional_id=None,
            acks=_ALL_REPLICAS,
            timeout_ms=int(self._cluster.settings.request_timeout_s * 500),
        )
        frame = await connection.submit(ApiKey.PRODUCE, version, request)
        try:
            answers = read_produce(version, frame)
        except MessageMalformed as error:
            raise connection.malformed(ApiKey.PRODUCE, version, error) from error
        if {each.partition for each in answers} != set(partitions):
            raise AnswerMalformed(f"{connection.address} answers for other partitions")
        return answers


def _refusal(answer: ProduceAnswer) -> BrokerError:
    subject = f"partition {answer.partition}"
    return BrokerError(answer.error, ApiKey.PRODUCE.name, subject, answer.message)


def _columns(records: Sequence[NewRecord]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "key": pa.array([each.key for each in records], pa.binary()),
        "value": pa.array([each.value for each in records], pa.binary()),
        "timestamp": pa.array([each.timestamp_ms for each in records], pa.int64()),
    }
    if any(each.headers for each in records):
        columns["headers"] = pa.array(
            [[{"key": name, "value": value} for name, value in each.headers] for each in records],
            HEADERS,
        )
    return pa.record_batch(columns)
