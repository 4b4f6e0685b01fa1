"""Reads the tables of a `pipeline.toml` into a plan. Everything that is wrong is reported at once,
before Spark is started: keys that do not exist, values that are not allowed, keys that contradict
each other, functions that are missing, settings that client, source or broker would refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from onceflow.settings import NotAllowed, dotted, not_allowed, shown
from onceflow.spark.errors import InvalidPipeline, KeyPath, KeyProblem
from onceflow.spark.formats import Field, Format, Plain, has_other_keys
from onceflow.spark.pipeline import keys
from onceflow.spark.pipeline.columns import OF_RECORD, OWN
from onceflow.spark.pipeline.functions import Function, NamedFunction, call_problem, function_in
from onceflow.spark.pipeline.keys import Judge, Table, no_such
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

_DEFAULT_DATA: Final = "onceflow-data"


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
            if name not in keys.SECTIONS:
                self.wrong((name,), no_such(name, keys.SECTIONS, "table"))

    # --- the document ---------------------------------------------------------------------------

    def plan(self) -> PipelinePlan | None:
        """None when something is wrong that it cannot be without."""
        about = self.section(("pipeline",), self._document.get("pipeline", {}), keys.PIPELINE)
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

    def _given(self, section: str) -> Table:
        found = self._document.get(section, {})
        return found if isinstance(found, Mapping) else {}

    def _flat(self, section: str) -> dict[str, str]:
        try:
            found: dict[str, str] = keys.SETTINGS(self._document.get(section, {}))
            return found
        except NotAllowed as error:
            self.wrong((section,), f"it must be {error}")
            return {}

    # --- sources --------------------------------------------------------------------------------

    def _source_tables(self) -> tuple[str | None, dict[str, tuple[KeyPath, Table]]]:
        """The address, and the table of each source with its path: `[source]` is one, or holds
        several."""
        given = self.table(("source",), self._document.get("source", {}))
        address = self.section(
            ("source",), {key: given[key] for key in given if key in keys.ADDRESS}, keys.ADDRESS
        )
        rest = {key: value for key, value in given.items() if key not in keys.ADDRESS}
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
                keys.SOURCE_NAME(name)
            except NotAllowed as error:
                self.wrong(("source", name), not_allowed("the name", error))
        return address.get("bootstrap"), {
            name: (("source", name), self.table(("source", name), table))
            for name, table in named.items()
        }

    def _source(self, name: str, placed: tuple[KeyPath, Table]) -> SourcePlan | None:
        path, given = placed
        found = self.section(path, given, keys.SOURCE)
        self.one_of(path, given, ("topics", "pattern"), "what to read")
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
        found = self.section(path, table, keys.WATERMARK)
        return Watermark(found["column"], found["delay"]) if len(found) == 2 else None

    def _rules(self, name: str) -> dict[str, str]:
        """Those of a source: `[rules]` where it is the only one, else `[rules.NAME]`."""
        given = self._document.get("rules", {})
        path: KeyPath = ("rules",)
        if name != SINGLE:
            path = ("rules", name)
            given = self._given("rules").get(name, {})
        try:
            rules: dict[str, str] = keys.EXPRESSIONS(given)
            return rules
        except NotAllowed as error:
            self.wrong(path, not_allowed(shown(given), error))
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
        path = ("transform",)
        given = self._given("transform")
        readers: dict[str, keys.Reader] = {
            "sql_file": self._sql_file,
            "python": load,
            "arrow": load,
        }
        found = self.section(path, self._document.get("transform", {}), keys.TRANSFORM, readers)
        needed = "several sources need a transform" if len(sources) > 1 else ""
        self.one_of(path, given, keys.TRANSFORM, needed)
        if "python" in found:
            self._check_call(("transform", "python"), found["python"], call_names(sources))
            return TransformPlan(kind=TransformKind.PYTHON, function=found["python"])
        if "arrow" in found:
            self._check_call(("transform", "arrow"), found["arrow"], None)
            return TransformPlan(kind=TransformKind.ARROW, function=found["arrow"])
        sql = found.get("sql") or found.get("sql_file")
        return TransformPlan(kind=TransformKind.SQL, sql=sql) if sql else TransformPlan()

    def _sql_file(self, value: object) -> str:
        path = self._base / str(keys.WRITTEN(value))
        try:
            return str(keys.WRITTEN(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise NotAllowed(f"a file with SQL; {path} cannot be read: {error.strerror}") from error

    def _check_call(self, path: KeyPath, function: Function, names: list[str] | None) -> None:
        if problem := call_problem(function, names):
            self.wrong(path, problem)

    def _sink(self, transform: TransformPlan) -> SinkPlan | None:
        path = ("sink",)
        given = self._given("sink")
        found = self.section(path, self._document.get("sink", {}), keys.SINK)
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
        found: dict[str, Any] = {}
        if "dead_letters" in self._document:
            found = self.section(path, self._document["dead_letters"], keys.DEAD_LETTERS)
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
        self.one_of(("trigger",), self._given("trigger"), keys.TRIGGER)
        return self.section(("trigger",), self._document.get("trigger", {}), keys.TRIGGER)

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
        spelled = {dotted(name): each for name, each in given.items()}
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
    return key not in keys.SOURCE and isinstance(value, Mapping)


def _place(base: Path, written: str) -> str:
    """A path from `base` on; what has a scheme stays as it is."""
    return written if "://" in written else str(base / written)
