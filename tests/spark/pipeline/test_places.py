"""The same files of pipelines everywhere: beside a broker of their own, on one and on three nodes
of Apache Kafka, on executors of their own and on a standalone cluster. What comes out is what a
computation of the same input in plain Python gives, dead letters included. Each starts Spark and
more: all of them are for `make long`. Every run of the tests has the examples in one Spark
(`test_pipeline_examples`), `onceflow run` beside its own broker (`test_pipeline_cli`) and on
executors of their own (`test_pipeline_kills`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import onceflow
from tests.interop.client.cluster.cluster_fixture import three_nodes as three_nodes
from tests.spark.kills.spark_cluster import standalone_cluster
from tests.spark.pipeline.examples import EXAMPLES
from tests.spark.pipeline.places import run_beside_its_broker, run_on_brokers
from tests.spark.pipeline.run import EXECUTORS, LOCAL

if TYPE_CHECKING:
    from tools.apache_kafka import ApacheKafkaCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.long,
    pytest.mark.usefixtures("spark_is_there"),
]
each_example = pytest.mark.parametrize("name", EXAMPLES)


@pytest.fixture
def ours() -> Iterator[str]:
    """A broker of ours that nobody has used: names of topics are those of the examples."""
    with onceflow.Broker(process=True) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def master(spark_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster of two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone") / "cluster") as master:
        yield master


@each_example
def test_beside_a_broker_of_its_own(name: str, tmp_path: Path) -> None:
    assert run_beside_its_broker(EXAMPLES[name], tmp_path, *LOCAL) == []


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"page_views"}))
def test_one_node_of_kafka(name: str, kafka: str, tmp_path: Path) -> None:
    """`test_pipeline_examples` has the other one there, and its topics."""
    assert run_on_brokers(EXAMPLES[name], kafka, tmp_path, *LOCAL) == []


@each_example
def test_three_nodes_of_kafka(name: str, three_nodes: ApacheKafkaCluster, tmp_path: Path) -> None:
    assert run_on_brokers(EXAMPLES[name], three_nodes.bootstrap, tmp_path, *LOCAL) == []


@each_example
def test_executors_of_their_own(name: str, ours: str, tmp_path: Path) -> None:
    assert run_on_brokers(EXAMPLES[name], ours, tmp_path, *EXECUTORS) == []


@each_example
def test_a_standalone_cluster(name: str, ours: str, master: str, tmp_path: Path) -> None:
    assert run_on_brokers(EXAMPLES[name], ours, tmp_path, "--master", master) == []
