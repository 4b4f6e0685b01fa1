"""Our client on three nodes of Apache Kafka: what is checked on one node holds there, too, with
partitions that are led by all of them; transcripts are those of one node."""

from __future__ import annotations

import pytest

from tests.interop.client import producer_suite
from tests.interop.client.cluster.one_node_suite import (
    IN_THE_NEWER_PROTOCOL,
    SCRIPTS,
    answered_differently,
)
from tests.interop.client.cluster.three_nodes import new_places, new_topic, until_whole
from tests.interop.client.producer_suite import PRODUCER_TESTS
from tests.interop.client.worker import reader_scripts, scripts
from tests.interop.harness import Names, Script
from tools.apache_kafka import ApacheKafkaCluster

pytestmark = pytest.mark.interop


@pytest.fixture(autouse=True)
def replicated_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts make their topics by one connection to the only node; here there are three."""
    monkeypatch.setattr(producer_suite, "ready_topic", new_topic)
    monkeypatch.setattr(scripts, "topic", new_places)
    monkeypatch.setattr(reader_scripts, "topic", new_places)


@pytest.fixture
def names(three_nodes: ApacheKafkaCluster) -> Names:
    until_whole(three_nodes)
    return Names.fresh(three_nodes.bootstrap)


@pytest.mark.parametrize(
    "script", [*SCRIPTS, *IN_THE_NEWER_PROTOCOL], ids=lambda script: script.__name__
)
def test_three_nodes_answer_as_one(names: Names, apache_kafka: str, script: Script) -> None:
    assert answered_differently(script, apache_kafka, names.bootstrap) == []


# All that the producer is checked for on one node, with `names` from above.
globals().update(PRODUCER_TESTS)
