"""This broker's settings, as DescribeConfigs shows them: under Kafka's names, types and units.

It shows the current values of its own settings and of its defaults for topics, with all places that
set them, the strongest first. Other settings of Kafka have one fixed answer here, because tools
read them. What can be altered while the broker runs is not read-only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from onceflow.broker.config.live import ALL_BROKERS, ALTERABLE, BrokerSettings
from onceflow.broker.config.settings import SETTINGS, BrokerConfig, ListenAddress
from onceflow.broker.config.topic_config import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    broker_synonyms,
)
from onceflow.broker.config.topic_settings import BROKER_NAMES
from onceflow.broker.config.topic_values import BrokerName, ConfigType, TopicSetting, config_type
from onceflow.settings import Setting, text_of

_SCHEME: Final = "PLAINTEXT"
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST, _SHORT = ConfigType


class _Fixed(NamedTuple):
    """A setting of Kafka's that has one answer here."""

    name: str
    type: ConfigType
    value: str | None
    documentation: str


_FIXED: Final = (
    _Fixed("authorizer.class.name", _STRING, "", "There is no authorizer."),
    _Fixed("broker.rack", _STRING, None, "The broker does not know its rack."),
    _Fixed("controlled.shutdown.enable", _BOOLEAN, "true", "A stop leaves nothing to recover."),
    _Fixed("default.replication.factor", _INT, "1", "A partition has one replica."),
    _Fixed("delete.topic.enable", _BOOLEAN, "true", "Topics can be deleted."),
    _Fixed(
        "group.coordinator.rebalance.protocols",
        _LIST,
        "classic",
        "The protocols by which members of a group can be served.",
    ),
    _Fixed(
        "listener.security.protocol.map",
        _STRING,
        f"{_SCHEME}:{_SCHEME}",
        "Connections are neither encrypted nor authenticated.",
    ),
    _Fixed("log.cleaner.enable", _BOOLEAN, "true", "Topics with that policy are compacted."),
    _Fixed(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        "1.7976931348623157E308",
        "Compaction is not throttled.",
    ),
    _Fixed("log.cleaner.threads", _INT, "1", "Logs are compacted one after the other."),
    _Fixed("max.connections.per.ip", _INT, str(2**31 - 1), "One client may use them all."),
    _Fixed("num.io.threads", _INT, "1", "One thread serves all requests."),
    _Fixed("num.network.threads", _INT, "1", "One thread serves all connections."),
    _Fixed("offsets.topic.compression.codec", _INT, "0", "Committed offsets are not compressed."),
    _Fixed("offsets.topic.replication.factor", _SHORT, "1", "A partition has one replica."),
    _Fixed(
        "process.roles", _LIST, "broker,controller", "There is one broker, which does everything."
    ),
    _Fixed("remote.log.storage.system.enable", _BOOLEAN, "false", "There is no tiered storage."),
    _Fixed(
        "transaction.partition.verification.enable",
        _BOOLEAN,
        "true",
        "Records of a transaction are taken only while it is open.",
    ),
    _Fixed("transaction.state.log.min.isr", _INT, "1", "A partition has one replica."),
    _Fixed("transaction.state.log.replication.factor", _SHORT, "1", "A partition has one replica."),
)

_NAMED_OTHERWISE: Final[Mapping[str, tuple[ConfigType, str]]] = MappingProxyType(
    {
        "advertised.listeners": (_LIST, "advertise"),
        "broker.id": (_INT, "node.id"),
        "listeners": (_LIST, "listen"),
        "log.dir": (_LIST, "data.dir"),
        "log.dirs": (_LIST, "data.dir"),
    }
)
"""Settings of Kafka's, and by which name they go here."""
_NAMES: Final = frozenset(
    (*SETTINGS, *BROKER_NAMES, *_NAMED_OTHERWISE, *(each.name for each in _FIXED))
)


def describe_broker(
    settings: BrokerSettings,
    listening: ListenAddress,
    advertised: ListenAddress,
    names: Collection[str] | None,
) -> Iterator[ConfigEntry]:
    """The settings asked for that there are; all for None or an empty collection. The addresses are
    those that the broker got, where it was to choose a port."""
    wanted = _NAMES & frozenset(names) if names else _NAMES
    # Nothing is made that is not asked for: a request may ask for thousands of names one by one.
    yield from _own(settings, wanted)
    yield from _topic_defaults(settings, wanted)
    yield from _under_kafkas_names(settings.config, listening, advertised, wanted)
    yield from _fixed(wanted)


