"""Reads the tables of a `pipeline.toml` into a plan. Everything that is wrong is reported at once,
before Spark is started: keys that do not exist, values that are not allowed, keys that contradict
each other, functions that are missing, settings that client, source or broker would refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

from onceflow.settings import NotAllowed
from onceflow.spark.errors import InvalidPipeline, KeyPath, KeyProblem
from onceflow.spark.formats import Field, Format, Plain, has_other_keys
from onceflow.spark.pipeline import parse_values as values
from onceflow.spark.pipeline.columns import OF_RECORD, OWN
from onceflow.spark.pipeline.functions import Function, NamedFunction, call_problem, function_in
from onceflow.spark.pipeline.plan import (
    SINGLE,
    OutputMode,
    PipelinePlan,
    SinkPlan,
    SourcePlan,
    TransformKind,
    TransformPlan,
    Watermark,
)
from onceflow.spark.pipeline.settings import broker_settings, check_source_options, divide_settings

# --- reading a table, with all that is wrong in it -----------------------------------------------


Table: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[object], Any]


class Judge:
    """Reads values by tables of readers."""

    def __init__(self) -> None:
        self.problems: list[KeyProblem] = []

    def wrong(self, path: KeyPath, text: str) -> None:
        self.problems.append(KeyProblem(path, text))

    def table(self, path: KeyPath, value: object) -> Table:
        if isinstance(value, Mapping):
            return value
        self.wrong(path, f"it is {value!r}, and must be a table: [{'.'.join(path)}]")
        return {}

    def section(self, path: KeyPath, value: object, keys: Mapping[str, Reader]) -> dict[str, Any]:
        """The values of a table that are right."""
        found = {}
        for key, written in self.table(path, value).items():
            if key not in keys:
                self.wrong((*path, key), no_such(key, keys, "key"))
                continue
            try:
                found[key] = keys[key](written)
            except NotAllowed as error:
                self.wrong((*path, key), f"{shown(written)} is not allowed; it may be {error}")
        return found

    def one_of(self, path: KeyPath, given: Table, keys: tuple[str, ...], what: str = "") -> None:
        """Several of these keys contradict each other; with `what`, there must be one."""
        here = [key for key in keys if key in given]
        if len(here) > 1:
            self.wrong((*path, here[1]), f"contradicts {here[0]}: give one of them")
        if not here and what:
            self.wrong(path, f"{listed(keys)} is missing: {what}")

    def need(self, path: KeyPath, given: Table, key: str, what: str) -> None:
        if key not in given:
            self.wrong(path, f"{key} is missing: {what}")


def no_such(name: str, known: Iterable[str], what: str) -> str:
    close = get_close_matches(name, list(known), n=1)
    guess = f"did you mean {close[0]}?" if close else f"there are {listed(tuple(known))}"
    return f"there is no such {what}; {guess}"


def listed(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def shown(value: object) -> str:
    written = f'"{value}"' if isinstance(value, str) else repr(value)
    return written if len(written) <= 100 else written[:97] + "..."


# --- the plan -----------------------------------------------------------------------------------


_DEFAULT_DATA: Final = "onceflow-data"
_ADDRESS: Final[Mapping[str, Reader]] = {"bootstrap": values.text}
_SOURCE: Final[Mapping[str, Reader]] = {
    "topics": values.topics,
    "pattern": values.pattern,
    "starting": values.starting,
    "format": values.word_of(Format),
    "schema": values.schema,
    "format_options": values.flat,
    "options": values.flat,
    "watermark": lambda value: value,
}
_WATERMARK: Final[Mapping[str, Reader]] = {"column": values.text, "delay": values.duration_ms}
_SINK: Final[Mapping[str, Reader]] = {
    "topic": values.topic,
    "key": values.text,
    "format": values.word_of(Format),
    "partition": values.text,
    "headers": values.expressions,
    "mode": values.word_of(OutputMode),
    "format_options": values.flat,
}
_SECTIONS: Final = (
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


def read_plan(document: Table, base: Path) -> PipelinePlan:
    """The plan of a document; raises `InvalidPipeline`. Relative paths are relative to `base`."""
    reading = _Reading(document, base)
    plan = reading.plan()
    if reading.problems or plan is None:
        raise InvalidPipeline(reading.problems)
    return plan


def call_names(sources: Sequence[str]) -> list[str] | None:
    """A function takes one table, or those of all sources by their names."""
    return None if list(sources) == [SINGLE] else list(sources)


def with_function(plan: PipelinePlan) -> PipelinePlan:
    """The plan with its function loaded, which may need a session; raises `InvalidPipeline`."""
    transform = plan.transform
    if not isinstance(transform.function, NamedFunction):
        return plan
    path = ("transform", transform.kind.value)
    try:
        function = transform.function.load()
    except NotAllowed as error:
        named = f"{transform.function.module}:{transform.function.name} is not allowed"
        raise InvalidPipeline([KeyProblem(path, f"{named}; it may be {error}")]) from error
    is_arrow = transform.kind is TransformKind.ARROW
    names = None if is_arrow else call_names([each.name for each in plan.sources])
    if problem := call_problem(function, names):
        raise InvalidPipeline([KeyProblem(path, problem)])
    return replace(plan, transform=replace(transform, function=function))


class _Reading(Judge):
    """Goes through a document, and remembers all that is wrong."""

    def __init__(self, document: Table, base: Path) -> None:
        super().__init__()
        self._document = document
        self._base = base
        for name in document:
            if name not in _SECTIONS:
                self.wrong((name,), no_such(name, _SECTIONS, "table"))

    # --- the document ---------------------------------------------------------------------------

    def plan(self) -> PipelinePlan | None:
        """None when something is wrong that it cannot be without."""
        about = self._about()
        settings = divide_settings(self._flat("settings"))
        self.problems += settings.problems
        understood = {} if settings.problems else settings.reader
        bootstrap, tables = self._source_tables()
        sources = [self._source(*each) for each in tables.items()]
        self._rules_of_nobody(tables)
        for (path, table), plan in zip(tables.values(), sources, strict=True):
            if plan is not None:
                self.problems += check_source_options(path, table, plan, understood)
        transform = self._transform(list(tables))
        sink = self._sink(transform)
        dead_letters = self._dead_letters(tables)
        trigger = self._trigger()
        broker = self._broker(bootstrap)
        known = [each for each in sources if each is not None]
        if self.problems or sink is None:
            return None
        self._check_arrow(transform, known, sink)
        return PipelinePlan(
            name=about["name"],
            checkpoint=_place(self._base, about["checkpoint"]),
            bootstrap=bootstrap,
            broker=broker,
            sources=tuple(known),
            transform=transform,
            sink=sink,
            dead_letters=dead_letters,
            interval_ms=trigger.get("interval"),
            available_now=trigger.get("available_now", False),
            spark_settings=settings.spark,
            reader_settings=settings.reader,
            producer_settings=settings.producer,
            base=self._base,
        )

    def _about(self) -> dict[str, Any]:
        keys = {"name": values.pipeline_name, "checkpoint": values.text}
        table = self._document.get("pipeline", {})
        found = self.section(("pipeline",), table, keys)
        given = self._given("pipeline")
        self.need(("pipeline",), given, "name", "the name of the pipeline, the same at every start")
        self.need(("pipeline",), given, "checkpoint", "a directory for Spark's progress")
        return found

    def _given(self, section: str) -> Table:
        found = self._document.get(section, {})
        return found if isinstance(found, Mapping) else {}

    def _flat(self, section: str) -> dict[str, str]:
        try:
            return values.flat(self._document.get(section, {}))
        except NotAllowed as error:
            self.wrong((section,), f"it must be {error}")
            return {}

    # --- sources --------------------------------------------------------------------------------

    def _source_tables(self) -> tuple[str | None, dict[str, tuple[KeyPath, Table]]]:
        """The address, and the table of each source with its path: `[source]` is one, or holds
        several."""
        given = self.table(("source",), self._document.get("source", {}))
        address = self.section(
            ("source",), {key: given[key] for key in given if key in _ADDRESS}, _ADDRESS
        )
        rest = {key: value for key, value in given.items() if key not in _ADDRESS}
        named = {key: value for key, value in rest.items() if _is_source(key, value)}
        if not named:
            return address.get("bootstrap"), {SINGLE: (("source",), rest)}
        for key in rest.keys() - named.keys():
            self.wrong(
                ("source", key),
                "where there are several sources it belongs to one of them: "
                f"[source.{next(iter(named))}]",
            )
        for name in named:
            try:
                values.source_name(name)
            except NotAllowed as error:
                self.wrong(("source", name), f"is not allowed as a name; it may be {error}")
        return address.get("bootstrap"), {
            name: (("source", name), self.table(("source", name), table))
            for name, table in named.items()
        }

    def _source(self, name: str, placed: tuple[KeyPath, Table]) -> SourcePlan | None:
        path, given = placed
        found = self.section(path, given, _SOURCE)
        self.one_of(path, given, ("topics", "pattern"), "what to read")
        self.need(path, given, "format", "json, csv, text or raw")
        form = found.get("format")
        if form is not None and form.has_columns:
            self.need(path, given, "schema", 'the columns, as in "id BIGINT, name STRING"')
        elif form is not None and "schema" in given:
            self.wrong((*path, "schema"), f"{form.value} has one column, value: leave it out")
        if form is not None and "schema" in found:
            for text in schema_problems(form, found["schema"][1]):
                self.wrong((*path, "schema"), text)
        watermark = self._watermark(path, found.get("watermark"))
        if form is None or ("topics" not in found and "pattern" not in found):
            return None
        text, fields = found.get("schema", ("", ()))
        return SourcePlan(
            name=name,
            options={
                **(
                    {"subscribe": ",".join(found["topics"])}
                    if "topics" in found
                    else {"subscribePattern": found["pattern"]}
                ),
                **found.get("starting", {"startingOffsets": "earliest"}),
                **found.get("options", {}),
            },
            format=form,
            schema_text=text,
            schema=fields,
            format_options=found.get("format_options", {}),
            watermark=watermark,
            rules=self._rules(name),
        )

    def _watermark(self, path: KeyPath, given: object) -> Watermark | None:
        if given is None:
            return None
        path = (*path, "watermark")
        table = self.table(path, given)
        found = self.section(path, table, _WATERMARK)
        self.need(path, table, "column", "the column that holds the time of a row")
        self.need(path, table, "delay", 'how late a row may be: "10 minutes"')
        return Watermark(found["column"], found["delay"]) if len(found) == len(_WATERMARK) else None

    def _rules(self, name: str) -> dict[str, str]:
        """Those of a source: `[rules]` where it is the only one, else `[rules.NAME]`."""
        given = self._document.get("rules", {})
        path: KeyPath = ("rules",)
        if name != SINGLE:
            path = ("rules", name)
            given = self._given("rules").get(name, {})
        try:
            return values.expressions(given)
        except NotAllowed as error:
            self.wrong(path, f"{shown(given)} is not allowed; it may be {error}")
            return {}

    def _rules_of_nobody(self, tables: Table) -> None:
        if SINGLE in tables:
            return
        for name in self._given("rules"):
            if name not in tables:
                self.wrong(("rules", name), no_such(name, tables, "source"))

    # --- what follows ---------------------------------------------------------------------------

    def _transform(self, sources: list[str]) -> TransformPlan:
        load = function_in(self._base)
        keys: dict[str, Reader] = {
            "sql": values.text,
            "sql_file": self._sql_file,
            "python": load,
            "arrow": load,
        }
        path = ("transform",)
        given = self._given("transform")
        found = self.section(path, self._document.get("transform", {}), keys)
        needed = "several sources need a transform" if len(sources) > 1 else ""
        self.one_of(path, given, tuple(keys), needed)
        if "python" in found:
            self._check_call(("transform", "python"), found["python"], call_names(sources))
            return TransformPlan(kind=TransformKind.PYTHON, function=found["python"])
        if "arrow" in found:
            self._check_call(("transform", "arrow"), found["arrow"], None)
            return TransformPlan(kind=TransformKind.ARROW, function=found["arrow"])
        sql = found.get("sql") or found.get("sql_file")
        return TransformPlan(kind=TransformKind.SQL, sql=sql) if sql else TransformPlan()

    def _sql_file(self, value: object) -> str:
        path = self._base / values.text(value)
        try:
            return values.text(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise NotAllowed(f"a file with SQL; {path} cannot be read: {error.strerror}") from error

    def _check_call(self, path: KeyPath, function: Function, names: list[str] | None) -> None:
        if problem := call_problem(function, names):
            self.wrong(path, problem)

    def _sink(self, transform: TransformPlan) -> SinkPlan | None:
        path = ("sink",)
        given = self._given("sink")
        found = self.section(path, self._document.get("sink", {}), _SINK)
        self.need(path, given, "format", "json, csv, text or raw")
        form = found.get("format")
        if form is not Format.RAW:
            self.need(path, given, "topic", "where the rows go")
        elif transform.kind is TransformKind.ARROW:
            self.need(path, given, "topic", "an Arrow pipeline writes to one topic")
        if form is None:
            return None
        return SinkPlan(
            topic=found.get("topic"),
            format=form,
            key=found.get("key"),
            partition=found.get("partition"),
            headers=found.get("headers", {}),
            mode=found.get("mode", OutputMode.APPEND),
            format_options=found.get("format_options", {}),
        )

    def _dead_letters(self, tables: Table) -> str | None:
        path = ("dead_letters",)
        given = self._given("dead_letters")
        found = self.section(path, self._document.get("dead_letters", {}), {"topic": values.topic})
        if "dead_letters" in self._document:
            self.need(path, given, "topic", "where unusable rows go")
        elif self._document.get("rules"):
            self.wrong(
                ("rules",),
                "rows that break a rule need a topic to go to: add [dead_letters]",
            )
        letters: str | None = found.get("topic")
        taken = [self._given("sink").get("topic")]
        for _, table in tables.values():
            names = table.get("topics", ())
            taken += [names] if isinstance(names, str) else list(names)
        if letters is not None and letters in taken:
            self.wrong(("dead_letters", "topic"), f"{letters!r} is a topic of the data already")
        return letters

    def _trigger(self) -> dict[str, Any]:
        keys = {"interval": values.duration_ms, "available_now": values.flag}
        self.one_of(("trigger",), self._given("trigger"), tuple(keys))
        return self.section(("trigger",), self._document.get("trigger", {}), keys)

    def _broker(self, bootstrap: str | None) -> dict[str, str]:
        if bootstrap is not None:
            if "broker" in self._document:
                self.wrong(
                    ("broker",),
                    "contradicts source.bootstrap: with an address no broker is started here; "
                    "leave one of them out",
                )
            return {}
        given = self._flat("broker")
        spelled = {name.replace("_", ".").replace("-", "."): each for name, each in given.items()}
        spelled["data.dir"] = _place(self._base, spelled.get("data.dir", _DEFAULT_DATA))
        self.problems += broker_settings(spelled)
        return spelled

    def _check_arrow(
        self, transform: TransformPlan, sources: list[SourcePlan], sink: SinkPlan
    ) -> None:
        if transform.kind is TransformKind.ARROW:
            for path, text in _arrow_problems(sources, sink):
                self.wrong(path, text)


def schema_problems(form: Format, fields: tuple[Field, ...]) -> Iterator[str]:
    """What neither engine can read, or could not tell apart from its own columns."""
    for field in fields:
        name = field.name.lower()
        if name in OF_RECORD:
            yield f"{field.name!r} is a column that every source has: give it another name"
        elif name.startswith(OWN):
            yield f"{field.name!r}: names that begin with {OWN} are taken; give it another one"
        if form is Format.CSV and not isinstance(field.type, Plain):
            yield f"{field.name!r} is a {field.type.word}, which CSV cannot hold"
        elif form is Format.JSON and has_other_keys(field.type):
            yield f"{field.name!r} has a MAP whose keys are not STRING, as JSON needs"


def _arrow_problems(sources: list[SourcePlan], sink: SinkPlan) -> Iterator[KeyProblem]:
    """What needs rows in Spark, which an Arrow pipeline never has."""
    from onceflow.spark.formats import Parser, option_problems
    from onceflow.spark.pipeline.arrow_task import STAYS

    where = "in an Arrow pipeline rows never reach Spark's engine"
    if len(sources) > 1:
        yield KeyProblem(
            ("source",), f"{where}: it has one source; use sql or python to join several"
        )
    for source in sources:
        if source.watermark is not None:
            yield KeyProblem(("source", "watermark"), f"{where}: it has no state; leave it out")
        if source.rules:
            yield KeyProblem(("rules",), f"{where}: let the function return (good, bad) instead")
        for name in ("minPartitions", "maxPartitions", "maxRecordsPerPartition"):
            if name.lower() in {each.lower() for each in source.options}:
                yield KeyProblem(
                    ("source", "options", name),
                    "one task reads a partition here: leave it out",
                )
        yield from (
            KeyProblem(("source",), text)
            for text in Parser(source.format, source.schema, source.format_options).problems()
        )
    yield from (
        KeyProblem(("sink", "format_options"), text)
        for text in option_problems(sink.format, sink.format_options)
    )
    if sink.mode is not OutputMode.APPEND:
        yield KeyProblem(("sink", "mode"), f"{where}: it can only append")
    if sink.partition not in (None, STAYS):
        text = f'rows stay in the partition of their source: leave it out, or set it to "{STAYS}"'
        yield KeyProblem(("sink", "partition"), text)


def _is_source(key: str, value: object) -> bool:
    """Whether a key of `[source]` is the name of one of several sources."""
    return key not in _SOURCE and isinstance(value, Mapping)


def _place(base: Path, written: str) -> str:
    """A path from `base` on; what has a scheme stays as it is."""
    return written if "://" in written else str(base / written)
