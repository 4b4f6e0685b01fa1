"""The producer against a real broker in a simulated world: lost answers, full buffers, the end."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import (
    AbortableError,
    BufferFull,
    DeliveryFailed,
    FatalProducerError,
    NoSuchPartition,
    TopicNameInvalid,
    TopicNotFound,
)
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions.states import WrongState
from onceflow.errors import InvalidSetting
from onceflow.records.batch import iter_stored
from onceflow.records.columns import decode
from onceflow.testing.world import World
from tests.unit.broker.broker_under_test import RawClient, Running
from tests.unit.client.producer.simulated_producers import ADDRESS, play, producer, values


async def send_on(ours: Producer) -> None:
    while True:
        await ours.send("t", bytes(1000))


def learn_a_pause(ours: Producer, seconds: float) -> None:
    """Longer than any that would be learnt, to stand out from all others."""
    ours._running().commit_pacing._pause_s = seconds


async def send_in_transaction(ours: Producer, *records: bytes) -> None:
    async with ours.transaction() as transaction:
        for record in records:
            await transaction.send("t", record)


def test_records_keep_their_order() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, batch_size=100) as ours:
            receipts = [await ours.send("t", b"%d" % number) for number in range(200)]
            await ours.flush()
            assert [(await each).offset for each in receipts] == list(range(200))
        assert await values(client, "t") == [b"%d" % number for number in range(200)]

    play(script)


def test_records_have_the_time_at_which_they_were_sent_or_their_own() -> None:
    """All in one batch, within one turn of the loop."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        expected = []
        async with producer(world, linger_ms=1000) as ours:
            await (await ours.send("t", b"to get to know the topic"))
            began = world.clock.wall_ms()
            for number in range(50):
                own = None if number % 5 else 1000 * number
                await ours.send("t", b"x", timestamp_ms=own)
                expected.append(began + number // 7 if own is None else own)
                if number % 7 == 6:
                    world.clock.jump_wall(1)
            assert world.clock.wall_ms() == began + 7
        batches = list(iter_stored((await client.fetch("t"))["records"]))
        assert len(batches) == 2
        found = decode(batches[1:]).column("timestamp").cast(pa.int64()).to_pylist()
        assert found == expected

    play(script)


def test_nothing_is_doubled_when_connections_break() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, batch_size=200, linger_ms=0, retry_backoff_ms=1) as ours:
            receipts = []
            for number in range(300):
                receipts.append(await ours.send("t", b"%d" % number))
                if number % 50 == 49:
                    await asyncio.sleep(0.001 * (number % 7))
                    for connection in list(running.server._connections):
                        connection.abort()
            for receipt in receipts:
                await receipt
        again = await running.client()
        assert await values(again, "t") == [b"%d" % number for number in range(300)]

    play(script)


def test_whoever_sends_without_a_pause_is_heard_meanwhile() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 2)
        async with producer(world, batch_size=1000, linger_ms=60_000) as ours:
            for partition in (0, 1):  # connected, and known to the broker
                await ours.send("t", b"first", partition=partition)
            await ours.flush()
            receipts = [await ours.send("t", bytes(100), partition=n % 2) for n in range(100)]
            assert [each.batch.attempts for each in receipts[:2]] == [1, 1]
            assert not receipts[-1].batch.attempts

    play(script)


def test_a_batch_that_is_full_does_not_linger_when_records_go_elsewhere() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 2)
        async with producer(world, batch_size=1000, linger_ms=60_000) as ours:
            began = world.clock.monotonic()
            receipts = [await ours.send("t", bytes(400)) for _ in range(3)]
            await asyncio.gather(*receipts[:2])
            assert world.clock.monotonic() - began < 10
            assert not receipts[2].is_done
            assert receipts[0].batch is receipts[1].batch is not receipts[2].batch

    play(script)


