"""The table of topic configs: those of Apache Kafka 4.3, by name, type, default and range.

`takes_effect` says whether this broker acts on a config: the others are accepted, kept and
described, so that a topic can be moved here as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onceflow.broker.config.topic_values import (
    BrokerName,
    Check,
    ConfigType,
    TopicSetting,
    anything,
    between,
    gzip_level,
    one_of,
    replicas,
)

LONGEST: Final = 2**63 - 1
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"

_AT_LEAST_0: Final = between(0)
_AT_LEAST_1: Final = between(1)


def _setting(
    name: str,
    type_: ConfigType,
    default: int | float | str,
    check: Check,
    documentation: str,
    *broker_names: str | BrokerName,
    takes_effect: bool = True,
) -> TopicSetting:
    """A row: a broker's name alone stands for one with the same default as the topic's."""
    return TopicSetting(
        name=name,
        type=type_,
        default=str(default),
        check=check,
        documentation=documentation if takes_effect else f"No effect here. {documentation}",
        takes_effect=takes_effect,
        broker_names=tuple(
            BrokerName(each, str(default)) if isinstance(each, str) else each
            for each in broker_names
        ),
    )


_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST, _ = ConfigType

_ROWS: Final = (
    # What is kept, and for how long.
    _setting(
        "cleanup.policy",
        _LIST,
        "delete",
        one_of("compact", "delete"),
        "What becomes of old records: delete drops whole segments by age and size, compact keeps "
        "the last record of each key, both does both, and an empty list keeps everything.",
        "log.cleanup.policy",
    ),
    _setting(
        "retention.ms",
        _LONG,
        7 * 24 * HOUR_MS,
        between(-1),
        "How old the newest record of a segment may become before the segment is deleted; "
        "-1 is without limit.",
        BrokerName("log.retention.ms"),
        BrokerName("log.retention.minutes", milliseconds=MINUTE_MS),
        BrokerName("log.retention.hours", "168", milliseconds=HOUR_MS),
    ),
    _setting(
        "retention.bytes",
        _LONG,
        -1,
        anything,
        "How large a partition may grow before its oldest segments are deleted; "
        "-1 is without limit.",
        "log.retention.bytes",
    ),
    _setting(
        "delete.retention.ms",
        _LONG,
        24 * HOUR_MS,
        _AT_LEAST_0,
        "How long compaction keeps a record without a value after the key's older records went.",
        "log.cleaner.delete.retention.ms",
    ),
    _setting(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        between(0, 1),
        "The share of a log that has to be uncompacted before it is compacted again.",
        "log.cleaner.min.cleanable.ratio",
    ),
    _setting(
        "min.compaction.lag.ms",
        _LONG,
        0,
        _AT_LEAST_0,
        "How long a record is safe from compaction after it was written.",
        "log.cleaner.min.compaction.lag.ms",
    ),
    _setting(
        "max.compaction.lag.ms",
        _LONG,
        LONGEST,
        _AT_LEAST_1,
        "How long a record may stay uncompacted, however small the dirty share is.",
        "log.cleaner.max.compaction.lag.ms",
    ),
    # What is accepted from producers.
    _setting(
        "max.message.bytes",
        _INT,
        1_048_588,
        _AT_LEAST_0,
        "The largest record batch that is accepted, as it is on the wire.",
        "message.max.bytes",
    ),
    _setting(
        "compression.type",
        _STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "The codec that batches are stored with; producer leaves them as they came.",
        "compression.type",
    ),
    _setting(
        "compression.gzip.level",
        _INT,
        -1,
        gzip_level,
        "The level where compression.type is gzip; -1 is the codec's own default.",
        "compression.gzip.level",
    ),
    _setting(
        "compression.lz4.level",
        _INT,
        9,
        between(1, 17),
        "The level where compression.type is lz4.",
        "compression.lz4.level",
    ),
    _setting(
        "compression.zstd.level",
        _INT,
        3,
        between(-131_072, 22),
        "The level where compression.type is zstd.",
        "compression.zstd.level",
    ),
    _setting(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "Whose clock a record's timestamp is from: the producer's or the broker's.",
        "log.message.timestamp.type",
    ),
    _setting(
        "message.timestamp.before.max.ms",
        _LONG,
        LONGEST,
        _AT_LEAST_0,
        "How far a producer's timestamp may lie before the broker's clock.",
        "log.message.timestamp.before.max.ms",
    ),
    _setting(
        "message.timestamp.after.max.ms",
        _LONG,
        HOUR_MS,
        _AT_LEAST_0,
        "How far a producer's timestamp may lie after the broker's clock.",
        "log.message.timestamp.after.max.ms",
    ),
    _setting(
        "min.insync.replicas",
        _INT,
        1,
        _AT_LEAST_1,
        "How many replicas have to have a batch that is written with acks=all; no more than there "
        "are, and there is one.",
        "min.insync.replicas",
        takes_effect=False,
    ),
    # How it is laid out in files.
    _setting(
        "segment.bytes",
        _INT,
        1 << 30,
        between(1 << 20),
        "The size at which a segment is closed and a new one begun.",
        "log.segment.bytes",
    ),
    _setting(
        "segment.ms",
        _LONG,
        7 * 24 * HOUR_MS,
        _AT_LEAST_1,
        "The age at which a segment is closed, even if it is not full.",
        BrokerName("log.roll.ms"),
        BrokerName("log.roll.hours", "168", milliseconds=HOUR_MS),
    ),
    _setting(
        "segment.index.bytes",
        _INT,
        10 << 20,
        between(4),
        "The size at which a segment's index is full, and the segment is closed.",
        "log.index.size.max.bytes",
    ),
    _setting(
        "index.interval.bytes",
        _INT,
        4096,
        _AT_LEAST_0,
        "How many bytes of records lie between two entries of the index.",
        "log.index.interval.bytes",
    ),
    # What is accepted, kept and described, and changes nothing here.
    _setting(
        "segment.jitter.ms",
        _LONG,
        0,
        _AT_LEAST_0,
        "How much earlier, at random, a segment may be closed.",
        BrokerName("log.roll.jitter.ms"),
        takes_effect=False,
    ),
    _setting(
        "flush.messages",
        _LONG,
        LONGEST,
        _AT_LEAST_1,
        "The broker's durability setting says what is synced before it is acknowledged.",
        "log.flush.interval.messages",
        takes_effect=False,
    ),
    _setting(
        "flush.ms",
        _LONG,
        LONGEST,
        _AT_LEAST_0,
        "The broker's durability setting says what is synced before it is acknowledged.",
        BrokerName("log.flush.interval.ms"),
        takes_effect=False,
    ),
    _setting(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        _AT_LEAST_0,
        "A segment's files go as soon as nothing needs them.",
        "log.segment.delete.delay.ms",
        takes_effect=False,
    ),
    _setting(
        "preallocate",
        _BOOLEAN,
        "false",
        anything,
        "The journal's files are written in advance; segments are not.",
        "log.preallocate",
        takes_effect=False,
    ),
    _setting(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        anything,
        "A partition has one replica, and so no other leader to elect.",
        "unclean.leader.election.enable",
        takes_effect=False,
    ),
    _setting(
        "leader.replication.throttled.replicas",
        _LIST,
        "",
        replicas,
        "Nothing is replicated.",
        takes_effect=False,
    ),
    _setting(
        "follower.replication.throttled.replicas",
        _LIST,
        "",
        replicas,
        "Nothing is replicated.",
        takes_effect=False,
    ),
    _setting(
        "remote.storage.enable",
        _BOOLEAN,
        "false",
        anything,
        "There is no tiered storage; true is refused.",
        takes_effect=False,
    ),
    _setting(
        "remote.log.copy.disable",
        _BOOLEAN,
        "false",
        anything,
        "There is no tiered storage.",
        takes_effect=False,
    ),
    _setting(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        "false",
        anything,
        "There is no tiered storage.",
        takes_effect=False,
    ),
    _setting(
        "local.retention.ms",
        _LONG,
        -2,
        between(-2),
        "There is no tiered storage.",
        "log.local.retention.ms",
        takes_effect=False,
    ),
    _setting(
        "local.retention.bytes",
        _LONG,
        -2,
        between(-2),
        "There is no tiered storage.",
        "log.local.retention.bytes",
        takes_effect=False,
    ),
    # Kafka has it for its own tests, and describes it only where it is set.
    _setting(
        INTERNAL_SEGMENT_BYTES,
        _INT,
        1 << 30,
        between(14),
        "As segment.bytes, which it overrides, for segments smaller than that allows.",
    ),
)

SETTINGS: Final[Mapping[str, TopicSetting]] = MappingProxyType({row.name: row for row in _ROWS})

BROKER_NAMES: Final[Mapping[str, tuple[TopicSetting, BrokerName]]] = MappingProxyType(
    {each.name: (row, each) for row in _ROWS for each in row.broker_names}
)
"""The broker's settings that give defaults of topic configs."""
