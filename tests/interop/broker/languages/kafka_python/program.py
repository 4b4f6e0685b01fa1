"""What kafka-python of the second line asks of a broker, and what it is answered: one JSON object a
line, {"step": ..., "saw": ...}.

    PYTHONPATH=<kafka-python 2> python program.py BOOTSTRAP PREFIX

Version 3, which all other tests use, can alter single configs; this one gives a resource all its
configs at once, by AlterConfigs, and its requests are of versions before tagged fields.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, KafkaAdminClient, NewPartitions, NewTopic
from kafka.errors import KafkaError, for_code
from kafka.structs import OffsetAndMetadata

PATIENCE: Final = 15.0
PAUSE: Final = 0.02
FIRST_TIMESTAMP: Final = 1_700_000_000_000
SECONDS: Final = 30
CODECS: Final = ("gzip",)
"""Those that need no package beside Python."""


def note(step: str, saw: object) -> None:
    print(json.dumps({"step": step, "saw": saw}), flush=True)


def outcome(act: Callable[[], Any]) -> str:
    try:
        act()
    except KafkaError as error:
        return type(error).__name__
    return "done"


def name_of(code: int) -> str:
    return str(for_code(code).__name__)


def eventually(ask: Callable[[], Any], expected: object) -> Any:
    """What is seen as soon as it is what was expected, or else what is seen at last."""
    deadline = time.monotonic() + PATIENCE
    while (saw := ask()) != expected and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return saw


class Program:
    """One run, whose names all begin alike."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap)
        self.here = TopicPartition(self.name("in"), 0)

    def run(self) -> None:
        self.topics()
        self.topic_configs()
        self.broker_configs()
        self.produce()
        self.tools()
        self.transactions()
        self.groups()
        self.codecs()
        self.deletion()
        self.admin.close()

    def name(self, label: str) -> str:
        return self.prefix + label

    def mine(self, names: Iterable[str]) -> list[str]:
        return sorted(name for name in names if name.startswith(self.prefix))

    def topics(self) -> None:
        def create(label: str, partitions: int, factor: int, **configs: str) -> str:
            settings = {key.replace("_", "."): value for key, value in configs.items()}
            topic = NewTopic(self.name(label), partitions, factor, topic_configs=settings)
            return outcome(lambda: self.admin.create_topics([topic]))

        note("create with too many replicas", create("in", 2, 3))
        note("create with nonsense", create("in", 2, 1, retention_ms="x"))
        note("create", create("in", 2, 1, max_message_bytes="500000"))
        note("create again", create("in", 2, 1))
        note("create another", create("out", 1, 1))
        note("create a third", create("codecs", 1, 1))
        for count in (3, 2):
            grow = partial(self.admin.create_partitions, {self.name("in"): NewPartitions(count)})
            note(f"partitions {count}", outcome(grow))
        every = self.mine(map(self.name, ("codecs", "in", "out")))
        note("topics", eventually(lambda: self.mine(self.admin.list_topics()), every))

        def partitions() -> int:
            (topic,) = self.admin.describe_topics([self.name("in")])
            return len(topic["partitions"])

        note("partitions", eventually(partitions, 3))
        (topic,) = self.admin.describe_topics([self.name("in")])
        note("operations", topic["authorized_operations"])

    def values(self, kind: str, name: str, *keys: str) -> list[list[Any]]:
        resource = ConfigResource(kind, name, dict.fromkeys(keys))
        (answer,) = self.admin.describe_configs([resource], include_synonyms=True)
        (found,) = answer.resources
        # Name, value, whether it is read-only, where it comes from.
        return sorted([list(entry[:4]) for entry in found[4]])

    def alter(self, kind: str, name: str, configs: Mapping[str, str]) -> str:
        answer = self.admin.alter_configs([ConfigResource(kind, name, dict(configs))])
        return name_of(answer.resources[0][0])

    def topic_configs(self) -> None:
        topic, keys = self.name("in"), ("retention.ms", "segment.bytes")

        def seen(*expected: tuple[str, int]) -> Any:
            rows = [
                [key, value, False, source]
                for key, (value, source) in zip(keys, expected, strict=True)
            ]
            return eventually(lambda: self.values("TOPIC", topic, *keys), rows)

        note("alter one", self.alter("TOPIC", topic, {"retention.ms": "90000000"}))
        note("alter one: then", seen(("90000000", 1), ("1073741824", 5)))
        note("alter another", self.alter("TOPIC", topic, {"segment.bytes": "2000000"}))
        note("alter another: then", seen(("604800000", 5), ("2000000", 1)))
        note("alter to nonsense", self.alter("TOPIC", topic, {"retention.ms": "x"}))
        note("alter an unknown one", self.alter("TOPIC", topic, {"no.such": "1"}))
        absent = self.alter("TOPIC", self.name("absent"), {"retention.ms": "1"})
        note("alter an absent topic", absent)

    def broker_configs(self) -> None:
        key, broker = "compression.lz4.level", "1"

        def seen(value: str, source: int) -> Any:
            row = [key, value, False, source]
            return eventually(lambda: self.values("BROKER", broker, key), [row])

        note("alter the broker", self.alter("BROKER", broker, {key: "5"}))
        note("alter the broker: then", seen("5", 2))
        note("alter what is read-only", self.alter("BROKER", broker, {"num.partitions": "5"}))
        note("take it back", self.alter("BROKER", broker, {}))
        note("take it back: then", seen("9", 5))

    def producer(self, **configs: Any) -> Any:
        return KafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, **configs)

    def produce(self) -> None:
        producer = self.producer()
        for number, value in enumerate([b"a", b"b", b"c"]):
            sent = producer.send(
                self.name("in"),
                value=value,
                key=b"key",
                headers=[("number", bytes([number]))],
                partition=0,
                timestamp_ms=FIRST_TIMESTAMP + number,
            )
            note(f"produce {value.decode()}", sent.get(SECONDS).offset)
        producer.close()

    def tools(self) -> None:
        # It speaks the first version only, which Apache Kafka no longer does either.
        note("log dirs", outcome(self.admin.describe_log_dirs))
        for kind in (0, 1):
            for label in ("in", "absent"):
                note(f"elect {kind} {label}", self.elected(kind, self.name(label)))
        cluster = self.admin.describe_cluster()
        note(
            "cluster",
            [cluster["controller_id"], len(cluster["brokers"]), cluster["authorized_operations"]],
        )

    def elected(self, kind: int, topic: str) -> Any:
        try:
            answer = self.admin.perform_leader_election(kind, {topic: [0]})
        except KafkaError as error:
            return type(error).__name__
        ((_, rows),) = answer.replication_election_results
        return [name_of(answer.error_code), *(name_of(row[1]) for row in rows)]

    def consumer(self, group: str | None = None, *, isolation: str = "read_committed") -> Any:
        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=isolation,
            fetch_max_wait_ms=100,
        )

    def transactions(self) -> None:
        consumer = self.consumer(self.name("group"))
        consumer.subscribe([self.name("in")])
        rows = self.records(consumer, 3)
        note("consumed", [[row.offset, row.value.decode(), row.timestamp] for row in rows])
        producer = self.producer(transactional_id=self.name("transaction"))
        producer.init_transactions()
        offsets = {self.here: OffsetAndMetadata(3, "in a transaction", -1)}
        for step, end in (
            ("abort", producer.abort_transaction),
            ("commit", producer.commit_transaction),
        ):
            producer.begin_transaction()
            for row in rows:
                producer.send(self.name("out"), value=step.encode() + row.value).get(SECONDS)
            producer.send_offsets_to_transaction(offsets, self.name("group"))
            end()
            expected = 3 if step == "commit" else None
            note(f"{step}: offset", eventually(lambda: consumer.committed(self.here), expected))
        producer.close()
        note("delete a group with members", self.delete_group())
        consumer.close()
        for isolation, count in (("read_committed", 3), ("read_uncommitted", 6)):
            note(isolation, self.read("out", count, isolation))

    def records(self, consumer: Any, count: int) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            for rows in consumer.poll(timeout_ms=1000).values():
                found += rows
        return found

    def read(self, label: str, count: int, isolation: str = "read_committed") -> list[Any]:
        consumer = self.consumer(isolation=isolation)
        consumer.assign([TopicPartition(self.name(label), 0)])
        rows = self.records(consumer, count)
        consumer.close()
        return [[row.offset, row.value.decode()] for row in rows]

    def groups(self) -> None:
        def described() -> list[Any]:
            (found,) = self.admin.describe_consumer_groups([self.name("group")])
            return [found.state, found.protocol_type, found.protocol, len(found.members)]

        note("group", eventually(described, ["Empty", "consumer", "", 0]))
        note("groups", self.listed_groups())
        found = self.admin.list_consumer_group_offsets(self.name("group"))
        note("offsets", sorted([*place, row.offset, row.metadata] for place, row in found.items()))
        note("delete a group", self.delete_group())
        note("delete an absent group", self.delete_group())
        note("groups then", self.listed_groups())

    def listed_groups(self) -> list[str]:
        return self.mine(group for group, _ in self.admin.list_consumer_groups())

    def delete_group(self) -> str:
        ((_, error),) = self.admin.delete_consumer_groups([self.name("group")])
        return str(error.__name__)

    def codecs(self) -> None:
        for codec in CODECS:
            producer = self.producer(compression_type=codec)
            value = f"{codec} ".encode() * 20
            note(f"compress {codec}", producer.send(self.name("codecs"), value).get(SECONDS).offset)
            producer.close()
        note("compressed", self.read("codecs", len(CODECS)))

    def deletion(self) -> None:
        found = self.admin.delete_records({self.here: 1})
        note("delete records", [found[self.here]["low_watermark"], found[self.here]["error_code"]])

        def delete(label: str) -> str:
            return outcome(lambda: self.admin.delete_topics([self.name(label)]))

        note("delete a topic", delete("in"))
        again = eventually(lambda: delete("in"), "UnknownTopicOrPartitionError")
        note("delete it again", again)
        note("delete another", delete("out"))
        note("delete a third", delete("codecs"))
        note("topics then", eventually(lambda: self.mine(self.admin.list_topics()), []))


if __name__ == "__main__":
    note("version", kafka.__version__)
    Program(*sys.argv[1:]).run()
