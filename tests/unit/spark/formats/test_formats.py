"""Formats of Arrow pipelines: a record is read as if it were alone, odd ones as Spark reads them,
and what was written is read as what it was."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from onceflow.spark.formats.arrow_encode import TableUnusable, encode_values
from onceflow.spark.formats.arrow_parse import Parser
from onceflow.spark.formats.format import Format
from onceflow.spark.formats.schema import arrow_schema, nullable, parse_schema
from tests.doses import examples

MISFIT = "the value does not fit the schema of the CSV"
NOT_JSON = "the value is not JSON"


def parse(form: Format, schema: str, *values: bytes | None, **options: str) -> list[Any]:
    """Of each value its row, or what is wrong with it."""
    parser = Parser(form, parse_schema(schema), options)
    assert list(parser.problems()) == []
    found = parser.parse(pa.array(values, pa.binary()))
    rows = iter(tuple(row.values()) for row in found.table.to_pylist())
    return [found.bad[at] if at in found.bad else next(rows) for at in range(len(values))]


# --- CSV ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word", ["NA", "N/A", "null", "NULL", "NaN", "n/a", "#N/A", "nan", "-1.#IND"]
)
def test_words_are_words(word: str) -> None:
    values = (f"{word},1", f'"{word}",2')
    assert parse(Format.CSV, "s STRING, n INT", *map(str.encode, values)) == [(word, 1), (word, 2)]


def test_nothing_is_null_and_quotes_around_nothing_are_an_empty_text() -> None:
    assert parse(Format.CSV, "s STRING, t STRING", b',""', b'"",', b"") == [
        (None, ""),
        ("", None),
        MISFIT,
    ]
    assert parse(Format.CSV, "s STRING", b"", b'""') == [(None,), ("",)]
    assert parse(Format.CSV, "n INT, s STRING", b'"",x', b",x") == [MISFIT, (None, "x")]


def test_broken_records_that_meet_stay_what_they_are() -> None:
    """As many lines as records, but not a line for each."""
    values = (b"1,a\n2,b", b"", b'3,"c', b'd"', b"4,e", b'"5', b'",f\n6,g', b"7,h\r8,i")
    assert parse(Format.CSV, "n INT, s STRING", *values) == [
        MISFIT,
        MISFIT,
        MISFIT,
        MISFIT,
        (4, "e"),
        MISFIT,
        MISFIT,
        MISFIT,
    ]


def test_what_spark_takes_for_the_end_of_its_input_is_no_character() -> None:
    """Not even in quotes: one rule for both engines."""
    values = (b"1,a", "2,b\uffff".encode(), '3,"\uffff"'.encode(), b"4,d")
    for some in (values, *((each,) for each in values)):
        expected = [
            MISFIT if b"\xef" in each else (each[0] - 48, each[2:].decode()) for each in some
        ]
        assert parse(Format.CSV, "n INT, s STRING", *some) == expected


def test_line_breaks_are_characters() -> None:
    assert parse(Format.CSV, "s STRING, t STRING", b'a\nb,"c\nd"', b"x,y\r\n", b'x,"y"\n') == [
        ("a\nb", "c\nd"),
        ("x", "y\r\n"),
        ("x", "y"),
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb'"a\"b"', 'a"b'),
        (rb'"a\\"', "a\\"),
        (rb'"a\\b"', "a\\b"),
        (rb'"a\b"', "a\\b"),
        (rb"a\b", "a\\b"),
        (rb"a\"b", 'a\\"b'),
        (b'a"b', 'a"b'),
        (b' "a"', ' "a"'),
        (b'"a"b', MISFIT),
        (b'"a""b"', MISFIT),
        (b'"a', MISFIT),
        (rb'"a\"', MISFIT),
        (b"\xef\xbb\xbfa", "\ufeffa"),
        (b"a\xff", "the value is not text in UTF-8"),
        (b" a ", " a "),
    ],
)
def test_quotes_and_backslashes(written: bytes, meant: str) -> None:
    (found,) = parse(Format.CSV, "s STRING, n INT", written + b",1")
    assert found == (meant if meant.startswith("the value") else (meant, 1))


def test_digits_and_blanks_are_those_of_java() -> None:
    """A character above U+FFFF is two in Java; only dates and times may have U+007F around them."""
    five, one = "\uff15".encode(), "\U0001d7cf".encode()
    for kind in ("INT", "DECIMAL(5,2)"):
        assert parse(Format.CSV, f"n {kind}", five, one, b"-" + one, b"1" + one) == [
            (5,),
            *[MISFIT] * 3,
        ]
    assert parse(Format.CSV, "n DOUBLE", b" 5\t", b"5\x7f", b"\x7f5", b"NaN\x7f") == [
        (5.0,),
        *[MISFIT] * 3,
    ]
    assert parse(Format.CSV, "d DATE", b"\x7f2026-01-02\x7f") == [(date(2026, 1, 2),)]


def test_marks_between_thousands_do_not_go_with_an_exponent() -> None:
    values = (b'"1,000.5"', b'"1e1,0"', b'"1,0e1"', b'"' + b"0," * 600 + b'1"', b'"0,0,1"')
    assert parse(Format.CSV, "n DECIMAL(9,1)", *values) == [
        (Decimal("1000.5"),),
        *[MISFIT] * 3,
        (Decimal("1.0"),),
    ]


def test_numbers_that_only_arrow_takes_for_such() -> None:
    for text in (b" 5", b"5 ", b"0x5", b"0X5", b"5.0", b"NaN", b"128"):
        assert parse(Format.CSV, "n TINYINT", text) == [MISFIT], text
    for text in (b"nan", b"inf", b"NAN", b"1_0"):
        assert parse(Format.CSV, "n DOUBLE", text) == [MISFIT], text
    for text in (b"1000", b"999.995", b" 1", b"NaN"):
        assert parse(Format.CSV, "n DECIMAL(5,2)", text) == [MISFIT], text
    assert parse(Format.CSV, "n DECIMAL(5,2)", b"1.555", b"-1.555") == [
        (Decimal("1.56"),),
        (Decimal("-1.56"),),
    ]
    for text in (b"1", b"0", b"t", b"yes"):
        assert parse(Format.CSV, "b BOOLEAN", text) == [MISFIT], text


def test_a_quote_may_be_its_own_escape() -> None:
    values = (b'"a""b",1', b'"""",2', b'"a\\",3', b'"a"b,4')
    assert parse(Format.CSV, "s STRING, n INT", *values, escape='"') == [
        ('a"b', 1),
        ('"', 2),
        ("a\\", 3),
        MISFIT,
    ]


