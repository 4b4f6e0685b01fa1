"""The values of a source's options, read from the texts that Spark hands over."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from onceflow.client import EARLIEST, LATEST
from onceflow.settings import (
    INT_MAX,
    LONG_MAX,
    PATTERN,
    TOPIC_NAME,
    TOPIC_NAMES,
    NotAllowed,
    SettingKind,
    list_of,
    one_of,
    whole_number,
)
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


_NUMBER: Final = whole_number(0)
_PARTITIONS: Final = 'JSON such as {"topicA":[0,1],"topicB":[2,4]}'


def _read_assignment(text: object) -> Assign:
    partitions = {
        TopicPartition(_read_topic(topic), _number(each, 0, INT_MAX))
        for topic, numbers in _json(text).items()
        for each in _typed(list, numbers)
    }
    if not partitions:
        raise ValueError(text)
    return Assign(frozenset(partitions))


def _read_topic(name: str) -> str:
    """Brokers would say it, but only once the query runs."""
    try:
        return str(TOPIC_NAME(name))
    except NotAllowed as error:
        raise NotAllowed(f"{_PARTITIONS}, and {name!r} is not {error}") from error


TOPICS: Final = SettingKind(
    "list", TOPIC_NAMES.allowed, lambda text: Subscribe(TOPIC_NAMES.read(text))
)
TOPIC_PATTERN: Final = SettingKind(
    "string", PATTERN.allowed, lambda text: SubscribePattern(PATTERN.read(text))
)
ASSIGNMENT: Final = SettingKind("JSON", _PARTITIONS, _read_assignment)


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


def _read_position(text: object) -> Position:
    edge = {"earliest": Edge.EARLIEST, "latest": Edge.LATEST}.get(str(text).lower())
    return AtOffsets(_by_partition(text, EARLIEST)) if edge is None else edge


POSITION: Final = SettingKind(
    "string or JSON",
    'earliest, latest, or JSON such as {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, where -1 '
    "is the latest and -2 the earliest offset",
    _read_position,
)
TIMES: Final = SettingKind(
    "JSON",
    'JSON with milliseconds such as {"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}',
    lambda text: AtTimes(_by_partition(text, 0)),
)
_TIME: Final = whole_number(0, LONG_MAX)
TIME: Final = SettingKind(_TIME.type, _TIME.allowed, lambda text: AtTimes(_TIME.read(text)))


def _by_partition(text: object, least: int) -> dict[TopicPartition, int]:
    found = {
        TopicPartition(topic, _NUMBER.read(number)): _number(offset, least, LONG_MAX)
        for topic, partitions in _json(text).items()
        for number, offset in _typed(dict, partitions).items()
    }
    if not found:
        raise ValueError(text)
    return found


def _json(text: object) -> dict[str, Any]:
    found: dict[str, Any] = _typed(dict, json.loads(str(text)))
    return found


def _typed(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(value)
    return value


def _number(value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(value)
    return value


SELECTED_COLUMNS: Final = list_of(
    one_of(*COLUMNS, any_case=True),
    f"some of {', '.join(COLUMNS)}, separated by commas, each once",
    each_once=True,
)
