"""What interop tests share: the brokers, the comparison of their answers, Apache Kafka's jars, or
a loud word on what is not tested without them."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from tests.interop.client.cluster.cluster_fixture import NO_RETENTION, three_nodes as three_nodes
from tests.interop.harness import Script, differences, heard, run
from tests.interop.known_differences import KNOWN_DIFFERENCES
from tests.interop.onceflow_server import OnceflowServer
from tools.apache_kafka import ApacheKafka
from tools.java import OLDEST_USABLE, find_java
from tools.kafka_archive import quick_options
from tools.kafka_jars import KafkaJarsError, ensure_client_jars, ensure_kafka_jars
from tools.other_clients import (
    OtherClientsError,
    ensure_go_clients,
    ensure_kafka_python,
    ensure_kafkajs,
    find_node,
)

if TYPE_CHECKING:
    from tests.interop.client.secured_kafka import Secured

REFERENCE: Final = "apache_kafka"
BROKERS: Final = (REFERENCE, "onceflow_server")
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
Compare = Callable[[Script], None]


@pytest.fixture(scope="session")
def apache_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Apache Kafka, one for the whole session."""
    directory = tmp_path_factory.mktemp("apache-kafka")
    quick = quick_options(kafka_jars)
    properties = {**SETTINGS, **EAGER}
    with ApacheKafka(kafka_jars, directory, properties=properties, java_options=quick) as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def onceflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of our broker, one process for the whole session."""
    directory = tmp_path_factory.mktemp("onceflow")
    with OnceflowServer(directory / "data", settings=SETTINGS) as server:
        yield server.bootstrap


@pytest.fixture(scope="session")
def secured(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    """An Apache Kafka with TLS and logins."""
    from tests.interop.client.secured_kafka import secured_kafka

    if shutil.which("openssl") is None:
        cannot_test(request, "secured", "there is no openssl to make a certificate with")
    directory = tmp_path_factory.mktemp("secured-kafka")
    with secured_kafka(kafka_jars, directory) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def brokers(request: pytest.FixtureRequest) -> dict[str, str]:
    """The address of each broker that is compared, by name."""
    return {name: request.getfixturevalue(name) for name in BROKERS}


@pytest.fixture
def compare(brokers: dict[str, str]) -> Compare:
    """Runs a script on all brokers at once, and fails when they do not answer alike."""

    def run_and_compare(script: Script) -> None:
        with ThreadPoolExecutor(len(brokers)) as pool:
            runs = {
                broker: pool.submit(heard if broker == REFERENCE else run, script, at)
                for broker, at in brokers.items()
            }
        for broker, future in runs.items():
            if problem := future.exception():
                problem.add_note(f"on {broker}")
        # What a client forgot to close is found here, and not in the next test.
        gc.collect()
        saw = {broker: future.result() for broker, future in runs.items()}
        name = script.__name__
        for broker, transcript in saw.items():
            if broker != REFERENCE:
                found = differences(name, saw[REFERENCE], transcript, KNOWN_DIFFERENCES)
                if found:
                    told = "\n".join([f"{name} is answered differently:", *found])
                    pytest.fail(told, pytrace=False)

    return run_and_compare


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


@pytest.fixture(scope="session")
def kafka_python_2(request: pytest.FixtureRequest) -> Path:
    """The directory that has kafka-python before its version 3."""
    try:
        return ensure_kafka_python()
    except OtherClientsError as error:
        return cannot_test(request, "kafka_python_2", str(error))


@pytest.fixture(scope="session")
def kafkajs(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """The program `node`, and the directory of modules that has KafkaJS."""
    try:
        return find_node(), ensure_kafkajs()
    except OtherClientsError as error:
        return cannot_test(request, "kafkajs", str(error))


@pytest.fixture(scope="session")
def go_clients(request: pytest.FixtureRequest) -> Path:
    """A program with clients in Go, which takes one to three minutes to build."""
    try:
        return ensure_go_clients()
    except OtherClientsError as error:
        return cannot_test(request, "go_clients", str(error))


def cannot_test(request: pytest.FixtureRequest, fixture: str, problem: str) -> NoReturn:
    """Skips what needs a fixture that cannot be had, or fails where nothing may go untested."""
    items = [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
    reason = f"NOT TESTED against programs of others, because {problem}\n"
    reason += "\n".join(item.nodeid for item in items)
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
