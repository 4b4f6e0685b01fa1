"""Three nodes of Apache Kafka, once for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tools.apache_kafka import ApacheKafkaCluster
from tools.kafka_archive import quick_options

NO_RETENTION: Final = {"log.initial.task.delay.ms": "86400000"}
"""Apache Kafka looks half a minute after its start for records that are too old, and those of tests
are years old."""


@pytest.fixture(scope="session")
def three_nodes(
    kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheKafkaCluster]:
    """Their coordinators have begun to work."""
    # Only here: all tests of this directory load this module, and few need the rest.
    from tests.interop.client.cluster.three_nodes import SETTINGS, wake_up

    directory = tmp_path_factory.mktemp("three-nodes")
    with ApacheKafkaCluster(
        kafka_jars,
        directory,
        properties={**SETTINGS, **NO_RETENTION},
        java_options=quick_options(kafka_jars),
    ) as cluster:
        wake_up(cluster)
        yield cluster
