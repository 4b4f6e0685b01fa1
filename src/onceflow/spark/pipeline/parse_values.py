"""The values of a `pipeline.toml`, read: a reader gives the value, or raises `NotAllowed` with what
would be allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, TypeVar

from onceflow.settings import TOPIC_NAME, NotAllowed
from onceflow.spark.formats import Field, SchemaMalformed, parse_schema

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SOURCE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION: Final = re.compile(r"(\d{1,12}) *([A-Za-z]+)")
_UNITS_MS: Final[Mapping[str, int]] = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
E = TypeVar("E", bound=Enum)


def text(value: object) -> str:
    """Any text but an empty one."""
    if not isinstance(value, str) or not value.strip():
        raise NotAllowed("a text")
    return value


def flag(value: object) -> bool:
    """TOML has words for it."""
    if not isinstance(value, bool):
        raise NotAllowed("true or false")
    return value


def pipeline_name(value: object) -> str:
    """It becomes a transactional id, a group and the name of a query."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise NotAllowed("up to 200 letters, digits, '.', '_' and '-'")
    return value


def source_name(value: str) -> str:
    """It becomes the name of a view."""
    if not _SOURCE_NAME.fullmatch(value):
        raise NotAllowed("letters, digits and '_', no digit first, as in names of tables")
    return value


def topic(value: object) -> str:
    """By Kafka's rules."""
    return str(TOPIC_NAME(value))


def topics(value: object) -> tuple[str, ...]:
    """One or several."""
    found = value if isinstance(value, list | tuple) else [value]
    if not found:
        raise NotAllowed("a topic name, or a list of them")
    return tuple(topic(each) for each in found)


def pattern(value: object) -> str:
    """A regular expression."""
    try:
        re.compile(text(value))
    except re.error as error:
        raise NotAllowed(f"a regular expression ({error})") from error
    return text(value)


def word_of(kind: type[E]) -> Callable[[object], E]:
    """One of a few words."""

    def read(value: object) -> E:
        for each in kind:
            if each.value == value:
                return each
        words = [str(each.value) for each in kind]
        raise NotAllowed(f"{', '.join(words[:-1])} or {words[-1]}")

    return read


def schema(value: object) -> tuple[str, tuple[Field, ...]]:
    """As it is written, and its columns."""
    if not isinstance(value, str):
        raise NotAllowed('columns and types as Spark writes them: "id BIGINT, name STRING"')
    try:
        return value, parse_schema(value)
    except SchemaMalformed as error:
        raise NotAllowed(
            f'columns and types as Spark writes them, such as "id BIGINT, name STRING": {error}'
        ) from error


def duration_ms(value: object) -> int:
    """A number and a unit."""
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = "" if found is None else found[2].lower()
    factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
    if found is None or factor is None:
        raise NotAllowed('a time such as "500 ms", "10 seconds", "5 minutes" or "1 hour"')
    return int(found[1]) * factor


def starting(value: object) -> dict[str, str]:
    """Options of the source."""
    if isinstance(value, str) and value in ("earliest", "latest"):
        return {"startingOffsets": value}
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return {
            "startingTimestamp": str(int(moment.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    if isinstance(value, Mapping) and all(isinstance(each, Mapping) for each in value.values()):
        return {"startingOffsets": json.dumps(value)}
    raise NotAllowed(
        '"earliest", "latest", a time (2026-01-31T12:00:00Z), or offsets by topic and partition '
        "({ orders = { 0 = 23, 1 = -2 } }, where -1 is the latest and -2 the earliest)"
    )


def flat(value: object) -> dict[str, str]:
    """Settings by dotted keys, however they are nested; every value as text."""
    if not isinstance(value, Mapping):
        raise NotAllowed("a table of settings")
    return dict(_flat(value, ""))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield prefix + name, "true" if value else "false"
        elif isinstance(value, str | int | float):
            yield prefix + name, str(value)
        else:
            raise NotAllowed(f"a text, a number, true or false for {prefix}{name}")


def expressions(value: object) -> dict[str, str]:
    """Names and expressions of SQL."""
    if not isinstance(value, Mapping):
        raise NotAllowed('a table of names and expressions: positive = "cents > 0"')
    return {name: text(each) for name, each in value.items()}
