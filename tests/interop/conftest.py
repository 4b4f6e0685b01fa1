"""What interop tests share: the brokers, the comparison of their answers, clients of others."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.client.cluster.cluster_fixture import three_nodes as three_nodes
from tests.interop.harness import BROKERS, REFERENCE, Compare, Script, differences, heard, run
from tests.interop.known_differences import KNOWN_DIFFERENCES
from tests.interop.onceflow_server import OnceflowServer
from tests.interop.real_kafka import (
    SETTINGS,
    apache_kafka as apache_kafka,
    cannot_test,
    kafka_jars as kafka_jars,
)
from tools.other_clients import (
    OtherClientsError,
    ensure_go_clients,
    ensure_kafka_python,
    ensure_kafkajs,
    find_node,
)

if TYPE_CHECKING:
    from tests.interop.client.secured_kafka import Secured

# It has tests without being a module of tests: their asserts, too, say what they saw.
pytest.register_assert_rewrite("tests.interop.client.producer_suite")


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
