"""What tests of formats share: records of any kind, well written and broken, and what both engines
make of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from onceflow.spark.formats.arrow_encode import encode_values
from onceflow.spark.formats.arrow_parse import Parsed, Parser, marks_of
from onceflow.spark.formats.format import Format
from onceflow.spark.formats.record import (
    CsvRecord,
    Fraction,
    Marks,
    Members,
    NoNumber,
    NotJson,
    RecordRefused,
    Whole,
    object_of,
)
from onceflow.spark.formats.schema import (
    DataType,
    Field,
    ListOf,
    Plain,
    StructOf,
    arrow_schema,
    nullable,
    parse_schema,
)
from onceflow.spark.formats.text import HUGE_DECIMAL
from onceflow.spark.pipeline.columns import ERROR, encoded
from onceflow.spark.pipeline.frames import _judged
from onceflow.spark.pipeline.plan import SinkPlan, SourcePlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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


def by_spark_alone(
    session: SparkSession, source: SourcePlan, values: list[bytes | None]
) -> list[tuple[Any, ...] | None]:
    """As `from_json` and `from_csv` read them, with nothing of ours around that but the options
    that the documentation tells of; None where Spark takes a record for a corrupt one. For values
    that pipelines read: with others Spark may fail, or take minutes. Another one is before them,
    as Spark leaves U+FEFF out at the beginning of the first."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    parse: Callable[..., Column] = F.from_json
    usual = {"enableDateTimeParsingFallback": "false"}
    if source.format is Format.CSV:
        parse = F.from_csv
        usual = {"nullValue": "\uffff", "emptyValue": ""}
        if source.format_options.get("escape") == source.format_options.get("quote", '"'):
            usual["charToEscapeQuoteEscaping"] = "\uffff"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    parsed = parse(
        F.col("value").cast("string"),
        f"{source.schema_text}, corrupt STRING",
        {**usual, **source.format_options, **options},
    )
    names = [field.name for field in source.schema]
    frame = records_frame(session, [b"x", *values])
    table = frame.select(parsed.alias("parsed")).select("parsed.*").toArrow().slice(1)
    corrupt = table.column("corrupt").to_pylist()
    return [
        row if text is None else None
        for row, text in zip(_rows(table.select(names)), corrupt, strict=True)
    ]


def records_frame(session: SparkSession, values: list[bytes | None]) -> DataFrame:
    rows = [
        {"key": None, "value": value, "topic": "t", "partition": 0, "offset": at, "timestamp": None}
        for at, value in enumerate(values)
    ]
    return session.createDataFrame(pa.Table.from_pylist(rows, RECORD)).coalesce(1)


def by_arrow(source: SourcePlan, values: list[bytes | None], zone: str = "UTC") -> list[Read]:
    """As Arrow pipelines read them: in one piece, which is the same as one by one, and as each
    of them through the reader of many."""
    parser = Parser(source.format, source.schema, source.format_options, zone)
    assert list(parser.problems()) == []
    together = _reads(parser.parse(pa.array(values, pa.binary())), len(values))
    bad: dict[int, str] = {}
    table = parser._one_by_one(pa.array(values, pa.binary()), 0, bad)
    assert repr(together) == repr(_reads(Parsed(table, None, bad), len(values)))
    for value, read in zip(values, together, strict=True):
        alone = parser._together(pa.array([value], pa.binary()))
        assert alone is None or repr(_rows(alone)) == repr([read.row])
    return together


def _reads(found: Parsed, count: int) -> list[Read]:
    rows = iter(_rows(found.table))
    return [
        Read(None, found.bad[at]) if at in found.bad else Read(next(rows), None)
        for at in range(count)
    ]


def rows_of(found: list[Read], source: SourcePlan) -> pa.Table:
    """Rows that were read as a table, as they were before they could be compared."""
    fields = arrow_schema(nullable(source.schema))
    rows = [each.row for each in found if each.row is not None]
    arrays = [
        pa.array([row[at] for row in rows], _plain_type(field.type)).cast(field.type)
        for at, field in enumerate(fields)
    ]
    return pa.Table.from_arrays(arrays, schema=fields)


def written_by_spark(
    session: SparkSession, table: pa.Table, source: SourcePlan
) -> list[bytes | None]:
    """As SQL pipelines write rows, in the format of their source."""
    schema = source.schema_text.replace(" NOT NULL", "")
    frame = session.createDataFrame(table, schema).coalesce(1)
    sink = SinkPlan(topic="t", format=source.format, format_options=source.format_options)
    written = encoded(frame, sink, Path())
    values: list[bytes | None] = (
        written.selectExpr("CAST(value AS BINARY)").toArrow().column(0).to_pylist()
    )
    return values


