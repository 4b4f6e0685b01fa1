"""One topic config: its type, how a text becomes a value, and which values are refused.

A value is a text on the wire and in the catalog; `TopicSetting.parse` turns it into what the
broker works with, or raises `InvalidSetting` in Kafka's words. So topics have kinds of their own
beside those of `onceflow.settings`: tools show and tests hold these words against Apache Kafka's,
which name the type or the limit that a value misses, and not all that is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

from onceflow.errors import InvalidSetting
from onceflow.settings import (
    INT_MAX,
    LONG_MAX,
    TRUE_OR_FALSE,
    NotAllowed,
    Setting,
    SettingKind,
    one_of,
    text_of,
    whole_number,
)

Value: TypeAlias = bool | int | float | str | tuple[str, ...]

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


def config_type(setting: Setting) -> ConfigType:
    return ConfigType[setting.kind.type.upper()]


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


class _Refused(NotAllowed):
    """Kafka's words before and after the name of the config."""

    def __init__(self, value: object, reason: str, before: str = "", after: str = "") -> None:
        super().__init__(reason)
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
        self.before = before or f"Invalid value {shown} for configuration "
        self.after = after or f": {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting(Setting):
    """One topic config; its default is a text."""

    takes_effect: bool = True
    broker_names: tuple[BrokerName, ...] = ()
    """The first that is set counts."""

    def parse(self, text: str) -> Any:
        """The value that the text stands for, if it is allowed."""
        return self._read(self.kind, text)

    def parse_default(self, name: BrokerName, text: str) -> Any:
        """The value that a setting of the broker stands for."""
        if not name.has_unit_of_its_own:
            return self.parse(text)
        count = self._read(kafka_long(), text)
        return self.parse(str(count * name.milliseconds if count >= 0 else -1))

    def render_default(self, name: BrokerName, text: str) -> str:
        """What a setting of the broker says, in its own unit: as it is understood, and not as it
        was written ("5" for " 05 ")."""
        return text_of(self._read(kafka_long() if name.has_unit_of_its_own else self.kind, text))

    def _read(self, kind: SettingKind, text: str) -> Any:
        try:
            return kind(text.strip())
        except _Refused as refused:
            told = f"{refused.before}{self.name}{refused.after}"
            raise InvalidSetting(told) from refused


def split_list(text: str) -> tuple[str, ...]:
    """The items of a list; none for an empty text."""
    text = text.strip()
    return tuple(_COMMA.split(text)) if text else ()


# --- what values are allowed -------------------------------------------------------------------


def _kind(type_: str, allowed: str, read: Callable[[Any], Any], reason: str) -> SettingKind:
    """What `read` does not take is refused for the reason that Kafka gives."""

    def read_or_refuse(text: Any) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise _Refused(text, reason) from error

    return SettingKind(type_, allowed, read_or_refuse)


def _limited(value: Any, least: int | None, most: int | None) -> Any:
    if least is not None and value < least:
        raise _Refused(value, f"Value must be at least {least}")
    if most is not None and value > most:
        raise _Refused(value, f"Value must be no more than {most}")
    return value


def _whole(type_: str, largest: int, least: int | None, most: int | None) -> SettingKind:
    any_of_type = whole_number(-largest - 1, largest)
    low, high = -largest - 1 if least is None else least, largest if most is None else most
    return _kind(
        type_,
        f"a whole number from {low} to {high}",
        lambda text: _limited(any_of_type.read(text), least, most),
        f"Not a number of type {type_.upper()}",
    )


def kafka_int(least: int, most: int | None = None) -> SettingKind:
    """32 bits."""
    return _whole("int", INT_MAX, least, most)


def kafka_long(least: int | None = None) -> SettingKind:
    """64 bits."""
    return _whole("long", LONG_MAX, least, None)


def kafka_double(least: int, most: int) -> SettingKind:
    """A fraction."""

    def read(text: Any) -> Any:
        if not _FRACTION.fullmatch(text):
            raise ValueError(text)
        return _limited(float(text), least, most)

    return _kind("double", f"a number from {least} to {most}", read, "Not a number of type DOUBLE")


def kafka_choice(*choices: str) -> SettingKind:
    """One of a few words."""
    kind = one_of(*choices)
    return _kind("string", kind.allowed, kind.read, f"String must be one of: {', '.join(choices)}")


def kafka_list(*choices: str) -> SettingKind:
    """Some of a few words."""
    item = kafka_choice(*choices)

    def read(text: Any) -> tuple[str, ...]:
        items = split_list(text)
        if "" in items:
            raise _Refused("", "", "Configuration '", "' values must not be empty.")
        return tuple(map(item.read, items))

    return SettingKind("list", f"none or some of {', '.join(choices)}", read)


def throttled_replicas(name: str) -> SettingKind:
    """Pairs of numbers."""

    def read(text: Any) -> tuple[str, ...]:
        items = split_list(text)
        if items != ("*",) and not all(_REPLICA.fullmatch(item) for item in items):
            raise _Refused(
                items,
                f"{name} must be the literal '*' or a list of replicas in the following "
                "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
            )
        return items

    return SettingKind("list", "* or PARTITION:BROKER, several separated by commas", read)


def _read_gzip_level(text: Any) -> Any:
    level = _whole("int", INT_MAX, None, None).read(text)
    if level not in (-1, *range(1, 10)):
        raise _Refused(level, "Value must be between 1 and 9 or equal to -1")
    return level


KAFKA_BOOLEAN: Final = _kind(
    "boolean",
    TRUE_OR_FALSE.allowed,
    TRUE_OR_FALSE.read,
    "Expected value to be either true or false",
)
GZIP_LEVEL: Final = SettingKind("int", "-1, or a whole number from 1 to 9", _read_gzip_level)