# --- JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":6},"x":7',
        b'{"a":6}{"a":7}',
        b'{"a":6} x',
        b'{"a":6}}\n{"v":{"a":7}',
        b'{"a":6}],[{"a":7}',
        b'[{"a":6}]',
        b'{"a":6} null {"a":7}',
        b'{"a":6}\x00',
        b'{"a":6,',
        b'"b":7}',
        b"",
        b'{"b":"\x01"}',
        b'{"b":"\\q"}',
        b'{"b":01}',
    ],
)
def test_a_value_is_one_object(value: bytes) -> None:
    """Alone, and where others before and behind could make it one."""
    for around in ((), (b'{"a":1}',), (b'{"a":1,', b'"b":2}'), (b'{"c":{}',)):
        found = parse(Format.JSON, "a INT", *around, value, *around)
        assert found[len(around)] == NOT_JSON


def test_dates_are_dates_and_decimals_fit() -> None:
    values = (b'{"d":"2026-01-01"}', b'{"d":5}', b'{"d":"5"}', b'{"c":1000}', b'{"c":"12.345"}')
    misfit = "the value does not fit the schema of the JSON"
    assert parse(Format.JSON, "d DATE, c DECIMAL(5,2)", *values) == [
        (date(2026, 1, 1), None),
        misfit,
        misfit,
        misfit,
        (None, Decimal("12.35")),
    ]


