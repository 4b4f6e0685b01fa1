"""Topic configs: the table, parsing and describing, held against Apache Kafka 4.3.1.

Names, defaults, types and messages below are what that broker answered.
"""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest
from hypothesis import given, strategies as st

from onceflow.broker.config.topic_config import ConfigEntry, ConfigSource, TopicConfig
from onceflow.broker.config.topic_settings import BROKER_NAMES, SETTINGS
from onceflow.broker.config.topic_values import ConfigType, config_type
from onceflow.errors import InvalidSetting
from onceflow.log.config import LogConfig
from onceflow.settings.values import text_of

LONGEST = "9223372036854775807"

# name: (type, default, the broker's setting that DescribeConfigs names with that default)
KAFKA = {
    "cleanup.policy": (7, "delete", "log.cleanup.policy"),
    "compression.gzip.level": (3, "-1", "compression.gzip.level"),
    "compression.lz4.level": (3, "9", "compression.lz4.level"),
    "compression.type": (2, "producer", "compression.type"),
    "compression.zstd.level": (3, "3", "compression.zstd.level"),
    "delete.retention.ms": (5, "86400000", "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": (5, "60000", "log.segment.delete.delay.ms"),
    "flush.messages": (5, LONGEST, "log.flush.interval.messages"),
    "flush.ms": (5, LONGEST, None),
    "follower.replication.throttled.replicas": (7, "", None),
    "index.interval.bytes": (3, "4096", "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": (7, "", None),
    "local.retention.bytes": (5, "-2", "log.local.retention.bytes"),
    "local.retention.ms": (5, "-2", "log.local.retention.ms"),
    "max.compaction.lag.ms": (5, LONGEST, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": (3, "1048588", "message.max.bytes"),
    "message.timestamp.after.max.ms": (5, "3600000", "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": (5, LONGEST, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": (2, "CreateTime", "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": (6, "0.5", "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": (5, "0", "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": (3, "1", "min.insync.replicas"),
    "preallocate": (1, "false", "log.preallocate"),
    "remote.log.copy.disable": (1, "false", None),
    "remote.log.delete.on.disable": (1, "false", None),
    "remote.storage.enable": (1, "false", None),
    "retention.bytes": (5, "-1", "log.retention.bytes"),
    "retention.ms": (5, "604800000", None),
    "segment.bytes": (3, "1073741824", "log.segment.bytes"),
    "segment.index.bytes": (3, "10485760", "log.index.size.max.bytes"),
    "segment.jitter.ms": (5, "0", None),
    "segment.ms": (5, "604800000", None),
    "unclean.leader.election.enable": (1, "false", "unclean.leader.election.enable"),
}

AN_INT = "Not a number of type INT"
A_LONG = "Not a number of type LONG"
CODECS = "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"
REPLICAS = (
    "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the "
    "following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
)
TIERED = (
    "Tiered Storage functionality is disabled in the broker. "
    "Topic cannot be configured with remote log storage."
)


def parse(**overrides: str) -> TopicConfig:
    return TopicConfig.parse({name.replace("_", "."): text for name, text in overrides.items()}, {})


def entries(config: TopicConfig) -> dict[str, ConfigEntry]:
    return {entry.name: entry for entry in config.describe()}


def test_the_table_is_kafkas() -> None:
    described = {
        entry.name: (
            int(entry.type),
            entry.value,
            next((synonym.name for synonym in entry.synonyms), None),
        )
        for entry in TopicConfig.parse({}, {}).describe()
    }
    assert described == KAFKA


def test_nothing_is_set_by_default() -> None:
    for entry in TopicConfig.parse({}, {}).describe():
        assert entry.is_default
        assert entry.source is ConfigSource.DEFAULT
        assert not entry.read_only
        assert not entry.is_sensitive
        assert entry.documentation


def test_each_config_that_takes_effect_is_a_field_of_its_type() -> None:
    types = {
        ConfigType.STRING: str,
        ConfigType.INT: int,
        ConfigType.LONG: int,
        ConfigType.DOUBLE: float,
        ConfigType.LIST: tuple[str, ...],
    }
    hints = get_type_hints(TopicConfig)
    effective = {
        name.replace(".", "_"): types[config_type(setting)]
        for name, setting in SETTINGS.items()
        if setting.takes_effect and name != "internal.segment.bytes"
    }
    beside = {"overrides", "defaults", "unusable", "keeps_everything"}
    names = {field.name for field in fields(TopicConfig)} - beside
    assert {name: hints[name] for name in names} == effective


def test_a_config_without_effect_says_so() -> None:
    described = entries(TopicConfig.parse({}, {}))
    for name, setting in SETTINGS.items():
        if name in described:
            says_so = described[name].documentation.startswith("No effect here.")
            assert says_so is not setting.takes_effect, name


def test_values_become_fields() -> None:
    config = parse(
        cleanup_policy=" compact ,delete",
        retention_ms=" +5 ",
        min_cleanable_dirty_ratio="5e-1",
        compression_type=" gzip ",
        segment_bytes="2147483647",
    )
    assert config.cleanup_policy == ("compact", "delete")
    assert config.retention_ms == 5
    assert config.min_cleanable_dirty_ratio == 0.5
    assert config.compression_type == "gzip"
    assert config.segment_bytes == 2**31 - 1
    assert config.overrides["retention.ms"] == " +5 "


@pytest.mark.parametrize(
    ("name", "text", "shown", "reason"),
    [
        ("compression.type", "", "", CODECS),
        ("compression.type", "GZIP", "GZIP", CODECS),
        ("preallocate", "yes", "yes", "Expected value to be either true or false"),
        ("min.insync.replicas", "0", "0", "Value must be at least 1"),
        ("min.insync.replicas", "1_0", "1_0", AN_INT),
        ("min.insync.replicas", "٣", "٣", AN_INT),
        ("segment.bytes", "2147483648", "2147483648", AN_INT),
        ("segment.bytes", "1048575", "1048575", "Value must be at least 1048576"),
        ("segment.bytes", " +5 ", "5", "Value must be at least 1048576"),
        ("segment.ms", "0", "0", "Value must be at least 1"),
        ("segment.index.bytes", "3", "3", "Value must be at least 4"),
        ("retention.ms", "", "", A_LONG),
        ("retention.ms", "1.5", "1.5", A_LONG),
        ("retention.ms", "-2", "-2", "Value must be at least -1"),
        ("retention.ms", "9223372036854775808", "9223372036854775808", A_LONG),
        ("max.message.bytes", "-1", "-1", "Value must be at least 0"),
        ("local.retention.ms", "-3", "-3", "Value must be at least -2"),
        ("compression.lz4.level", "18", "18", "Value must be no more than 17"),
        ("compression.zstd.level", "23", "23", "Value must be no more than 22"),
        ("compression.gzip.level", "0", "0", "Value must be between 1 and 9 or equal to -1"),
        ("min.cleanable.dirty.ratio", "1.1", "1.1", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "-0.1", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "x", "x", "Not a number of type DOUBLE"),
        ("min.cleanable.dirty.ratio", "nan", "nan", "Not a number of type DOUBLE"),
        ("cleanup.policy", "delete,none", "none", "String must be one of: compact, delete"),
        ("leader.replication.throttled.replicas", "*,0:1", "[*, 0:1]", REPLICAS),
        ("leader.replication.throttled.replicas", "x", "[x]", REPLICAS),
    ],
)
def test_a_wrong_value_is_refused_in_kafkas_words(
    name: str, text: str, shown: str, reason: str
) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        TopicConfig.parse({name: text}, {})
    assert str(refusal.value) == f"Invalid value {shown} for configuration {name}: {reason}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"segment.bytes": "1", "nope": "1"}, "Unknown topic config name: nope"),
        (
            {"cleanup.policy": "compact,"},
            "Configuration 'cleanup.policy' values must not be empty.",
        ),
        (
            {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"},
            "conflict topic config setting min.compaction.lag.ms (6) > max.compaction.lag.ms (5)",
        ),
        (
            {"remote.storage.enable": "TRUE"},
            TIERED,
        ),
    ],
)
def test_what_cannot_be_together(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        TopicConfig.parse(overrides, {})
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,compact"),
        ("leader.replication.throttled.replicas", "0:1,1:2"),
        ("follower.replication.throttled.replicas", "*"),
        ("retention.bytes", "-3"),
        ("compression.gzip.level", "-1"),
        ("compression.zstd.level", "-7"),
        ("local.retention.ms", "7"),
        ("remote.log.copy.disable", "true"),
        ("max.message.bytes", "0"),
    ],
)
def test_kafka_takes_it_and_so_do_we(name: str, text: str) -> None:
    entry = entries(TopicConfig.parse({name: text}, {}))[name]
    assert entry.value == text
    assert entry.source is ConfigSource.TOPIC


@pytest.mark.parametrize("name", sorted(SETTINGS))
@given(text=st.text(max_size=12) | st.integers().map(str) | st.floats().map(str))
def test_any_text_is_refused_or_taken_and_comes_back(name: str, text: str) -> None:
    try:
        value = SETTINGS[name].parse(text)
    except InvalidSetting:
        return
    assert SETTINGS[name].parse(text_of(value)) == value


def test_the_brokers_settings_are_the_defaults() -> None:
    defaults = {"log.segment.bytes": "2000000", "log.cleanup.policy": "compact"}
    config = TopicConfig.parse({"segment.bytes": "3000000"}, defaults)
    assert config.segment_bytes == 3_000_000
    assert config.cleanup_policy == ("compact",)
    described = entries(config)
    assert described["segment.bytes"].synonyms == (
        ("segment.bytes", "3000000", 1),
        ("log.segment.bytes", "2000000", 4),
        ("log.segment.bytes", "1073741824", 5),
    )
    assert described["cleanup.policy"].source is ConfigSource.STATIC_BROKER
    assert not described["cleanup.policy"].is_default


def test_milliseconds_win_over_minutes_and_these_over_hours() -> None:
    defaults = {"log.retention.hours": "2"}
    assert TopicConfig.parse({}, defaults).retention_ms == 7_200_000
    defaults["log.retention.minutes"] = "3"
    assert TopicConfig.parse({}, defaults).retention_ms == 180_000
    defaults["log.retention.ms"] = "4"
    assert TopicConfig.parse({}, defaults).retention_ms == 4
    assert TopicConfig.parse({}, {"log.retention.hours": "-1"}).retention_ms == -1
    assert TopicConfig.parse({}, {"log.roll.hours": "1"}).segment_ms == 3_600_000


def test_a_wrong_default_of_the_broker_is_refused() -> None:
    for name, text in (("log.retention.hours", "x"), ("log.roll.hours", "-1")):
        with pytest.raises(InvalidSetting):
            TopicConfig.parse({}, {name: text})
    assert set(BROKER_NAMES) >= {"log.retention.ms", "message.max.bytes", "log.roll.hours"}


def test_describe_tells_what_was_asked_for() -> None:
    config = TopicConfig.parse({}, {})
    names = [entry.name for entry in config.describe(["segment.ms", "nope", "retention.ms"])]
    assert sorted(names) == ["retention.ms", "segment.ms"]
    assert len(list(config.describe([]))) == len(KAFKA)


def test_values_are_described_as_kafka_writes_them() -> None:
    config = parse(preallocate="TRUE", cleanup_policy="delete, compact", retention_ms=" 9 ")
    described = entries(config)
    assert described["preallocate"].value == "true"
    assert described["cleanup.policy"].value == "delete,compact"
    assert described["retention.ms"].value == "9"


def test_small_segments_are_had_by_the_internal_config() -> None:
    config = TopicConfig.parse({"internal.segment.bytes": "100"}, {})
    assert config.segment_bytes == 100
    assert config.to_log_config().segment_bytes == 100
    described = entries(config)
    assert described["segment.bytes"].value == "1073741824"
    assert described["internal.segment.bytes"].value == "100"


def test_the_logs_part() -> None:
    assert TopicConfig.parse({}, {}).to_log_config() == LogConfig()
    log = parse(
        retention_bytes="-7", segment_index_bytes="4", retention_ms="1", segment_ms="2"
    ).to_log_config()
    assert log.retention_bytes == -1
    assert log.segment_index_bytes == 8
    assert (log.retention_ms, log.segment_ms) == (1, 2)
