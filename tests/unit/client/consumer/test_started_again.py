"""A client that was closed is started again: it is as good as a new one, and what belonged to the
life before is over."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import onceflow
from onceflow import blocking
from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.consumer import ConsumerClosed, WrongUse
from onceflow.client.errors.requests import ConnectionClosed
from onceflow.client.producer.producer import Producer
from onceflow.client.session.session import Session
from onceflow.client.session.states import WrongStep
from onceflow.client.transactions.states import WrongState
from onceflow.types import TopicPartition
from tests.unit.client.consumer.simulated_consumers import Heard, Stage, hold, read, stage
from tests.unit.client.consumer.simulated_readers import P0

PLACE = TopicPartition("orders", 0)


def test_a_member_is_started_again_and_goes_on_where_its_group_is() -> None:
    async def program(stage: Stage) -> None:
        ours = stage.member()
        for round_ in range(3):
            await stage.produce(b"%d" % round_)
            await ours.start()
            assert ours.assignment == frozenset()
            assert ours.subscription is None
            heard = Heard()
            ours.subscribe(["orders"], heard)
            assert [each.value for each in await read(ours, 1)] == [b"%d" % round_]
            assert await ours.position(PLACE) == round_ + 1
            await ours.close()
            assert heard.words == [("assigned", [0]), ("revoked", [0])]
            with pytest.raises(ConsumerClosed):
                await ours.poll(1)
        assert ours.metrics()["records-consumed-total"] == 3

    stage(program)


def test_partitions_by_hand_are_read_again_record_by_record() -> None:
    async def program(stage: Stage) -> None:
        await stage.produce(b"0", b"1")
        ours = stage.consumer()
        for round_ in range(1, 4):
            await ours.start()
            await ours.assign(["orders"])
            assert [(await anext(ours)).value for _ in range(2)] == [b"0", b"1"]
            await ours.close()
            assert ours.metrics()["records-consumed-total"] == 2 * round_

    stage(program)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.5])
def test_it_is_started_again_though_its_close_was_cut_short(after_s: float) -> None:
    async def program(stage: Stage) -> None:
        await stage.produce(b"0")
        ours = stage.member()
        await ours.start()
        ours.subscribe(["orders"])
        await read(ours, 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await ours.close(commit=False)
        await ours.start()
        ours.subscribe(["orders"])
        assert [each.value for each in await read(ours, 1)] == [b"0"]
        await ours.close()
        assert ours.assignment == frozenset()

    stage(program)


def test_whoever_polled_in_the_life_before_does_not_poll_in_the_next() -> None:
    async def program(stage: Stage) -> None:
        ours = stage.member()
        await ours.start()
        ours.subscribe(["orders"])
        await hold(ours, 1)
        polling = asyncio.create_task(ours.poll(1000))
        going = asyncio.create_task(_all_of(ours))
        await asyncio.sleep(0.1)
        await ours.close()
        await ours.start()
        ours.subscribe(["orders"])
        await stage.produce(b"0")
        assert [each.value for each in await read(ours, 1)] == [b"0"]
        for task in (polling, going):
            assert task.done()
            assert task.exception() is not None
        await ours.close()

    stage(program)


async def _all_of(consumer: Consumer) -> None:
    async for _ in consumer:
        pass


def test_a_second_start_disturbs_nothing() -> None:
    async def program(stage: Stage) -> None:
        await stage.produce(b"0")
        async with stage.member() as ours:
            ours.subscribe(["orders"])
            await hold(ours, 1)
            await ours.start()
            assert ours.assignment == {PLACE}

    stage(program)


def test_a_child_that_was_forked_off_starts_it_anew() -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a")
        consumer = on.consumer()
        await consumer.start()
        parents = consumer._work
        await consumer.assign([P0])
        parents._pid += 1  # as after a fork
        await consumer.start()
        assert consumer.assignment == set()
        await consumer.assign([P0])
        assert len(await read(consumer, 1)) == 1
        await consumer.close()
        parents._pid -= 1
        await parents.close(commit=False, timeout_s=1)

    stage(program)


def test_it_is_not_started_beside_its_close() -> None:
    async def program(stage: Stage) -> None:
        await stage.produce(b"0")
        ours = stage.member()
        await ours.start()
        ours.subscribe(["orders"])
        await hold(ours, 1)
        closing = asyncio.create_task(ours.close(commit=False))
        await asyncio.sleep(1e-6)  # sooner than any answer comes
        with pytest.raises(WrongUse, match="starting or closing"):
            await ours.start()
        await closing
        async with ours:
            await ours.assign(["orders"])
            assert [each.value for each in await read(ours, 1)] == [b"0"]

    stage(program)


# --- all kinds, with a real broker --------------------------------------------------------------


@pytest.fixture(scope="module")
def bootstrap() -> Any:
    with onceflow.Broker() as broker:
        with blocking.Admin(broker.bootstrap) as admin:
            for name in ("in", "out"):
                admin.create_topic(name, partitions=1)
        yield broker.bootstrap


def test_all_async_clients_are_started_again(bootstrap: str) -> None:
    async def main() -> None:
        admin = Admin(bootstrap)
        sender = Producer(bootstrap, transactional_id="again")
        session = Session(bootstrap, group_id="again", topics=["in"], auto_offset_reset="earliest")
        for round_ in range(3):
            async with admin:
                assert await admin.list_topics()
            async with sender, sender.transaction() as transaction:
                await transaction.send("in", b"%d" % round_)
            async with session:
                async with asyncio.timeout(30):
                    batch, txn = await anext(session)
                assert [each.value for each in batch] == [b"%d" % round_]
                await txn.send("out", b"done")
                session.stop()
                assert [each async for each in session] == []

    asyncio.run(main())


def _client(kind: str, bootstrap: str) -> Any:
    if kind == "producer":
        return Producer(bootstrap)
    if kind == "consumer":
        return Consumer(bootstrap)
    return Session(bootstrap, group_id="cut", topics=["in"])


@pytest.mark.parametrize("kind", ["producer", "consumer", "session"])
def test_a_start_that_is_under_way_ends_with_a_close(bootstrap: str, kind: str) -> None:
    client = _client(kind, bootstrap)

    async def main() -> None:
        for turns in range(60):
            starting = asyncio.create_task(client.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            await client.close()
            with suppress(ConnectionClosed, ConsumerClosed):
                await starting  # it had ended, or is told that it was closed
            await client.close()  # of one that ended just so
            assert not asyncio.all_tasks() - {asyncio.current_task()}
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0)
        with pytest.raises((WrongState, WrongUse, WrongStep), match="start"):
            await client.start()
        await starting
        await client.close()

    asyncio.run(main())


def test_a_producer_that_runs_goes_on_when_it_is_started_again(bootstrap: str) -> None:
    async def main() -> None:
        async with Producer(bootstrap, linger_ms=50) as ours:
            receipt = await ours.send("out", b"before")
            await ours.start()
            await receipt
        async with ours:
            receipt = await ours.send("out", b"after")
        await receipt

    asyncio.run(main())


def test_a_blocking_producer_waits_for_room_in_each_of_its_lives(bootstrap: str) -> None:
    few = {"buffer.memory": 40_000, "max.request.size": 30_000}
    ours = blocking.Producer(bootstrap, few, batch_size=16_384, linger_ms=0)
    for _ in range(2):
        with ours:
            receipts = [ours.send("out", bytes(10_000)) for _ in range(40)]
        assert len({each.result().offset for each in receipts}) == 40


def test_all_blocking_clients_are_started_again(bootstrap: str) -> None:
    admin = blocking.Admin(bootstrap)
    sender = blocking.Producer(bootstrap, transactional_id="b-again")
    reader = blocking.Consumer(bootstrap, group_id="b-again", auto_offset_reset="earliest")
    topic = "b-in"
    with admin:
        admin.create_topic(topic, partitions=1)
    session = blocking.Session(
        bootstrap, group_id="b-session", topics=[topic], auto_offset_reset="earliest"
    )
    for round_ in range(3):
        with admin:
            assert admin.list_topics()
        with sender, sender.transaction() as transaction:
            transaction.send(topic, b"%d" % round_)
        with reader:
            reader.subscribe([topic])
            assert next(reader).value == b"%d" % round_
        with session:
            batch, txn = next(session)
            assert [each.value for each in batch] == [b"%d" % round_]
            txn.send("out", b"done")
            session.stop()
            assert list(session) == []
