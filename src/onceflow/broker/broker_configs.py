"""This broker's own settings, as DescribeConfigs tells them: read-only, by their keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields

from onceflow.broker.config import BrokerConfig
from onceflow.broker.config_settings import SETTINGS
from onceflow.broker.topic_config import ConfigEntry, ConfigSource
from onceflow.broker.topic_settings import BROKER_NAMES
from onceflow.broker.topic_values import ConfigType

_AUTO_CREATE = "auto.create.topics.enable"
"""Unless it is set, it follows from another setting; clients want to know what holds."""
_TYPES = {bool: ConfigType.BOOLEAN, int: ConfigType.LONG}


def describe_broker(config: BrokerConfig, names: Collection[str] | None) -> Iterator[ConfigEntry]:
    """The settings asked for that there are; all for None or an empty collection."""
    for entry in (*_own(config), *_topic_defaults(config)):
        if not names or entry.name in names:
            yield entry


def _own(config: BrokerConfig) -> Iterator[ConfigEntry]:
    defaults = {each.name: each.default for each in fields(BrokerConfig)}
    for key, setting in SETTINGS.items():
        given = getattr(config, setting.field)
        is_default = given == defaults[setting.field]
        value = config.creates_topics_when_asked_for if key == _AUTO_CREATE else given
        yield _entry(
            key,
            "" if value is None else _text(value),
            ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER,
            _TYPES.get(type(value), ConfigType.STRING),
            setting.documentation,
        )


def _topic_defaults(config: BrokerConfig) -> Iterator[ConfigEntry]:
    for key, (setting, broker_name) in BROKER_NAMES.items():
        given = config.topic_defaults.get(key)
        value = given if given is not None else broker_name.default
        yield _entry(
            key,
            setting.default if value is None else value,
            ConfigSource.DEFAULT if given is None else ConfigSource.STATIC_BROKER,
            setting.type,
            setting.documentation,
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _entry(
    name: str, value: str, source: ConfigSource, kind: ConfigType, documentation: str
) -> ConfigEntry:
    return ConfigEntry(name, value, source, kind, documentation, (), read_only=True)
