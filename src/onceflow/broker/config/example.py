"""A configuration file with every setting of the broker: its meaning, its type and its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from textwrap import wrap
from typing import Any, Final

from onceflow.broker.config.config import BrokerConfig
from onceflow.broker.config.settings import SETTINGS
from onceflow.broker.config.topic_settings import BROKER_NAMES
from onceflow.broker.config.topic_values import ConfigType

_HEAD: Final = (
    "Settings of the Onceflow broker, for `onceflow serve --config FILE`. What is commented out "
    "shows the default; only data.dir has none. Options of the command and variables of the "
    "environment (ONCEFLOW_DATA_DIR) win over this file."
)
_TOPICS: Final = (
    "--- Defaults of topic configs: a topic's own config wins. Those of other units are there for "
    "the sake of Apache Kafka's names; of several the finest unit wins."
)
_EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    "advertise": ("the address of listen", '"127.0.0.1:9092"'),
    "data.dir": ("none", '"onceflow-data"'),
}
"""For settings without a default: what counts instead, and a value."""
_REQUIRED: Final = "data.dir"
_TYPES: Final[Mapping[ConfigType, str]] = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "texts, separated by commas",
}
_WIDTH: Final = 98


def example_toml() -> str:
    """As it is, it starts a broker with all defaults."""
    return "\n".join((*_comment(_HEAD), *_own(), "", *_comment(_TOPICS), *_of_topics())) + "\n"


def _own() -> Iterator[str]:
    defaults: dict[str, Any] = {each.name: each.default for each in fields(BrokerConfig)}
    for key, setting in SETTINGS.items():
        default = value = ""
        if (given := defaults[setting.field]) is MISSING or given is None:
            default, value = _EXAMPLES[key]
        else:
            default = value = _as_toml(given)
        yield from ("", *_comment(setting.documentation))
        yield from _comment(f"Type: {setting.kind.allowed}. Default: {default}.")
        yield f"{'' if key == _REQUIRED else '#'}{key} = {value}"


def _of_topics() -> Iterator[str]:
    for key, (setting, name) in BROKER_NAMES.items():
        default = name.default or (setting.default if name.milliseconds == 1 else None)
        yield ""
        if name.milliseconds == 1:
            yield from _comment(f"{setting.name}: {setting.documentation}")
        else:
            yield from _comment(f"{setting.name}, by another unit: {name.milliseconds} ms.")
        shown = "none" if default is None else f'"{default}"'
        yield from _comment(f"Type: {_TYPES[setting.type]}. Default: {shown}.")
        yield f'#{key} = "{"1" if default is None else default}"'


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, _WIDTH, break_on_hyphens=False)]


def _as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, int) else f'"{value}"'