def describe_all_brokers(
    settings: BrokerSettings, names: Collection[str] | None
) -> Iterator[ConfigEntry]:
    """What was altered for all brokers."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    for name, value in settings.altered_of(ALL_BROKERS).items():
        if not names or name in names:
            synonyms = (ConfigSynonym(name, value, source),)
            yield _entry(name, value, _type_of(name), _documentation_of(name), synonyms)


def _own(settings: BrokerSettings, wanted: Collection[str]) -> Iterator[ConfigEntry]:
    for key, setting in SETTINGS.items():
        if key not in wanted:
            continue
        synonyms = tuple(_own_synonyms(settings, setting))
        value = _text(getattr(settings.config, setting.attribute))
        yield _entry(key, value, config_type(setting), setting.meaning, synonyms)


def _own_synonyms(settings: BrokerSettings, setting: Setting) -> Iterator[ConfigSynonym]:
    for source, layer in settings.layers:
        if setting.name in layer:
            yield ConfigSynonym(setting.name, layer[setting.name], source)
    started = getattr(settings.started_with, setting.attribute)
    for value, source in (
        (None if started == setting.default else started, ConfigSource.STATIC_BROKER),
        (setting.default, ConfigSource.DEFAULT),
    ):
        text = _text(value)
        if text is not None:
            yield ConfigSynonym(setting.name, text, source)


def _topic_defaults(settings: BrokerSettings, wanted: Collection[str]) -> Iterator[ConfigEntry]:
    for key, (setting, broker_name) in BROKER_NAMES.items():
        if key not in wanted:
            continue
        found = settings.defaults.find(key)
        value = broker_name.default
        if found is not None:
            value = setting.render_default(broker_name, found[0])
        synonyms = tuple(_default_synonyms(settings, setting, broker_name))
        yield _entry(key, value, _type_of(key), _documentation_of(key), synonyms)


def _default_synonyms(
    settings: BrokerSettings, setting: TopicSetting, broker_name: BrokerName
) -> Iterator[ConfigSynonym]:
    """From the setting's own name on: those before it are of no weight to what it is."""
    is_reached = False
    for each in broker_synonyms(setting, settings.defaults):
        is_reached = is_reached or each.name == broker_name.name
        if is_reached:
            yield each
    if not is_reached and broker_name.default is not None:
        yield ConfigSynonym(broker_name.name, broker_name.default, ConfigSource.DEFAULT)


def _under_kafkas_names(
    config: BrokerConfig,
    listening: ListenAddress,
    advertised: ListenAddress,
    wanted: Collection[str],
) -> Iterator[ConfigEntry]:
    values = {
        "advertise": f"{_SCHEME}://{advertised}",
        "data.dir": str(config.data_dir.absolute()),
        "listen": f"{_SCHEME}://{listening}",
        "node.id": str(config.node_id),
    }
    for name, (kind, key) in _NAMED_OTHERWISE.items():
        if name not in wanted:
            continue
        setting = SETTINGS[key]
        is_set = getattr(config, setting.attribute) != setting.default
        source = ConfigSource.STATIC_BROKER if is_set else ConfigSource.DEFAULT
        documentation = f"Set by {key}. {setting.meaning}"
        synonyms = (ConfigSynonym(name, values[key], source),)
        yield _entry(name, values[key], kind, documentation, synonyms)


def _fixed(wanted: Collection[str]) -> Iterator[ConfigEntry]:
    for name, kind, value, documentation in _FIXED:
        if name not in wanted:
            continue
        synonyms = () if value is None else (ConfigSynonym(name, value, ConfigSource.DEFAULT),)
        yield _entry(name, value, kind, f"Fixed here. {documentation}", synonyms)


def _type_of(key: str) -> ConfigType:
    if key in SETTINGS:
        return config_type(SETTINGS[key])
    setting, broker_name = BROKER_NAMES[key]
    return _INT if broker_name.has_unit_of_its_own else config_type(setting)


def _documentation_of(key: str) -> str:
    return SETTINGS[key].meaning if key in SETTINGS else BROKER_NAMES[key][0].meaning


def _text(value: object) -> str | None:
    return None if value is None else text_of(value)


def _entry(
    name: str,
    value: str | None,
    kind: ConfigType,
    documentation: str,
    synonyms: tuple[ConfigSynonym, ...],
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    is_fixed = name not in ALTERABLE
    return ConfigEntry(name, value, source, kind, documentation, synonyms, read_only=is_fixed)
