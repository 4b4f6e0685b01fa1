"""A plan as one streaming frame: sources, parsed and checked against the rules; the transform; the
rows that are written, with dead letters beside them.

Rows that cannot be used leave before the transform, which sees good rows only, and reach the sink
on a path of their own: for them the source is read a second time.
"""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceflow.spark.errors import PipelineFailed, blame
from onceflow.spark.formats import DEAD_LETTER, DEAD_LETTER_FIELDS, dead_letters
from onceflow.spark.pipeline.columns import (
    ERROR,
    OF_RECORD,
    OWN,
    encoded,
    parsed_columns,
    with_parsed,
)
from onceflow.spark.pipeline.plan import PipelinePlan, SourcePlan, TransformKind
from onceflow.spark.pipeline.rules import check_condition, is_met

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_RECORD = f"{OWN}record"
_WITH_HEADERS = "includeheaders"
_COLUMNS = "key,value,topic,partition,offset,timestamp"


def output_frame(session: SparkSession, plan: PipelinePlan, bootstrap: str) -> DataFrame:
    """What goes to the sink, with the column of dead letters where there is a topic for them."""
    judged = {
        source.name: _judged(_read(session, plan, source, bootstrap), source, plan.base)
        for source in plan.sources
    }
    if plan.dead_letters is None:
        good = {name: _good(_or_fail(frame), plan, name) for name, frame in judged.items()}
        return encoded(_transformed(session, plan, good), plan.sink, plan.base)
    good = {
        name: _good(frame.filter(f"{ERROR} IS NULL"), plan, name) for name, frame in judged.items()
    }
    written = encoded(_transformed(session, plan, good), plan.sink, plan.base)
    letters = reduce(lambda one, more: one.unionAll(more), map(_letters, judged.values()))
    return _beside(written, letters)


def _read(
    session: SparkSession, plan: PipelinePlan, source: SourcePlan, bootstrap: str
) -> DataFrame:
    options = {**plan.reader_settings, **source.options, "kafka.bootstrap.servers": bootstrap}
    columns = _COLUMNS
    if plan.dead_letters is not None or _shows_headers(source):
        options = {key: each for key, each in options.items() if key.lower() != _WITH_HEADERS}
        options["includeHeaders"] = "true"
        columns = f"{_COLUMNS},headers"
    return session.readStream.format("onceflow").options(**options, columns=columns).load()


def _shows_headers(source: SourcePlan) -> bool:
    """Whether rows have the column `_headers`; dead letters keep theirs anyway."""
    chosen = {key.lower(): each for key, each in source.options.items()}
    return str(chosen.get(_WITH_HEADERS, "")).lower() == "true"


def _judged(frame: DataFrame, source: SourcePlan, base: Path) -> DataFrame:
    """The columns of the schema, those of the record, the record itself, and what is wrong."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    with blame("source.schema", base):
        parsed = with_parsed(frame, source)
    shown = [name for name in OF_RECORD if name != "_headers" or _shows_headers(source)]
    of_record = [F.col(name[1:]).alias(name) for name in shown if name[1:] in frame.columns]
    record = F.struct(*frame.columns).alias(_RECORD)
    found = parsed.select(*parsed_columns(source), *of_record, record, ERROR)
    if not source.rules:
        return found
    error: Column = F.col(ERROR)
    for name, condition in source.rules.items():
        reason = F.lit(f"breaks the rule {name}: {condition}")
        with blame(f"rules.{name}", base):
            check_condition(found, name, condition)
            broken = ~is_met(found, condition)
            found.select(broken)
        error = F.coalesce(error, F.when(broken, reason))
    return found.withColumn(ERROR, error)


def _or_fail(frame: DataFrame) -> DataFrame:
    """Without a topic for dead letters a row that cannot be used ends the query."""
    from pyspark.sql import functions as F  # noqa: N812

    message = F.concat(
        F.lit("the record at offset "),
        F.col("_offset").cast("string"),
        F.lit(" of "),
        F.col("_topic"),
        F.lit("-"),
        F.col("_partition").cast("string"),
        F.lit(" cannot be used: "),
        F.col(ERROR),
    )
    fails = F.raise_error(message).cast("boolean")
    return frame.filter(F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(fails))


def _good(frame: DataFrame, plan: PipelinePlan, name: str) -> DataFrame:
    """What a transform sees."""
    good = frame.drop(_RECORD, ERROR)
    source = next(each for each in plan.sources if each.name == name)
    if source.watermark is None:
        return good
    delay = f"{source.watermark.delay_ms} milliseconds"
    with blame("source.watermark", plan.base):
        return good.withWatermark(source.watermark.column, delay)


def _letters(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    bad = frame.filter(f"{ERROR} IS NOT NULL").select(f"{_RECORD}.*", ERROR)
    return dead_letters(bad, F.col(ERROR)).select(DEAD_LETTER)


def _beside(written: DataFrame, letters: DataFrame) -> DataFrame:
    """Both as one frame."""
    from pyspark.sql import functions as F  # noqa: N812

    nothing = F.lit(None)
    columns = [nothing.cast(field.dataType).alias(field.name) for field in written.schema.fields]
    return written.withColumn(DEAD_LETTER, nothing.cast(DEAD_LETTER_FIELDS)).unionAll(
        letters.select(*columns, DEAD_LETTER)
    )


# --- the transform ------------------------------------------------------------------------------


def _transformed(
    session: SparkSession, plan: PipelinePlan, frames: dict[str, DataFrame]
) -> DataFrame:
    if plan.transform.kind is TransformKind.SQL:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        with blame("transform.sql", plan.base):
            return session.sql(plan.transform.sql)
    function = plan.transform.load()
    if function is None:
        (frame,) = frames.values()
        return frame
    carry_by_value(plan.base)
    arguments, named = (list(frames.values()), {}) if len(frames) == 1 else ([], frames)
    with blame("transform.python", plan.base):
        found = function(*arguments, **named)
    return _checked(found, plan)


def _checked(result: Any, plan: PipelinePlan) -> DataFrame:
    from pyspark.sql import DataFrame

    if not isinstance(result, DataFrame) or not result.isStreaming:
        what = "a frame that is not a stream" if isinstance(result, DataFrame) else repr(result)
        raise PipelineFailed(
            f"the function of {plan.name!r} returned {what}",
            where="transform.python",
            advice="return a DataFrame derived from the one passed in",
        )
    return result


def carry_by_value(base: Path) -> None:
    """Functions of modules that lie beside the pipeline go to executors as they are: there is no
    such file."""
    from pyspark import cloudpickle

    carry: Any = cloudpickle.register_pickle_by_value
    for name, module in list(sys.modules.items()):
        path = base.joinpath(*name.split("."))
        if getattr(module, "__file__", None) in (f"{path}.py", str(path / "__init__.py")):
            carry(module)
