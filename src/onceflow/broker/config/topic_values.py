"""One topic config: its type, how a text becomes a value, and which values are refused.

A value is a text on the wire and in the catalog; `TopicSetting.parse` turns it into what the
broker works with, or raises `InvalidSetting` in Kafka's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from onceflow.errors import InvalidSetting

Value: TypeAlias = bool | int | float | str | tuple[str, ...]
Check: TypeAlias = Callable[["TopicSetting", Value], None]
"""Raises `TopicSetting.refusal` for a value of the right type that is not allowed."""

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_FRACTION: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA: Final = re.compile(r"\s*,\s*")
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")


class ConfigType(IntEnum):
    """The numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    SHORT = 4


_BITS: Final = {ConfigType.INT: 32, ConfigType.LONG: 64}


@dataclass(frozen=True, slots=True)
class BrokerName:
    """A setting of the broker that gives the default of a topic config."""

    name: str
    default: str | None = None
    """None where Kafka's broker has none, and the topic config's own default counts."""
    milliseconds: int = 1
    """What the broker's number is to be multiplied by."""

    @property
    def has_unit_of_its_own(self) -> bool:
        """Whether it counts hours or minutes, where the topic config counts milliseconds."""
        return self.milliseconds != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """One topic config."""

    name: str
    type: ConfigType
    default: str
    check: Check
    documentation: str
    takes_effect: bool = True
    broker_names: tuple[BrokerName, ...] = ()
    """The first that is set counts."""

    def parse(self, text: str) -> Value:
        """The value that the text stands for, if it is allowed."""
        value = self.read(text)
        self.check(self, value)
        return value

    def read(self, text: str) -> Value:
        """The value that the text stands for, which may not be allowed, or of another unit."""
        return _PARSERS[self.type](self, text.strip())

    def parse_default(self, name: BrokerName, text: str) -> Value:
        """The value that a setting of the broker stands for."""
        if name.milliseconds == 1:
            return self.parse(text)
        count = _parse_whole(self, text.strip())
        return self.parse(str(count * name.milliseconds if count >= 0 else -1))

    def refusal(self, value: Value, reason: str) -> InvalidSetting:
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
        return InvalidSetting(f"Invalid value {shown} for configuration {self.name}: {reason}")


def render(value: Value) -> str:
    """The text that Kafka shows for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def split_list(text: str) -> tuple[str, ...]:
    """The items of a list; none for an empty text."""
    text = text.strip()
    return tuple(_COMMA.split(text)) if text else ()


# --- from text to value ------------------------------------------------------------------------


def _parse_boolean(setting: TopicSetting, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise setting.refusal(text, "Expected value to be either true or false")
    return text.lower() == "true"


def _parse_whole(setting: TopicSetting, text: str) -> int:
    # int() alone would take "1_000" and the digits of every script.
    limit = 1 << (_BITS[setting.type] - 1)
    if _WHOLE_NUMBER.fullmatch(text) and len(text) < 30 and -limit <= int(text) < limit:
        return int(text)
    raise setting.refusal(text, f"Not a number of type {setting.type.name}")


def _parse_fraction(setting: TopicSetting, text: str) -> float:
    if not _FRACTION.fullmatch(text):
        raise setting.refusal(text, "Not a number of type DOUBLE")
    return float(text)


_PARSERS: Final[Mapping[ConfigType, Callable[[TopicSetting, str], Value]]] = MappingProxyType(
    {
        ConfigType.BOOLEAN: _parse_boolean,
        ConfigType.STRING: lambda _, text: text,
        ConfigType.INT: _parse_whole,
        ConfigType.LONG: _parse_whole,
        ConfigType.DOUBLE: _parse_fraction,
        ConfigType.LIST: lambda _, text: split_list(text),
    }
)


# --- what values are allowed -------------------------------------------------------------------


def anything(_: TopicSetting, __: Value) -> None:
    """Every value of the type."""


def between(lowest: int, highest: int | None = None) -> Check:
    def check(setting: TopicSetting, value: Value) -> None:
        if not isinstance(value, int | float) or value < lowest:
            raise setting.refusal(value, f"Value must be at least {lowest}")
        if highest is not None and value > highest:
            raise setting.refusal(value, f"Value must be no more than {highest}")

    return check


def one_of(*choices: str) -> Check:
    """Of a list, every item."""

    def check(setting: TopicSetting, value: Value) -> None:
        for item in value if isinstance(value, tuple) else (value,):
            if item == "" and isinstance(value, tuple):
                raise InvalidSetting(f"Configuration '{setting.name}' values must not be empty.")
            if item not in choices:
                raise setting.refusal(item, f"String must be one of: {', '.join(choices)}")

    return check


def gzip_level(setting: TopicSetting, value: Value) -> None:
    if value not in (-1, *range(1, 10)):
        raise setting.refusal(value, "Value must be between 1 and 9 or equal to -1")


def replicas(setting: TopicSetting, value: Value) -> None:
    items = value if isinstance(value, tuple) else ()
    if items != ("*",) and not all(_REPLICA.fullmatch(item) for item in items):
        raise setting.refusal(
            value,
            f"{setting.name} must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )
