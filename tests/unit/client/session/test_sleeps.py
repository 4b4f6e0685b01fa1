"""Sessions and producers that stand still for longer than a broker remembers them: they go on where
they were, or say what was forgotten; and never do anything twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.errors.requests import AbortableError, ClientError, FatalProducerError, Fenced
from onceflow.client.net.cluster import Cluster
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.producer.producer import Producer
from onceflow.client.session.errors import OffsetsForgotten, SessionFenced, SessionForgotten
from onceflow.client.session.session import Session
from onceflow.client.session.states import SessionStage
from onceflow.client.transactions import machine as txn_machine
from onceflow.client.transactions.driver import TransactionDriver
from onceflow.client.transactions.retrier import Reply, RequestAttempt
from onceflow.types import TopicPartition
from tests.unit.client.session.simulated_sessions import OUT, Theatre, numbers, theatre

FORGETFUL: dict[str, Any] = {
    "transactional_id_expiration_ms": 60_000,
    "transaction_expiration_check_interval_ms": 5_000,
    "offsets_retention_minutes": 1,
    "offsets_retention_check_interval_ms": 5_000,
}
"""Of days, minutes."""
LONG_S = 300.0


@pytest.fixture(autouse=True)
def _renewed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txn_machine, "RENEWED_AFTER_S", 20.0)


class Worker:
    """A process that copies, and what it ended with."""

    def __init__(self, on: Theatre, session: Session, *, pause_s: float = 0.0) -> None:
        self.error: ClientError | None = None
        self.session = session
        self._on = on
        self._pause_s = pause_s
        self.task = on.world.loop.spawn("worker", self._run())

    async def _run(self) -> None:
        try:
            async with self.session as session:
                async for batch, txn in session:
                    for record in batch:
                        await txn.send(OUT, record.value)
                    await asyncio.sleep(self._pause_s)
        except ClientError as error:
            self.error = error

    async def sleep(self) -> None:
        """As by SIGSTOP."""
        self._on.world.loop.stop_process("worker")
        await asyncio.sleep(LONG_S)
        self._on.world.loop.continue_process("worker")

    async def stop(self) -> None:
        self.session.stop()
        await self.task


async def until_written(on: Theatre, count: int) -> list[bytes | None]:
    async with asyncio.timeout(120):
        while len(found := await on.values()) < count:
            await asyncio.sleep(1)
    return found


def test_an_idle_session_goes_on_though_its_transactional_id_was_forgotten() -> None:
    async def program(on: Theatre) -> None:
        worker = Worker(on, on.session())
        await on.produce(*numbers(3))
        await until_written(on, 3)
        await asyncio.sleep(LONG_S)
        assert not list(on.running.server.node.transactions.all())
        await on.produce(*numbers(3, 3))
        assert await until_written(on, 6) == numbers(6)
        await worker.stop()
        assert worker.error is None

    theatre(program, **FORGETFUL)


def test_a_session_that_was_idle_does_not_fight_for_its_name() -> None:
    async def program(on: Theatre) -> None:
        worker = Worker(on, on.session("older"))
        for partition in range(2):
            await on.produce(*numbers(2, 10 * partition), partition=partition)
        await until_written(on, 4)
        await asyncio.sleep(LONG_S)
        younger = on.session("younger")
        asked = []
        async with younger:
            async with asyncio.timeout(60):
                while not younger.assignment:
                    asked.append(asyncio.ensure_future(younger.__anext__()))
                    await asyncio.wait(asked[-1:], timeout=1)
            for partition in range(2):
                await on.produce(*numbers(1, 50 + partition), partition=partition)
            await asyncio.wait_for(worker.task, 60)
        await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(worker.error, SessionFenced)

    theatre(program, partitions=2, **FORGETFUL)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_group_that_was_forgotten_is_no_new_group(reset: str) -> None:
    """Neither is all of it read again, nor is anything passed over."""

    async def program(on: Theatre) -> None:
        worker = Worker(on, on.session(auto_offset_reset=reset))
        await asyncio.sleep(5)
        await on.produce(*numbers(3))
        await until_written(on, 3)
        await worker.sleep()
        assert not list(on.running.server.node.groups.all_groups())
        await on.produce(*numbers(3, 3))
        await asyncio.wait_for(worker.task, 120)
        assert isinstance(worker.error, OffsetsForgotten)
        assert "orders-0" in str(worker.error)
        assert "commit the offsets" in worker.error.advice
        assert await on.values() == numbers(3)

    theatre(program, **FORGETFUL)


def test_a_session_that_slept_within_a_batch_says_that_it_was_forgotten() -> None:
    async def program(on: Theatre) -> None:
        worker = Worker(on, on.session(transaction_timeout_ms=5_000), pause_s=3.0)
        await on.produce(*numbers(3))
        while worker.session._work.stage is not SessionStage.AT_WORK:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        await worker.sleep()
        await asyncio.wait_for(worker.task, 120)
        assert isinstance(worker.error, SessionForgotten)
        assert "transactional.id.expiration.ms" in str(worker.error)
        assert await on.values() == []

    theatre(program, **FORGETFUL)


# --- producers ------------------------------------------------------------------------------------


async def write(producer: Producer, value: bytes) -> None:
    async with producer.transaction() as transaction:
        await transaction.send(OUT, value)


def producer(on: Theatre, host: str = "producer") -> Producer:
    net, rand = on.world.net.host(host), on.world.rand.fork(host)
    name = {"transactional_id": "id", "delivery_timeout_ms": 5_000, "request_timeout_ms": 2_000}
    return Producer(on.bootstrap, name, net=net, clock=on.world.clock, rand=rand, linger_ms=0)


def test_an_idle_producer_goes_on_though_its_transactional_id_was_forgotten() -> None:
    async def program(on: Theatre) -> None:
        async with producer(on) as ours:
            await write(ours, b"0")
            await asyncio.sleep(LONG_S)
            assert not list(on.running.server.node.transactions.all())
            await write(ours, b"1")
            await write(ours, b"2")
        assert await on.values() == numbers(3)

    theatre(program, **FORGETFUL)


def test_an_idle_producer_does_not_fight_for_its_id() -> None:
    async def program(on: Theatre) -> None:
        async with producer(on) as older, producer(on, "another") as younger:
            await write(older, b"0")
            await asyncio.sleep(LONG_S)
            await write(younger, b"1")
            on.cut("producer")
            with pytest.raises(ClientError, match=r"not done in time|not answer"):
                await write(older, b"cut off")
            on.mend("producer")
            with pytest.raises(Fenced):
                await write(older, b"too late")
            await write(younger, b"2")
        assert await on.values() == numbers(3)

    theatre(program, **FORGETFUL)


def asked_by(ours: Producer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a producer asks coordinators for from now on."""
    asked: list[str] = []
    send = TransactionDriver._send

    async def noted(
        driver: TransactionDriver, ask: RequestAttempt, connection: BrokerConnection
    ) -> Reply:
        if driver is ours._driver:
            asked.append(type(ask.request).__name__)
        return await send(driver, ask, connection)

    monkeypatch.setattr(TransactionDriver, "_send", noted)
    return asked


