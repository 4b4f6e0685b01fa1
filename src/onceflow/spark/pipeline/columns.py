"""Values of records into columns and back, as expressions of Spark.

A value that cannot be read becomes a dead letter, with the reason in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceflow.spark.errors import PipelineFailed, blame
from onceflow.spark.formats import (
    DEEPEST,
    END_OF_INPUT,
    HUGE_DECIMAL,
    IS_NULL,
    NOT_JSON,
    NOT_UTF8,
    Format,
    MapOf,
    Marks,
    Plain,
    misfit,
    spelled,
)
from onceflow.spark.pipeline.plan import SinkPlan, SourcePlan
from onceflow.spark.pipeline.rules import null_where_it_raises

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OWN: Final = "_onceflow_"
"""Begins the names of columns that only this program sees; those of a schema cannot."""
PARSED: Final = f"{OWN}parsed"
ERROR: Final = f"{OWN}error"
_CORRUPT: Final = f"{OWN}corrupt"
HEADERS: Final = "array<struct<key:string,value:binary>>"
_BYTE: Final = Plain("tinyint")
_FLAT: Final = r"\A[ \t\r\n]*+\{[^{}]*+\}[ \t\r\n]*+\z"
_NULLS: Final[Mapping[str, str]] = {"nullValue": END_OF_INPUT, "emptyValue": ""}
"""Spark takes a cell for null that is as `nullValue`, and makes that of one that is empty: as long
as it is a text that no cell has, `""` is an empty text, as Spark's own writer means it."""
_ESCAPES_ESCAPE: Final = "charToEscapeQuoteEscaping"
_BYTE_ORDER: Final = "\ufeff"
_DEPTH: Final = "maxNestingDepth"
_JSON: Final[Mapping[str, str]] = {
    # Else a date that is none would be tried as a number of days: "20260102" is in the year 57440.
    "enableDateTimeParsingFallback": "false",
    _DEPTH: str(DEEPEST),
}
_OF_ROWS: Final = ("mode", "columnnameofcorruptrecord", _DEPTH.lower())
_CELLS_AS_USUAL: Final = frozenset(
    [
        "sep",
        "delimiter",
        "quote",
        "escape",
        "mode",
        "nullvalue",
        "emptyvalue",
        "dateformat",
        "timestampformat",
        "locale",
        "timestampntzformat",
        "nanvalue",
        "positiveinf",
        "negativeinf",
    ]
)
"""Options of CSV that do not change what a cell is, or are looked at."""
_ESCAPED: Final = (
    # An exponent; a sign, a mark or a digit of one; a digit or a point before one.
    r"\\u00[46]5(?:[-+\d]|\\u00[23])",
    r"[\p{XDigit}.,][eE][-+,\d]*+\\u(?:00[23]|0[6-9a-fA-F]|1[0-9a-cA-C]|[aA]|[fF]{2}1)",
    r"\\u\p{XDigit}{4}[\d.,]*+[eE][-+,]*+0*+\d{5,}(?![\w.-])",
)
"""Escapes in numbers that are texts of JSON. Nobody writes numbers like that, and few others have
such a text; they are dead letters too."""
_NEVER_HUGE: Final = 1000
_EXPONENT: Final = r"[0-9.,\P{ASCII}][eE][-+,\\\P{ASCII}0-9]|\\u"
"""A shorter value without this has no huge number: to find that out takes a small part of the time
that the whole expression takes."""
_NO_CELLS: Final = ("binary", "array", "map", "struct")
_WHITE_SPACE: Final[Mapping[str, str]] = {
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
"""Spark's writer of CSV would cut blanks off the texts that it is given."""
OF_RECORD: Final = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
"""Columns that every source has besides those of its schema; they are not written."""
WRITTEN: Final = ("key", "value", "headers", "topic", "partition")
"""The columns that the sink takes."""


def with_parsed(frame: DataFrame, source: SourcePlan) -> DataFrame:
    """The frame of a source with a struct of what was parsed, and why it cannot be used; null where
    it can."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    value = F.col("value")
    if source.format is Format.RAW:
        return _with(frame, F.struct(value), F.lit(None))
    text = value.cast("string")
    if source.format is Format.TEXT:
        error = F.when(~F.is_valid_utf8(text), NOT_UTF8)
        return _with(frame, F.struct(text.alias("value")), error)
    fields = f"{_read_as(source)}, {_CORRUPT} STRING"
    chosen = {name.lower() for name in source.format_options}
    usual = _cells_as_they_are(source) if source.format is Format.CSV else _JSON
    options = {
        **{name: each for name, each in usual.items() if name.lower() not in chosen},
        **source.format_options,
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
    }
    parse = F.from_json if source.format is Format.JSON else F.from_csv
    # Not all that Spark's readers raise makes a bad record: 20,480 separators in CSV end the query.
    given = _once(text)
    if source.format is Format.CSV:
        given = _with_byte_order_mark(given, source)
        given = F.when(~F.contains(text, F.lit(END_OF_INPUT)), given)
    if "decimal" in spelled(source.schema):
        may_be = (F.length(text) > _NEVER_HUGE) | text.rlike(_EXPONENT)
        given = F.when(~(may_be & text.rlike(_huge_decimal(source))), given)
    parsed = null_where_it_raises(parse(given, fields, options))
    found = frame.withColumn(PARSED, parsed)
    return found.withColumn(ERROR, _error(text, source, options))


def _cells_as_they_are(source: SourcePlan) -> dict[str, str]:
    """Where quotes escape themselves Spark takes NUL for what escapes them in turn, and leaves one
    out before a quote; so that is the character that no cell has."""
    marks = _marks(source)
    nothing = {_ESCAPES_ESCAPE: END_OF_INPUT} if marks.escape == marks.quote else {}
    return {**_NULLS, **nothing}


def _with_byte_order_mark(text: Column, source: SourcePlan) -> Column:
    """The same cells, the first of them in quotes where it begins with U+FEFF: Spark's parser
    leaves that out at the beginning of the first value that a task has, and of no other."""
    from pyspark.sql import functions as F  # noqa: N812

    marks = _marks(source)
    if any(len(each) != 1 for each in marks.all):
        return text
    first = F.substring_index(text, marks.sep, 1)
    inside = first
    if marks.escape != marks.quote:
        inside = F.replace(inside, F.lit(marks.escape), F.lit(marks.escape * 2))
    inside = F.replace(inside, F.lit(marks.quote), F.lit(marks.escape + marks.quote))
    quote = F.lit(marks.quote)
    rest = F.substr(text, F.length(first) + F.lit(1))
    quoted = F.concat(quote, inside, quote, rest)
    return F.when(F.startswith(text, F.lit(_BYTE_ORDER)), quoted).otherwise(text)


def _huge_decimal(source: SourcePlan) -> str:
    """An expression of Java for a number in a value that is none, as it would take Java minutes:
    also with marks between thousands, and in JSON with characters that are written as escapes."""
    if source.format is Format.JSON:
        begin, end = r"(?<![^\s:,\[])[\"']", "[\"']"
    else:
        marks = _marks(source)
        sep, end = _any_of(marks.sep), _any_of(marks.quote or '"')
        begin = f"(?<![^{sep}]){end}"
        if "," not in marks.sep:  # and so no quotes are needed around commas
            begin, end = f"{begin}?+", f"(?:{end}|{sep}|\\z)"
    ways = (
        HUGE_DECIMAL,
        begin + r"[-+.,\du\\]{1001}",
        begin + r"(?=[-+.\deE]*+,)[-+.,\d]*+[eE][-+,\d]*+" + end,
        *(_ESCAPED if source.format is Format.JSON else ()),
    )
    return "|".join(ways).replace(r"\d", r"\p{Nd}")


def _any_of(characters: str) -> str:
    return "[" + "".join(f"\\x{{{ord(each):x}}}" for each in characters) + "]"


def _read_as(source: SourcePlan) -> str:
    """The schema that Spark is given. It takes 128 for -128 where a TINYINT of JSON is wanted, so
    that is read as a number with more room."""
    if source.format is not Format.JSON or _BYTE not in {each.type for each in source.schema}:
        return source.schema_text
    return spelled(
        tuple(
            replace(each, type=Plain("smallint")) if each.type == _BYTE else each
            for each in source.schema
        )
    )


def _once(text: Column) -> Column:
    """The same, but Spark must not take it to be: it would copy what is made of it to wherever it
    is used, and parse each value as often as there are rules and columns. Nothing is copied that
    depends on the task."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(F.spark_partition_id() >= 0, text)


def _with(frame: DataFrame, parsed: Column, error: Column) -> DataFrame:
    return frame.withColumn(PARSED, parsed).withColumn(ERROR, error.cast("string"))


def _error(text: Column, source: SourcePlan, options: dict[str, str]) -> Column:
    """What is wrong; besides what Spark finds, values that it would make wrong rows of."""
    from pyspark.sql import functions as F  # noqa: N812

    name = source.format.value.upper()
    parsed = F.col(PARSED)
    is_wrong = parsed.isNull() | parsed[_CORRUPT].isNotNull()
    unfit = F.lit(misfit(name))
    if source.format is Format.JSON:
        nothing = F.from_json(text, f"{_CORRUPT} STRING, {OWN}nothing INT", options)
        unfit = F.when(nothing.isNull() | nothing[_CORRUPT].isNotNull(), NOT_JSON).otherwise(unfit)
    error = F.when(text.isNull(), IS_NULL).when(~F.is_valid_utf8(text), NOT_UTF8)
    if source.format is Format.JSON:
        error = error.when(~_is_one_object(text, options), NOT_JSON)
    else:
        error = error.when(~_is_one_line(text, source), misfit(name))
    error = error.when(is_wrong, unfit)
    for field in source.schema:
        if field.type == _BYTE:
            number = parsed[field.name]
            error = error.when(number.isNotNull() & number.try_cast("tinyint").isNull(), unfit)
        if isinstance(field.type, MapOf):
            names = F.map_keys(parsed[field.name])
            error = error.when(F.size(F.array_distinct(names)) < F.size(names), unfit)
    for field in source.schema:
        if not field.nullable:
            error = error.when(parsed[field.name].isNull(), f"{field.name} is null")
    return error


def _is_one_object(text: Column, options: Mapping[str, str]) -> Column:
    """Whether the first object of a value is all there is: Spark does not look at what follows it.
    Where Spark cannot read that object, this does not matter.

    It is all where there is one brace of each kind, at both ends. Else the value is put into a
    list, before a hash of itself: only when it is one element, the second one is that hash. The
    line break between them ends a comment, where those are allowed.
    """
    from pyspark.sql import functions as F  # noqa: N812

    chosen = {name: each for name, each in options.items() if name.lower() not in _OF_ROWS}
    depth = {name.lower(): each for name, each in options.items()}[_DEPTH.lower()]
    if depth.isdecimal():
        chosen[_DEPTH] = str(int(depth) + 1)
    mark = F.xxhash64(text).cast("string")
    pair = F.from_json(
        F.concat(F.lit("["), text, F.lit('\n,"'), mark, F.lit('"]')), "ARRAY<STRING>", chosen
    )
    is_second = F.coalesce((F.size(pair) == 2) & (F.try_element_at(pair, F.lit(2)) == mark), _no())
    return F.when(text.rlike(_FLAT), F.lit(True)).otherwise(is_second)


def _is_one_line(text: Column, source: SourcePlan) -> Column:
    """Whether a value of CSV has cells, and no quotes that Spark would guess the meaning of: it
    reads `"a"b` and `"a""b"` as they stand, with their quotes."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.length(text) > 0 if len(source.schema) > 1 else F.lit(True)
    chosen = {name.lower() for name in source.format_options}
    marks = _marks(source)
    if chosen - _CELLS_AS_USUAL or any(len(each) != 1 for each in marks.all):
        return found
    return found & (~F.contains(text, F.lit(marks.quote)) | text.rlike(marks.line))


def _marks(source: SourcePlan) -> Marks:
    """Any of them may be more or less than one character here."""
    chosen = {name.lower(): each for name, each in source.format_options.items()}
    return Marks(
        sep=chosen.get("sep", chosen.get("delimiter", Marks.sep)),
        quote=chosen.get("quote", Marks.quote),
        escape=chosen.get("escape", Marks.escape),
    )


def _no() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(False)


def parsed_columns(source: SourcePlan) -> list[Column]:
    """Those of the schema."""
    from pyspark.sql import functions as F  # noqa: N812

    parsed = F.col(PARSED)
    return [
        (parsed[each.name].try_cast("tinyint") if each.type == _BYTE else parsed[each.name]).alias(
            each.name
        )
        for each in source.schema
    ] or [parsed["value"].alias("value")]


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
    names = _own_columns(frame)
    written = F.struct(*(F.col(_quoted(name)) for name in names))
    if sink.format is Format.JSON:
        return F.to_json(written, dict(sink.format_options))
    _check_cells(frame, names)
    line = F.to_csv(written, {**_WHITE_SPACE, **_empty_text(sink), **sink.format_options})
    if len(names) > 1:
        return line
    # Spark writes no text at all for a row of one null, and fails when it reads that.
    nothing = sink.format_options.get("nullValue", "")
    return F.when(F.col(_quoted(names[0])).isNull(), F.lit(nothing)).otherwise(line)


def _empty_text(sink: SinkPlan) -> dict[str, str]:
    """How Spark has to write an empty text: in double quotes, whatever the quotes are, it would be
    read as those two."""
    chosen = {name.lower(): each for name, each in sink.format_options.items()}
    quote = chosen.get("quote", Marks.quote)
    return {"emptyValue": quote * 2} if "emptyvalue" not in chosen and len(quote) == 1 else {}


def _check_cells(frame: DataFrame, names: list[str]) -> None:
    """Raises `PipelineFailed` for a column that no cell of CSV can hold."""
    for field in frame.schema.fields:
        kind = field.dataType.typeName()
        if field.name in names and kind in _NO_CELLS:
            raise PipelineFailed(
                f"the column {field.name} is of type {kind.upper()}, which CSV cannot hold",
                where="sink.format",
                advice="make a text of it, as base64(column) or to_json(column), or write JSON",
            )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _own_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in OF_RECORD]


def _only_column(frame: DataFrame) -> Column:
    """The column `value`, or the only one."""
    from pyspark.sql import functions as F  # noqa: N812

    names = _own_columns(frame)
    return F.col(_quoted(names[0]) if len(names) == 1 else "value")


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
