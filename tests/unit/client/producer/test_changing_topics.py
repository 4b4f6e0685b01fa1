"""Where a producer sends to when topics change, and what becomes of receipts when it is closed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import DeliveryFailed, NoSuchPartition, TopicNotFound
from onceflow.client.net.cluster import Cluster
from onceflow.client.producer.batch import RecordInvalid
from onceflow.client.producer.partitioner import partition_for_key
from onceflow.client.transactions.states import WrongState
from onceflow.client.types import TopicMetadata
from onceflow.testing.world import World
from tests.unit.broker.broker_under_test import RawClient, Running, values_in
from tests.unit.client.producer.simulated_producers import ADDRESS, play, producer, values

KEYS = [b"%d" % number for number in range(16)]


def admin(world: World) -> Admin:
    return Admin(ADDRESS, net=world.net.host("admin"), clock=world.clock)


def test_keys_go_where_they_belong_when_what_is_known_is_too_old() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world, metadata_max_age_ms=5_000) as ours, admin(world) as others:
            await (await ours.send("t", b"", key=b"first"))
            await others.add_partitions("t", 4)
            await asyncio.sleep(6)
            for key in KEYS:
                found = await (await ours.send("t", b"", key=key))
                assert found.partition == partition_for_key(key, 4)

    play(script)


def test_so_they_do_while_somebody_sends_all_the_time() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world, metadata_max_age_ms=1_000, linger_ms=5) as ours:
            await (await ours.send("t", b"", key=b"first"))
            async with admin(world) as others:
                await others.add_partitions("t", 4)
            until = world.clock.monotonic() + 2
            while world.clock.monotonic() < until:
                receipts = [await ours.send("t", b"", key=key) for key in KEYS]
                await asyncio.sleep(0.01)
            found = [(await each).partition for each in receipts]
            assert found == [partition_for_key(key, 4) for key in KEYS]

    play(script)


def test_a_partition_that_is_not_known_yet_is_asked_for() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world) as ours, admin(world) as others:
            await (await ours.send("t", b""))
            await others.add_partitions("t", 4)
            assert (await (await ours.send("t", b"", partition=3))).partition == 3
            for wrong in (4, -1):
                with pytest.raises(NoSuchPartition, match="it has 4"):
                    await ours.send("t", b"", partition=wrong)

    play(script)


def test_so_is_one_that_a_table_names() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world) as ours, admin(world) as others:
            await (await ours.send("t", b""))
            await others.add_partitions("t", 2)
            await (await ours.send_table("t", pa.table({"value": [b""]}), partition=1))
            await others.add_partitions("t", 3)
            rows = pa.table({"value": [b"", b""], "partition": [0, 2]})
            await (await ours.send_table("t", rows))
            with pytest.raises(NoSuchPartition, match="it has 3"):
                await ours.send_table("t", pa.table({"value": [b""]}), partition=3)
            with pytest.raises(RecordInvalid, match="there are 3 partitions"):
                await ours.send_table("t", pa.table({"value": [b""], "partition": [3]}))
            none = pa.table({"value": [b""], "partition": pa.array([None], pa.int32())})
            await (await ours.send_table("t", none))

    play(script)


def test_keys_of_a_table_go_where_they_belong_when_what_is_known_is_too_old() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world, metadata_max_age_ms=1_000) as ours, admin(world) as others:
            await (await ours.send("t", b"", key=b"first"))
            await others.add_partitions("t", 4)
            await asyncio.sleep(2)
            await (await ours.send_table("t", pa.table({"key": KEYS, "value": KEYS})))
        for number in range(4):
            found = values_in((await client.fetch("t", partitions=[number]))["records"])
            expected = [key for key in KEYS if partition_for_key(key, 4) == number]
            assert [value for _, value in found if value] == expected

    play(script)


@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize("as_table", [False, True])
def test_a_broker_that_is_behind_makes_no_topic_disappear(
    monkeypatch: pytest.MonkeyPatch, times: int, as_table: bool
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world, metadata_max_age_ms=1_000) as ours:
            await (await ours.send("t", b"0"))
            await asyncio.sleep(2)
            ask = Cluster._ask_metadata
            left = times

            async def behind(
                cluster: Cluster, names: tuple[str, ...] | None, *, create: bool = False
            ) -> Any:
                nonlocal left
                answer = await ask(cluster, names, create=create)
                if not left:
                    return answer
                left -= 1
                cluster.forget("t")
                return answer._replace(topics=[], missing=["t"] if names else [])

            monkeypatch.setattr(Cluster, "_ask_metadata", behind)
            if as_table:
                await (await ours.send_table("t", pa.table({"value": [b"1"]})))
            else:
                await (await ours.send("t", b"1"))
            assert not left
        assert await values(client, "t") == [b"0", b"1"]

    play(script)


def test_what_is_old_is_better_than_nothing() -> None:
    """While nobody answers, records are gathered as before, and wait for no answer each."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world, metadata_max_age_ms=1_000, linger_ms=0) as ours:
            await (await ours.send("t", b"0"))
            await asyncio.sleep(2)
            world.net.partition("client", "broker")
            began = world.clock.monotonic()
            receipts = [await ours.send("t", bytes(20_000)) for _ in range(20)]
            assert world.clock.monotonic() - began < 3
            world.net.join("client", "broker")
            assert [(await each).offset for each in receipts] == list(range(1, 21))

    play(script)