def test_who_stops_waiting_for_a_receipt_leaves_it_to_the_others() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, linger_ms=1000) as ours:
            receipt = await ours.send("t", b"")
            tasks = [asyncio.ensure_future(receipt) for _ in range(3)]
            await asyncio.sleep(0.1)
            tasks[1].cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(found[1], asyncio.CancelledError)
            assert found[0] == found[2] == await receipt

    play(script)


def test_what_cannot_be_sent_fails_in_time_and_says_why() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(
            world, delivery_timeout_ms=5000, request_timeout_ms=1000, retry_backoff_max_ms=100
        ) as ours:
            await (await ours.send("t", b"first"))
            began = world.clock.monotonic()
            await running.server.stop()
            with pytest.raises(DeliveryFailed, match=r"delivery\.timeout\.ms, 5 s; the last"):
                await (await ours.send("t", b"second"))
            assert 4.9 < world.clock.monotonic() - began < 7

    play(script)


def test_a_table_for_a_partition_that_is_not_there_is_refused() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        rows = pa.table({"value": pa.array([b"lost"], pa.binary())})
        async with producer(world) as ours:
            for number in (1, -1):
                with pytest.raises(NoSuchPartition, match=rf"no partition {number}; it has 1"):
                    await ours.send_table("t", rows, partition=number)
            (placed,) = await (await ours.send_table("t", rows, partition=0))
            assert (placed.rows, placed.first_offset) == (1, 0)

    play(script)


def test_a_large_table_leaves_the_loop_its_turns_and_its_rows_their_order() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        count = 400
        rows = pa.table({"value": [b"%05d" % number + bytes(2_000) for number in range(count)]})
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with producer(world, max_request_size=16 << 10) as ours:
            await (await ours.send_table("t", rows.slice(0, 1), partition=0))  # it knows the topic
            counting = asyncio.create_task(count_turns())
            receipt = await ours.send_table("t", rows, partition=0)
            counting.cancel()
            (placed,) = await receipt
        pieces = count * 2_000 / (4 * (8 << 10))
        assert turns >= pieces
        assert (placed.rows, placed.first_offset, placed.last_offset) == (count, 1, count)
        read = [each for each in await values(client, "t") if each is not None]
        assert [int(each[:5]) for each in read] == [0, *range(count)]

    play(script)


def test_the_first_batch_of_a_transaction_waits_as_long_as_was_learnt() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="shop") as ours:
            await send_in_transaction(ours, b"first")
            learn_a_pause(ours, seconds=2.0)
            ended = world.clock.monotonic()
            await send_in_transaction(ours, b"second", b"third")
            assert 2.0 <= world.clock.monotonic() - ended < 2.5
            learn_a_pause(ours, seconds=2.0)
            await asyncio.sleep(3)
            began = world.clock.monotonic()
            await send_in_transaction(ours, b"fourth")
            assert world.clock.monotonic() - began < 0.5
        stored = [each for each in await values(client, "t") if each and each.isalpha()]
        assert stored == [b"first", b"second", b"third", b"fourth"]

    play(script)


def test_a_full_buffer_makes_the_sender_wait_and_then_refuses() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(
            world, buffer_memory=4000, max_request_size=4000, batch_size=2000, max_block_ms=3000
        ) as ours:
            for _ in range(100):  # more than the buffer holds: it is sent meanwhile
                await ours.send("t", bytes(1000))
            await ours.flush()
            await running.server.stop()
            with pytest.raises(BufferFull, match=r"buffer\.memory is 4000"):
                await send_on(ours)
            ours._running().fail_waiting(DeliveryFailed("the test is over"))
            with pytest.raises(DeliveryFailed, match=r"4 records were .*; the test is over"):
                await ours.flush()

    play(script)


