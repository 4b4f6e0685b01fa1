"""One file, two engines, one meaning: SQL and Arrow pipelines read the same records as the same
rows and the same dead letters, in order, and write the same rows as the same values. What neither
refuses Spark's own readers alone read as the same rows, too: nothing of ours is around those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from onceflow.spark.formats.format import Format
from tests.spark.pipeline.meaning import (
    CASES,
    WRITABLE,
    Case,
    by_arrow,
    by_spark,
    by_spark_alone,
    is_known_to_differ,
    rows_of,
    source_plan,
    written_by_arrow,
    written_by_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "spark.sql.session.timeZone"
SLOW = settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(session: SparkSession, case: Case) -> None:
    source, values, zone = case
    session.conf.set(ZONE, zone)
    sql = by_spark(session, source, values)
    arrow = by_arrow(source, values, zone)
    differing = [
        (source.schema_text, source.format_options, value, one, other)
        for value, one, other in zip(values, sql, arrow, strict=True)
        if repr(one) != repr(other) and not is_known_to_differ(case, value, one, other)
    ]
    assert differing == []
    if source.format in (Format.JSON, Format.CSV):
        rows = {
            value: one.row
            for value, one, other in zip(values, sql, arrow, strict=True)
            if one.row is not None and other.row is not None
        }
        alone = by_spark_alone(session, source, list(rows))
        changed = [
            (source.schema_text, source.format_options, value, row, other)
            for (value, row), other in zip(rows.items(), alone, strict=True)
            if repr(row) != repr(other)
        ]
        assert changed == []


def check_written(session: SparkSession, case: Case) -> None:
    """Both engines read what either has written as the rows that it was. Times are written to the
    millisecond, and so only from the second time on as they were."""
    source, values, _ = case
    session.conf.set(ZONE, "UTC")  # others had seconds once, which are not written
    once = written_by_arrow(rows_of(by_arrow(source, values), source), source)
    rows = by_arrow(source, once)
    table = rows_of(rows, source)
    assert table.num_rows == len(once)
    by_one = written_by_arrow(table, source)
    by_other = written_by_spark(session, table, source)
    assert repr(by_arrow(source, by_one)) == repr(rows)
    assert repr(by_arrow(source, by_other)) == repr(rows)
    assert repr(by_spark(session, source, by_one)) == repr(rows)
    assert repr(by_spark(session, source, by_other)) == repr(rows)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Another session on the same Spark: its zone is its own."""
    return spark.newSession()


MARKED = [
    *("1e-3,000,000", "1,e-3000000", "1e,-3000000", "1,000.5", "999," * 60_000 + "9"),
    *("1e-\u0663000000", "\u0661e-3000000", "\u0663" * 60_000),
]
ESCAPED = [
    *(r"1\u0065-3000000", r"\u0031e-3000000", r"1e\u002d3000000", r"1e-\u0663000000"),
    *(r"\u0661e-3000000", r"\u096ae\u002d3000000", r"\u0039" * 60_000, r"9\u0039" * 60_000),
]
HOSTILE = ["1e-100000000", "1e99999", "9" * 200_000, "0." + "9" * 200_000, "1e-9999", "1e00000002"]


def test_numbers_that_would_take_minutes(session: SparkSession) -> None:
    """Or end a process: nothing that a record has does that."""
    for kind in ("DECIMAL(5,2)", "DECIMAL(38,10)"):
        cells: list[bytes | None] = [text.encode() for text in HOSTILE]
        check(session, Case(source_plan(Format.CSV, f"c0 {kind}"), cells, "UTC"))
        members = [f'{{"c0":{mark}{text}{mark}}}' for text in HOSTILE for mark in ("", '"')]
        values: list[bytes | None] = [text.encode() for text in members]
        check(session, Case(source_plan(Format.JSON, f"c0 {kind}"), values, "UTC"))
    kind = "DECIMAL(38,10)"
    cells = [f'"{text}"'.encode() for text in MARKED]
    check(session, Case(source_plan(Format.CSV, f"c0 {kind}"), cells, "UTC"))
    cells = [text.encode() for text in MARKED]
    check(session, Case(source_plan(Format.CSV, f"c0 {kind}", sep=";"), cells, "UTC"))
    others = r'{"c0":1.5,"s":"caf\u00e9 3e\u00a0 12e34567f"}', '{"c0":"2,000","s":"1,000"}'
    values = [f'{{"c0":"{text}"}}'.encode() for text in MARKED + ESCAPED]
    values += [text.encode() for text in others]
    check(session, Case(source_plan(Format.JSON, f"c0 {kind}, s STRING"), values, "UTC"))


