"""What the value of a setting may be. A value is read from what people write: numbers, booleans and
lists may be texts, as they are in files, flags and the environment, or values of Python.

Topic configs have kinds of their own beside these, in `broker/config/topic_values.py`: they refuse
values in Apache Kafka's words, which its tools show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from onceflow.errors import OnceflowError
from onceflow.settings.suggestions import either

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
LARGEST_PORT: Final = 65_535


class NotAllowed(OnceflowError):
    """A value that a setting does not take. The text says what it takes, to follow "it may be";
    the caller adds the name and the value."""


class Secret(str):
    """A text that is not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def text_of(value: object) -> str:
    """The value as a file would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return text_of(value.value)
    if isinstance(value, tuple) and type(value) is tuple:
        return ",".join(map(text_of, value))
    return str(value)


def plain_text(value: object) -> str | None:
    """What a file says, as a flag or a variable would have it; None for what those cannot have."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    return text_of(value) if isinstance(value, str | int | float) else None


def shown(value: object) -> str:
    """The value in a message: texts stand in quotes, and what is long is cut off."""
    written = repr(value)
    return written if len(written) <= 100 else written[:97] + "..."


@dataclass(frozen=True, slots=True)
class SettingKind:
    """What a setting takes."""

    type: str
    """By the word that Kafka has for it: int, long, boolean, string, list, ..."""
    allowed: str
    """What is taken, to follow "it may be"."""
    read: Callable[[object], Any] = field(repr=False)
    """The value of a text, or of what is a value already. `ValueError` for what is none, and
    `NotAllowed` where there is more to say than `allowed`."""
    show: Callable[[Any], str] = field(default=text_of, repr=False)
    """The text that is read as this value."""
    is_secret: bool = False

    def __call__(self, value: object) -> Any:
        """The value; raises `NotAllowed`."""
        try:
            return self.read(value)
        except ValueError as error:
            raise NotAllowed(self.allowed) from error


# --- numbers and booleans -----------------------------------------------------------------------

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,29}")


def read_whole(text: str) -> int:
    """The number; `ValueError` where it is none. `int` alone would take `1_000`, and the digits of
    every script."""
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def whole_number(least: int, most: int = INT_MAX, type_: str = "") -> SettingKind:
    """An int, or digits."""

    def read(value: object) -> int:
        number = read_whole(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise ValueError(value)
        return number

    allowed = f"a whole number from {least} to {most}"
    return SettingKind(type_ or ("int" if most <= INT_MAX else "long"), allowed, read)


def _boolean(words: Mapping[str, bool]) -> SettingKind:
    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        truth = words.get(str(value).strip().lower())
        if truth is None:
            raise ValueError(value)
        return truth

    return SettingKind("boolean", "true or false", read)


TRUE_OR_FALSE: Final = _boolean({"true": True, "false": False})
"""Kafka's brokers take these two words and no others."""
YES_OR_NO: Final = _boolean(
    {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
)
"""Clients take what is in the files of other clients besides."""


# --- words --------------------------------------------------------------------------------------


def one_of(*choices: str | Enum, any_case: bool = False) -> SettingKind:
    """One of a few words, or of the values of an enumeration; with `any_case` also in other letters
    than these."""
    by_word = {text_of(each): each for each in choices}
    if any_case:
        by_word = {word.lower(): each for word, each in by_word.items()}

    def read(value: object) -> str | Enum:
        if not isinstance(value, str):
            raise ValueError(value)
        choice = by_word.get(value.strip().lower() if any_case else value.strip())
        if choice is None:
            raise ValueError(value)
        return choice

    return SettingKind("string", either(map(text_of, choices)), read)


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


TEXT: Final = SettingKind("string", "a text", _read_text)
SECRET: Final = SettingKind(
    "password", "a text", lambda value: Secret(_read_text(value)), is_secret=True
)

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _read_topic(value: object) -> str:
    name = _read_text(value)
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(value)
    return name


_TOPIC_RULE: Final = "up to 249 ASCII letters, digits, '.', '_' and '-', and not '.' or '..'"
TOPIC_NAME: Final = SettingKind("string", f"a topic name: {_TOPIC_RULE}", _read_topic)


def _read_pattern(value: object) -> str:
    text = _read_text(value.pattern if isinstance(value, re.Pattern) else value)
    try:
        re.compile(text)
    except re.error as error:
        raise NotAllowed(f"a regular expression ({error})") from error
    return text


PATTERN: Final = SettingKind("string", "a regular expression", _read_pattern)
"""As text or compiled; the text is kept."""


# --- lists --------------------------------------------------------------------------------------


def list_of(item: SettingKind, allowed: str, *, each_once: bool = False) -> SettingKind:
    """Values separated by commas, or in a list. One that is there twice counts once, or is refused
    with `each_once`."""

    def read_item(value: object) -> Any:
        try:
            return item(value.strip() if isinstance(value, str) else value)
        except NotAllowed as error:
            raise NotAllowed(f"{allowed} ({shown(value)} is not one)") from error

    def read(value: object) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [each for each in value.split(",") if each.strip()]
        if not isinstance(value, list | tuple | set | frozenset) or not value:
            raise ValueError(value)
        items = tuple(map(read_item, value))
        once = tuple(dict.fromkeys(items))
        if each_once and once != items:
            raise ValueError(value)
        return once

    return SettingKind("list", allowed, read)


TOPIC_NAMES: Final = list_of(TOPIC_NAME, f"one or several topic names: {_TOPIC_RULE}")


# --- durations ----------------------------------------------------------------------------------

_DURATION: Final = re.compile(r"([0-9]{1,15}) *([a-z]*)")
_UNITS_MS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("us",), 0.001),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


def duration(*, bare: bool) -> SettingKind:
    """A number and a unit, in milliseconds; with `bare`, a number alone is one of milliseconds, as
    Spark has it."""

    def read(value: object) -> int:
        match = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
        factor = _UNITS_MS.get(match[2] or ("ms" if bare else "")) if match else None
        if match is None or factor is None:
            raise ValueError(value)
        return int(int(match[1]) * factor)

    return SettingKind(
        "duration", 'a time such as "500 ms", "10 s", "5 minutes", "1 hour" or "2 d"', read
    )


# --- addresses ----------------------------------------------------------------------------------


def host_and_port(
    text: str, *, least_port: int, default_port: int | None = None
) -> tuple[str, int]:
    """Of `HOST:PORT`, where an IPv6 host stands in brackets; `ValueError` where it is none. Where
    there is a default the port may be left out, and brackets where the port is not."""
    host, colon, port = text.rpartition(":")
    if default_port is not None and (not colon or text.endswith("]")):
        host, port = text, str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host and default_port is None:
        raise ValueError(text)
    is_host = host and "/" not in host and not any(letter.isspace() for letter in host)
    is_port = port.isascii() and port.isdigit() and len(port) <= len(str(LARGEST_PORT))
    if not is_host or not is_port or not least_port <= int(port) <= LARGEST_PORT:
        raise ValueError(text)
    return host, int(port)
