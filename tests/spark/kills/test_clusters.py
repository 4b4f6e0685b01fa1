"""The same query wherever it runs: on executors of their own, on a standalone cluster, on three
nodes of Apache Kafka; with a kill each, and the same exact output. All of them are for `make long`:
a pipeline whose executor is killed is in `test_pipeline_kills`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.client.cluster.cluster_fixture import three_nodes as three_nodes
from tests.spark.kills.blows import Blow
from tests.spark.kills.brokers import Ours, ThreeKafkas
from tests.spark.kills.fate import FateServer
from tests.spark.kills.faults import Fault
from tests.spark.kills.round import Drivers, Round, Stage, making_drivers, play_here
from tests.spark.kills.spark_cluster import standalone_cluster
from tests.spark.kills.world import make_world
from tests.spark.sink.hooks import UNANSWERED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tools.apache_kafka import ApacheKafkaCluster

pytestmark = pytest.mark.interop

ROWS_IN_BATCH = 100
EXECUTORS = "local-cluster[2,1,1024]"
COME_AND_GO = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "12",
}
"""Executors are there while there is work for them, and Spark joins what is small."""


@pytest.fixture
def fate() -> Iterator[FateServer]:
    with FateServer() as fate:
        yield fate


def kill_an_executor(fate: FateServer, drivers: Drivers, tmp_path: Path) -> None:
    """A query whose driver is a process of its own, and one of its executors dies."""
    blows = [Blow(Fault.EXECUTOR, "after write")]
    with Ours() as brokers:
        world = make_world(brokers.bootstrap, tmp_path, ROWS_IN_BATCH * 4)
        stage = Stage(world, brokers, fate, random.Random(1))
        outcome = Round(stage, world.plan("rows", ROWS_IN_BATCH), drivers, blows).run()
    assert outcome.struck == blows
    assert outcome.errors == {}
    assert outcome.verdict.problems == []


@pytest.mark.long
def test_executors_of_their_own(spark_is_there: None, fate: FateServer, tmp_path: Path) -> None:
    with making_drivers(tmp_path / "drivers", EXECUTORS) as drivers:
        kill_an_executor(fate, drivers, tmp_path)


@pytest.mark.long
def test_executors_that_come_and_go(spark_is_there: None, fate: FateServer, tmp_path: Path) -> None:
    with making_drivers(tmp_path / "drivers", EXECUTORS, COME_AND_GO) as drivers:
        kill_an_executor(fate, drivers, tmp_path)


@pytest.mark.long
def test_a_standalone_cluster(spark_is_there: None, fate: FateServer, tmp_path: Path) -> None:
    with (
        standalone_cluster(tmp_path / "cluster") as master,
        making_drivers(tmp_path / "drivers", master) as drivers,
    ):
        kill_an_executor(fate, drivers, tmp_path)


@pytest.mark.long
def test_three_nodes_of_kafka(
    spark: SparkSession, three_nodes: ApacheKafkaCluster, fate: FateServer, tmp_path: Path
) -> None:
    """Whoever leads the output, and whoever looks after the transaction, is killed."""
    blows = [Blow(Fault.LEADER, "mid-write"), Blow(Fault.COORDINATOR, UNANSWERED)]
    brokers = ThreeKafkas.of(three_nodes)
    world = make_world(brokers.bootstrap, tmp_path, ROWS_IN_BATCH * 6, replicas=brokers.replicas)
    stage = Stage(world, brokers, fate, random.Random(1))
    outcome = play_here(spark, stage, world.plan("rows", ROWS_IN_BATCH), blows)
    assert outcome.errors == {}
    assert outcome.struck == blows
    assert outcome.verdict.problems == []
