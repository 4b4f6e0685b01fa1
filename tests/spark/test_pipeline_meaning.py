"""One file, two engines, one meaning: SQL and Arrow pipelines read the same records as the same
rows and the same dead letters, in order, and write the same rows as the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from onceflow.spark.pipeline_plan import Format
from tests.spark.pipeline_meaning import (
    CASES,
    Case,
    by_arrow,
    by_spark,
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
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(session: SparkSession, case: Case) -> None:
    source, values, zone = case
    session.conf.set(ZONE, zone)
    sql = by_spark(session, source, values)
    arrow = by_arrow(source, values, zone)
    differing = [
        (source.schema_text, value, one, other)
        for value, one, other in zip(values, sql, arrow, strict=True)
        if repr(one) != repr(other) and not is_known_to_differ(case, value, one, other)
    ]
    assert differing == []


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


HOSTILE = ["1e-100000000", "1e99999", "9" * 200_000, "0." + "9" * 200_000, "1e-9999", "1e00000002"]


def test_numbers_that_would_take_minutes(session: SparkSession) -> None:
    """Or end a process: nothing that a record has does that."""
    for kind in ("DECIMAL(5,2)", "DECIMAL(38,10)"):
        cells: list[bytes | None] = [text.encode() for text in HOSTILE]
        check(session, Case(source_plan(Format.CSV, f"c0 {kind}"), cells, "UTC"))
        members = [f'{{"c0":{mark}{text}{mark}}}' for text in HOSTILE for mark in ("", '"')]
        values: list[bytes | None] = [text.encode() for text in members]
        check(session, Case(source_plan(Format.JSON, f"c0 {kind}"), values, "UTC"))


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


@given(CASES.filter(lambda case: case.source.format is not Format.TEXT))
@settings(SLOW, max_examples=6)
def test_both_engines_read_what_either_has_written(session: SparkSession, case: Case) -> None:
    check_written(session, case)


@pytest.mark.long
@given(CASES.filter(lambda case: case.source.format is not Format.TEXT))
@settings(SLOW, max_examples=300)
def test_both_engines_read_what_either_has_written_hundreds_of_times(
    session: SparkSession, case: Case
) -> None:
    check_written(session, case)
