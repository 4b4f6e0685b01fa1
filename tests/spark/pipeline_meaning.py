"""What tests of formats share: records of any kind, well written and broken, and what both engines
make of them."""

from __future__ import annotations

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
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64())
    if pa.types.is_floating(kind):
        return pc.add(column, 0.0)  # -0.0 is 0.0
    return column.cast(pa.int32()) if pa.types.is_date(kind) else column


# --- records ------------------------------------------------------------------------------------

WORDS: Final = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    [
        "",
        "NA",
        "N/A",
        "null",
        "NaN",
        '"',
        '""',
        "\\",
        '\\"',
        "a,b",
        " x ",
        "a\nb",
        "x\r\n",
        "é",
        "😀",
    ]
)
NUMBERS: Final = (
    st.sampled_from(
        [
            "0",
            "-0",
            "5",
            "+5",
            "05",
            "127",
            "-128",
            "32767",
            "32768",
            "2147483647",
            "2147483648",
            "9223372036854775807",
            "5.0",
            "1e3",
            "-1.5",
            ".5",
            "5.",
            "9223372036854775808",
            "0.1",
            "1E-3",
            "0x10",
            "1_0",
            "NaN",
            "Infinity",
            "-Infinity",
            "Inf",
            "inf",
            "nan",
            "99999999",
            "1.005",
            "1.555",
            "999.995",
            "16777217",
            "1e40",
            "1e999",
            "1e-400",
            "-",
            "--",
            "5d",
            "true",
        ]
    )
    | st.integers(-(2**63), 2**63 - 1).map(str)
    | st.floats(allow_nan=False).map(repr)
)
BLANK_NUMBERS: Final = (
    NUMBERS | NUMBERS.map(lambda text: f" {text}") | NUMBERS.map(lambda text: f"{text}\t")
)
TIMES: Final = st.sampled_from(
    [
        *("2026-01-02T03:04:05Z", "2026-01-02 03:04:05", "2026-01-02T03:04:05.123456"),
        *("2026-01-02T03:04:05.5+02:00", "2026-01-02", "2026-1-2", "2026-02-30", "0001-01-01"),
        *("2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04", "2026-01-02T03:04Z", "2026-01"),
        *("2026-01-02T24:00:00", "2026-01-02T03:04:05 Europe/Berlin", " 2026-01-02 ", "x", ""),
        *("2026-01-02T030405Z", "20260102T030405", "2026-03-29T02:30:00", "2026-10-25T02:30:00"),
        *("2026-01-02T03:04:05+0200", "2026-01-02T03:04:05-18:01", "2026-01-02T", "9999-12-31"),
        *("2026-01-02T03:04:05GMT+2", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05 Z"),
    ]
) | st.datetimes().map(lambda moment: moment.isoformat())
BOOLEANS: Final = st.sampled_from(["true", "false", "TRUE", "True", "1", "0", "t", "", " true"])
TEXTS: Final = {
    "STRING": WORDS,
    "BOOLEAN": BOOLEANS,
    "DATE": TIMES,
    "TIMESTAMP": TIMES,
    "TIMESTAMP_NTZ": TIMES,
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), BLANK_NUMBERS),
    **dict.fromkeys(("FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,10)"), BLANK_NUMBERS),
}
"""What may stand in a column of a type."""
PLAIN: Final = st.sampled_from(sorted(TEXTS))
