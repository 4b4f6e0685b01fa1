"""The values of a source's options, read from the texts that Spark hands over.

A reader gives the value or raises `NotAllowed` with what would be; who calls it adds the name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from onceflow.client import EARLIEST, LATEST
from onceflow.settings import INT_MAX, LONG_MAX, NotAllowed, one_of, whole_number
from onceflow.types import TopicPartition

COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
HEADERS: Final = "headers"


# --- which topics -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of some topics, those that are added later included."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics in whose names a pattern is found."""

    pattern: str

    def fits(self, topic: str) -> bool:
        return re.search(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: frozenset[TopicPartition]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


def topics(text: str) -> Subscribe:
    """Names, separated by commas."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise NotAllowed("topic names, separated by commas")
    _require_topic_names(found)
    return Subscribe(found)


def _require_topic_names(names: Iterable[str]) -> None:
    """Brokers would say it, but only once the query runs."""
    wrong = [name for name in names if not is_topic_name(name)]
    if wrong:
        raise NotAllowed(f"topic names, and {wrong[0]!r} is not one: use {TOPIC_RULE}")


def pattern(text: str) -> SubscribePattern:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise NotAllowed(f"a regular expression ({error})") from error
    if not text:
        raise NotAllowed("a regular expression that matches topic names")
    return SubscribePattern(text)


def assignment(text: str) -> Assign:
    """Partitions in JSON."""
    allowed = 'JSON such as {"topicA":[0,1],"topicB":[2,4]}'
    found = set()
    for topic, numbers in _json(text, allowed).items():
        if not isinstance(numbers, list):
            raise NotAllowed(allowed)
        found |= {TopicPartition(topic, _number(each, 0, INT_MAX, allowed)) for each in numbers}
    if not found:
        raise NotAllowed(allowed)
    _require_topic_names(place.topic for place in sorted(found))
    return Assign(frozenset(found))


# --- from where, up to where --------------------------------------------------------------------


class Edge(Enum):
    """An end of the log."""

    EARLIEST = EARLIEST
    LATEST = LATEST


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; -1 stands for the latest, -2 for the earliest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record of a time, in milliseconds, or later: of one time for all partitions, or of
    one for each."""

    timestamps: Mapping[TopicPartition, int] | int


Position: TypeAlias = Edge | AtOffsets | AtTimes


def position(text: str) -> Position:
    """A word, or offsets in JSON."""
    edge = {"earliest": Edge.EARLIEST, "latest": Edge.LATEST}.get(text.lower())
    if edge is not None:
        return edge
    allowed = (
        'earliest, latest, or JSON such as {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, where -1 '
        "is the latest and -2 the earliest offset"
    )
    return AtOffsets(_by_partition(text, EARLIEST, allowed))


def times(text: str) -> AtTimes:
    """A time for each partition, in JSON."""
    allowed = 'JSON with milliseconds such as {"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}'
    return AtTimes(_by_partition(text, 0, allowed))


def time(text: str) -> AtTimes:
    """Milliseconds."""
    return AtTimes(whole_number(0, LONG_MAX)(text))


def _by_partition(text: str, least: int, allowed: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _json(text, allowed).items():
        if not isinstance(partitions, dict):
            raise NotAllowed(allowed)
        for number, offset in partitions.items():
            place = TopicPartition(topic, whole_number(0)(number))
            found[place] = _number(offset, least, LONG_MAX, allowed)
    if not found:
        raise NotAllowed(allowed)
    return found


def _json(text: str, allowed: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise NotAllowed(allowed) from error
    if not isinstance(found, dict):
        raise NotAllowed(allowed)
    return found


def _number(value: object, least: int, most: int, allowed: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise NotAllowed(allowed)
    return value


# --- others -------------------------------------------------------------------------------------

_DURATION: Final = re.compile(r"([0-9]{1,15}) *([a-z]*)")
_UNITS_MS: Final[Mapping[str, float]] = {
    "us": 0.001,
    "ms": 1,
    "": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def duration_ms(text: str) -> int:
    """A time as Spark writes it; milliseconds where no unit is given."""
    found = _DURATION.fullmatch(text.lower())
    if found is None or found[2] not in _UNITS_MS:
        raise NotAllowed("a time such as 500ms, 30s, 15m, 1h or 2d")
    return int(int(found[1]) * _UNITS_MS[found[2]])


def columns(text: str) -> tuple[str, ...]:
    """Names of columns, in any letters."""
    by_letters = {name.lower(): name for name in COLUMNS}
    found = [by_letters.get(name.strip().lower(), "") for name in text.split(",")]
    if "" in found or len(set(found)) < len(found):
        raise NotAllowed(f"some of {', '.join(COLUMNS)}, separated by commas, each once")
    return tuple(found)


def strategy(text: str) -> bool:
    """Whether to start at the latest where no record is late enough."""
    return bool(one_of("error", "latest", any_case=True)(text) == "latest")


Reader: TypeAlias = Callable[[str], Any]


# --- names of topics -----------------------------------------------------------------------------


TOPIC_RULE: Final = "up to 249 ASCII letters, digits, '.', '_' and '-', and not '.' or '..'"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")
