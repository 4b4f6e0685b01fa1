"""confluent-kafka (librdkafka) behind the common face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by its stubs
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.interop.broker.clients.face import (
    HEARTBEAT_MS,
    SESSION_MS,
    Message,
    Place,
    Received,
    Refused,
)

__all__ = (
    "Confluent",
    "refused",
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "OffsetSpec",
)
SECONDS = 15.0


def refused(error: KafkaError) -> Refused:
    return Refused.by_code(error.code(), error.name())


def received(message: Any) -> Received:
    headers = tuple((key, value) for key, value in message.headers() or ())
    place = (message.partition(), message.offset())
    return Received(*place, message.key(), message.value(), headers, message.timestamp()[1])


class ConfluentReader:
    """A Consumer, of one partition or in a group."""

    def __init__(self, configs: Mapping[str, Any], topic: str, partition: int | None) -> None:
        self._consumer = Consumer(dict(configs))
        self._topic = topic
        if partition is None:
            self._consumer.subscribe([topic])
        else:
            where = OFFSET_END if configs["auto.offset.reset"] == "latest" else OFFSET_BEGINNING
            self._consumer.assign([TopicPartition(topic, partition, where)])

    def poll(self, seconds: float) -> list[Received]:
        found = []
        for message in self._consumer.consume(500, seconds):
            if error := message.error():
                raise refused(error)
            found.append(received(message))
        return found

    def seek(self, partition: int, offset: int) -> None:
        # A partition can be sought only once it is being fetched; assigning places it at once.
        self._consumer.assign([TopicPartition(self._topic, partition, offset)])

    def assignment(self) -> frozenset[Place]:
        return frozenset((part.topic, part.partition) for part in self._consumer.assignment())

    def commit(self, offsets: Mapping[Place, int]) -> None:
        rows = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException as error:
            raise refused(error.args[0]) from error

    def committed(self, place: Place) -> int | None:
        (row,) = self._consumer.committed([TopicPartition(*place)], timeout=SECONDS)
        return None if row.offset == OFFSET_INVALID else int(row.offset)

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    """The client as such; each producer and consumer lives for one call or one reader."""

    name = "confluent"
    codecs: Sequence[str] = ("none", "gzip", "snappy", "lz4", "zstd")
    strategies: Sequence[str] = ("range", "cooperative-sticky")
    null_headers = True

    def __init__(self, bootstrap: str) -> None:
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": "confluent"}
        # An error that is not fatal (a broker that closed a connection) is logged by default.
        self._common |= {"log_level": "0"}
        self._admin = AdminClient(self._common)

    def produce(
        self, topic: str, messages: Sequence[Message], *, acks: int = -1, codec: str = "none"
    ) -> list[int | str]:
        configs = {"acks": acks, "compression.type": codec, "linger.ms": 20}
        more = {"enable.idempotence": False, "message.max.bytes": 8_000_000}
        producer = Producer({**self._common, **configs, **more})
        results: list[int | str] = ["not delivered"] * len(messages)

        def report(number: int) -> Any:
            def delivered(error: KafkaError | None, message: Any) -> None:
                results[number] = refused(error).name if error else message.offset()

            return delivered

        for number, message in enumerate(messages):
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                report(number),
                timestamp=message.timestamp_ms or 0,
                headers=list(message.headers),
            )
        producer.flush(SECONDS)
        return results

    def _reader(self, topic: str, partition: int | None, **configs: Any) -> ConfluentReader:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        common = {**self._common, "enable.auto.commit": False, "fetch.wait.max.ms": 100}
        return ConfluentReader({**common, **named}, topic, partition)

    def read(self, topic: str, *, start: str = "earliest", partition: int = 0) -> ConfluentReader:
        reset = {"auto_offset_reset": "error" if start == "none" else start}
        return self._reader(topic, partition, group_id="unused", **reset)

    def join(
        self, group: str, topic: str, *, strategy: str = "range", instance: str | None = None
    ) -> ConfluentReader:
        configs: dict[str, Any] = {"heartbeat_interval_ms": HEARTBEAT_MS, "group_id": group}
        configs |= {"session_timeout_ms": SESSION_MS, "auto_offset_reset": "earliest"}
        configs |= {"partition_assignment_strategy": strategy}
        configs |= {"group_instance_id": instance} if instance else {}
        return self._reader(topic, None, **configs)

    def offsets(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        consumer = Consumer({**self._common, "group.id": "unused"})
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)
        consumer.close()
        return low, high

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        consumer = Consumer({**self._common, "group.id": "unused"})
        asked = [TopicPartition(topic, 0, timestamp_ms)]
        (row,) = consumer.offsets_for_times(asked, timeout=SECONDS)
        consumer.close()
        return None if row.offset == -1 else int(row.offset)

    def _result(self, futures: Mapping[Any, Any]) -> Any:
        (future,) = futures.values()
        try:
            return future.result()
        except KafkaException as error:
            raise refused(error.args[0]) from error

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        row = NewTopic(topic, partitions, factor, config=dict(configs or {}))
        self._result(self._admin.create_topics([row]))

    def delete(self, topic: str) -> None:
        self._result(self._admin.delete_topics([topic]))

    def add_partitions(self, topic: str, total: int) -> None:
        self._result(self._admin.create_partitions([NewPartitions(topic, total)]))

    def topics(self) -> dict[str, int]:
        listed = self._admin.list_topics(timeout=SECONDS).topics
        return {name: len(row.partitions) for name, row in listed.items()}

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = self._result(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in found.items()}

    def delete_records(self, topic: str, before: int) -> int:
        rows = [TopicPartition(topic, 0, before)]
        return int(self._result(self._admin.delete_records(rows)).low_watermark)

    def group_state(self, group: str) -> tuple[str, int]:
        found = self._result(self._admin.describe_consumer_groups([group]))
        return str(found.state.name), len(found.members)

    def groups(self) -> list[str]:
        return [row.group_id for row in self._admin.list_consumer_groups().result().valid]

    def group_offsets(self, group: str) -> dict[Place, int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = self._result(self._admin.list_consumer_group_offsets(asked))
        return {(row.topic, row.partition): row.offset for row in found.topic_partitions}

    def close(self) -> None:
        pass
