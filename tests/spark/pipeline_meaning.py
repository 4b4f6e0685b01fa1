"""What tests of formats share: records of any kind, well written and broken, and what both engines
make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from onceflow.spark.formats import ERROR
from onceflow.spark.formats_arrow import Parser
from onceflow.spark.formats_schema import parse_schema
from onceflow.spark.pipeline_frames import _judged
from onceflow.spark.pipeline_plan import Format, SourcePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
]
RECORD: Final = pa.schema(_COLUMNS)


class Read(NamedTuple):
    """What became of one record: its columns, or what is wrong with it."""

    row: tuple[Any, ...] | None
    error: str | None


def source_plan(form: Format, schema: str, **options: str) -> SourcePlan:
    return SourcePlan(
        name="source",
        options={},
        format=form,
        schema_text=schema,
        schema=parse_schema(schema) if schema else (),
        format_options=options,
    )


def by_spark(session: SparkSession, source: SourcePlan, values: list[bytes | None]) -> list[Read]:
    """As SQL pipelines read them, in order."""
    judged = _judged(records_frame(session, values), source, Path())
    names = [field.name for field in source.schema] or ["value"]
    shown = (f"CASE WHEN {ERROR} IS NULL THEN `{name}` END AS `{name}`" for name in names)
    found = judged.selectExpr(*shown, ERROR).toArrow()
    return [
        Read(row, None) if error is None else Read(None, error)
        for row, error in zip(
            _rows(found.select(names)), found.column(ERROR).to_pylist(), strict=True
        )
    ]


def records_frame(session: SparkSession, values: list[bytes | None]) -> DataFrame:
    rows = [
        {"key": None, "value": value, "topic": "t", "partition": 0, "offset": at, "timestamp": None}
        for at, value in enumerate(values)
    ]
    return session.createDataFrame(pa.Table.from_pylist(rows, RECORD)).coalesce(1)


def by_arrow(source: SourcePlan, values: list[bytes | None], zone: str = "UTC") -> list[Read]:
    """As Arrow pipelines read them: in one piece, which is the same as one at a time."""
    parser = Parser(source.format, source.schema, source.format_options, zone)
    assert list(parser.problems()) == []
    together = _parsed(parser, values)
    alone = [_parsed(parser, [value])[0] for value in values]
    assert repr(together) == repr(alone)
    return together


def _parsed(parser: Parser, values: list[bytes | None]) -> list[Read]:
    found = parser.parse(pa.array(values, pa.binary()))
    rows = iter(_rows(found.table))
    return [
        Read(None, found.bad[at]) if at in found.bad else Read(next(rows), None)
        for at in range(len(values))
    ]


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """As values that can be compared: times as numbers, since Python has not all of them."""
    columns = [_plain(column).to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _plain(column: Any) -> Any:
    if pa.types.is_floating(column.type):
        return pc.add(column, 0.0)  # -0.0 is 0.0
    if pa.types.is_decimal(column.type):
        return column  # which cannot be cast to what it is
    return column.cast(_plain_type(column.type))


def _plain_type(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _plain_type(each.type)) for each in kind])
    return kind


# --- records ------------------------------------------------------------------------------------

_ODD_WORDS: Final = ["", "NA", "N/A", "null", "NaN", '"', '""', "\\", '\\"', "a,b", " x ", "a\nb"]
WORDS: Final = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    [*_ODD_WORDS, "x\r\n", "é", "😀", "}", "{", "'", '","', "\ufeff", "\0", "true", "5"]
)
_ODD_NUMBERS: Final = """
0 -0 5 +5 05 127 128 -128 255 32767 32768 2147483647 2147483648 9223372036854775807 5.0 1e3 -1.5 .5
5. 9223372036854775808 0.1 1E-3 0x10 1_0 NaN Infinity -Infinity Inf inf nan 99999999 1.005 1.555
999.995 16777217 1e40 1e999 1e-400 - -- 5d true 0.30000001192092896 123456789012345678901234567890
"""
NUMBERS: Final = (
    st.sampled_from(_ODD_NUMBERS.split())
    | st.integers(-(2**63), 2**63 - 1).map(str)
    | st.integers(-200, 200).map(str)
    | st.floats(allow_nan=False).map(repr)
)
_ODD_TIMES: Final = [
    *("2026-01-02T03:04:05Z", "2026-01-02 03:04:05", "2026-01-02T03:04:05.123456", "2026-01-02"),
    *("2026-01-02T03:04:05.5+02:00", "2026-1-2", "2026-02-30", "0001-01-01", "0000-01-01"),
    *("2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04", "2026-01-02T03:04Z", "2026-01", "2026"),
    *("2026-01-02T24:00:00", "2026-01-02T03:04:05 Europe/Berlin", " 2026-01-02 ", "x", "", "5"),
    *("2026-01-02T030405Z", "20260102T030405", "2026-03-29T02:30:00", "2026-10-25T02:30:00"),
    *("2026-01-02T03:04:05+0200", "2026-01-02T03:04:05-18:01", "2026-01-02T", "9999-12-31"),
    *("2026-01-02T03:04:05GMT+2", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05 Z", "20260102"),
]
TIMES: Final = st.sampled_from(_ODD_TIMES) | st.datetimes().map(lambda moment: moment.isoformat())
_ANY_NUMBER: Final = (
    NUMBERS | NUMBERS.map(lambda text: f" {text}") | NUMBERS.map(lambda text: f"{text}\t")
)
TEXTS: Final[dict[str, st.SearchStrategy[str]]] = {
    "STRING": WORDS,
    "BOOLEAN": st.sampled_from(["true", "false", "TRUE", "True", "1", "0", "t", "", " true"]),
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"), TIMES),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), _ANY_NUMBER),
    **dict.fromkeys(("FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,10)"), _ANY_NUMBER),
}
"""What may stand in a column of a type, well written or not."""
_JUNK: Final = st.sampled_from(
    [b"\xff", b"\xc3", b"\x00", b"\n", b"x", b'"', b"{}", b",", b"]", b" "]
)


@st.composite
def broken(draw: st.DrawFn, made: st.SearchStrategy[str]) -> bytes | None:
    """A record as it is, now and then with something cut out of it or put into it."""
    value = draw(made).encode()
    match draw(st.integers(0, 19)):
        case 0:
            return None
        case 1:
            return value + draw(_JUNK)
        case 2:
            at = draw(st.integers(0, len(value)))
            return value[:at] + draw(_JUNK) + value[at:]
        case 3:
            at = draw(st.integers(0, len(value)))
            return value[:at] + value[at + draw(st.integers(1, 3)) :]
        case 4:
            return value + draw(made).encode()
        case _:
            return value


def _cell(text: str) -> st.SearchStrategy[str]:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return st.sampled_from([text, f'"{quoted}"', f'"{quoted}"', f'"{text}"'])


def csv_records(kinds: list[str]) -> st.SearchStrategy[bytes | None]:
    cells = [(TEXTS[kind] | st.just("")).flatmap(_cell) for kind in kinds]
    return broken(st.tuples(*cells).map(",".join))


def _json_value(kind: str) -> st.SearchStrategy[str]:
    if kind.startswith("ARRAY"):
        inner = _json_value(kind[len("ARRAY<") : -1])
        return st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]")
    if kind.startswith("STRUCT"):
        inner = _json_value(kind[len("STRUCT<x: ") : -1])
        return inner.map(lambda each: f'{{"x": {each}, "y": [{{}}]}}')
    texts = TEXTS[kind]
    quoted = texts.map(lambda text: json.dumps(text, ensure_ascii=False))
    bare = texts if kind != "STRING" else st.integers().map(str)
    return bare | quoted | quoted | st.sampled_from(["null", "true", '""', "[]", "{}", "5", '"x"'])


def _json_object(members: list[tuple[str, str]]) -> str:
    inside = ", ".join(f"{json.dumps(name)}: {value}" for name, value in members)
    return f"{{{inside}}}"


def json_records(kinds: list[str]) -> st.SearchStrategy[bytes | None]:
    known = [st.tuples(st.just(f"c{at}"), _json_value(kind)) for at, kind in enumerate(kinds)]
    others = st.tuples(st.sampled_from(["other", "C0", "c0"]), st.sampled_from(["1", '"x"', "{}"]))
    few = st.lists(st.one_of(*known, others), max_size=len(kinds) + 1)
    return broken((st.tuples(*known).map(list) | few).map(_json_object))


NESTED: Final = ["ARRAY<STRING>", "ARRAY<DATE>", "STRUCT<x: DECIMAL(5,2)>", "ARRAY<STRUCT<x: INT>>"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[SourcePlan, list[bytes | None], str]:
    """A source, records of it, and the zone of the session."""
    form = draw(st.sampled_from([Format.CSV, Format.JSON, Format.CSV, Format.JSON, Format.TEXT]))
    zone = draw(st.sampled_from(["UTC", "Europe/Berlin", "+05:30"]))
    if form is Format.TEXT:
        return source_plan(form, ""), draw(st.lists(broken(WORDS), min_size=30, max_size=60)), zone
    known = sorted(TEXTS) + (NESTED if form is Format.JSON else [])
    kinds = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
    schema = ", ".join(
        f"c{at} {kind}{draw(st.sampled_from(['', '', ' NOT NULL']))}"
        for at, kind in enumerate(kinds)
    )
    records = (csv_records if form is Format.CSV else json_records)(kinds)
    return source_plan(form, schema), draw(st.lists(records, min_size=30, max_size=60)), zone


# --- what the documentation says that engines differ on -----------------------------------------


def is_known_to_differ(source: SourcePlan, value: bytes | None, sql: Read, arrow: Read) -> bool:
    """Whether one line of the table in docs/SPARK.md is about this value. In all of them the Arrow
    pipeline has a dead letter where the other one has a row."""
    is_read = sql.row is not None or (sql.error or "").endswith("is null")
    if value is None or not is_read or arrow.error is None:
        return False
    types = source.schema_text
    return any(
        word in types and pattern.search(value)
        for word, pattern in KNOWN
        if source.format is Format.JSON or word == "TIMESTAMP"
    )


KNOWN: Final = [
    # A number with a point or an exponent, a word of no number, a list or an object as a text.
    ("STRING", re.compile(rb"[0-9][.eE][0-9+-]|NaN|Inf|INF|[\[{][\s\S]*[\[{]|\[")),
    ("STRING", re.compile(rb"\\u[dD][89a-fA-F]")),
    ("TINYINT", re.compile(rb"1(2[89]|[3-9][0-9])|2[0-4][0-9]|25[0-5]")),
    # A time without a date, and seconds since 1970 beyond what 64 bits can hold.
    ("TIMESTAMP", re.compile(rb"(^|[,\"T ])[0-9]{1,2}:[0-9]")),
    ("TIMESTAMP", re.compile(rb"[0-9]{13}")),
    # More digits of a year than four, zones of three letters.
    ("TIMESTAMP", re.compile(rb"[0-9]{5,6}(-|\b)|[0-9]([ECMPH]ST|[A-Z]{3})")),
    ("DATE", re.compile(rb"[0-9]{5,7}(-|\b)")),
]
