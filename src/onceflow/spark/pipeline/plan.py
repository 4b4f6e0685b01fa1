"""A pipeline as frozen values: what it reads, how it parses, transforms, encodes and writes.

Made by `parse.read_plan` from tables, which are those of a `pipeline.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceflow.client import ProducerSettings, ReaderSettings
from onceflow.spark.formats import Field, Format
from onceflow.spark.pipeline.functions import Function, NamedFunction

SINGLE: Final = "source"
"""The name of a source that is alone."""


class Watermark(NamedTuple):
    """How late rows may be before state forgets them."""

    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Topics that are read as one table."""

    name: str
    options: Mapping[str, str]
    """Of `format("onceflow")`, the address left out."""
    format: Format
    schema_text: str = ""
    schema: tuple[Field, ...] = ()
    format_options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    rules: Mapping[str, str] = field(default_factory=dict)
    """Conditions of SQL by name, which good rows meet."""


class TransformKind(Enum):
    NOTHING = "nothing"
    SQL = "sql"
    PYTHON = "python"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformPlan:
    """From the sources to the rows that are written."""

    kind: TransformKind = TransformKind.NOTHING
    sql: str = ""
    function: Function | None = None
    """By its name until there is a session."""

    def load(self) -> Callable[..., Any] | None:
        """The function itself; None where there is none. Raises `NotAllowed`."""
        named = self.function
        return named.load() if isinstance(named, NamedFunction) else named


class OutputMode(Enum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """Where rows go, and as what. Key, partition and headers are expressions of SQL, in Arrow
    pipelines names of columns."""

    topic: str | None
    format: Format
    key: str | None = None
    partition: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    mode: OutputMode = OutputMode.APPEND
    format_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """All of a pipeline."""

    name: str
    checkpoint: str
    """A directory; a URI where it has a scheme."""
    bootstrap: str | None
    """None: a broker is started beside it."""
    broker: Mapping[str, str]
    """The settings of that broker."""
    sources: tuple[SourcePlan, ...]
    transform: TransformPlan
    sink: SinkPlan
    dead_letters: str | None
    interval_ms: int | None
    """None: a batch follows the one before at once."""
    available_now: bool
    spark_settings: Mapping[str, str]
    reader_settings: Mapping[str, str]
    """By Kafka's names, the address left out."""
    producer_settings: Mapping[str, str]
    base: Path
    """What relative paths are relative to."""

    def readers(self, bootstrap: str) -> ReaderSettings:
        return ReaderSettings.of({**self.reader_settings, "bootstrap.servers": bootstrap})

    def producers(self, bootstrap: str) -> ProducerSettings:
        return ProducerSettings.of({**self.producer_settings, "bootstrap.servers": bootstrap})
