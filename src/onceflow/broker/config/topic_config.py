"""The configuration of one topic: parsed, described and altered by Apache Kafka's rules.

A `TopicConfig` is always valid: what cannot be is refused when it is made, with `InvalidSetting`
(INVALID_CONFIG on the wire) in Kafka's words. What a topic itself sets wins over what the broker's
settings say, and that over the default. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from onceflow.broker.config.topic_settings import INTERNAL_SEGMENT_BYTES, SETTINGS
from onceflow.broker.config.topic_values import (
    ConfigType,
    TopicSetting,
    Value,
    config_type,
    split_list,
)
from onceflow.broker.requests import RequestRefusal
from onceflow.errors import InvalidSetting
from onceflow.log import LogConfig
from onceflow.settings import text_of
from onceflow.wire import LONGEST_STRING, ErrorCode

_SMALLEST_INDEX_BYTES: Final = 8
"""One entry: Kafka takes 4, which holds none."""


class ConfigSource(IntEnum):
    """The numbers of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigSynonym(NamedTuple):
    """One of the settings that a value could come from, the strongest first."""

    name: str
    value: str
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One config of a topic or of the broker, as DescribeConfigs tells it."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]
    read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


class BrokerDefaults:
    """What the broker sets for its topics, by the broker's names (`log.retention.ms`): in layers,
    of which the first that has a name counts."""

    __slots__ = ("layers",)

    def __init__(self, *layers: tuple[ConfigSource, Mapping[str, str]]) -> None:
        self.layers: Final = tuple((source, MappingProxyType({**each})) for source, each in layers)

    @staticmethod
    def of(defaults: Defaults) -> BrokerDefaults:
        """Plain settings are those that the broker was started with."""
        if isinstance(defaults, BrokerDefaults):
            return defaults
        return BrokerDefaults((ConfigSource.STATIC_BROKER, defaults))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BrokerDefaults) and self.layers == other.layers

    __hash__ = None  # type: ignore[assignment]  # nor has a mapping any

    def find(self, name: str) -> tuple[str, ConfigSource] | None:
        """The value that counts, and where it is set."""
        return next(((each[name], source) for source, each in self.layers if name in each), None)

    def without(self, names: Collection[str]) -> BrokerDefaults:
        """The same, as if these were set nowhere."""
        return BrokerDefaults(
            *(
                (source, {name: each[name] for name in each if name not in names})
                for source, each in self.layers
            )
        )


Defaults: TypeAlias = BrokerDefaults | Mapping[str, str]


class ConflictingSettings(InvalidSetting):
    """Each setting is allowed by itself, but not with the others."""

    def __init__(self, message: str, *names: str) -> None:
        super().__init__(message)
        self.names: Final = frozenset(names)
        self.broker_names: Final = frozenset(
            each.name for name in names for each in SETTINGS[name].broker_names
        )
        """The broker's defaults that may be part of the conflict."""


