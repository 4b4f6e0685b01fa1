"""The keys of a `pipeline.toml`: what each takes, what holds without it, and what it means.

Keys of several words have underscores. With dots they would be tables in TOML: `format.options`
would lie inside of `format`, which is a text. Kafka's settings, in `[settings]` and `[broker]`,
have dots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from onceflow.settings import (
    PATTERN,
    TEXT,
    TOPIC_NAME,
    TOPIC_NAMES,
    TRUE_OR_FALSE,
    NotAllowed,
    Setting,
    SettingKind,
    by_name,
    did_you_mean,
    duration,
    either,
    flat,
    not_allowed,
    one_of,
    plain_text,
    shown,
)
from onceflow.spark.errors import KeyPath, KeyProblem
from onceflow.spark.formats import Field, Format, SchemaMalformed, parse_schema
from onceflow.spark.pipeline.plan import OutputMode
from onceflow.spark.sink import QUERY_NAME

Table: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[object], Any]

# --- what keys take ------------------------------------------------------------------------------

_SOURCE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEMA: Final = 'columns and types as Spark writes them, such as "id BIGINT, name STRING"'


def _read_written(value: object) -> str:
    text = TEXT.read(value)
    if not text.strip():
        raise ValueError(value)
    return str(text)


def _read_source_name(value: object) -> str:
    if not isinstance(value, str) or not _SOURCE_NAME.fullmatch(value):
        raise ValueError(value)
    return value


def _read_schema(value: object) -> tuple[str, tuple[Field, ...]]:
    """As it is written, and its columns."""
    try:
        return TEXT.read(value), parse_schema(TEXT.read(value))
    except SchemaMalformed as error:
        raise NotAllowed(f"{_SCHEMA}: {error}") from error


def _read_starting(value: object) -> dict[str, str]:
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
    raise ValueError(value)


def _read_settings(value: object) -> dict[str, str]:
    """By dotted keys, however they are nested; every value as text."""
    if not isinstance(value, Mapping):
        raise ValueError(value)
    found = {name: plain_text(each) for name, each in flat(value)}
    wrong = next((name for name, text in found.items() if text is None), None)
    if wrong is not None:
        raise NotAllowed(f"a text, a number, true or false for {wrong}")
    return {name: text or "" for name, text in found.items()}


def _read_expressions(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(value)
    return {name: WRITTEN(each) for name, each in value.items()}


WRITTEN: Final = SettingKind("string", "a text", _read_written)
SOURCE_NAME: Final = SettingKind(
    "string", "letters, digits and '_', no digit first, as in names of tables", _read_source_name
)
SETTINGS: Final = SettingKind("table", "a table of settings", _read_settings)
EXPRESSIONS: Final = SettingKind(
    "table", 'a table of names and expressions: positive = "cents > 0"', _read_expressions
)
_ANY_TABLE: Final = SettingKind("table", "a table", lambda value: value)
_DURATION: Final = duration(bare=False)


# --- the tables ----------------------------------------------------------------------------------


PIPELINE: Final = by_name(
    Setting(
        "name", QUERY_NAME, "The name of the pipeline, the same at every start.", is_required=True
    ),
    Setting("checkpoint", WRITTEN, "A directory for Spark's progress.", is_required=True),
)
ADDRESS: Final = by_name(
    Setting(
        "bootstrap",
        WRITTEN,
        "The brokers that are read from and written to.",
        unset="a broker that is started beside the pipeline",
    )
)
SOURCE: Final = by_name(
    Setting("topics", TOPIC_NAMES, "The topics to read."),
    Setting("pattern", PATTERN, "Reads all topics in whose names it is found, in place of topics."),
    Setting(
        "starting",
        SettingKind(
            "string, time or table",
            '"earliest", "latest", a time (2026-01-31T12:00:00Z), or offsets by topic and '
            "partition ({ orders = { 0 = 23, 1 = -2 } }, where -1 is the latest and -2 the "
            "earliest)",
            _read_starting,
        ),
        "Where a new checkpoint starts to read.",
        "earliest",
    ),
    Setting("format", one_of(*Format), "How the value of a record is read.", is_required=True),
    Setting(
        "schema",
        SettingKind("schema", _SCHEMA, _read_schema),
        "The columns; json and csv need them.",
    ),
    Setting("format_options", SETTINGS, "Options of Spark's reader of that format."),
    Setting("options", SETTINGS, "Options of the source ([SOURCE.md](SOURCE.md))."),
    Setting("watermark", _ANY_TABLE, "How late rows may be before state forgets them."),
)
WATERMARK: Final = by_name(
    Setting("column", WRITTEN, "The column that holds the time of a row.", is_required=True),
    Setting("delay", _DURATION, 'How late a row may be: "10 minutes".', is_required=True),
)
TRANSFORM: Final = by_name(
    Setting("sql", WRITTEN, "A query over the sources, by their names."),
    Setting("sql_file", WRITTEN, "The path of a file with that query."),
    Setting("python", WRITTEN, '"module:function", from DataFrames to a DataFrame.'),
    Setting("arrow", WRITTEN, '"module:function", from an Arrow table to another.'),
)
SINK: Final = by_name(
    Setting(
        "topic",
        TOPIC_NAME,
        "Where the rows go.",
        unset="must be given, unless format is raw: then the column topic of each row",
    ),
    Setting("key", WRITTEN, "An expression for the key of a record.", unset="no key"),
    Setting("format", one_of(*Format), "How the value of a record is written.", is_required=True),
    Setting(
        "partition",
        WRITTEN,
        "An expression for the partition of a record.",
        unset="by the key, else by the value",
    ),
    Setting("headers", EXPRESSIONS, "Names of headers, and expressions for their values."),
    Setting("mode", one_of(*OutputMode), "Spark's output mode.", OutputMode.APPEND),
    Setting("format_options", SETTINGS, "Options of Spark's writer of that format."),
)
DEAD_LETTERS: Final = by_name(
    Setting("topic", TOPIC_NAME, "Where unusable rows go.", is_required=True)
)
TRIGGER: Final = by_name(
    Setting("interval", _DURATION, "The time between two batches.", unset="batch after batch"),
    Setting("available_now", TRUE_OR_FALSE, "Whether to process what there is, and stop.", False),
)
SECTIONS: Final = (
    "pipeline",
    "source",
    "rules",
    "transform",
    "sink",
    "dead_letters",
    "trigger",
    "settings",
    "broker",
)


# --- reading a table, with all that is wrong in it -----------------------------------------------


class Judge:
    """Reads values by tables of keys."""

    def __init__(self) -> None:
        self.problems: list[KeyProblem] = []

    def wrong(self, path: KeyPath, text: str) -> None:
        self.problems.append(KeyProblem(path, text))

    def table(self, path: KeyPath, value: object) -> Table:
        if isinstance(value, Mapping):
            return value
        self.wrong(path, f"it is {value!r}, and must be a table: [{'.'.join(path)}]")
        return {}

    def section(
        self,
        path: KeyPath,
        value: object,
        keys: Mapping[str, Setting],
        readers: Mapping[str, Reader] | None = None,
    ) -> dict[str, Any]:
        """The values of a table that are right; `readers` for those that take more than the key
        itself knows."""
        given = self.table(path, value)
        for name, key in keys.items():
            if key.is_required:
                self.need(path, given, name, key.meaning[0].lower() + key.meaning[1:].rstrip("."))
        found: dict[str, Any] = {}
        for name, written in given.items():
            if name not in keys:
                self.wrong((*path, name), no_such(name, keys, "key"))
                continue
            try:
                found[name] = (readers or {}).get(name, keys[name].kind)(written)
            except NotAllowed as error:
                self.wrong((*path, name), not_allowed(shown(written), error))
        return found

    def one_of(self, path: KeyPath, given: Table, keys: Iterable[str], what: str = "") -> None:
        """Several of these keys contradict each other; with `what`, there must be one."""
        here = [key for key in keys if key in given]
        if len(here) > 1:
            self.wrong((*path, here[1]), f"contradicts {here[0]}: give one of them")
        if not here and what:
            self.wrong(path, f"{either(keys)} is missing: {what}")

    def need(self, path: KeyPath, given: Table, key: str, what: str) -> None:
        if key not in given:
            self.wrong(path, f"{key} is missing: {what}")


def no_such(name: str, known: Iterable[str], what: str) -> str:
    return f"there is no such {what}{did_you_mean(name, known) or f'; there are {either(known)}'}"
