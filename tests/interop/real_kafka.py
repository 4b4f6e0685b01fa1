"""A real Apache Kafka for a whole run of tests, and a loud word on what is not tested without
it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.interop.client.cluster.cluster_fixture import NO_RETENTION
from tools.apache_kafka import ApacheKafka
from tools.java import OLDEST_USABLE, find_java
from tools.kafka_archive import quick_options
from tools.kafka_jars import KafkaJarsError, ensure_client_jars, ensure_kafka_jars

SETTINGS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
    "auto.create.topics.enable": "true",
    # Records of tests are years old: retention would take them away in the midst of one.
    "log.retention.check.interval.ms": "86400000",
}


EAGER: Final[Mapping[str, str]] = {
    # Looks for transactions whose time is up more often than every 10 s: tests wait for it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    **NO_RETENTION,
}


@pytest.fixture(scope="session")
def apache_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Apache Kafka, one for the whole session."""
    directory = tmp_path_factory.mktemp("apache-kafka")
    quick = quick_options(kafka_jars)
    properties = {**SETTINGS, **EAGER}
    with ApacheKafka(kafka_jars, directory, properties=properties, java_options=quick) as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def kafka_jars(request: pytest.FixtureRequest) -> Path:
    """The directory of Apache Kafka's jars, with a Java there to run them.

    Where that cannot be had, the tests that need it are skipped, by name and with what to
    install; under CI=true nothing may go untested, and they fail.
    """
    try:
        jars = ensure_kafka_jars()
        ensure_client_jars()
    except KafkaJarsError as error:
        problem = str(error)
    else:
        if find_java() is not None:
            return jars
        problem = (
            f"there is no Java {OLDEST_USABLE} or later: install a JDK (Debian and Ubuntu: "
            "apt-get install default-jdk-headless) or name its java program in ONCEFLOW_JAVA"
        )
    return cannot_test(request, "kafka_jars", problem)


def cannot_test(request: pytest.FixtureRequest, fixture: str, problem: str) -> NoReturn:
    """Skips what needs a fixture that cannot be had, or fails where nothing may go untested."""
    items = [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
    reason = f"NOT TESTED against programs of others, because {problem}\n"
    reason += "\n".join(item.nodeid for item in items)
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