def written_by_arrow(table: pa.Table, source: SourcePlan) -> list[bytes | None]:
    """The same, as Arrow pipelines do."""
    values: list[bytes | None] = encode_values(
        table, source.format, source.format_options
    ).to_pylist()
    return values


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """As values that can be compared: times as numbers, since Python has not all of them."""
    columns = [_plain(column).to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _plain(column: Any) -> Any:
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
# They are made of a seed: hypothesis makes many lists of records out of few where it draws them.

_LETTERS: Final = "abcXYZ019 _-,;:'\"\\/{}[]\n\r\t\0éß😀\ufeff\u2028\x7f\x01"
_ODD_WORDS: Final = [
    *("", "NA", "N/A", "null", "NaN", '"', '""', "\\", '\\"', "a,b", " x ", "a\nb", "x\r\n"),
    *("true", "}", "{", "'", '","', "5"),
]
_ODD_NUMBERS: Final = """
0 -0 5 +5 05 127 128 -128 255 32767 32768 2147483647 2147483648 9223372036854775807 5.0 1e3 -1.5 .5
5. 9223372036854775808 0.1 1E-3 0x10 1_0 NaN Infinity -Infinity Inf inf nan 99999999 1.005 1.555
999.995 16777217 1e40 1e999 1e-400 - -- 5d true 0.30000001192092896 123456789012345678901234567890
1e-100000000 400000000000000000000 426800430e28 340282366920938463463374607431768211456 0e99 1e-39
1234567890123456789012345678.1234567891 99999999999999999999999999999999999999
5.00000000000000000000000000000000000000000 0000000000000000000000000000000000000000000000007
"""
_ODD_TIMES: Final = [
    *("2026-01-02T03:04:05Z", "2026-01-02 03:04:05", "2026-01-02T03:04:05.123456", "2026-01-02"),
    *("2026-01-02T03:04:05.5+02:00", "2026-1-2", "2026-02-30", "0001-01-01", "0000-01-01"),
    *("2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04", "2026-01-02T03:04Z", "2026-01", "2026"),
    *("2026-01-02T24:00:00", "2026-01-02T03:04:05 Europe/Berlin", " 2026-01-02 ", "x", "", "5"),
    *("2026-01-02T030405Z", "20260102T030405", "2026-03-29T02:30:00", "2026-10-25T02:30:00"),
    *("2026-01-02T03:04:05+0200", "2026-01-02T03:04:05-18:01", "2026-01-02T", "9999-12-31"),
    *("2026-01-02T03:04:05GMT+2", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05 Z", "20260102"),
]
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
PLAIN: Final = [
    *_BITS,
    *("STRING", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "FLOAT", "DOUBLE"),
    *("DECIMAL(5,2)", "DECIMAL(38,0)", "DECIMAL(38,10)", "DECIMAL(38,18)", "DECIMAL(38,38)"),
]
NESTED: Final = [
    *("ARRAY<STRING>", "ARRAY<DATE>", "ARRAY<DOUBLE>"),
    *("STRUCT<x: DECIMAL(5,2)>", "STRUCT<x: STRING>", "ARRAY<STRUCT<x: INT>>"),
]
_DEEPEST: Final = 3
"""More lists and structs inside of each other than that are no other."""
BINARY: Final = "BINARY"
_JUNK: Final = [
    *(b"\xff", b"\xc3", b"\x00", b"\n", b"x", b'"', b"{}", b",", b"]", b" ", b"}", b'{"c0":1}')
]


def _text(rng: Random, kind: str) -> str:
    """What may stand in a column of a type, one time out of eight something odd."""
    is_odd = rng.random() < 1 / 8
    if kind in ("STRING", BINARY):
        made = "".join(rng.choices(_LETTERS, k=rng.randrange(6)))
        return rng.choice(_ODD_WORDS) if is_odd else made
    if kind == "BOOLEAN":
        return rng.choice(["TRUE", "True", "1", "t", ""] if is_odd else ["true", "false"])
    if kind in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        moment = datetime(1, 1, 1) + timedelta(  # noqa: DTZ001 - zones are written behind it
            days=rng.randrange(3_652_000), milliseconds=rng.randrange(86_400_000)
        )
        made = moment.isoformat() + ("Z" if kind == "TIMESTAMP" and rng.random() < 0.5 else "")
        return rng.choice(_ODD_TIMES) if is_odd else made[:10] if kind == "DATE" else made
    if is_odd:
        return rng.choice(["", "", " ", "\t"]) + rng.choice(_ODD_NUMBERS.split())
    if kind in _BITS:
        return str(rng.randrange(-(1 << _BITS[kind] - 1), 1 << _BITS[kind] - 1))
    if kind.startswith("DECIMAL"):
        digits = str(rng.randrange(10 ** rng.randrange(1, 39)))
        point = rng.randrange(len(digits) + 1)
        long = f"{digits[:point] or 0}.{digits[point:]}".rstrip(".")
        short = f"{rng.randrange(-99999, 99999) / 100:.{rng.randrange(4)}f}"
        return rng.choice([short, long, f"-{long}"]).replace("-00", "-0")
    return repr(rng.choice([rng.uniform(-1e3, 1e3), rng.random() * 10 ** rng.randrange(-40, 40)]))


def _broken(rng: Random, make: Callable[[], str]) -> bytes | None:
    """A record as it is, now and then with something cut out of it or put into it."""
    value = make().encode()
    at = rng.randrange(len(value) + 1)
    match rng.randrange(25):
        case 0:
            return None
        case 1:
            return value + rng.choice(_JUNK)
        case 2:
            return value[:at] + rng.choice(_JUNK) + value[at:]
        case 3:
            return value[:at] + value[at + rng.randrange(1, 4) :]
        case 4:
            return value + make().encode()
        case _:
            return value


def _csv(rng: Random, kinds: list[str], marks: Marks) -> str:
    return marks.sep.join(_cell(rng, _text(rng, kind), marks) for kind in kinds)


def _cell(rng: Random, text: str, marks: Marks) -> str:
    quote, escape = marks.quote, marks.escape
    inner = text if escape == quote else text.replace(escape, escape * 2)
    quoted = f"{quote}{inner.replace(quote, escape + quote)}{quote}"
    is_plain = not set(text) & {quote, marks.sep}
    return rng.choice(
        [text if is_plain else quoted] * 6 + [text, quoted, f"{quote}{text}{quote}", ""]
    )


def _csv_options(rng: Random) -> dict[str, str]:
    """Some of those that both engines know, and mostly none."""
    chosen = {
        "sep": rng.choice(",,,;|\t "),
        "quote": rng.choice('""\''),
        "escape": rng.choice('\\\\""\''),
    }
    return {name: each for name, each in chosen.items() if rng.random() < 0.4}


def _nested(rng: Random) -> str:
    kind = rng.choice([*PLAIN, *NESTED])
    for _ in range(rng.randrange(_DEEPEST)):
        kind = rng.choice([f"ARRAY<{kind}>", f"STRUCT<x: {kind}>"])
    return kind


def _json(rng: Random, kinds: list[str]) -> str:
    members = [(f"c{at}", _json_value(rng, kind)) for at, kind in enumerate(kinds)]
    if rng.random() < 0.2:
        rng.shuffle(members)
        members.append((rng.choice(["other", "C0", "c0"]), rng.choice(["1", '"x"', "{}", "[[]]"])))
    blank = rng.choice(["", " ", "\n"])
    return (
        "{" + f",{blank}".join(f"{json.dumps(name)}:{blank}{each}" for name, each in members) + "}"
    )


def _json_value(rng: Random, kind: str) -> str:
    if rng.random() < 0.04:
        return rng.choice(["null", "null", "true", '""', "[]", "{}", "5", '"x"', "1.50", "NaN"])
    if kind.startswith("ARRAY"):
        inner = [_json_value(rng, kind[len("ARRAY<") : -1]) for _ in range(rng.randrange(4))]
        return f"[{', '.join(inner)}]"
    if kind.startswith("STRUCT"):
        return f'{{"x": {_json_value(rng, kind[len("STRUCT<x: ") : -1])}, "y": [{{}}]}}'
    text = _text(rng, kind)
    is_bare = kind in _BITS or kind in ("BOOLEAN", "FLOAT", "DOUBLE") or "DECIMAL" in kind
    quoted = json.dumps(text, ensure_ascii=rng.random() < 0.5)
    return rng.choice([text if is_bare else quoted] * 15 + [quoted if is_bare else text])


class Case(NamedTuple):
    """A source, records of it, and the zone of the session."""

    source: SourcePlan
    values: list[bytes | None]
    zone: str


def case_of(seed: int) -> Case:
    rng = Random(seed)
    form = rng.choice([Format.CSV, Format.JSON] * 5 + [Format.TEXT])
    zone = rng.choice(["UTC", "UTC", "Europe/Berlin", "+05:30"])
    count = rng.randrange(1, 5)
    if form is Format.JSON:
        kinds = [rng.choice([*PLAIN, *NESTED, _nested(rng)]) for _ in range(count)]
    else:
        kinds = rng.choices([*PLAIN, BINARY], k=count)
    if form is Format.TEXT:
        values = [_broken(rng, lambda: _text(rng, "STRING")) for _ in range(RECORDS)]
        return Case(source_plan(form, ""), values, zone)
    schema = ", ".join(
        f"c{at} {kind}{' NOT NULL' * (rng.random() < 0.2)}" for at, kind in enumerate(kinds)
    )
    options = _csv_options(rng) if form is Format.CSV else {}

    def make() -> str:
        return _csv(rng, kinds, marks_of(options)) if form is Format.CSV else _json(rng, kinds)

    values = [_broken(rng, make) for _ in range(RECORDS)]
    return Case(source_plan(form, schema, **options), values, zone)


RECORDS: Final = 120
CASES: Final = st.integers(0, 2**64).map(case_of)
WRITABLE: Final = CASES.filter(
    lambda case: case.source.format is not Format.TEXT and BINARY not in case.source.schema_text
)


# --- what the documentation says that engines differ on -----------------------------------------


def is_known_to_differ(case: Case, value: bytes | None, sql: Read, arrow: Read) -> bool:
    """Whether the Arrow pipeline has a dead letter for values that the table in docs/SPARK.md is
    about, and for no others: without their columns both engines have to agree."""
    source, _, zone = case
    if value is None:
        return False
    if arrow.error is None:
        # SQL pipelines look for a huge number in the whole value, not only in the DECIMAL.
        text = value.decode()
        return "DECIMAL" in source.schema_text and re.search(HUGE_DECIMAL, text) is not None
    tokens = _tokens(source, value)
    documented = [
        any(_is_documented(field.type, token) for token in tokens.get(field.name, ()))
        for field in source.schema
    ]
    if not any(documented):
        return False
    # In JSON there is no such name, in CSV any cell is a text.
    prefix = "no " if source.format is Format.JSON else ""
    fields = (
        Field(prefix + each.name, Plain("string")) if is_odd else each
        for each, is_odd in zip(source.schema, documented, strict=True)
    )
    others = replace(source, schema=tuple(fields))
    (found,) = by_arrow(others, [value], zone)
    if found.row is None or sql.row is None:
        return found.error == sql.error
    return all(
        is_odd or repr(one) == repr(other)
        for is_odd, one, other in zip(documented, found.row, sql.row, strict=True)
    )


def _tokens(source: SourcePlan, value: bytes) -> dict[str, list[Any]]:
    """What stands in each column; in JSON perhaps more than once."""
    found: dict[str, list[Any]] = {}
    try:
        if source.format is Format.JSON:
            for name, token in object_of(value.decode()):
                found.setdefault(name, []).append(token)
        elif source.format is Format.CSV:
            cells = CsvRecord(source.schema, marks_of(source.format_options), "UTC")._cells(
                value.decode()
            )
            found = {each.name: [cell] for each, cell in zip(source.schema, cells, strict=True)}
    except (NotJson, RecordRefused, ValueError):
        return {}  # what cannot be taken apart is documented nowhere
    return found


def _is_documented(kind: DataType, token: Any) -> bool:
    match kind:
        case ListOf(element) if type(token) is list:
            return any(_is_documented(element, each) for each in token)
        case StructOf(fields) if isinstance(token, Members):
            types = {each.name: each.type for each in fields}
            return any(_is_documented(types[name], each) for name, each in token if name in types)
        case Plain("string"):
            is_text = type(token) is str
            return (is_text and _HALF.search(token) is not None) or isinstance(
                token, Fraction | NoNumber | list
            )
        case Plain("timestamp" | "timestamp_ntz") if type(token) is Whole:
            return kind.name == "timestamp" and abs(int(token)) * 10**6 >= 1 << 63
        case Plain("date" | "timestamp" | "timestamp_ntz") if type(token) is str:
            return _ONLY_JAVA[kind.name != "date"].search(token) is not None
    return False


_HALF: Final = re.compile("[\ud800-\udfff]")
_LATE: Final = r"^\s*\+?[0-9]{5,7}(-|\s*$)"
"""More digits of a year than four."""
_ONLY_JAVA: Final = {
    False: re.compile(_LATE),
    # And a time without a date, and zones of three letters.
    True: re.compile(
        rf"{_LATE}|^\s*T?[0-9]{{1,2}}:|:[0-9]{{1,2}}[0-9.]*\s*(?!UTC|GMT)[A-Z]{{3}}\s*$"
    ),
}
