"""Two-phase commits by the producer: names of what is prepared, and what may be done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import (
    ConnectionClosed,
    DeliveryFailed,
    Fenced,
    TwoPhaseNotServed,
)
from onceflow.client.prepared import PreparedMalformed, PreparedTransaction
from onceflow.client.producer.producer import Producer
from onceflow.client.settings.clients import ProducerSettings, ReaderSettings
from onceflow.client.transactions.machine import TransactionMachine
from onceflow.client.transactions.states import ProducerState, WrongState
from onceflow.client.worker.reader import BlockingReader
from onceflow.errors import InvalidSetting
from onceflow.runtime.clock import RealClock
from onceflow.runtime.rand import RealRand
from onceflow.types import TopicPartition
from tests.unit.client.transactions.closing import close_cut_short, failure, unsent

OUT = TopicPartition("out", 0)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with onceflow.Broker(transaction_two_phase_commit_enable=True) as broker:
        yield broker.bootstrap


@pytest.fixture(autouse=True)
def empty_topic(bootstrap: str) -> None:
    async def make() -> None:
        async with Admin(bootstrap) as admin:
            if any(topic.name == OUT.topic for topic in await admin.list_topics()):
                await admin.delete_topic(OUT.topic)
            await admin.create_topic(OUT.topic, partitions=1)

    asyncio.run(make())


def visible(bootstrap: str) -> list[bytes]:
    settings = ReaderSettings.of(bootstrap_servers=bootstrap, fetch_max_wait_ms=50)
    with BlockingReader(settings) as reader:
        batches: list[Any] = list(reader.read(*OUT, *reader.ends(*OUT)))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def two_phase(bootstrap: str) -> Producer:
    return Producer(bootstrap, transactional_id="shop", transaction_two_phase_commit_enable=True)


def run(
    bootstrap: str, script: Callable[[Producer], Awaitable[Any]], *, keep_prepared: bool = False
) -> Any:
    """By a producer of its own, which is gone afterwards."""

    async def main() -> Any:
        async with two_phase(bootstrap) as producer:
            await producer.init_transactions(keep_prepared=keep_prepared)
            return await script(producer)

    return asyncio.run(main())


def is_in(producer: Producer, state: ProducerState) -> bool:
    return producer.state is state


async def prepare(producer: Producer, value: bytes = b"a") -> PreparedTransaction:
    await producer.begin_transaction()
    await producer.send(OUT.topic, value)
    return await producer.prepare_transaction()


def test_both_phases(bootstrap: str) -> None:
    async def script(producer: Producer) -> list[PreparedTransaction]:
        names = []
        for value, committed in ((b"a", True), (b"b", False), (b"c", True)):
            names.append(await prepare(producer, value))
            assert producer.prepared == names[-1]
            assert is_in(producer, ProducerState.PREPARED)
            await producer.complete_transaction(names[-1] if committed else "")
            assert not producer.prepared
            assert is_in(producer, ProducerState.READY)
        return names

    names = run(bootstrap, script)
    assert len(set(names)) == 3
    assert visible(bootstrap) == [b"a", b"c"]


@pytest.mark.parametrize("committed", [True, False])
def test_another_producer_completes_it(bootstrap: str, committed: bool) -> None:
    name = run(bootstrap, prepare)

    async def script(producer: Producer) -> None:
        assert producer.prepared == name
        assert is_in(producer, ProducerState.PREPARED)
        with pytest.raises(WrongState, match="prepared transaction"):
            await producer.begin_transaction()
        with pytest.raises(WrongState, match="prepared transaction"):
            await producer.send(OUT.topic, b"late")
        await producer.complete_transaction(str(name) if committed else "0:0")
        assert is_in(producer, ProducerState.READY)
        await producer.complete_transaction(await prepare(producer, b"next"))

    run(bootstrap, script, keep_prepared=True)
    assert visible(bootstrap) == ([b"a"] if committed else []) + [b"next"]


def test_one_after_the_other_may_take_it_over(bootstrap: str) -> None:
    name = run(bootstrap, prepare)

    async def script() -> None:
        async with two_phase(bootstrap) as one, two_phase(bootstrap) as other:
            await one.init_transactions(keep_prepared=True)
            await other.init_transactions(keep_prepared=True)
            assert one.prepared == other.prepared == name
            with pytest.raises(Fenced):
                await one.complete_transaction(name)
            await other.complete_transaction(name)

    asyncio.run(script())
    assert visible(bootstrap) == [b"a"]


def test_without_keeping_it_is_aborted(bootstrap: str) -> None:
    run(bootstrap, prepare)

    async def script(producer: Producer) -> None:
        assert not producer.prepared
        assert is_in(producer, ProducerState.READY)

    run(bootstrap, script)
    assert visible(bootstrap) == []


def test_nothing_was_left_or_sent(bootstrap: str) -> None:
    async def script(producer: Producer) -> None:
        assert not producer.prepared
        await producer.complete_transaction("7:7")
        await producer.begin_transaction()
        name = await producer.prepare_transaction()
        await producer.complete_transaction(name)
        assert is_in(producer, ProducerState.READY)

    run(bootstrap, script, keep_prepared=True)


def test_half_a_transaction_is_not_prepared(bootstrap: str) -> None:
    """A close ends the wait for what was sent last, and not as a broker would."""

    async def script(producer: Producer) -> None:
        await producer.begin_transaction()
        await (await producer.send(OUT.topic, b"one"))
        with unsent():
            receipt = await producer.send(OUT.topic, b"two")
            preparing = asyncio.create_task(producer.prepare_transaction())
            await asyncio.sleep(0)
            assert is_in(producer, ProducerState.FLUSHING)
            await close_cut_short(producer, 0.1)
        assert isinstance(await failure(preparing), ConnectionClosed)
        assert is_in(producer, ProducerState.ABORTABLE_ERROR)
        with pytest.raises(DeliveryFailed, match="was closed"):
            await receipt

    async def undecided(producer: Producer) -> None:
        await producer.complete_transaction(PreparedTransaction())

    run(bootstrap, script)
    run(bootstrap, undecided, keep_prepared=True)
    assert visible(bootstrap) == []


def test_an_ordinary_producer_prepares_nothing(bootstrap: str) -> None:
    async def script() -> None:
        async with Producer(bootstrap, transactional_id="plain") as producer:
            with pytest.raises(WrongState, match=r"two\.phase\.commit\.enable is not set"):
                await producer.init_transactions(keep_prepared=True)
            await producer.init_transactions()
            await producer.begin_transaction()
            with pytest.raises(WrongState, match=r"two\.phase\.commit\.enable is not set"):
                await producer.prepare_transaction()
            await producer.abort_transaction()

    asyncio.run(script())


def test_the_older_protocol_has_none_of_it() -> None:
    machine = TransactionMachine(
        "shop", timeout_ms=1000, clock=RealClock(), rand=RealRand(), two_phase=True
    )
    with pytest.raises(TwoPhaseNotServed, match=r"transaction\.version 2"):
        next(machine.init(1))
    assert machine.state is ProducerState.UNINITIALIZED


@pytest.mark.parametrize("name", [PreparedTransaction(7, 3), PreparedTransaction()])
def test_a_name_is_read_back(name: PreparedTransaction) -> None:
    assert PreparedTransaction.parse(str(name)) == name
    assert bool(name) is (name.producer_id >= 0)


@pytest.mark.parametrize("text", ["7", "7:", ":3", "-1:-1", "a:b", "7:3:1", "\u0667:3", " 7:3"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(PreparedMalformed, match="prepared transaction"):
        PreparedTransaction.parse(text)


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(InvalidSetting, match=r"two\.phase\.commit\.enable.*transactional\.id"):
        ProducerSettings.of(transaction_two_phase_commit_enable=True)
    with pytest.raises(InvalidSetting, match=r"two\.phase\.commit.*transaction\.timeout\.ms"):
        ProducerSettings.of(
            transactional_id="shop",
            transaction_two_phase_commit_enable="true",
            transaction_timeout_ms=1000,
        )


@pytest.mark.parametrize("is_wanted", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_completing_waits_for_a_prepare_whose_caller_has_gone(
    bootstrap: str, is_wanted: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be prepared afterwards: nobody would complete it, and it has no timeout."""

    async def script(producer: Producer) -> None:
        await producer.begin_transaction()
        await producer.send("out", b"x")
        machine = producer._transactional()
        name = str(PreparedTransaction(*machine.identity[1:]))
        flush = producer._ends._ways.flush  # type: ignore[union-attr]
        goes_on = asyncio.Event()

        async def slow() -> None:
            await goes_on.wait()
            await flush()
            if fails:
                machine.failed(DeliveryFailed("not acknowledged"))

        ways = producer._ends._ways._replace(flush=slow)  # type: ignore[union-attr]
        monkeypatch.setattr(producer._ends, "_ways", ways)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await producer.prepare_transaction()
        completing = asyncio.create_task(producer.complete_transaction(name if is_wanted else ""))
        await asyncio.sleep(0.1)
        has_waited = not completing.done()
        goes_on.set()
        await completing
        assert has_waited
        assert producer.state is ProducerState.READY
        assert not producer.prepared

    run(bootstrap, script)
    assert visible(bootstrap) == ([b"x"] if is_wanted and not fails else [])