def test_what_spark_takes_for_the_end_of_its_input(session: SparkSession) -> None:
    """It would leave out the beginning of the record behind it."""
    cells: list[bytes | None] = [
        text.encode()
        for text in ("1,a", "2,b\uffff,7,777", "3,c", '4,"\uffff"', "5,e", "\uffff", "6,\0null\0")
    ]
    check(session, Case(source_plan(Format.CSV, "c0 INT, c1 STRING"), cells, "UTC"))
    found = by_spark(session, source_plan(Format.CSV, "c0 INT, c1 STRING"), cells)
    assert [each.row for each in found] == [
        *((1, "a"), None, (3, "c"), None, (5, "e"), None, (6, "\0null\0"))
    ]


@pytest.mark.parametrize("escape", ["\\", '"'])
def test_a_byte_order_mark_is_a_character_as_all_others(escape: str, session: SparkSession) -> None:
    """Also in the first record of a task, where Spark's parser leaves it out."""
    source = source_plan(Format.CSV, "c0 STRING, c1 STRING", escape=escape)
    cells = ["\ufeffa", '\ufeff"b"', "\ufeff\\c", "\ufeff", "\ufeff\ufeff d "]
    for cell in cells:
        values: list[bytes | None] = [f"{cell},1".encode(), f"{cell},".encode()]
        check(session, Case(source, values, "UTC"))
        assert [each.row for each in by_spark(session, source, values)] == [
            *((cell, "1"), (cell, None))
        ]


@pytest.mark.parametrize("quote", ['"', "'"])
def test_nul_before_a_quote(quote: str, session: SparkSession) -> None:
    """Spark takes it for an escape where quotes are escaped by themselves."""
    source = source_plan(Format.CSV, "c0 STRING", quote=quote, escape=quote)
    cells = ["a\0", "\0", f"\0{quote * 2}b", "\0\0"]
    values: list[bytes | None] = [f"{quote}{cell}{quote}".encode() for cell in cells]
    check(session, Case(source, values, "UTC"))
    assert [each.row for each in by_spark(session, source, values)] == [
        (cell.replace(quote * 2, quote),) for cell in cells
    ]
    check_written(session, Case(source, values, "UTC"))


def test_an_empty_text_is_written_in_the_quotes_that_are_chosen(session: SparkSession) -> None:
    source = source_plan(Format.CSV, "c0 STRING, c1 STRING", quote="'")
    values: list[bytes | None] = [b"'',x", b",''"]
    check_written(session, Case(source, values, "UTC"))
    table = rows_of(by_arrow(source, values), source)
    assert written_by_spark(session, table, source) == values


def test_a_comment_behind_an_object_and_a_name_that_is_in_a_map_twice(
    session: SparkSession,
) -> None:
    source = source_plan(Format.JSON, "c0 MAP<STRING, INT>", allowComments="true")
    values: list[bytes | None] = [
        *(b'{"c0":{"a":1}} // x', b'{"c0":{"a":1,"a":2}}', b'{"c0":null}', b'{"c0":{}} // x\n{}')
    ]
    errors = [each.error for each in by_spark(session, source, values)]
    misfit = "the value does not fit the schema of the JSON"
    assert errors == [None, misfit, None, "the value is not JSON"]


def test_more_than_a_reader_has_room_for(session: SparkSession) -> None:
    """20,480 cells, 500 lists inside of each other; and the records behind."""
    cells: list[bytes | None] = [b"," * 20_479, b"," * 20_480, b"," * 100_000, b"x,y"]
    check(session, Case(source_plan(Format.CSV, "c0 STRING, c1 STRING"), cells, "UTC"))
    deep = ["[" * depth + "]" * depth for depth in (497, 498, 499, 500, 1001)]
    values: list[bytes | None] = [
        value.encode()
        for each in deep
        for value in (f'{{"c0":1,"z":{each}}}', f'{{"z":{{"y":{each}}},"c0":1}}')
    ]
    check(session, Case(source_plan(Format.JSON, "c0 INT"), values, "UTC"))


@given(CASES)
@SLOW
def test_both_engines_read_the_same(session: SparkSession, case: Case) -> None:
    check(session, case)


@pytest.mark.long
@given(CASES)
@settings(SLOW, max_examples=2000)
def test_both_engines_read_the_same_thousands_of_times(session: SparkSession, case: Case) -> None:
    check(session, case)


@given(WRITABLE)
@settings(SLOW, max_examples=3)
def test_both_engines_read_what_either_has_written(session: SparkSession, case: Case) -> None:
    check_written(session, case)


@pytest.mark.long
@given(WRITABLE)
@settings(SLOW, max_examples=300)
def test_both_engines_read_what_either_has_written_hundreds_of_times(
    session: SparkSession, case: Case
) -> None:
    check_written(session, case)
