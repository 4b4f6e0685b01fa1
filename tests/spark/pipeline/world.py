"""What tests of pipelines share: topics that are filled and read by a client that others wrote, and
examples in a directory of their own."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple
from uuid import uuid4

import confluent_kafka
import confluent_kafka.admin

from tests.interop.decided import until_decided
from tests.spark.sink.world import AT_ONCE

EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples"
_QUIET: Final = {"log_level": 0}
_PATIENCE_S: Final = 60.0


class Read(NamedTuple):
    """A committed record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


def make_topic(bootstrap: str, name: str, partitions: int = 2) -> str:
    admin: Any = confluent_kafka.admin.AdminClient({**_QUIET, "bootstrap.servers": bootstrap})
    wanted = confluent_kafka.admin.NewTopic(name, partitions, 1)  # type: ignore[attr-defined]  # it is there
    admin.create_topics([wanted])[name].result(_PATIENCE_S)
    return name


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    partition: int | None = None,
) -> None:
    """Keys and values, in order; by Kafka's own hash of the key where no partition is given."""
    producer = confluent_kafka.Producer(
        {**_QUIET, "bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}
    )
    where: dict[str, Any] = {} if partition is None else {"partition": partition}
    for key, value in records:
        producer.produce(topic, value, key, **where)
        producer.poll(0)
    assert producer.flush(_PATIENCE_S) == 0


def read_all(bootstrap: str, topic: str) -> list[Read]:
    """All committed records of a topic, partition by partition."""
    until_decided(bootstrap)
    consumer = confluent_kafka.Consumer(
        {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid4()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **AT_ONCE,
        }
    )
    try:
        known = consumer.list_topics(topic, _PATIENCE_S).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in known])
        found: list[Read] = []
        ended: set[int] = set()
        while len(ended) < len(known):
            message: Any = consumer.poll(_PATIENCE_S)
            assert message is not None, f"nothing came of {topic}"
            if (error := message.error()) is None:
                headers = dict(message.headers() or ())
                place = (message.partition(), message.offset())
                found.append(Read(*place, message.key(), message.value(), headers))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise AssertionError(error)
        return sorted(found)
    finally:
        consumer.close()


def example(name: str, tmp_path: Path) -> tuple[Path, ModuleType]:
    """A copy of an example, and its generator."""
    place = tmp_path / name
    shutil.copytree(EXAMPLES / name, place, ignore=shutil.ignore_patterns("state", "__pycache__"))
    spec = importlib.util.spec_from_file_location(f"generate_{name}", place / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return place / "pipeline.toml", module


def tables(topic: str, output: str, **more: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a small pipeline of JSON, `more` on top of them."""
    made: dict[str, Any] = {
        "source": {
            "topics": [topic],
            "format": "json",
            "schema": "id BIGINT NOT NULL, name STRING, cents BIGINT",
        },
        "sink": {"topic": output, "format": "json"},
    }
    for name, table in more.items():
        made[name] = {**made.get(name, {}), **table}
    return made