def test_invalid_utf8_is_one_dead_letter_and_no_end() -> None:
    found = parse(Format.JSON, "a STRING", b'{"a":"x"}', b'{"a":"\xff"}', b'{"a":"y"}')
    assert found == [("x",), "the value is not text in UTF-8", ("y",)]


def test_numbers_and_words_as_texts_and_names_that_are_there_twice() -> None:
    values = (b'{"a":5}', b'{"a":true}', b'{"a":"x","a":"y"}', b"{'a':'it\\'s'}", b'{"a":1.50}')
    found = parse(Format.JSON, "a STRING", *values)
    assert found[:4] == [("5",), ("true",), ("y",), ("it's",)]
    assert found[4].startswith("the value does not fit")


def test_times_without_a_zone_are_in_that_of_the_session() -> None:
    parser = Parser(Format.JSON, parse_schema("t TIMESTAMP"), {}, "Europe/Berlin")
    texts = ("2026-01-02T03:04:05", "2026-03-29T02:30:00", "2026-10-25T02:30:00")
    values = [f'{{"t":"{text}"}}'.encode() for text in texts]
    found = parser.parse(pa.array(values, pa.binary())).table.column("t").to_pylist()
    assert found == [
        datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    ]
    zoned = encode_values(pa.table({"t": found[:1]}), Format.JSON, {}, "Europe/Berlin")
    assert zoned.to_pylist() == [b'{"t":"2026-01-02T03:04:05.000+01:00"}']


# --- ordinary records ---------------------------------------------------------------------------

ORDERS = "id BIGINT NOT NULL, name STRING, cents INT, price DOUBLE, at TIMESTAMP, paid BOOLEAN"


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (Format.CSV, (b"1,a b,5,1.5,2026-01-02T03:04:05.123Z,true", b"2,,,,,")),
        (Format.CSV, (b"1,a b,5,1.5,2026-01-02 03:04:05,true", b'2,"c, d",,,,')),
        (Format.JSON, (b'{"id": 1, "name": "a", "at": "2026-01-02T03:04:05Z"}', b'{"id": 2}\n')),
        (Format.JSON, (b'{"id":1,"price":1e3,"other":[{}]}', b'{\n"id":2,"paid":true\n}')),
    ],
)
def test_ordinary_records_are_read_many_at_a_time(form: Format, values: tuple[bytes, ...]) -> None:
    """One by one takes a hundred times as long."""
    parser = Parser(form, parse_schema(ORDERS), {})
    assert parser._together(pa.array(values, pa.binary())) is not None


# --- no record changes how another is read ------------------------------------------------------

MARKS = "\"'\\,\n\r{}[]:a1é-"
PARTS = [
    "0x1",
    "null",
    "true",
    "1.5",
    "2026-01-02",
    '"a"',
    '"b"',
    '"a":',
    '{"a":1}',
    '{"a":"x"}',
    '{"b":{"a":[]}}',
    " ",
    "",
]
PIECES = st.sampled_from([*MARKS, *PARTS]).map(str.encode) | st.sampled_from(
    [b"\xff", b"\x00", b"\xef\xbb\xbf"]
)
RECORDS = st.lists(st.lists(PIECES, max_size=8).map(b"".join) | st.none(), min_size=2, max_size=12)
SCHEMAS = st.sampled_from(
    ["a STRING, b STRING", "a INT", "a INT, b STRING", "a DATE", "a DOUBLE NOT NULL", "a BOOLEAN"]
)


@given(st.sampled_from([Format.CSV, Format.JSON]), SCHEMAS, RECORDS)
@settings(max_examples=examples(100))
def test_records_are_read_as_if_they_were_alone(
    form: Format, schema: str, values: list[bytes | None]
) -> None:
    alone = [parse(form, schema, value)[0] for value in values]
    assert repr(parse(form, schema, *values)) == repr(alone)


