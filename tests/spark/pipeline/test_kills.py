"""Pipelines by force: `onceflow run`, a Python worker, an executor and the broker are killed at
points of a batch; what comes out, as clients of others read it, is exact after each kill and at the
end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceflow.spark import Pipeline
from tests.doses import some_long
from tests.interop.client.cluster.cluster_fixture import three_nodes as three_nodes
from tests.spark.kills.blows import Blow
from tests.spark.kills.brokers import Ours, ThreeKafkas
from tests.spark.kills.fate import FateServer
from tests.spark.kills.faults import POINTS, Fault
from tests.spark.pipeline.examples import EXAMPLES
from tests.spark.pipeline.kills import ROWS_IN_BATCH, KilledExample
from tests.spark.pipeline.run import EXECUTORS, LOCAL
from tests.spark.sink.hooks import UNANSWERED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tools.apache_kafka import ApacheKafkaCluster

pytestmark = pytest.mark.interop

SIGKILL = -9
KILLS = (Fault.DRIVER, Fault.WORKER, Fault.BROKER)


@pytest.fixture
def brokers() -> Iterator[Ours]:
    """Our broker, to be killed; names of topics are those of the examples."""
    with Ours() as brokers:
        yield brokers


@pytest.fixture
def fate() -> Iterator[FateServer]:
    with FateServer() as fate:
        yield fate


ONE_RUN = {
    "order_totals": [Blow(Fault.WORKER, "mid-write"), Blow(Fault.DRIVER, UNANSWERED)],
    "page_views": [
        Blow(Fault.EXECUTOR, "after write"),
        Blow(Fault.BROKER, "before EndTxn"),
        Blow(Fault.DRIVER, "after EndTxn"),
    ],
    "sensor_readings": [
        Blow(Fault.WORKER, "after write"),
        Blow(Fault.BROKER, "mid-write"),
        Blow(Fault.DRIVER, "before EndTxn"),
    ],
}
"""Of each only the last one ends it."""
PLACES = {"page_views": EXECUTORS}
"""It has state and rows on their way between stages, which an executor takes with it. Workers are
processes of their own everywhere: functions have to find their way to them on one machine, too."""


@pytest.mark.parametrize("name", some_long(ONE_RUN, "order_totals"))
def test_what_a_killed_pipeline_has_left_is_gone_on_with(
    name: str, spark: SparkSession, brokers: Ours, fate: FateServer, tmp_path: Path
) -> None:
    """By one in this process."""

    def finish(path: Path) -> None:
        Pipeline.from_file(path, bootstrap=brokers.bootstrap).run(spark, once=True)

    place = PLACES.get(name, LOCAL)
    killed = KilledExample(EXAMPLES[name], brokers, tmp_path, ROWS_IN_BATCH * 10, place)
    outcome = killed.play(fate, ONE_RUN[name], finish=finish)
    assert outcome.problems == []
    assert outcome.struck == ONE_RUN[name]
    assert outcome.statuses == [SIGKILL]


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_kills_at_every_point(
    name: str, brokers: Ours, fate: FateServer, spark_is_there: None, tmp_path: Path
) -> None:
    """In an order of their own for each example; the last `onceflow run` ends well."""
    blows = [Blow(fault, point) for fault in KILLS for point in POINTS[fault]]
    random.Random(name).shuffle(blows)
    killed = KilledExample(EXAMPLES[name], brokers, tmp_path, ROWS_IN_BATCH * 3 * len(blows))
    outcome = killed.play(fate, blows)
    assert outcome.problems == []
    assert outcome.struck == blows
    assert outcome.statuses == [SIGKILL] * len(POINTS[Fault.DRIVER]) + [0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["page_views", "sensor_readings"])
def test_kills_on_three_nodes_of_kafka(
    name: str,
    three_nodes: ApacheKafkaCluster,
    fate: FateServer,
    spark_is_there: None,
    tmp_path: Path,
) -> None:
    blows = [
        Blow(Fault.COORDINATOR, "mid-write"),
        Blow(Fault.DRIVER, "before offsets"),
        Blow(Fault.GROUP, "before EndTxn"),
        Blow(Fault.COORDINATOR, UNANSWERED),
        Blow(Fault.WORKER, "before claim"),
        Blow(Fault.DRIVER, UNANSWERED),
    ]
    brokers = ThreeKafkas.of(three_nodes)
    killed = KilledExample(EXAMPLES[name], brokers, tmp_path, ROWS_IN_BATCH * 20)
    outcome = killed.play(fate, blows)
    assert outcome.problems == []
    assert outcome.struck == blows
    assert outcome.statuses == [SIGKILL, SIGKILL, 0]
