"""Which topics there are, as a fold over one log: `__cluster_metadata`.

A record's key says what it is about; its value is JSON, or null when that is gone. Only the last
record of a key counts. The cluster's id is in it too, which producer ids were given away, and what
was altered of the broker's own settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from onceflow.broker.topics.partition import EpochStart
from onceflow.errors import LogCorrupt
from onceflow.log import PartitionLog
from onceflow.producers import Block, IdBlocks
from onceflow.records import PlainRecord, StoredBatch, iter_stored, read_records
from onceflow.types import LogId

METADATA_TOPIC = "__cluster_metadata"
METADATA_LOG = LogId(UUID(int=1), 0)  # as in Apache Kafka
FIRST_EPOCH = (EpochStart(0, 0),)
_READ_BYTES = 1 << 20
_CLUSTER = b"cluster"
_TOPIC = b"topic:"
_PRODUCER_IDS = b"producer-ids"
_BROKER = b"broker:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic as it is written down."""

    topic_id: UUID
    name: str
    partitions: int
    configs: dict[str, str]
    epochs: dict[int, tuple[EpochStart, ...]] = field(default_factory=dict)
    """Of partitions that may have lost records, and so have had more than one epoch."""

    def to_record(self) -> PlainRecord:
        value = {
            "name": self.name,
            "partitions": self.partitions,
            "configs": self.configs,
            "epochs": {str(index): epochs for index, epochs in self.epochs.items()},
        }
        return PlainRecord(_topic_key(self.topic_id), json.dumps(value).encode())


def _topic_key(topic_id: UUID) -> bytes:
    return _TOPIC + str(topic_id).encode()


def topic_gone(topic_id: UUID) -> PlainRecord:
    """Says that a topic was deleted."""
    return PlainRecord(_topic_key(topic_id), None)


def cluster_record(cluster_id: str, known_from: int) -> PlainRecord:
    """Says which cluster this is, and that from offset `known_from` on its log is whole."""
    value = {"id": cluster_id, "known_from": known_from}
    return PlainRecord(_CLUSTER, json.dumps(value).encode())


def producer_ids_record(block: Block) -> PlainRecord:
    """Says that these producer ids are given away."""
    return PlainRecord(_PRODUCER_IDS, json.dumps(block._asdict()).encode())


def broker_record(broker: str, configs: Mapping[str, str]) -> PlainRecord:
    """The altered settings of a broker, or of all brokers if it has no name. A tombstone where no
    setting is left."""
    key = _BROKER + broker.encode()
    return PlainRecord(key, json.dumps({"configs": dict(configs)}).encode() if configs else None)


@dataclass(slots=True)
class MetadataImage:
    """What the records so far say."""

    cluster_id: str | None = None
    known_from: int = 0
    """A log that starts behind this offset has lost records that nothing has replaced."""
    topics: dict[UUID, TopicRecord] = field(default_factory=dict)
    deleted: set[UUID] = field(default_factory=set)
    """Topics of which a record says that they are gone, until compaction drops it."""
    producer_ids: IdBlocks = field(default_factory=IdBlocks)
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    """What was altered of the settings of a broker, or of all of them (an empty name)."""

    def apply(self, record: PlainRecord) -> None:
        """Takes one more record, in log order."""
        key = record.key or b""
        value = None if record.value is None else json.loads(record.value)
        if key == _CLUSTER and value is not None:
            self.cluster_id = value["id"]
            self.known_from = value.get("known_from", 0)
        elif key == _PRODUCER_IDS and value is not None:
            self.producer_ids.apply(Block(**value))
        elif key.startswith(_BROKER):
            self.brokers[key.removeprefix(_BROKER).decode()] = value["configs"] if value else {}
        elif key.startswith(_TOPIC):
            self._apply_topic(UUID(key.removeprefix(_TOPIC).decode()), value)
        else:
            raise LogCorrupt(
                f"{METADATA_TOPIC} holds a record of unknown kind {key!r}: "
                "was this directory written by a newer version?"
            )

    def _apply_topic(self, topic_id: UUID, value: dict[str, object] | None) -> None:
        if value is None:
            self.topics.pop(topic_id, None)
            self.deleted.add(topic_id)
            return
        epochs = value["epochs"]
        configs = value["configs"]
        if not isinstance(epochs, dict) or not isinstance(configs, dict):
            raise LogCorrupt(f"{METADATA_TOPIC} holds a topic record that is not one: {value}")
        self.topics[topic_id] = TopicRecord(
            topic_id=topic_id,
            name=str(value["name"]),
            partitions=int(str(value["partitions"])),
            configs=configs,
            epochs={
                int(index): tuple(EpochStart(*each) for each in starts)
                for index, starts in epochs.items()
            },
        )


def log_records(log: PartitionLog) -> Iterator[PlainRecord]:
    """All records of a log, in order: for internal logs, whose state is a fold over them."""
    for batch in log_batches(log):
        if not batch.header.is_control:
            yield from read_records(batch)


def log_batches(log: PartitionLog) -> Iterator[StoredBatch]:
    """All durable batches of a log, in order."""
    offset = log.start_offset
    while offset < log.high_watermark:
        for batch in iter_stored(log.read(offset, _READ_BYTES).read()):
            offset = batch.header.next_offset
            yield batch
