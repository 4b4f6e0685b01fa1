"""One file, two engines, one meaning: SQL and Arrow pipelines read the same records as the same
rows and the same dead letters, in order, and write the same rows as the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from onceflow.spark.pipeline_plan import SourcePlan
from tests.spark.pipeline_meaning import by_arrow, by_spark, cases, is_known_to_differ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "spark.sql.session.timeZone"
SLOW = settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(session: SparkSession, case: tuple[SourcePlan, list[bytes | None], str]) -> None:
    source, values, zone = case
    session.conf.set(ZONE, zone)
    sql = by_spark(session, source, values)
    arrow = by_arrow(source, values, zone)
    differing = [
        (source.schema_text, value, one, other)
        for value, one, other in zip(values, sql, arrow, strict=True)
        if repr(one) != repr(other) and not is_known_to_differ(source, value, one, other)
    ]
    assert differing == []


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Another session on the same Spark: its zone is its own."""
    return spark.newSession()


@given(cases())
@SLOW
def test_both_engines_read_the_same(
    session: SparkSession, case: tuple[SourcePlan, list[bytes | None], str]
) -> None:
    check(session, case)


@pytest.mark.long
@given(cases())
@settings(SLOW, max_examples=2000)
def test_both_engines_read_the_same_thousands_of_times(
    session: SparkSession, case: tuple[SourcePlan, list[bytes | None], str]
) -> None:
    check(session, case)
