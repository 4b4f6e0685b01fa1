"""The values of settings, read from what people write: numbers and booleans may be text, as they
are in files and in the environment.

A reader gives the value or raises `NotAllowed` with what would be; the caller adds the key and the
value, except where that is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from onceflow.client.address import (
    parse_addresses,
)
from onceflow.errors import InvalidSetting, OnceflowError

Reader: TypeAlias = Callable[[object], Any]

_YES: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NUMBER: Final = re.compile("-?[0-9]{1,20}")
LARGEST_INT: Final = 2**31 - 1
ALL_REPLICAS: Final = -1
_ACKS: Final = {"all": ALL_REPLICAS, "-1": ALL_REPLICAS, "0": 0, "1": 1}


class NotAllowed(OnceflowError):
    """The text says what is."""


class Secret(str):
    """A text that is not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def setting(read: Reader, default: Any) -> Any:
    """A field of a class of settings, named by its key with underscores for dots."""
    return field(default=default, metadata={"read": read})


def whole_number(least: int, most: int = LARGEST_INT) -> Reader:
    """An int, or digits."""

    def read(value: object) -> int:
        found = value
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            found = int(value)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            raise NotAllowed(f"a whole number from {least} to {most}")
        return found

    return read


def yes_or_no(value: object) -> bool:
    """A bool, or a word for one."""
    found = value if isinstance(value, bool) else _YES.get(str(value).lower())
    if found is None:
        raise NotAllowed("true or false")
    return found


def one_of(*choices: str) -> Reader:
    """One of a few words, in small or capital letters."""
    by_letters = {each.lower(): each for each in choices}

    def read(value: object) -> str:
        found = by_letters.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            raise NotAllowed(" or ".join(choices))
        return found

    return read


def acks(value: object) -> int:
    """`all` or a number."""
    found = _ACKS.get(str(value).lower()) if not isinstance(value, bool) else None
    if found is None:
        raise NotAllowed("all, 1 or 0")
    return found


def words(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise NotAllowed("a text")
    return value


def secret(value: object) -> Secret:
    """A text that must not be seen."""
    return Secret(words(value))


def addresses(value: object) -> Any:
    """`HOST:PORT,HOST:PORT`, or a list of such."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        value = ",".join(value)
    try:
        return parse_addresses(words(value))
    except InvalidSetting as error:
        raise NotAllowed(f"HOST:PORT, or several separated by commas ({error})") from error


def unknown(key: str, known: Iterable[str]) -> InvalidSetting:
    """For a key that is none."""
    close = get_close_matches(key, list(known), n=2)
    guess = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return InvalidSetting(f"unknown setting {key!r}{guess}")
