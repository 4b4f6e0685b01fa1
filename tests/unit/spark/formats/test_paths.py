"""The two ways on which an Arrow pipeline reads records, many at once and one by one, give the same
rows, whatever stands in a number; and no record ends a query, or makes those beside it slow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from onceflow.spark.formats.arrow_parse import Parser
from onceflow.spark.formats.format import Format
from onceflow.spark.formats.record import DEEPEST, LONGEST_NUMBER, Row
from onceflow.spark.formats.schema import parse_schema
from onceflow.spark.formats.text import Misfit, zone_of
from tests.doses import examples

NOT_JSON = "the value is not JSON"


def parser_of(form: Format, schema: str, zone: str = "UTC") -> Parser:
    return Parser(form, parse_schema(schema), {}, zone)


def binary(*values: bytes) -> Any:
    return pa.array(values, pa.binary())


def shown(table: pa.Table) -> str:
    return repr([comparable(column).to_pylist() for column in table.columns])


def comparable(column: Any) -> Any:
    """Dates and times as numbers: Python has not all of them."""
    if pa.types.is_list(column.type):
        kind = column.type.value_type
        return column.cast(pa.list_(NUMBERS[kind])) if kind in NUMBERS else column
    return column.cast(NUMBERS[column.type]) if column.type in NUMBERS else column


NUMBERS: dict[Any, Any] = {
    pa.date32(): pa.int32(),
    pa.timestamp("us"): pa.int64(),
    pa.timestamp("us", "UTC"): pa.int64(),
}


def check_ways(parser: Parser, values: list[bytes]) -> None:
    """What is read at once is read as alone; and what is not, too."""
    bad: dict[int, str] = {}
    alone = parser._one_by_one(binary(*values), 0, bad)
    assert not any(each.startswith("the value cannot be read") for each in bad.values())
    found = parser.parse(binary(*values))
    assert (found.bad, shown(found.table)) == (bad, shown(alone))
    for value in values:
        bad = {}
        one = parser._one_by_one(binary(value), 0, bad)
        together = parser._together(binary(value))
        assert together is None or (bad, shown(together)) == ({}, shown(one))


# --- numbers ------------------------------------------------------------------------------------

DIGITS = st.one_of(
    st.integers(0, 10**9).map(str),
    st.integers(0, 10**45).map(str),
    st.tuples(st.sampled_from("019"), st.integers(15, 48)).map(lambda each: each[0] * each[1]),
    st.tuples(st.sampled_from("09"), st.sampled_from([400, 995, 1000, 1001, 5000])).map(
        lambda each: each[0] * each[1]
    ),
    st.sampled_from([2**63, 2**64, 2**126, 2**127, 2**128, 2**128 + 5]).map(str),
)
EXPONENTS = st.sampled_from(
    [
        "",
        "",
        "",
        "e5",
        "E-3",
        "e+28",
        "e38",
        "e-39",
        "e-77",
        "e-100000000",
        "e999999999",
        "e9999999999",
    ]
)


@st.composite
def numbers(draw: st.DrawFn) -> str:
    sign = draw(st.sampled_from(["", "", "", "-", "+"]))
    point = draw(st.sampled_from(["", "", "."]))
    behind = draw(st.just("") | DIGITS) if point else ""
    return sign + draw(DIGITS) + point + behind + draw(EXPONENTS)


WORDS = st.sampled_from(
    [
        "",
        "null",
        "true",
        "NaN",
        "Inf",
        "-Inf",
        "Infinity",
        "+INF",
        "0x10",
        ".5",
        "5.",
        "-",
        "1,5",
        "x",
    ]
)
MOMENTS = st.sampled_from(
    [
        *("2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+02:00", "0000-01-01 00:00:00"),
        *("2026-03-29T02:30:00", "2026-10-25T02:30:00.5", "2126-07-01 12:00:00-09:30", "2026-01"),
        *("2026-01-02T03:04:05+18:00", "2026-01-02T03:04:05+18:01", "9999-12-31T23:59:59.999999"),
        *("2026-01-02T03:04:05 Europe/Berlin", "0001-01-01 00:00:00+17:59", "1890-01-01 00:00:00"),
    ]
)
TEXTS = numbers() | numbers() | WORDS | MOMENTS
KINDS = [
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BOOLEAN", "DATE"),
    *("TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(5,2)", "DECIMAL(10,0)", "DECIMAL(20,2)"),
    *("DECIMAL(38,0)", "DECIMAL(38,2)", "DECIMAL(38,10)", "DECIMAL(38,18)", "DECIMAL(38,38)"),
]
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "+05:30", "America/St_Johns"])
MANY = settings(max_examples=examples(300), deadline=None)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2), st.data(), ZONES)
@MANY
def test_cells_mean_the_same_on_both_ways(kinds: list[str], data: st.DataObject, zone: str) -> None:
    schema = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))
    rows = st.lists(TEXTS, min_size=len(kinds), max_size=len(kinds)).map(",".join)
    values = data.draw(st.lists(rows.map(str.encode), min_size=1, max_size=4))
    check_ways(parser_of(Format.CSV, schema, zone), values)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


UNKNOWN = st.one_of(
    TEXTS,
    st.sampled_from([1, 499, 500, 501, 1200]).map(nested),
    st.sampled_from(['"]]]"', '{"x":[' + "{}," * 600 + "{}]}", '"' + "9" * 2000 + '"']),
)


@given(
    st.sampled_from([*KINDS, *(f"ARRAY<{kind}>" for kind in KINDS)]),
    st.lists(st.tuples(TEXTS, st.booleans(), UNKNOWN), min_size=1, max_size=4),
    ZONES,
)
@example("DECIMAL(38,10)", [("1e-100000000", True, "1")], "UTC")
@example("DECIMAL(38,10)", [("1\\u0065-100000000", True, "1")], "UTC")
@MANY
def test_members_mean_the_same_on_both_ways(
    kind: str, members: list[tuple[str, bool, str]], zone: str
) -> None:
    values = []
    for text, is_quoted, unknown in members:
        value = f'"{text}"' if is_quoted else text
        value = f"[{value}]" if kind.startswith("ARRAY") else value
        values.append(f'{{"a":{value},"other":{unknown}}}'.encode())
    check_ways(parser_of(Format.JSON, f"a {kind}", zone), values)


@pytest.mark.parametrize("text", ["1e-100000000", "0." + "9" * 4_000_000, "9" * 4_000_000])
@pytest.mark.parametrize("kind", ["DECIMAL(5,2)", "DECIMAL(38,10)"])
def test_decimals_that_arrow_must_not_see(text: str, kind: str) -> None:
    """They end the process."""
    for form, value in (
        (Format.CSV, text),
        (Format.JSON, f'{{"a":{text}}}'),
        (Format.JSON, f'{{"a":"{text}"}}'),
    ):
        check_ways(parser_of(form, f"a {kind}"), [value.encode()])


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        ("DECIMAL(38,18)", "400000000000000000000", None),
        ("DECIMAL(38,2)", "426800430e28", None),
        ("DECIMAL(5,2)", str(2**128), None),
        ("DECIMAL(5,2)", "5." + "0" * 41, "5.00"),
        (
            "DECIMAL(38,10)",
            "1234567890123456789012345678.1234567891",
            "1234567890123456789012345678.1234567891",
        ),
        ("DECIMAL(38,2)", "9" * 36, "9" * 36 + ".00"),
        ("DECIMAL(38,2)", "9" * 36 + ".995", None),
        ("DECIMAL(38,38)", "0." + "9" * 38, "0." + "9" * 38),
    ],
)
def test_a_decimal_is_what_is_written_or_a_dead_letter(
    kind: str, text: str, meant: str | None
) -> None:
    """Alone, and beside a record that is read alone."""
    expected = [] if meant is None else [Decimal(meant)]
    for form, value, odd in (
        (Format.CSV, text, b'"1\\"'),
        (Format.JSON, f'{{"a":{text}}}', b"{'a':null,}"),
    ):
        for values in ([value.encode()], [value.encode(), odd]):
            found = parser_of(form, f"a {kind}").parse(binary(*values))
            assert found.table.column("a").to_pylist() == expected


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unknown", "is_taken"),
    [
        ("Inf", False),
        ("-Inf", False),
        ("[1, Inf]", False),
        ('"Inf, and so on"', True),
        ("Infinity", True),
        ("-Infinity", True),
        ("-NaN", False),
        ("[-NaN]", False),
        ("NaN", True),
        ("[" + "0.12345678," * 2000 + "1]", True),
        ("[" + "0.12345678," * 2000 + "9" * (LONGEST_NUMBER + 1) + "]", False),
        ("9" * LONGEST_NUMBER, True),
        ("9" * (LONGEST_NUMBER + 1), False),
        (nested(DEEPEST - 1), True),
        (nested(DEEPEST), False),
        (nested(100_000), False),
        ("[" + "[]," * 2000 + "[]]", True),
        (json.dumps("[" * 2000), True),
        (json.dumps('"' * 2000 + "9" * 2000), True),
    ],
)
def test_fields_that_nobody_wants_have_limits_on_both_ways(unknown: str, is_taken: bool) -> None:
    parser = parser_of(Format.JSON, "a INT")
    for marks in ('"', "'"):  # a record with single quotes is read alone
        value = f'{{{marks}a{marks}:1,"z":{unknown}}}'.encode()
        check_ways(parser, [value, b'{"a":2}'])
        found = parser.parse(binary(value))
        assert found.bad == ({} if is_taken else {0: NOT_JSON})


def test_lists_of_numbers_are_read_many_at_a_time() -> None:
    value = b'{"a":1,"v":[' + b"-0.12345678," * 500 + b"0]}"
    assert parser_of(Format.JSON, "a INT")._together(binary(value, value)) is not None


def test_a_text_that_is_not_closed_takes_no_longer_than_others() -> None:
    """Each of its quotes could be the beginning of a text that goes to the end: of four times as
    many, it would take sixteen times as long."""
    parser = parser_of(Format.JSON, "a INT")
    value = b'{"a":1,"z":"' + b'\\"' * 500_000
    started = time.process_time()
    assert parser.parse(binary(value + b"}", value + b"\\")).bad == {0: NOT_JSON, 1: NOT_JSON}
    assert time.process_time() - started < 30  # instead of hours


def test_zeros_before_an_integer_do_not_count() -> None:
    values = [b"0" * 41 + b"5", b"-" + b"0" * 5000 + b"7", b"+" + b"0" * 30 + b"1", b"9" * 5000]
    parser = parser_of(Format.CSV, "a INT")
    check_ways(parser, values)
    assert parser.parse(binary(*values)).table.column("a").to_pylist() == [5, -7, 1]


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        ("{'a':'x'}", True),
        ("{'a':'it\\'s \"'}", True),
        ('{"a":"it\\\'s"}', True),
        ("{\"a\\'x':1}", False),
        ("{'a':-+INF}", False),
        ("{'a':1+INF}", False),
        ("{'b':+INF, 'c':[-INF, +Infinity]}", True),
        ("{'a':'x}", False),
        ("{'a':\"x'}", False),
        ("{'a':'\\q'}", False),
        ("{'a':'\n'}", False),
    ],
)
def test_what_is_taken_besides_standard_json(text: str, is_json: bool) -> None:
    found = parser_of(Format.JSON, "a STRING").parse(binary(text.encode()))
    assert found.bad == ({} if is_json else {0: NOT_JSON})


# --- neighbours ---------------------------------------------------------------------------------


def counting(parser: Parser, raising: type[Exception] | None = None) -> list[bytes | None]:
    """The records that are read one by one from now on."""
    read: Callable[[bytes | None], Row] = parser._row
    seen: list[bytes | None] = []

    def row(value: bytes | None) -> Row:
        seen.append(value)
        if raising is not None and value is not None and b"raise" in value:
            raise raising("in the midst")
        return read(value)

    parser.__dict__["_row"] = row
    return seen


def test_one_odd_record_does_not_make_its_neighbours_slow() -> None:
    large = b'{"a":1,"z":[' + b"0," * 2000 + b"0]}"
    for values, most in (
        ([*[large] * 255, b"{'a':1}"], 16),
        ([*[b'{"a":1}'] * 32_767, b"{'a':1}"], 128),
        ([*[large + b" " * 1_000_000] * 7, b"{'a':1}"], 1),
    ):
        parser = parser_of(Format.JSON, "a INT")
        seen = counting(parser)
        assert parser.parse(binary(*values)).table.num_rows == len(values)
        assert len(seen) <= most


@pytest.mark.parametrize("raising", [ValueError, RecursionError, OverflowError, pa.ArrowInvalid])
def test_a_record_that_nobody_foresaw_is_a_dead_letter(raising: type[Exception]) -> None:
    parser = parser_of(Format.JSON, "a STRING")
    counting(parser, raising)
    found = parser.parse(binary(b'{"a":"x"}', b"{'a':'raise'}", b"{'a':'y'}", b"no"))
    assert found.table.column("a").to_pylist() == ["x", "y"]
    assert found.good == [0, 2]
    assert found.bad[1].startswith(f"the value cannot be read: {raising.__name__}")
    assert found.bad[3] == NOT_JSON


def test_a_value_that_arrow_does_not_take_is_a_dead_letter() -> None:
    parser = parser_of(Format.CSV, "a TINYINT")
    parser.__dict__["_row"] = lambda value: (int(value),)
    bad: dict[int, str] = {}
    table = parser._one_by_one(binary(b"1", b"1000", b"2"), 7, bad)
    assert (table.column("a").to_pylist(), list(bad)) == ([1, 2], [8])


# --- times --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [Format.CSV, Format.JSON])
def test_times_of_all_zones_are_read_many_at_once(form: Format) -> None:
    texts = (
        "2026-01-02T03:04:05",
        "2026-07-02 03:04:05.5",
        "2126-07-02T03:04:05+02:00",
        "2026-01-02 03:04:05Z",
    )
    values = [(text if form is Format.CSV else f'{{"t":"{text}"}}').encode() for text in texts]
    parser = parser_of(form, "t TIMESTAMP", "Europe/Berlin")
    found = parser._together(binary(*values))
    assert found is not None
    assert found.column("t").to_pylist() == [
        datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
        datetime(2026, 7, 2, 1, 4, 5, 500_000, tzinfo=UTC),
        datetime(2126, 7, 2, 1, 4, 5, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ]
    check_ways(parser, values)


@given(
    st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), min_size=1, max_size=5),  # noqa: DTZ001
    st.sampled_from(
        ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "-03:30"]
    ),
)
@MANY
def test_times_without_a_zone_are_the_same_on_both_ways(times: list[datetime], zone: str) -> None:
    check_ways(
        parser_of(Format.CSV, "t TIMESTAMP", zone), [each.isoformat(" ").encode() for each in times]
    )


@pytest.mark.parametrize(
    "name",
    [
        "localtime",
        "posixrules",
        "Factory",
        "right/UTC",
        "posix/UTC",
        "europe/berlin",
        "Europe",
        "../UTC",
    ],
)
def test_zones_of_one_machine_only_are_none(name: str) -> None:
    with pytest.raises(Misfit):
        zone_of(name)
    assert (
        parser_of(Format.CSV, "t TIMESTAMP")
        .parse(binary(f"2026-01-02T03:04:05 {name}".encode()))
        .bad
    )


def test_zones_are_as_far_from_utc_as_java_says() -> None:
    for text, seconds in {
        "+1": 3600,
        "-01": -3600,
        "+1:2": 3720,
        "+01:2": 3720,
        "+0102": 3720,
        "+010203": 3723,
        "+1:02:03": 3723,
        "UTC-3:30": -12600,
        "GMT": 0,
        "UT+18:00": 64800,
    }.items():
        assert zone_of(text).utcoffset(None) == timedelta(seconds=seconds)
    for text in ("+02:00UTC", "+056", "-156", "+1:2:3", "+0:2:00", "+01020", "UTCUTC", "+18:01"):
        with pytest.raises(Misfit):
            zone_of(text)
    values = [f"2026-01-02T03:04:05{zone}".encode() for zone in ("\x7fZ", " Z", "+056", "Z\x7f")]
    assert set(parser_of(Format.CSV, "t TIMESTAMP").parse(binary(*values)).bad) == {0, 2}
