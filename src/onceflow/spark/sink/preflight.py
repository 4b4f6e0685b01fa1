"""What can be seen to be wrong before a query starts: the frame, the session, the settings.

Each check returns what is wrong, in words that say what to do; all of it is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from onceflow.client import ProducerSettings
from onceflow.errors import InvalidSetting
from onceflow.spark.formats import DEAD_LETTER, DEAD_LETTER_FIELDS
from onceflow.spark.source import TOPIC_RULE, is_topic_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
"""The columns that are written, as Spark's own sink takes them; others are left out."""
_TOPICS: Final = ("topic", "dead_letter_topic", "ledger_topic")
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_MUST_BE_OFF: Final[Mapping[str, str]] = {
    "spark.speculation": (
        "two copies of a task would write, and one of them is refused each time: set it to false"
    ),
}
_OURS: Final[Mapping[str, str]] = {
    "transactional.id": "it follows from name",
    "bootstrap.servers": "give bootstrap",
    "transaction.timeout.ms": "give transaction_timeout_ms",
    "delivery": "it is exactly-once",
}


def check_frame(
    types: Mapping[str, str], *, topic: str | None, dead_letter_topic: str | None, narrow: bool
) -> Iterator[str]:
    """`types` are the frame's columns, each with the simple name of its type."""
    if "value" not in types:
        yield "there is no column 'value': it holds what is written, as string or binary"
    if topic is None and "topic" not in types:
        yield "there is no topic: pass topic=..., or give the frame a column 'topic'"
    if topic is None and narrow:
        yield "narrow mode writes to one topic: pass topic=..."
    if narrow and not {"partition", "key"} & types.keys():
        yield (
            "in narrow mode rows stay in the partition where they are, and the frame has neither a "
            "column 'partition', which says where that is, nor a column 'key' that belongs there: "
            "select the source's column 'partition', too, or leave narrow out"
        )
    for name, allowed in TYPES.items():
        if name == "topic" and topic is not None:
            continue
        found = types.get(name)
        if found is not None and found not in allowed:
            yield f"column {name!r} is of type {found}; it must be {' or '.join(allowed)}"
    yield from _check_dead_letters(types, dead_letter_topic)


def _check_dead_letters(types: Mapping[str, str], topic: str | None) -> Iterator[str]:
    found = types.get(DEAD_LETTER)
    if topic is None and found is not None:
        yield (
            f"the frame has dead letters (column {DEAD_LETTER!r}) and there is no topic for them: "
            "pass dead_letter_topic=..., or drop the column"
        )
    elif topic is not None and found is None:
        yield (
            f"dead_letter_topic is given and the frame has no column {DEAD_LETTER!r}: make it with "
            "dead_letters(frame, error) and keep it in what you select"
        )
    elif topic is not None and found != DEAD_LETTER_FIELDS:
        yield f"column {DEAD_LETTER!r} is not as dead_letters made it: leave it as it is"


def check_names(names: Mapping[str, str | None]) -> Iterator[str]:
    """Names of topics, and what becomes part of the names of groups and transactional ids."""
    for argument, name in names.items():
        if name is None:
            continue
        if argument in _TOPICS:
            if not is_topic_name(name):
                yield f"{argument} = {name!r} is no name of a topic: use {TOPIC_RULE}"
        elif not _NAME.fullmatch(name):
            yield (
                f"{argument} = {name!r} is no name: use up to 200 letters, digits, '.', '_' and '-'"
            )


def check_spark(conf: Mapping[str, str]) -> Iterator[str]:
    """Settings of Spark that would break what is promised."""
    for key, reason in _MUST_BE_OFF.items():
        if conf.get(key, "false").lower() == "true":
            yield f"{key} is true: {reason}"


def is_connect(frame: DataFrame) -> bool:
    """Whether the frame belongs to a Spark Connect session."""
    return type(frame).__module__.startswith("pyspark.sql.connect")


CONNECT: Final = (
    "this is a Spark Connect session: the transactions of a query are driven from this program, "
    "and Connect runs the function of a batch on its server. Use a classic session "
    "(SparkSession.builder.master(...))"
)


def check_kind(frame: DataFrame, *, is_stream: bool) -> Iterator[str]:
    """A stream where a stream is needed."""
    if is_stream and not frame.isStreaming:
        yield "the frame is no stream: use write"
    if not is_stream and frame.isStreaming:
        yield "the frame is a stream: use write_stream"


def types_of(frame: DataFrame) -> dict[str, str]:
    """The columns that are looked at, each with the simple name of its type."""
    return {each.name: each.dataType.simpleString() for each in frame.schema.fields}


def producer_settings(
    given: Mapping[str, Any], *, bootstrap: str, transactional_id: str, timeout_ms: int
) -> ProducerSettings:
    """Raises `InvalidSetting`."""
    for key in given:
        dotted = key.replace("_", ".")
        if dotted in _OURS:
            raise InvalidSetting(f"{key} cannot be given as a setting: {_OURS[dotted]}")
    return ProducerSettings.of(
        {
            **given,
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
    )


def problems_of(*parts: Iterable[str]) -> list[str]:
    """All of them, in order."""
    return [problem for part in parts for problem in part]
