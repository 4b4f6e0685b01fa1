"""aiokafka behind the common face, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata

from tests.interop.broker.clients.face import (
    HEARTBEAT_MS,
    SESSION_MS,
    Message,
    Place,
    Received,
    Refused,
    all_received,
)

SECONDS = 15.0
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


def refused(error: KafkaError) -> Refused:
    return Refused.by_code(getattr(error, "errno", None), type(error).__name__)


class Loop:
    """An event loop in a thread: coroutines are run from outside, and waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except KafkaError as error:
            raise refused(error) from error

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AiokafkaReader:
    """An AIOKafkaConsumer, of one partition or in a group."""

    def __init__(self, loop: Loop, topic: str, partition: int | None, configs: Any) -> None:
        self._loop = loop
        self._topic = topic
        self._consumer = loop.run(self._start(partition, configs))

    async def _start(self, partition: int | None, configs: Any) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**configs)
        if partition is None:
            consumer.subscribe([self._topic])
        else:
            consumer.assign([TopicPartition(self._topic, partition)])
        await consumer.start()
        return consumer

    def poll(self, seconds: float) -> list[Received]:
        batches = self._loop.run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return all_received(batches)

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def assignment(self) -> frozenset[Place]:
        return frozenset((part.topic, part.partition) for part in self._consumer.assignment())

    def commit(self, offsets: Mapping[Place, int]) -> None:
        rows = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._loop.run(self._consumer.commit(rows))

    def committed(self, place: Place) -> int | None:
        found: int | None = self._loop.run(self._consumer.committed(TopicPartition(*place)))
        return found

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


class Aiokafka:
    """The client as such."""

    name = "aiokafka"
    codecs: Sequence[str] = ("none", "gzip", "snappy", "lz4", "zstd")
    strategies: Sequence[str] = ("range", "roundrobin", "sticky")
    null_headers = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = Loop()
        self._admin = self._loop.run(self._start_admin())

    async def _start_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        return admin

    def produce(
        self, topic: str, messages: Sequence[Message], *, acks: int = -1, codec: str = "none"
    ) -> list[int | str]:
        found: list[int | str] = self._loop.run(self._produce(topic, messages, acks, codec))
        return found

    async def _produce(
        self, topic: str, messages: Sequence[Message], acks: int, codec: str
    ) -> list[int | str]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks="all" if acks == -1 else acks,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_request_size=8_000_000,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            await producer.flush()
            return [await self._offset(future) for future in futures]
        finally:
            await producer.stop()

    async def _offset(self, future: Any) -> int | str:
        try:
            metadata = await future
        except KafkaError as error:
            return refused(error).name
        return -1 if metadata is None else int(metadata.offset)

    def _reader(self, topic: str, partition: int | None, **configs: Any) -> AiokafkaReader:
        common = {"bootstrap_servers": self._bootstrap, "enable_auto_commit": False}
        common |= {"fetch_max_wait_ms": 100}
        return AiokafkaReader(self._loop, topic, partition, {**common, **configs})

    def read(self, topic: str, *, start: str = "earliest", partition: int = 0) -> AiokafkaReader:
        return self._reader(topic, partition, auto_offset_reset=start)

    def join(
        self, group: str, topic: str, *, strategy: str = "range", instance: str | None = None
    ) -> AiokafkaReader:
        return self._reader(
            topic,
            None,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            partition_assignment_strategy=(ASSIGNORS[strategy],),
        )

    def offsets(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        low, high = self._loop.run(self._ask(topic, "beginning_offsets end_offsets", [place]))
        return low[place], high[place]

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, 0)
        (found,) = self._loop.run(self._ask(topic, "offsets_for_times", {place: timestamp_ms}))
        return None if found[place] is None else int(found[place].offset)

    async def _ask(self, topic: str, questions: str, argument: Any) -> list[Any]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap)
        await consumer.start()
        try:
            return [await getattr(consumer, question)(argument) for question in questions.split()]
        finally:
            await consumer.stop()

    def _checked(self, rows: Any) -> None:
        for row in rows:
            if row[1]:
                raise refused(for_code(row[1])())

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        row = NewTopic(topic, partitions, factor, topic_configs=dict(configs or {}))
        self._checked(self._loop.run(self._admin.create_topics([row])).topic_errors)

    def delete(self, topic: str) -> None:
        answer = self._loop.run(self._admin.delete_topics([topic]))
        self._checked(answer.topic_error_codes)

    def add_partitions(self, topic: str, total: int) -> None:
        answer = self._loop.run(self._admin.create_partitions({topic: NewPartitions(total)}))
        self._checked(answer.topic_errors)

    def topics(self) -> dict[str, int]:
        rows = self._loop.run(self._admin.describe_topics())
        return {row["topic"]: len(row["partitions"]) for row in rows}

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._loop.run(self._admin.describe_configs([resource]))
        ((code, _, _, _, entries),) = answer.resources
        if code:
            raise refused(for_code(code)())
        return {entry[0]: entry[1] for entry in entries}

    def delete_records(self, topic: str, before: int) -> int:
        place = TopicPartition(topic, 0)
        answer = self._loop.run(self._admin.delete_records({place: RecordsToDelete(before)}))
        return int(answer[place])

    def group_state(self, group: str) -> tuple[str, int]:
        (answer,) = self._loop.run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = answer.groups
        if code:
            raise refused(for_code(code)())
        return state, len(members)

    def groups(self) -> list[str]:
        return [row[0] for row in self._loop.run(self._admin.list_consumer_groups())]

    def group_offsets(self, group: str) -> dict[Place, int]:
        found: Mapping[TopicPartition, OffsetAndMetadata]
        found = self._loop.run(self._admin.list_consumer_group_offsets(group))
        return {(place.topic, place.partition): row.offset for place, row in found.items()}

    def close(self) -> None:
        self._loop.run(self._admin.close())
        self._loop.close()
