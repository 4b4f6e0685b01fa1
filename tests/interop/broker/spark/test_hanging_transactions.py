"""A coordinator of Apache Kafka that forgets to write markers, and the sink that minds.

Apache Kafka does so when it restarts at a bad moment (KAFKA-20734), which cannot be had on command.
The same state comes about when a partition is written to that its coordinator was not told of,
which this broker is set to allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.codec.transactions import AddOffsets
from onceflow.client.transactions.machine import TransactionMachine
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.spark.errors.sink import EndUnknown
from onceflow.spark.sink.hanging_transactions import HangingTransactions
from onceflow.types import TopicPartition
from tests.interop.harness import eventually
from tests.interop.real_kafka import EAGER, SETTINGS
from tests.unit.spark.sink.one_query import IDENTITY, OUT, SKIPPED, settings_of, settled, visible
from tools.apache_kafka import ApacheKafka
from tools.kafka_archive import quick_options

pytestmark = pytest.mark.interop

LAX = {"transaction.partition.verification.enable": "false"}


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("forgetful")
    quick = quick_options(kafka_jars)
    properties = {**SETTINGS, **EAGER, **LAX}
    with ApacheKafka(kafka_jars, directory, properties=properties, java_options=quick) as kafka:
        yield kafka.bootstrap


@pytest.fixture
def bootstrap(kafka: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same names for each test, without what earlier ones have left behind."""
    monkeypatch.setattr(BlockingCluster, "transaction_version", lambda self, deadline: 1)
    asyncio.run(begin_anew(kafka))
    return kafka


async def begin_anew(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        for topic in await admin.list_topics():
            if topic.name in (OUT.topic, IDENTITY.ledger_topic):
                await admin.delete_topic(topic.name)
        for group in await admin.list_groups():
            await admin.delete_group(group.group_id)
        await admin.create_topic(OUT.topic, partitions=1)


@contextmanager
def forgetful(*, also_offsets: bool = False) -> Iterator[None]:
    """The coordinator hears of nothing but the ledger's topic, so it writes a marker only there."""
    real_join, real_ask = TransactionMachine.join, TransactionMachine._ask_in_transaction

    def join(machine: TransactionMachine, partitions: Iterable[TopicPartition]) -> Any:
        return real_join(machine, [IDENTITY.ledger])

    def ask(machine: TransactionMachine, request: Any) -> Any:
        if also_offsets and isinstance(request, AddOffsets):
            return False
        return (yield from real_ask(machine, request))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionMachine, "join", join)
        patch.setattr(TransactionMachine, "_ask_in_transaction", ask)
        yield


@contextmanager
def careless() -> Iterator[None]:
    """Nobody looks what is open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HangingTransactions, "end_all", lambda self, *_, **__: None)
        yield


def fail() -> None:
    raise RuntimeError("the job fails")


def shows(bootstrap: str, values: list[str]) -> None:
    """In the end: this broker writes markers after it has answered. What is to be seen comes in
    order, so that other values do not look like these on the way."""
    eventually(lambda: visible(bootstrap), lambda seen: seen == values)


def one_failure(bootstrap: str) -> None:
    """An attempt that is aborted, one that is committed, and a batch behind them."""
    with settled(bootstrap) as driver:
        driver.during = [fail]
        with forgetful():
            assert driver.write(0, "a") == 1
        assert driver.write(1, "b") == 1
        assert len(driver.epochs) == 3


def test_what_was_aborted_stays_aborted(bootstrap: str) -> None:
    one_failure(bootstrap)
    shows(bootstrap, ["a", "b"])


def test_if_nobody_looked_it_would_be_committed(bootstrap: str) -> None:
    with careless():
        one_failure(bootstrap)
    shows(bootstrap, ["a", "a", "b"])


def two_drivers(bootstrap: str) -> None:
    """One that commits, and another one, whose first attempt is aborted."""
    with settled(bootstrap) as driver, forgetful():
        assert driver.write(0, "a") == 1
    with settled(bootstrap) as driver:
        driver.during = [fail]
        assert driver.write(0, "a") == SKIPPED
        assert driver.write(1, "b") == 1


def test_what_was_committed_stays_committed(bootstrap: str) -> None:
    two_drivers(bootstrap)
    shows(bootstrap, ["a", "b"])


def test_if_nobody_looked_it_would_be_aborted(bootstrap: str) -> None:
    with careless():
        two_drivers(bootstrap)
    shows(bootstrap, ["b"])


def test_the_ledger_waits_for_a_marker_itself(bootstrap: str) -> None:
    """Only the coordinator can tell then, until it is asked for a new epoch."""
    with settled(bootstrap) as driver, forgetful(also_offsets=True):
        assert driver.write(0, "a") == 1
    with settled(bootstrap) as driver:
        assert driver.write(0, "a") == SKIPPED
        assert driver.write(1, "b") == 1
    shows(bootstrap, ["a", "b"])


def test_nobody_can_tell(bootstrap: str) -> None:
    with settled(bootstrap) as driver, forgetful(also_offsets=True):
        assert driver.write(0, "a") == 1
    with TransactionClient(settings_of(bootstrap)) as somebody:
        somebody.init()
    with pytest.raises(EndUnknown, match="out-0 from offset 0"), settled(bootstrap):
        pass
    assert visible(bootstrap) == []
