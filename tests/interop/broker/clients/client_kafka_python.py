"""kafka-python behind the common face."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.interop.broker.clients.face import (
    HEARTBEAT_MS,
    SESSION_MS,
    Message,
    Place,
    Received,
    Refused,
    all_received,
)
from tests.interop.harness import eventually

with warnings.catch_warnings():
    # It reads its message schemas, while it is imported, by a function that Python deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import (
        ConfigResource,
        ConfigResourceType,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

__all__ = (
    "KafkaPython",
    "translated",
    "ConfigResource",
    "ConfigResourceType",
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaProducer",
    "OffsetAndMetadata",
    "OffsetSpec",
    "TopicPartition",
)
SECONDS = 15.0
ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


def refused(error: KafkaError) -> Refused:
    return Refused.by_code(getattr(error, "errno", None), type(error).__name__)


def translated(act: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return act(*arguments, **options)
    except KafkaError as error:
        raise refused(error) from error


class KafkaPythonReader:
    """A KafkaConsumer, of one partition or in a group."""

    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def poll(self, seconds: float) -> list[Received]:
        batches = translated(self._consumer.poll, timeout_ms=int(seconds * 1000))
        return all_received(batches)

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def assignment(self) -> frozenset[Place]:
        return frozenset((part.topic, part.partition) for part in self._consumer.assignment())

    def commit(self, offsets: Mapping[Place, int]) -> None:
        rows = {
            TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        translated(self._consumer.commit, rows)

    def committed(self, place: Place) -> int | None:
        found: int | None = translated(self._consumer.committed, TopicPartition(*place))
        return found

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class KafkaPython:
    """The client as such."""

    name = "kafka_python"
    codecs: Sequence[str] = ("none", "gzip")
    strategies: Sequence[str] = ("range", "cooperative-sticky")
    null_headers = False

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def produce(
        self, topic: str, messages: Sequence[Message], *, acks: int = -1, codec: str = "none"
    ) -> list[int | str]:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=False,
            acks=acks,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_request_size=8_000_000,
            retries=3,
        )
        futures = [
            producer.send(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=message.partition,
                timestamp_ms=message.timestamp_ms,
            )
            for message in messages
        ]
        producer.flush(SECONDS)
        results: list[int | str] = []
        for future in futures:
            try:
                results.append(translated(future.get, SECONDS).offset)
            except Refused as refusal:
                results.append(refusal.name)
        producer.close(SECONDS)
        return results

    def _consumer(self, **configs: Any) -> KafkaConsumer:
        common = {"bootstrap_servers": self._bootstrap, "enable_auto_commit": False}
        return KafkaConsumer(**common, fetch_max_wait_ms=100, **configs)

    def read(self, topic: str, *, start: str = "earliest", partition: int = 0) -> KafkaPythonReader:
        consumer = self._consumer(auto_offset_reset=start)
        consumer.assign([TopicPartition(topic, partition)])
        return KafkaPythonReader(consumer, topic)

    def join(
        self, group: str, topic: str, *, strategy: str = "range", instance: str | None = None
    ) -> KafkaPythonReader:
        consumer = self._consumer(
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            partition_assignment_strategy=(ASSIGNORS[strategy],),
        )
        # A leader must know the topic's partitions before it joins: one that does not hands out
        # none, and one that learns of them afterwards joins again, for that reason alone. That
        # reason is gone once it has assigned them; where poll gave up waiting just then, the
        # client takes itself for joined, leaves the answer, sends no heartbeat and is lost. What
        # is known from before the subscription does not count, so the subscription comes first.
        consumer.subscribe([topic])
        eventually(lambda: consumer.partitions_for_topic(topic), bool)
        return KafkaPythonReader(consumer, topic)

    def offsets(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        consumer = self._consumer()
        low = translated(consumer.beginning_offsets, [place])[place]
        high = translated(consumer.end_offsets, [place])[place]
        consumer.close()
        return low, high

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, 0)
        consumer = self._consumer()
        found = translated(consumer.offsets_for_times, {place: timestamp_ms})[place]
        consumer.close()
        return None if found is None else int(found.offset)

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        row = NewTopic(topic, partitions, factor, topic_configs=dict(configs or {}))
        translated(self._admin.create_topics, [row])

    def delete(self, topic: str) -> None:
        translated(self._admin.delete_topics, [topic])

    def add_partitions(self, topic: str, total: int) -> None:
        translated(self._admin.create_partitions, {topic: NewPartitions(total)})

    def topics(self) -> dict[str, int]:
        rows = translated(self._admin.describe_topics)
        return {row["name"]: len(row["partitions"]) for row in rows}

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = translated(self._admin.describe_configs, [resource], config_filter="all")
        return {name: row["value"] for name, row in found["topic"][topic].items()}

    def delete_records(self, topic: str, before: int) -> int:
        place = TopicPartition(topic, 0)
        found = translated(self._admin.delete_records, {place: before})
        return int(found[place]["low_watermark"])

    def group_state(self, group: str) -> tuple[str, int]:
        found = translated(self._admin.describe_groups, [group])[group]
        return found["group_state"], len(found["members"])

    def groups(self) -> list[str]:
        return [row["group_id"] for row in translated(self._admin.list_groups)]

    def group_offsets(self, group: str) -> dict[Place, int]:
        found = translated(self._admin.list_group_offsets, [group])[group]
        return {(place.topic, place.partition): row.offset for place, row in found.items()}

    def close(self) -> None:
        self._admin.close()
