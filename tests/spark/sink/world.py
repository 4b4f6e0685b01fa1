"""What tests of the sink share: topics, input, and what a foreign reader of committed records
sees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.decided import until_decided

PATIENCE_S: Final = 120.0
"""What answers at once answers late on a machine that others keep busy."""
_PARTITION_END: Final = -191
AT_ONCE: Final = {"fetch.wait.max.ms": 10}
"""A reader hears of the end of a partition when a fetch comes back empty: by default half a second
later."""


def fresh(label: str) -> str:
    """A name that no other test has."""
    return f"{label}-{uuid4().hex[:8]}"


def make_topic(bootstrap: str, label: str, partitions: int = 1) -> str:
    name = fresh(label)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(PATIENCE_S)
    return name


def committed(bootstrap: str, topic: str) -> list[Any]:
    """All committed records of a topic, as confluent-kafka reads them."""
    until_decided(bootstrap)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": fresh("reader"),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            **AT_ONCE,
        }
    )
    try:
        partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        found: list[Any] = []
        ended: set[Any] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"no end of {topic} after {PATIENCE_S} s"
            if error := message.error():
                assert error.code() == _PARTITION_END, error
                ended.add(message.partition())
            else:
                found.append(message)
        return found
    finally:
        consumer.close()


def values(bootstrap: str, topic: str) -> list[str]:
    """The values of a topic, sorted."""
    return sorted(each.value().decode() for each in committed(bootstrap, topic))


def doubled(found: list[str]) -> list[str]:
    return [value for value, times in Counter(found).items() if times > 1]


def put(directory: Path, number: int, rows: range) -> None:
    """A file of lines for a stream of text files; it appears at once."""
    directory.mkdir(exist_ok=True)
    aside = directory / f".{number}"
    aside.write_text("".join(f"{each}\n" for each in rows))
    aside.rename(directory / f"{number:04}.txt")