def test_a_topic_that_is_gone_is_told_and_troubles_no_other() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        for name in ("gone", "kept"):
            await client.create(name, 1)
        async with producer(world, metadata_max_age_ms=1_000) as ours, admin(world) as others:
            for name in ("gone", "kept"):
                await (await ours.send(name, b""))
            await others.delete_topic("gone")
            await asyncio.sleep(2)
            assert await ours.partitions_for("kept") == 1
            await asyncio.sleep(2)
            assert (await (await ours.send("kept", b""))).offset == 1
            await asyncio.sleep(2)
            await ours.send_table("kept", pa.table({"value": [b""]}))
            with pytest.raises(TopicNotFound):
                await ours.send("gone", b"")

    play(script, auto_create_topics_enable=False)


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment_us", [0, 100, 500, 2_000, 8_000])
def test_each_receipt_has_an_outcome_after_a_close_that_was_cut_short(moment_us: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        ours = producer(world, max_in_flight_requests_per_connection=1, linger_ms=1_000)
        await ours.start()
        receipts = [await ours.send("t", bytes(10_000)) for _ in range(20)]
        rows = await ours.send_table("t", pa.table({"value": [b"row"]}))
        closing = asyncio.create_task(ours.close())
        await asyncio.sleep(moment_us / 1_000_000)
        for _ in range(3):  # somebody very impatient
            closing.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await closing
        if moment_us == 0:
            await ours.close()  # it had not begun
        async with asyncio.timeout(1):
            outcomes = await asyncio.gather(*receipts, rows, return_exceptions=True)
        for each in outcomes:
            assert not isinstance(each, BaseException) or isinstance(each, DeliveryFailed)
        await asyncio.sleep(1)
        assert not [task for task in asyncio.all_tasks() if "Sender" in repr(task)]

    play(script)


def test_a_flush_of_a_closed_producer_leaves_nothing_behind() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        ours = producer(world, linger_ms=5_000)
        await ours.start()
        await ours.close()
        with pytest.raises(WrongState):
            await ours.flush()
        async with ours:
            began = world.clock.monotonic()
            await (await ours.send("t", b""))
            assert world.clock.monotonic() - began >= 5

    play(script)


@pytest.mark.parametrize("as_table", [False, True])
def test_what_waited_in_one_life_is_not_sent_in_the_next(
    monkeypatch: pytest.MonkeyPatch, as_table: bool
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        ours = producer(world)
        await ours.start()
        find, goes_on = Cluster.find_topic, asyncio.Event()

        async def slow(cluster: Cluster, name: str) -> TopicMetadata:
            await goes_on.wait()
            return await find(cluster, name)

        monkeypatch.setattr(Cluster, "find_topic", slow)
        rows = pa.table({"value": [b"late"]})
        waits = asyncio.create_task(
            ours.send_table("t", rows) if as_table else ours.send("t", b"late")
        )
        await asyncio.sleep(0.1)
        await ours.close()
        monkeypatch.undo()
        async with ours:
            goes_on.set()
            with pytest.raises(WrongState, match="closed meanwhile"):
                await waits
            await (await ours.send("t", b"next"))
        assert await values(client, "t") == [b"next"]

    play(script)