def test_nothing_is_gathered_after_a_close_that_was_cut_short() -> None:
    """A batch was open, and nobody would ever send it."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        ours = producer(world)
        await ours.start()
        await (await ours.send("t", b"there"))
        await running.server.stop()
        await asyncio.sleep(1)  # until there is no connection that could take a batch
        lost = await ours.send("t", b"lost")
        assert lost.batch.is_open
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ours.close()
        with pytest.raises(WrongState, match="is closed"):
            await ours.send("t", b"too late")
        with pytest.raises(DeliveryFailed, match="was closed"):
            await lost

    play(script)


def test_nothing_is_gathered_when_the_sender_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        ours = producer(world, linger_ms=1000)
        await ours.start()
        receipt = await ours.send("t", b"first")
        monkeypatch.setattr(ours._accumulator, "ready", lambda now: 1 / 0)
        for attempt in (receipt, ours.send("t", b"second"), ours.close()):
            with pytest.raises(FatalProducerError, match="division by zero"):
                await attempt

    play(script)


@pytest.mark.parametrize("way", ["send", "send_table", "partitions_for"])
def test_a_broker_creates_a_topic_that_is_not_there(way: str) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        async with producer(world) as ours:
            if way == "send":
                assert (await (await ours.send("t", b"a"))).offset == 0
            elif way == "send_table":
                await (await ours.send_table("t", pa.table({"value": [b"a"]})))
            else:
                assert await ours.partitions_for("t") == 3
        assert len(running.server.node.topics.by_name["t"].partitions) == 3

    play(script, num_partitions=3)


@pytest.mark.parametrize(("max_block_ms", "waited_s"), [(60_000, 5), (500, 0.5)])
def test_a_topic_that_nobody_creates_is_told_soon(max_block_ms: int, waited_s: float) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        async with producer(world, max_block_ms=max_block_ms) as ours:
            began = world.clock.monotonic()
            with pytest.raises(TopicNotFound, match="no topic 'order'; did you mean 'orders'"):
                await ours.send("order", b"")
            assert world.clock.monotonic() - began <= waited_s + 0.1
            assert await ours.partitions_for("orders") == 2
        assert "order" not in running.server.node.topics.by_name

    play(script, auto_create_topics_enable=False)


def test_a_deleted_topic_is_not_created_again_by_what_only_asks_anew() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        async with producer(world, metadata_max_age_ms=100) as ours:
            for topic in ("gone", "kept"):
                await (await ours.send(topic, b""))
            async with Admin(ADDRESS, net=world.net.host("admin"), clock=world.clock) as others:
                await others.delete_topic("gone")
            await asyncio.sleep(1)
            for _ in range(2):
                await (await ours.send("kept", b""))
                await asyncio.sleep(1)
        assert list(running.server.node.topics.by_name) == ["kept"]

    play(script)


def test_wrong_uses_are_named() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        ours = producer(world)
        with pytest.raises(WrongState, match="not started"):
            await ours.send("orders", b"")
        async with ours:
            with pytest.raises(TopicNameInvalid, match="'or der' cannot be the name of a topic"):
                await ours.send("or der", b"")
            with pytest.raises(NoSuchPartition, match="it has 2, counted from 0"):
                await ours.send("orders", b"", partition=2)
            with pytest.raises(WrongState, match=r"no transactional\.id"):
                await ours.begin_transaction()
        with pytest.raises(InvalidSetting, match=r"transactional\.id"):
            producer(world, transactional_id="t", enable_idempotence=False)

    play(script)


def test_a_transaction_that_fails_can_be_aborted_and_the_next_one_works() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", max_message_bytes="500")
        async with producer(world, transactional_id="id") as ours:
            with pytest.raises(AbortableError, match=r"max\.message\.bytes"):
                await send_in_transaction(ours, b"small", bytes(1000))
            async with ours.transaction() as transaction:
                await transaction.send("t", b"good")
        found = await client.fetch("t", isolation_level=1)
        assert b"good" in found["records"]
        assert found["last_stable_offset"] == found["high_watermark"]

    play(script)