def speak(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def finalized(cluster: Cluster) -> int:
        return version

    monkeypatch.setattr(Cluster, "transaction_version", finalized)


BOTH_PROTOCOLS = pytest.mark.parametrize("version", [1, 2])


async def too_late(producer: Producer, how: str) -> None:
    async with producer.transaction() as transaction:
        if how == "offsets":
            await transaction.send_offsets({TopicPartition("orders", 0): 1}, "group")
        await (await transaction.send(OUT, b"never seen"))


@BOTH_PROTOCOLS
@pytest.mark.parametrize("how", ["send", "offsets"])
def test_a_producer_is_renewed_when_brokers_forget_sooner_than_it_expects(
    version: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that meets it is aborted, and whoever does it again succeeds."""
    speak(version, monkeypatch)
    monkeypatch.setattr(txn_machine, "RENEWED_AFTER_S", 3_600.0)

    async def program(on: Theatre) -> None:
        async with producer(on) as ours:
            await write(ours, b"0")
            for number in (1, 2):
                await asyncio.sleep(LONG_S)
                assert not list(on.running.server.node.transactions.all())
                with pytest.raises(AbortableError):
                    await too_late(ours, how)
                await write(ours, b"%d" % number)
        assert await on.values() == numbers(3)

    theatre(program, **FORGETFUL)


@BOTH_PROTOCOLS
def test_a_session_is_renewed_when_brokers_forget_sooner_than_it_expects(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(version, monkeypatch)
    monkeypatch.setattr(txn_machine, "RENEWED_AFTER_S", 3_600.0)

    async def program(on: Theatre) -> None:
        worker = Worker(on, on.session())
        for count in (3, 6, 9):
            await on.produce(*numbers(3, count - 3))
            assert await until_written(on, count) == numbers(count)
            await asyncio.sleep(LONG_S)
            assert not list(on.running.server.node.transactions.all())
        await worker.stop()
        assert worker.error is None

    theatre(program, **FORGETFUL)


@BOTH_PROTOCOLS
def test_one_that_another_producer_has_replaced_meanwhile_is_not_renewed(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(version, monkeypatch)
    monkeypatch.setattr(txn_machine, "RENEWED_AFTER_S", 3_600.0)

    async def program(on: Theatre) -> None:
        async with producer(on) as older, producer(on, "another") as younger:
            await write(older, b"0")
            await asyncio.sleep(LONG_S)
            async with younger.transaction() as transaction:
                await (await transaction.send(OUT, b"1"))
                with pytest.raises(ClientError):
                    await write(older, b"too late")
                asked = asked_by(older, monkeypatch)
                with pytest.raises(Fenced, match="another producer"):
                    await write(older, b"too late")
                assert asked == ["DescribeTransaction"]
        assert await on.values() == numbers(2)

    theatre(program, **FORGETFUL)


@BOTH_PROTOCOLS
def test_an_idle_producer_that_nobody_replaced_goes_on(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(version, monkeypatch)

    async def program(on: Theatre) -> None:
        async with producer(on) as ours:
            for number in range(3):
                await write(ours, b"%d" % number)
                await asyncio.sleep(LONG_S)
        assert await on.values() == numbers(3)

    theatre(program)


@BOTH_PROTOCOLS
def test_an_idle_producer_leaves_the_open_transaction_of_its_successor_alone(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To name an old epoch in InitProducerId is no protection on Apache Kafka."""
    speak(version, monkeypatch)

    async def program(on: Theatre) -> None:
        async with producer(on) as older, producer(on, "another") as younger:
            await write(older, b"0")
            await asyncio.sleep(LONG_S)
            async with younger.transaction() as transaction:
                await (await transaction.send(OUT, b"1"))
                asked = asked_by(older, monkeypatch)
                with pytest.raises(Fenced, match="another producer"):
                    await write(older, b"too late")
                assert asked == ["DescribeTransaction"]
        assert await on.values() == numbers(2)

    theatre(program)


def test_an_idle_session_leaves_the_open_transaction_of_its_successor_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program(on: Theatre) -> None:
        worker = Worker(on, on.session("older"))
        for partition in range(2):
            await on.produce(*numbers(2, 10 * partition), partition=partition)
        await until_written(on, 4)
        await asyncio.sleep(LONG_S)
        younger = Producer(
            on.bootstrap,
            transactional_id=worker.session.transactional_id,
            net=on.world.net.host("younger"),
            clock=on.world.clock,
            rand=on.world.rand.fork("younger"),
        )
        async with younger, younger.transaction() as transaction:
            await (await transaction.send(OUT, b"its own"))
            asked = asked_by(worker.session._producer, monkeypatch)
            await on.produce(b"50")
            await asyncio.wait_for(worker.task, 60)
            assert isinstance(worker.error, SessionFenced)
            assert asked == ["DescribeTransaction"]
        assert b"its own" in await on.values()

    theatre(program, partitions=2)


def test_a_producer_that_slept_within_a_transaction_takes_no_new_id() -> None:
    async def program(on: Theatre) -> None:
        async with producer(on) as ours:
            await ours.init_transactions()
            await ours.begin_transaction()
            await (await ours.send(OUT, b"lost"))
            await asyncio.sleep(LONG_S)
            await ours.send(OUT, b"lost, too")
            with pytest.raises(ClientError):
                await ours.commit_transaction()
            with pytest.raises(FatalProducerError, match="expiration"):
                await ours.abort_transaction()
        assert await on.values() == []

    theatre(program, **FORGETFUL)
