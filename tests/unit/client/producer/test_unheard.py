"""Records that failed and whose receipts nobody has awaited: they are told at the next `flush`, or
at the end of the producer, and never twice."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import onceflow
from onceflow import blocking
from onceflow.client.errors.requests import DeliveryFailed, TransactionAborted
from onceflow.client.producer.batch import ProducerBatch
from onceflow.client.producer.producer import Producer
from onceflow.client.producer.receipts import _MOST_KEPT, UnheardFailures
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, Running
from tests.unit.client.producer.simulated_producers import play, producer, values

TOO_LARGE = bytes(2000)


async def small_topic(client: RawClient, partitions: int = 1) -> None:
    """Takes no record of 2,000 bytes, each of which is a batch of its own."""
    await client.create("t", partitions, max_message_bytes="1000")


def refused(world: World, **settings: Any) -> Producer:
    return producer(world, batch_size=1500, linger_ms=0, **settings)


def test_flush_raises_for_what_nobody_has_awaited_and_only_once() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        async with refused(world) as ours:
            await ours.send("t", TOO_LARGE)
            await ours.send("t", b"good")
            with pytest.raises(DeliveryFailed, match="1 record was not delivered to t-0") as told:
                await ours.flush()
            assert "were not awaited" in str(told.value)
            assert "MESSAGE_TOO_LARGE" in str(told.value)
            assert told.value.outcome == "not applied"
            await ours.flush()
        assert await values(client, "t") == [b"good"]

    play(script)


def test_the_end_of_the_block_raises_and_everything_has_ended() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        ours = refused(world)
        with pytest.raises(DeliveryFailed, match="1 record was not delivered"):
            async with ours:
                receipt = await ours.send("t", TOO_LARGE)
        assert receipt.is_done
        await ours.close()
        async with ours:  # it can be started again, and has nothing more to tell
            assert (await (await ours.send("t", b"good"))).offset == 0

    play(script)


def test_what_failed_long_before_is_told_at_the_end() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        with pytest.raises(DeliveryFailed, match="1 record was"):  # noqa: PT012  # its end raises
            async with refused(world) as ours:
                await ours.send("t", TOO_LARGE)
                await asyncio.sleep(100)
                for _ in range(50):
                    await (await ours.send("t", b"good"))

    play(script)


def test_a_receipt_that_was_awaited_is_not_told_again() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        async with refused(world) as ours:
            receipt = await ours.send("t", TOO_LARGE)
            for _ in range(2):
                with pytest.raises(DeliveryFailed):
                    await receipt
            await ours.flush()

    play(script)


def test_whoever_awaits_a_receipt_while_another_flushes_is_the_only_one_told() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        async with refused(world) as ours:
            receipt = await ours.send("t", TOO_LARGE)
            flushing = asyncio.create_task(ours.flush())  # before the other one waits, too
            awaiting = asyncio.ensure_future(receipt)
            await asyncio.wait([flushing, awaiting])
            assert isinstance(awaiting.exception(), DeliveryFailed)
            assert flushing.exception() is None

    play(script)


def test_what_was_heard_of_is_not_kept() -> None:
    """Else the errors would keep alive whatever was at hand where they were raised."""

    class Payload:
        pass

    async def one(ours: Producer) -> weakref.ref[Payload]:
        payload = Payload()
        with suppress(DeliveryFailed):
            await (await ours.send("t", TOO_LARGE, partition=0))
        return weakref.ref(payload)

    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        async with refused(world) as ours:
            seen = await one(ours)
            gc.collect()
            assert seen() is None

    play(script)


def test_who_stopped_waiting_has_heard_nothing() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        timeouts = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 3_000}
        with pytest.raises(DeliveryFailed, match="1 record was not delivered"):  # noqa: PT012  # its end raises
            async with producer(world, linger_ms=0, **timeouts) as ours:
                await (await ours.send("t", b"good"))
                world.net.partition("client", "broker")
                receipt = await ours.send("t", b"lost")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1):
                        await receipt

    play(script)


def test_each_record_of_a_batch_counts_for_itself() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        timeouts = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 3_000}
        async with producer(world, linger_ms=100, **timeouts) as ours:
            await (await ours.send("t", b"good"))
            world.net.partition("client", "broker")
            receipts = [await ours.send("t", b"lost") for _ in range(5)]
            for each in receipts[:3]:
                with pytest.raises(DeliveryFailed):
                    await each
            with pytest.raises(DeliveryFailed, match="2 records were not delivered") as told:
                await ours.flush()
            assert told.value.outcome == "unknown"

    play(script)


def test_several_failures_are_told_together() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client, 5)
        async with refused(world) as ours:
            for partition in range(5):
                await ours.send("t", TOO_LARGE, partition=partition)
            with pytest.raises(DeliveryFailed, match="5 records") as told:
                await ours.flush()
            assert "to t-0, t-1, t-2 and 2 more" in str(told.value)
            assert isinstance(told.value.__cause__, DeliveryFailed)

    play(script)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_tables_are_told_too(is_awaited: bool) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        async with refused(world) as ours:
            receipt = await ours.send_table("t", pa.table({"value": [TOO_LARGE, b"b"]}))
            if is_awaited:
                with pytest.raises(DeliveryFailed):
                    await receipt
                await ours.flush()
            else:
                with pytest.raises(DeliveryFailed, match="not delivered"):
                    await ours.flush()

    play(script)


@pytest.mark.parametrize("leaving", [KeyError("mine"), asyncio.CancelledError()])
def test_what_leaves_the_block_is_not_hidden(leaving: BaseException) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        with pytest.raises(type(leaving)) as left:  # noqa: PT012  # its end raises
            async with refused(world) as ours:
                await ours.send("t", TOO_LARGE)
                raise leaving
        assert left.value is leaving
        (note,) = left.value.__notes__
        assert "1 record was not delivered to t-0" in note

    play(script)


def test_an_aborted_transaction_tells_nobody() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await small_topic(client)
        async with refused(world, transactional_id="shop") as ours:
            with pytest.raises(KeyError):  # noqa: PT012  # its end raises
                async with ours.transaction() as transaction:
                    receipt = await transaction.send("t", b"never seen")
                    raise KeyError("mine")
            with pytest.raises(TransactionAborted):
                await receipt
            await ours.begin_transaction()
            await ours.send("t", b"never seen")
            await ours.abort_transaction()

    play(script)


def test_programs_without_asyncio_are_told_as_well() -> None:
    with onceflow.Broker() as broker, blocking.Admin(broker.bootstrap) as admin:
        admin.create_topic("t", partitions=1, configs={"max.message.bytes": "1000"})
        settings = {"batch.size": 1500, "linger.ms": 0}
        with (
            pytest.raises(DeliveryFailed, match="1 record was not delivered"),
            blocking.Producer(broker.bootstrap, settings) as ours,
        ):
            ours.send("t", TOO_LARGE)
        with blocking.Producer(broker.bootstrap, settings) as ours:
            ours.send("t", TOO_LARGE)
            with pytest.raises(DeliveryFailed, match="1 record was not delivered"):
                ours.flush()
            receipt = ours.send("t", TOO_LARGE)
            with pytest.raises(DeliveryFailed):
                receipt.result()
        with pytest.raises(KeyError) as left, blocking.Producer(broker.bootstrap, settings) as ours:  # noqa: PT012  # its end raises
            ours.send("t", TOO_LARGE)
            raise KeyError("mine")
        assert "1 record was not delivered" in left.value.__notes__[0]


def test_of_very_many_failures_a_number_is_kept() -> None:
    unheard = UnheardFailures()
    error = DeliveryFailed("no answer", outcome="unknown")
    batches = [
        ProducerBatch(TopicPartition("t", number % 3), 0.0) for number in range(3 * _MOST_KEPT)
    ]
    for batch in batches:
        batch.written = 2
        unheard.add(batch, error)
        if batch.partition.partition == 0 and batch.failure is not None:
            batch.failure.hear(0, 1)
    assert len(unheard._failures) <= _MOST_KEPT
    told = unheard.take()
    assert told is not None
    assert f"{4 * _MOST_KEPT} records were not delivered to t-1, t-2" in str(told)
    assert told.outcome == "unknown"
    assert not unheard
    assert unheard.take() is None