@given(st.sampled_from([Format.CSV, Format.JSON]), SCHEMAS, RECORDS)
@settings(max_examples=examples(100))
def test_many_at_once_are_read_as_one_by_one(
    form: Format, schema: str, values: list[bytes | None]
) -> None:
    """Arrow's readers give the rows that the reader of single records gives, or leave it to it."""
    parser = Parser(form, parse_schema(schema), {})
    for value in values:
        bad: dict[int, str] = {}
        one = pa.array([value], pa.binary())
        exact = parser._one_by_one(one, 0, bad)
        found = parser.parse(one)
        assert found.bad == bad
        assert repr(found.table.to_pylist()) == repr(exact.to_pylist())


# --- what was written is read as what it was ----------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["", " ", "NA", "null", '"', "\\", '\\"', '"\\', "a,b", "a\nb", "\r\n", '","', "\ufeff", "\0"]
)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
MOMENTS = TIMES.filter(lambda moment: moment.year > 1900).map(  # since when zones have no seconds
    lambda moment: moment.replace(tzinfo=UTC)
)
VALUES = {
    "STRING": TEXTS,
    "BOOLEAN": st.booleans(),
    "TINYINT": st.integers(-128, 127),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(),
    "FLOAT": st.floats(width=32),
    "DECIMAL(9,4)": st.decimals(-99999, 99999, places=4),
    "DATE": st.dates(),
    "TIMESTAMP": MOMENTS,
    "TIMESTAMP_NTZ": TIMES,
}
NESTED = {
    **VALUES,
    "ARRAY<STRING>": st.lists(st.none() | TEXTS, max_size=3),
    "STRUCT<x: DECIMAL(9,4), y: FLOAT>": st.fixed_dictionaries(
        {
            "x": st.none() | st.decimals(-99999, 99999, places=4),
            "y": st.none() | st.floats(width=32),
        }
    ),
    "ARRAY<STRUCT<d: DATE, t: TIMESTAMP>>": st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "d": st.none() | st.dates(),
                "t": st.none() | MOMENTS,
            }
        ),
        max_size=3,
    ),
}


@st.composite
def tables(draw: st.DrawFn, values: dict[str, st.SearchStrategy[Any]]) -> tuple[str, pa.Table]:
    kinds = draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=4))
    schema = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))
    count = draw(st.integers(1, 6))
    fields = arrow_schema(nullable(parse_schema(schema)))
    columns = {
        field.name: pa.array(
            draw(st.lists(st.none() | values[kind], min_size=count, max_size=count)), field.type
        )
        for field, kind in zip(fields, kinds, strict=True)
    }
    return schema, pa.table(columns, schema=fields)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return found is not None and all(same(found[name], expected[name]) for name in expected)
    return bool(found == expected)


@given(
    tables(VALUES), st.sampled_from([{}, {"sep": ";"}, {"sep": "\t", "escape": '"'}, {"sep": "-"}])
)
@settings(max_examples=examples(200))
def test_csv_is_read_as_what_was_written(
    made: tuple[str, pa.Table], options: dict[str, str]
) -> None:
    schema, table = made
    values = encode_values(table, Format.CSV, options)
    found = Parser(Format.CSV, parse_schema(schema), options).parse(values)
    assert found.bad == {}
    assert same(found.table.to_pylist(), table.to_pylist())


@given(tables(NESTED), st.sampled_from(["UTC", "Europe/Berlin", "+05:30"]))
@settings(max_examples=examples(200))
def test_json_is_read_as_what_was_written(made: tuple[str, pa.Table], zone: str) -> None:
    schema, table = made
    values = encode_values(table, Format.JSON, {}, zone)
    found = Parser(Format.JSON, parse_schema(schema), {}, zone).parse(values)
    assert found.bad == {}
    assert same(found.table.to_pylist(), table.to_pylist())


