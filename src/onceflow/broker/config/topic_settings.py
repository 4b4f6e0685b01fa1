"""The table of topic configs: those of Apache Kafka 4.3, by name, type, default and range.

`takes_effect` says whether this broker acts on a config: the others are accepted, kept and
described, so that a topic can be moved here as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from onceflow.broker.config.topic_values import (
    GZIP_LEVEL,
    KAFKA_BOOLEAN,
    BrokerName,
    TopicSetting,
    kafka_choice,
    kafka_double,
    kafka_int,
    kafka_list,
    kafka_long,
    throttled_replicas,
)
from onceflow.errors import InvalidSetting
from onceflow.settings import LONG_MAX, Setting, SettingKind

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"


def _setting(
    name: str,
    kind: SettingKind,
    default: int | float | str,
    meaning: str,
    *broker_names: str | BrokerName,
    takes_effect: bool = True,
) -> TopicSetting:
    """A row: a broker's name alone stands for one with the same default as the topic's."""
    return TopicSetting(
        name=name,
        kind=kind,
        default=str(default),
        meaning=meaning if takes_effect else f"No effect here. {meaning}",
        takes_effect=takes_effect,
        broker_names=tuple(
            BrokerName(each, str(default)) if isinstance(each, str) else each
            for each in broker_names
        ),
    )


_ROWS: Final = (
    # What is kept, and for how long.
    _setting(
        "cleanup.policy",
        kafka_list("compact", "delete"),
        "delete",
        "What becomes of old records: delete drops whole segments by age and size, compact keeps "
        "the last record of each key, both does both, and an empty list keeps everything.",
        "log.cleanup.policy",
    ),
    _setting(
        "retention.ms",
        kafka_long(-1),
        7 * 24 * HOUR_MS,
        "How old the newest record of a segment may become before the segment is deleted; "
        "-1 is without limit.",
        BrokerName("log.retention.ms"),
        BrokerName("log.retention.minutes", milliseconds=MINUTE_MS),
        BrokerName("log.retention.hours", "168", milliseconds=HOUR_MS),
    ),
    _setting(
        "retention.bytes",
        kafka_long(),
        -1,
        "How large a partition may grow before its oldest segments are deleted; "
        "-1 is without limit.",
        "log.retention.bytes",
    ),
    _setting(
        "delete.retention.ms",
        kafka_long(0),
        24 * HOUR_MS,
        "How long compaction keeps a record without a value after the key's older records went.",
        "log.cleaner.delete.retention.ms",
    ),
    _setting(
        "min.cleanable.dirty.ratio",
        kafka_double(0, 1),
        0.5,
        "The share of a log that has to be uncompacted before it is compacted again.",
        "log.cleaner.min.cleanable.ratio",
    ),
    _setting(
        "min.compaction.lag.ms",
        kafka_long(0),
        0,
        "How long a record is safe from compaction after it was written.",
        "log.cleaner.min.compaction.lag.ms",
    ),
    _setting(
        "max.compaction.lag.ms",
        kafka_long(1),
        LONG_MAX,
        "How long a record may stay uncompacted, however small the dirty share is.",
        "log.cleaner.max.compaction.lag.ms",
    ),
    # What is accepted from producers.
    _setting(
        "max.message.bytes",
        kafka_int(0),
        1_048_588,
        "The largest record batch that is accepted, as it is on the wire.",
        "message.max.bytes",
    ),
    _setting(
        "compression.type",
        kafka_choice("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "producer",
        "The codec that batches are stored with; producer leaves them as they came.",
        "compression.type",
    ),
    _setting(
        "compression.gzip.level",
        GZIP_LEVEL,
        -1,
        "The level where compression.type is gzip; -1 is the codec's own default.",
        "compression.gzip.level",
    ),
    _setting(
        "compression.lz4.level",
        kafka_int(1, 17),
        9,
        "The level where compression.type is lz4.",
        "compression.lz4.level",
    ),
    _setting(
        "compression.zstd.level",
        kafka_int(-131_072, 22),
        3,
        "The level where compression.type is zstd.",
        "compression.zstd.level",
    ),
    _setting(
        "message.timestamp.type",
        kafka_choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Whose clock a record's timestamp is from: the producer's or the broker's.",
        "log.message.timestamp.type",
    ),
    _setting(
        "message.timestamp.before.max.ms",
        kafka_long(0),
        LONG_MAX,
        "How far a producer's timestamp may lie before the broker's clock.",
        "log.message.timestamp.before.max.ms",
    ),
    _setting(
        "message.timestamp.after.max.ms",
        kafka_long(0),
        HOUR_MS,
        "How far a producer's timestamp may lie after the broker's clock.",
        "log.message.timestamp.after.max.ms",
    ),
    _setting(
        "min.insync.replicas",
        kafka_int(1),
        1,
        "How many replicas have to have a batch that is written with acks=all; no more than there "
        "are, and there is one.",
        "min.insync.replicas",
        takes_effect=False,
    ),
    # How it is laid out in files.
    _setting(
        "segment.bytes",
        kafka_int(1 << 20),
        1 << 30,
        "The size at which a segment is closed and a new one begun.",
        "log.segment.bytes",
    ),
    _setting(
        "segment.ms",
        kafka_long(1),
        7 * 24 * HOUR_MS,
        "The age at which a segment is closed, even if it is not full.",
        BrokerName("log.roll.ms"),
        BrokerName("log.roll.hours", "168", milliseconds=HOUR_MS),
    ),
    _setting(
        "segment.index.bytes",
        kafka_int(4),
        10 << 20,
        "The size at which a segment's index is full, and the segment is closed.",
        "log.index.size.max.bytes",
    ),
    _setting(
        "index.interval.bytes",
        kafka_int(0),
        4096,
        "How many bytes of records lie between two entries of the index.",
        "log.index.interval.bytes",
    ),
    # What is accepted, kept and described, and changes nothing here.
    _setting(
        "segment.jitter.ms",
        kafka_long(0),
        0,
        "How much earlier, at random, a segment may be closed.",
        BrokerName("log.roll.jitter.ms"),
        takes_effect=False,
    ),
    _setting(
        "flush.messages",
        kafka_long(1),
        LONG_MAX,
        "The broker's durability setting says what is synced before it is acknowledged.",
        "log.flush.interval.messages",
        takes_effect=False,
    ),
    _setting(
        "flush.ms",
        kafka_long(0),
        LONG_MAX,
        "The broker's durability setting says what is synced before it is acknowledged.",
        BrokerName("log.flush.interval.ms"),
        takes_effect=False,
    ),
    _setting(
        "file.delete.delay.ms",
        kafka_long(0),
        60_000,
        "A segment's files go as soon as nothing needs them.",
        "log.segment.delete.delay.ms",
        takes_effect=False,
    ),
    _setting(
        "preallocate",
        KAFKA_BOOLEAN,
        "false",
        "The journal's files are written in advance; segments are not.",
        "log.preallocate",
        takes_effect=False,
    ),
    _setting(
        "unclean.leader.election.enable",
        KAFKA_BOOLEAN,
        "false",
        "A partition has one replica, and so no other leader to elect.",
        "unclean.leader.election.enable",
        takes_effect=False,
    ),
    _setting(
        "leader.replication.throttled.replicas",
        throttled_replicas("leader.replication.throttled.replicas"),
        "",
        "Nothing is replicated.",
        takes_effect=False,
    ),
    _setting(
        "follower.replication.throttled.replicas",
        throttled_replicas("follower.replication.throttled.replicas"),
        "",
        "Nothing is replicated.",
        takes_effect=False,
    ),
    _setting(
        "remote.storage.enable",
        KAFKA_BOOLEAN,
        "false",
        "There is no tiered storage; true is refused.",
        takes_effect=False,
    ),
    _setting(
        "remote.log.copy.disable",
        KAFKA_BOOLEAN,
        "false",
        "There is no tiered storage.",
        takes_effect=False,
    ),
    _setting(
        "remote.log.delete.on.disable",
        KAFKA_BOOLEAN,
        "false",
        "There is no tiered storage.",
        takes_effect=False,
    ),
    _setting(
        "local.retention.ms",
        kafka_long(-2),
        -2,
        "There is no tiered storage.",
        "log.local.retention.ms",
        takes_effect=False,
    ),
    _setting(
        "local.retention.bytes",
        kafka_long(-2),
        -2,
        "There is no tiered storage.",
        "log.local.retention.bytes",
        takes_effect=False,
    ),
    # Kafka has it for its own tests, and describes it only where it is set.
    _setting(
        INTERNAL_SEGMENT_BYTES,
        kafka_int(14),
        1 << 30,
        "As segment.bytes, which it overrides, for segments smaller than that allows.",
    ),
)

SETTINGS: Final[Mapping[str, TopicSetting]] = MappingProxyType({row.name: row for row in _ROWS})

BROKER_NAMES: Final[Mapping[str, tuple[TopicSetting, BrokerName]]] = MappingProxyType(
    {each.name: (row, each) for row in _ROWS for each in row.broker_names}
)
"""The broker's settings that give defaults of topic configs."""


def _as_setting(row: TopicSetting, name: BrokerName) -> Setting:
    """A default of topics as a setting of the broker: what it takes, in its own unit."""

    def read(text: object) -> object:
        try:
            return row.parse_default(name, str(text))
        except InvalidSetting as error:
            raise ValueError(text) from error

    if name.has_unit_of_its_own:
        kind = SettingKind("int", "a whole number; a negative one is without limit", read)
        unit = f"in units of {name.milliseconds} ms; of several the finest unit wins"
        default = name.default and int(name.default)
        return Setting(name.name, kind, f"The default of {row.name}, {unit}.", default, example=1)
    kind = replace(row.kind, read=read)
    default = row.parse(row.default if name.default is None else name.default)
    return Setting(name.name, kind, f"The default of {row.name}. {row.meaning}", default)


DEFAULTS: Final[Mapping[str, Setting]] = MappingProxyType(
    {name: _as_setting(*pair) for name, pair in BROKER_NAMES.items()}
)
"""The same, as settings of the broker."""
