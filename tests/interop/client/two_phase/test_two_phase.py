"""Two-phase commits: SQLite and a topic together, whoever is killed at whatever point."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import TwoPhaseNotServed
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions.states import ProducerState
from onceflow.types import TopicPartition
from tests.interop.client.cluster.three_nodes import read_committed
from tests.interop.client.two_phase.child import example
from tests.interop.onceflow_server import OnceflowServer

pytestmark = pytest.mark.interop

TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}
ALL_POINTS = 30
"""Of a start and two orders; the test says so when there are more."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OnceflowServer]:
    with OnceflowServer(tmp_path / "data", settings=TWO_PHASE) as server:
        asyncio.run(make_topic(server.bootstrap))
        yield server


async def make_topic(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic("orders", partitions=1)


def shop_processes(
    bootstrap: str, database: Path, orders: int, points: Iterable[int]
) -> tuple[list[int], list[int]]:
    """The statuses with which they ended, and how many points were passed by those that said so."""
    command = [
        sys.executable,
        "-m",
        "tests.interop.client.two_phase.child",
        bootstrap,
        str(database),
    ]
    done = subprocess.run(
        command,
        input="".join(f"{orders} {point}\n" for point in points),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    words = [line.split() for line in done.stdout.splitlines()]
    ended, passed = (
        [int(number) for each, number in words if each == word] for word in ("ended", "passed")
    )
    return ended, passed


def in_database(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(path)) as shop:
        return shop.execute("SELECT number, cents FROM orders ORDER BY number").fetchall()


def on_topic(bootstrap: str) -> list[tuple[int, int]]:
    found = read_committed(bootstrap, [TopicPartition("orders", 0)])[0]
    orders = [json.loads(value) for _, value in found]
    return [(order["number"], order["cents"]) for order in orders]


def test_it_is_killed_at_every_point(broker: OnceflowServer, tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    # So many orders that each point is reached before they are all there.
    points = range(1, ALL_POINTS + 1)
    ended, _ = shop_processes(broker.bootstrap, database, 10_000, points)
    assert ended == [-signal.SIGKILL] * len(points), "not all points were reached"
    sold = len(in_database(database)) + 2
    ended, passed = shop_processes(broker.bootstrap, database, sold, [0])
    assert ended == [0]
    assert passed[0] <= ALL_POINTS, "there are more points than were tried"
    assert on_topic(broker.bootstrap) == in_database(database)
    assert len(on_topic(broker.bootstrap)) == sold


@pytest.mark.parametrize("decided", [True, False])
def test_broker_and_shop_are_gone_between_the_phases(tmp_path: Path, decided: bool) -> None:
    """The topic waits for the decision, over restarts of whoever is asked for it."""
    data, database = tmp_path / "data", tmp_path / "shop.db"
    shop = example().opened(str(database))

    async def first_phase(bootstrap: str) -> str:
        await make_topic(bootstrap)
        async with Producer(
            bootstrap, transactional_id="shop", transaction_two_phase_commit_enable=True
        ) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("orders", json.dumps({"number": 0, "cents": 99}).encode())
            return str(await producer.prepare_transaction())

    with OnceflowServer(data, settings=TWO_PHASE) as server:
        name = asyncio.run(first_phase(server.bootstrap))
    if decided:
        with shop:
            shop.execute("INSERT INTO orders VALUES (0, 99)")
            shop.execute("UPDATE decision SET prepared = ?", (name,))
    shop.close()
    with OnceflowServer(data, settings=TWO_PHASE) as server:
        assert on_topic(server.bootstrap) == []
        assert shop_processes(server.bootstrap, database, 2, [0])[0] == [0]
        assert on_topic(server.bootstrap) == in_database(database) == [(0, 99), (1, 199)]


async def ask_for_two_phases(bootstrap: str) -> None:
    async with Producer(
        bootstrap, transactional_id="shop", transaction_two_phase_commit_enable=True
    ) as producer:
        with pytest.raises(TwoPhaseNotServed) as told:
            await producer.init_transactions(keep_prepared=True)
        assert "two.phase.commit.enable on the broker" in told.value.advice
        assert producer.state is ProducerState.UNINITIALIZED


@pytest.mark.parametrize("broker_name", ["apache_kafka", "onceflow_server"])
def test_brokers_that_do_not_take_part(request: pytest.FixtureRequest, broker_name: str) -> None:
    asyncio.run(ask_for_two_phases(request.getfixturevalue(broker_name)))