class Operation(IntEnum):
    """The numbers of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One change that IncrementalAlterConfigs asks for."""

    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What a topic is to be like; a field for each config that takes effect here."""

    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    segment_bytes: int
    """That of internal.segment.bytes, where it is set."""
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    overrides: Mapping[str, str]
    """What the topic itself sets, by the names of topic configs, as it was given."""
    defaults: BrokerDefaults
    """What the broker sets, by the broker's names (`log.retention.ms`)."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """What the topic sets besides and cannot be worked by."""
    keeps_everything: bool = False
    """Nothing is deleted or compacted, whatever is said above: it may be not what was meant."""

    @staticmethod
    def parse(overrides: Mapping[str, str], defaults: Defaults) -> TopicConfig:
        """The config of a topic; `InvalidSetting` for the first thing that is wrong."""
        defaults = BrokerDefaults.of(defaults)
        unknown = next((name for name in overrides if name not in SETTINGS), None)
        if unknown is not None:
            raise InvalidSetting(f"Unknown topic config name: {unknown}")
        values = {
            name: _effective(setting, overrides, defaults)[0] for name, setting in SETTINGS.items()
        }
        _check_together(values)
        if INTERNAL_SEGMENT_BYTES in overrides:
            values["segment.bytes"] = values[INTERNAL_SEGMENT_BYTES]
        # The table has for each field a row, of the field's type.
        fields: dict[str, Any] = {_field(name): values[name] for name in _EFFECTIVE_NAMES}
        return TopicConfig(
            **fields,
            overrides=MappingProxyType(dict(overrides)),
            defaults=defaults,
        )

    def to_log_config(self) -> LogConfig:
        """The part that the partition logs work by."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            segment_index_bytes=max(self.segment_index_bytes, _SMALLEST_INDEX_BYTES),
            index_interval_bytes=self.index_interval_bytes,
            retention_ms=self.retention_ms,
            # Kafka takes any negative number for "without limit".
            retention_bytes=max(self.retention_bytes, -1),
            delete="delete" in self.cleanup_policy and not self.keeps_everything,
            compact="compact" in self.cleanup_policy and not self.keeps_everything,
            delete_retention_ms=self.delete_retention_ms,
            min_cleanable_dirty_ratio=self.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=self.min_compaction_lag_ms,
            max_compaction_lag_ms=self.max_compaction_lag_ms,
        )

    def describe(self, names: Collection[str] | None = None) -> Iterator[ConfigEntry]:
        """The configs asked for that there are; all for None or an empty collection."""
        for name, setting in SETTINGS.items():
            is_hidden = name == INTERNAL_SEGMENT_BYTES and name not in self.overrides
            if not is_hidden and (not names or name in names):
                yield self._entry(setting)

    def _entry(self, setting: TopicSetting) -> ConfigEntry:
        value, source = _effective(setting, self.overrides, self.defaults)
        return ConfigEntry(
            name=setting.name,
            value=text_of(value),
            source=source,
            type=config_type(setting),
            documentation=setting.meaning,
            synonyms=tuple(_synonyms(setting, self.overrides, self.defaults)),
        )


class UsableConfig(NamedTuple):
    """A config to work by, and what was wrong with the one that was asked for."""

    config: TopicConfig
    problem: str | None = None


def usable_config(overrides: Mapping[str, str], defaults: Defaults) -> UsableConfig:
    """The config of a topic that exists: whatever is wrong with it must not keep the broker from
    starting, nor cost a record. Where the topic's own config was good and a default of the broker
    conflicts with it, that default is left out; where it is not good by itself, nothing of the
    topic is deleted or compacted until a client alters it."""
    try:
        return UsableConfig(TopicConfig.parse(overrides, defaults))
    except ConflictingSettings as conflict:
        problem = str(conflict)
        fitting = BrokerDefaults.of(defaults).without(conflict.broker_names)
        try:
            config = TopicConfig.parse(overrides, fitting)
        except InvalidSetting:
            pass
        else:
            return UsableConfig(
                config,
                f"{problem}; the broker's defaults for these are not used for this topic. Alter "
                "the topic's config or the broker's defaults",
            )
    except InvalidSetting as error:
        problem = str(error)
    return UsableConfig(
        _kept_by(overrides, defaults),
        f"{problem}; until that is altered, nothing of this topic is deleted or compacted",
    )


def _kept_by(overrides: Mapping[str, str], defaults: Defaults) -> TopicConfig:
    """From what is usable of a config; the rest is kept for the next client that alters it."""
    good = {name: value for name, value in overrides.items() if _is_good(name, value)}
    defaults = BrokerDefaults.of(defaults)
    while True:  # each conflict takes away what it is about
        try:
            config = TopicConfig.parse(good, defaults)
            break
        except ConflictingSettings as conflict:
            good = {name: good[name] for name in good if name not in conflict.names}
            defaults = defaults.without(conflict.broker_names)
        except InvalidSetting:
            defaults = BrokerDefaults()
    bad = {name: value for name, value in overrides.items() if name not in good}
    return replace(config, unusable=MappingProxyType(bad), keeps_everything=True)


def _is_good(name: str, value: str) -> bool:
    """Whether an override is good by itself and conflicts with no default of ours."""
    try:
        TopicConfig.parse({name: value}, {})
    except InvalidSetting:
        return False
    return True


def config_of_new_topic(
    configs: Sequence[tuple[str, str | None]], defaults: Defaults
) -> TopicConfig | RequestRefusal:
    """The config that CreateTopics asks for; of a name that comes twice, the last counts."""
    overrides: dict[str, str] = {}
    for name, value in configs:
        if value is None:
            message = f"Null value not supported for topic configs: {name}"
            return RequestRefusal(ErrorCode.INVALID_CONFIG, message)
        overrides[name] = value
    return _parse_or_refuse(overrides, defaults)


def altered(config: TopicConfig, alterations: Sequence[Alteration]) -> TopicConfig | RequestRefusal:
    """The config after all of the alterations; or none of them is made, and why. What was unusable
    and is not altered stays so: to forget it could delete what it was to keep."""
    if refusal := malformed(alterations):
        return refusal
    overrides = dict(config.overrides)
    for name, operation, value in alterations:
        if operation == Operation.DELETE or value is None:
            overrides.pop(name, None)
        elif operation == Operation.SET:
            overrides[name] = value
        else:
            changed = _changed_list(config, Alteration(name, operation, value), value)
            if isinstance(changed, RequestRefusal):
                return changed
            overrides[name] = changed
    after = _parse_or_refuse(overrides, config.defaults)
    named = {alteration.name for alteration in alterations}
    unusable = {name: config.unusable[name] for name in config.unusable if name not in named}
    if isinstance(after, RequestRefusal) or not unusable:
        return after
    return replace(after, unusable=MappingProxyType(unusable), keeps_everything=True)


def replaced(config: TopicConfig, configs: Sequence[Alteration]) -> TopicConfig | RequestRefusal:
    """As AlterConfigs has it: what is not named goes back to its default."""
    return malformed(configs) or altered(TopicConfig.parse({}, config.defaults), configs)


def malformed(alterations: Sequence[Alteration]) -> RequestRefusal | None:
    """What is wrong with the alterations, whatever the config is that they alter."""
    names = [alteration.name for alteration in alterations]
    if len(set(names)) != len(names):
        return RequestRefusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        name
        for name, operation, value in alterations
        if value is None and operation != Operation.DELETE
    ]
    if nulls:
        return RequestRefusal(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )
    allowed = set(Operation)
    for name, operation, _ in alterations:
        if operation not in allowed:
            message = f"Unknown operation {operation} on {name}: allowed is 0 to 3"
            return RequestRefusal(ErrorCode.INVALID_REQUEST, message)
    return None


def _changed_list(config: TopicConfig, alteration: Alteration, value: str) -> str | RequestRefusal:
    """The text of a list with items added or taken away; it starts from the value in effect."""
    name, operation, _ = alteration
    setting = SETTINGS.get(name)
    if setting is None or config_type(setting) is not ConfigType.LIST:
        message = f"Can't {Operation(operation).name} to key {name} because its type is not LIST."
        return RequestRefusal(ErrorCode.INVALID_CONFIG, message)
    current, _ = _effective(setting, config.overrides, config.defaults)
    return changed_list(name, operation, text_of(current), value)


def changed_list(name: str, operation: int, current: str, value: str) -> str | RequestRefusal:
    """The text of a list with the items of another added or taken away."""
    items = split_list(current)
    # An empty text is an empty item here, which the list's own check then refuses.
    given = split_list(value) or ("",)
    if operation == Operation.APPEND:
        longer = ",".join(dict.fromkeys((*items, *given)))
        if len(longer.encode()) > LONGEST_STRING:
            message = f"{name} would be longer than a string may be: {LONGEST_STRING} bytes"
            return RequestRefusal(ErrorCode.INVALID_CONFIG, message)
        return longer
    return ",".join(item for item in items if item not in given)


def _parse_or_refuse(
    overrides: Mapping[str, str], defaults: Defaults
) -> TopicConfig | RequestRefusal:
    try:
        return TopicConfig.parse(overrides, defaults)
    except InvalidSetting as problem:
        return RequestRefusal(ErrorCode.INVALID_CONFIG, str(problem))


def _effective(
    setting: TopicSetting, overrides: Mapping[str, str], defaults: BrokerDefaults
) -> tuple[Value, ConfigSource]:
    if setting.name in overrides:
        return setting.parse(overrides[setting.name]), ConfigSource.TOPIC
    for broker_name in setting.broker_names:
        found = defaults.find(broker_name.name)
        if found is not None:
            text, source = found
            return setting.parse_default(broker_name, text), source
    return setting.parse(setting.default), ConfigSource.DEFAULT


def _synonyms(
    setting: TopicSetting, overrides: Mapping[str, str], defaults: BrokerDefaults
) -> Iterator[ConfigSynonym]:
    if setting.name in overrides:
        value = text_of(setting.parse(overrides[setting.name]))
        yield ConfigSynonym(setting.name, value, ConfigSource.TOPIC)
    yield from broker_synonyms(setting, defaults)


def broker_synonyms(setting: TopicSetting, defaults: BrokerDefaults) -> Iterator[ConfigSynonym]:
    """All of the broker's settings that give the default of a topic config. Where none is set, and
    the first has no default, Kafka does not tell that of another, which has another unit."""
    names = setting.broker_names
    found = [
        ConfigSynonym(each.name, layer[each.name], source)
        for source, layer in defaults.layers
        for each in names
        if each.name in layer
    ]
    yield from found
    if found or (names and names[0].default is not None):
        for each in names:
            if each.default is not None:
                yield ConfigSynonym(each.name, each.default, ConfigSource.DEFAULT)


def _check_together(values: Mapping[str, Value]) -> None:
    """What no config may be because of another, or because of what this broker is."""
    lowest, highest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if isinstance(lowest, int) and isinstance(highest, int) and lowest > highest:
        raise ConflictingSettings(
            f"conflict topic config setting min.compaction.lag.ms ({lowest}) > "
            f"max.compaction.lag.ms ({highest})",
            "min.compaction.lag.ms",
            "max.compaction.lag.ms",
        )
    if values["remote.storage.enable"]:
        raise ConflictingSettings(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
            "remote.storage.enable",
        )


def _field(name: str) -> str:
    return name.replace(".", "_")


_EFFECTIVE_NAMES: Final = tuple(
    name
    for name, setting in SETTINGS.items()
    if setting.takes_effect and name != INTERNAL_SEGMENT_BYTES
)
