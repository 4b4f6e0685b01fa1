"""Values of records into columns and back, as expressions of Spark.

What cannot be read has a reason, in words, for which it becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceflow.spark.formats_schema import Field
from onceflow.spark.pipeline_explain import blame
from onceflow.spark.pipeline_plan import Format, SinkPlan, SourcePlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARSED: Final = "parsed"
ERROR: Final = "error"
_CORRUPT: Final = "_corrupt_record"
HEADERS: Final = "array<struct<key:string,value:binary>>"
OF_RECORD: Final = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
"""Columns that every source has besides those of its schema; they are not written."""
WRITTEN: Final = ("key", "value", "headers", "topic", "partition")
"""The columns that the sink takes."""


def with_parsed(frame: DataFrame, source: SourcePlan) -> DataFrame:
    """The frame of a source with a struct `parsed`, and in `error` why it cannot be used; null
    where it can."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    value = F.col("value")
    if source.format is Format.RAW:
        return _with(frame, F.struct(value), F.lit(None))
    text = value.cast("string")
    if source.format is Format.TEXT:
        error = F.when(~F.is_valid_utf8(text), "the value is not text in UTF-8")
        return _with(frame, F.struct(text.alias("value")), error)
    fields = f"{source.schema_text}, {_CORRUPT} STRING"
    options = {
        **source.format_options,
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
    }
    parse = F.from_json if source.format is Format.JSON else F.from_csv
    found = frame.withColumn(PARSED, parse(_once(text), fields, options))
    return found.withColumn(ERROR, _error(text, source.format, source.schema))


def _once(text: Column) -> Column:
    """The same, but Spark must not take it to be: it would copy what is made of it to wherever it
    is used, and parse each value as often as there are rules and columns. Nothing is copied that
    depends on the task."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(F.spark_partition_id() >= 0, text)


def _with(frame: DataFrame, parsed: Column, error: Column) -> DataFrame:
    return frame.withColumn(PARSED, parsed).withColumn(ERROR, error.cast("string"))


def _error(text: Column, form: Format, schema: tuple[Field, ...]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    name = form.value.upper()
    parsed = F.col(PARSED)
    is_wrong = parsed.isNull() | parsed[_CORRUPT].isNotNull()
    misfit = F.lit(f"the value does not fit to the schema of the {name}")
    if form is Format.JSON:
        misfit = F.when(
            F.get_json_object(text, "$").isNull(), f"the value is not {name}"
        ).otherwise(misfit)
    error = F.when(text.isNull(), "the value is null").when(is_wrong, misfit)
    for field in schema:
        if not field.nullable:
            error = error.when(parsed[field.name].isNull(), f"{field.name} is null")
    return error


def parsed_columns(source: SourcePlan) -> list[Column]:
    """Those of the schema."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [field.name for field in source.schema] or ["value"]
    return [F.col(PARSED)[name].alias(name) for name in names]


# --- the way out --------------------------------------------------------------------------------


def encoded(frame: DataFrame, sink: SinkPlan, base: Path) -> DataFrame:
    """The columns that the sink takes: what the plan says of them, and in `raw` what the frame
    has. Raises `PipelineFailed` for an expression that means nothing there."""
    from pyspark.sql import functions as F  # noqa: N812

    columns: dict[str, Column] = {}
    if sink.format is Format.RAW:
        columns = {name: F.col(name) for name in WRITTEN if name in frame.columns}
        if "value" not in columns:
            columns["value"] = _only_column(frame)
    else:
        columns["value"] = _value(frame, sink)
    if sink.key is not None:
        with blame("sink.key", base):
            columns["key"] = _bytes(frame, F.expr(sink.key))
    if sink.partition is not None:
        with blame("sink.partition", base):
            columns["partition"] = F.expr(sink.partition).cast("int")
            frame.select(columns["partition"])
    if sink.headers:
        with blame("sink.headers", base):
            columns["headers"] = _headers(frame, sink.headers)
    with blame("sink.format", base):
        return frame.select(*(column.alias(name) for name, column in columns.items()))


def _value(frame: DataFrame, sink: SinkPlan) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if sink.format is Format.TEXT:
        return _only_column(frame).cast("string")
    written = F.struct(*(F.col(f"`{name}`") for name in _own_columns(frame)))
    encode = F.to_json if sink.format is Format.JSON else F.to_csv
    return encode(written, dict(sink.format_options))


def _own_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in OF_RECORD]


def _only_column(frame: DataFrame) -> Column:
    """The column `value`, or the only one."""
    from pyspark.sql import functions as F  # noqa: N812

    names = _own_columns(frame)
    return F.col(f"`{names[0]}`" if len(names) == 1 else "value")


def _bytes(frame: DataFrame, column: Column) -> Column:
    """Text and bytes as they are, all else as text."""
    kind = frame.select(column).schema.fields[0].dataType.typeName()
    return column if kind in ("string", "binary") else column.cast("string")


def _headers(frame: DataFrame, headers: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    pairs = [
        F.struct(
            F.lit(name).alias("key"), _bytes(frame, F.expr(text)).cast("binary").alias("value")
        )
        for name, text in headers.items()
    ]
    return F.array(*pairs).cast(HEADERS)