def test_values_inside_of_others_are_written_as_outside() -> None:
    table = pa.table(
        {
            "s": pa.array([{"x": Decimal("1.20"), "y": None}, None]),
            "m": pa.array([[("a", 1), ('"', None)], []], pa.map_(pa.string(), pa.int32())),
            "f": pa.array([[0.1, math.nan, None], None], pa.list_(pa.float32())),
            "t": pa.array([[datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=5)], []]),
        }
    )
    assert encode_values(table, Format.JSON, {}).to_pylist() == [
        b'{"s":{"x":1.20},"m":{"a":1,"\\"":null},"f":[0.1,"NaN",null],"t":["2026-01-01T00:00:00.005Z"]}',
        b'{"m":{},"t":[]}',
    ]
    assert encode_values(table.slice(1), Format.JSON, {}).to_pylist() == [b'{"m":{},"t":[]}']


def test_bytes_have_no_place_in_csv() -> None:
    with pytest.raises(
        TableUnusable, match="the column b is of type binary, which CSV cannot hold"
    ):
        encode_values(pa.table({"b": [b"\x01"], "n": [1]}), Format.CSV, {})


def test_times_after_2037_are_written_in_their_zone() -> None:
    """Also where clocks are moved within an hour, and where nobody has a time for it."""
    zone = "Europe/Berlin"
    times = [
        *(
            datetime(2026, 7, 1, 12, tzinfo=UTC),
            datetime(2040, 7, 1, 12, tzinfo=UTC),
            datetime(2040, 12, 1, 12, tzinfo=UTC),
            None,
        ),
        *(
            datetime(1893, 3, 31, 23, 6, tzinfo=UTC),
            datetime(1893, 3, 31, 23, 7, tzinfo=UTC),
            datetime(1, 1, 1, 12, tzinfo=UTC),
        ),
    ]
    moments = pa.array(times, pa.timestamp("us", "UTC"))
    table = pa.table({"t": moments})
    assert encode_values(table, Format.TEXT, {}, zone).to_pylist() == [
        *(b"2026-07-01 14:00:00", b"2040-07-01 14:00:00", b"2040-12-01 13:00:00", None),
        *(b"1893-03-31 23:59:28", b"1893-04-01 00:07:00", b"0001-01-01 12:53:28"),
    ]
    assert encode_values(table, Format.CSV, {}, zone).to_pylist() == [
        *(b"2026-07-01T14:00:00.000+02:00", b"2040-07-01T14:00:00.000+02:00"),
        *(b"2040-12-01T13:00:00.000+01:00", b"", b"1893-03-31T23:59:28.000+00:53"),
        *(b"1893-04-01T00:07:00.000+01:00", b"0001-01-01T12:53:28.000+00:53"),
    ]
    assert encode_values(table.slice(0, 1), Format.CSV, {}, "Africa/Abidjan").to_pylist() == [
        b"2026-07-01T12:00:00.000Z"
    ]


@pytest.mark.parametrize("form", [Format.JSON, Format.CSV, Format.TEXT])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_too_far_away_is_told(form: Format, zone: str | None) -> None:
    for unit in ("s", "ms"):
        far = pa.array([2**62], pa.int64()).cast(pa.timestamp(unit, zone))
        if unit == "s" or form is Format.TEXT:
            with pytest.raises(TableUnusable, match="has a time too far away"):
                encode_values(pa.table({"t": far}), form, {})
        if zone is not None:
            with pytest.raises(TableUnusable, match="has a time too far away"):
                encode_values(pa.table({"t": far}), form, {}, "Europe/Berlin")


def test_keys_are_texts_as_spark_makes_them() -> None:
    moments = pa.array([1500, 1_000_000, -1]).cast(pa.timestamp("us", "UTC"))
    columns: dict[str, Any] = {
        "t": [b"1970-01-01 00:00:00.0015", b"1970-01-01 00:00:01", b"1969-12-31 23:59:59.999999"],
        "d": [b"1.0", b"1.0E20", b"1.0E-5"],
        "c": [b"0.0000001", b"0.0000000", b"-1.5000000"],
    }
    table = pa.table(
        {
            "t": moments,
            "d": [1.0, 1e20, 1e-5],
            "c": pa.array([Decimal("1E-7"), Decimal(0), Decimal("-1.5")], pa.decimal128(20, 7)),
        }
    )
    for name, texts in columns.items():
        assert encode_values(table.select([name]), Format.TEXT, {}).to_pylist() == texts
