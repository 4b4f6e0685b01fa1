"""The end of a transaction on a disk without room: the reserve, and what is done without it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, batch, play, simulated_broker
from tests.unit.broker.tight_disk import TIGHT, used
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    LEFT_BY,
    OLD,
    Generation,
    Who,
    add,
    again,
    commit_offset,
    committed,
    committed_offset,
    end,
    end_fields,
    ended,
    ends,
    init,
    markers,
    produce,
    ready,
    sent,
    states,
    wrote,
)

both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)
PARTITIONS = 3


async def filled(client: RawClient) -> None:
    """Returns when nothing but the reserve is left."""
    for _ in range(300):
        answer = await client.produce("filler", batch(bytes(20_000)))
        if answer["error_code"] == "KAFKA_STORAGE_ERROR":
            return
    pytest.fail("the disk is larger than thought")


@both
@pytest.mark.parametrize("commit", [True, False])
def test_transactions_are_ended_from_the_reserve(speaks: Generation, commit: bool) -> None:
    async def main(world: World) -> None:
        world.disk.capacity = 2 << 20
        async with simulated_broker(world, **TIGHT, reserve_bytes=200_000) as running:
            client = await running.client()
            await client.create("orders", PARTITIONS)
            await client.create("filler")
            who = await ready(client, "t")
            for partition in range(PARTITIONS):
                await wrote(client, who, "orders", b"a", partition=partition, speaks=speaks)
            other = await ready(client, "timed out", timeout_ms=20_000)
            await wrote(client, other, "orders", b"b", speaks=speaks)
            await filled(client)
            more = await produce(
                client, who, "orders", sent(who, 1, bytes(20_000)), version=speaks.produce
            )
            assert more["error_code"] == "KAFKA_STORAGE_ERROR"
            await ended(client, who, commit=commit, version=speaks.end)
            await asyncio.sleep(21)
            assert (await states(client))["timed out"] == "CompleteAbort"
            for partition in range(PARTITIONS):
                stable, high = await ends(client, "orders", partition)
                assert stable == high
                found = await committed(client, "orders", partition=partition)
                assert found == [b"a"] * commit
            assert not running.server.failed.done()
            world.disk.capacity = None

    simulate(1, main)


async def opened(client: RawClient, speaks: Generation) -> Who:
    await client.create("orders", PARTITIONS)
    who = await ready(client, "t")
    for partition in range(PARTITIONS):
        await wrote(client, who, "orders", b"a", partition=partition, speaks=speaks)
    if speaks is OLD:
        fields = {**end_fields(who, commit=True), "group_id": "g"}
        answer = await client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, fields)
        assert answer["error_code"] == "NONE"
    assert await commit_offset(client, who, "g", "orders", 7, version=speaks.offsets) == "NONE"
    await asyncio.sleep(1)
    return who


async def assert_whole(client: RawClient) -> None:
    """The transaction is committed, everywhere."""
    assert await states(client) == {"t": "CompleteCommit"}
    for partition in range(PARTITIONS):
        assert await committed(client, "orders", partition=partition) == [b"a"]
        assert await ends(client, "orders", partition) == (2, 2)
        assert len(await markers(client, "orders", partition=partition)) == 1
    assert await committed_offset(client, "g", "orders") == ("NONE", 7)


@both
def test_however_little_room_there_is_a_commit_is_answered_and_then_carried_out(
    speaks: Generation, caplog: pytest.LogCaptureFixture
) -> None:
    """From no byte at all to enough for everything: PREPARE, some markers, all, COMPLETE."""
    answers: list[str] = []
    seen: set[str] = set()

    def try_with(room: int) -> None:
        async def script(world: World, running: Running, client: RawClient) -> None:
            who = await opened(client, speaks)
            world.disk.capacity = used(world.disk) + room
            answer = await end(client, who, commit=True, version=speaks.end)
            answers.append(answer["error_code"])
            seen.add((await states(client))["t"])
            await asyncio.sleep(2)
            image = SimDisk(world.disk.tree)
            world.disk.capacity = None
            await asyncio.sleep(1)
            if answer["error_code"] != "NONE":
                assert await states(client) == {"t": "Ongoing"}, "refused, and nothing decided"
                await ended(client, who, commit=True, version=speaks.end)
            await assert_whole(client)
            async with again(world, image) as (_, other):
                await asyncio.sleep(1)
                if answer["error_code"] != "NONE":
                    await ended(other, who, commit=True, version=speaks.end)
                await assert_whole(other)

        play(script, **TIGHT)

    with caplog.at_level(logging.WARNING):
        for room in range(0, 800, 57):
            try_with(room)
    assert set(answers) == {"COORDINATOR_NOT_AVAILABLE", "NONE"}
    assert answers == sorted(answers), "with more room it is taken"
    assert seen == {"Ongoing", "PrepareCommit", "CompleteCommit"}
    assert "is decided but not all of its markers could be written" in caplog.text


def test_while_markers_are_missing_the_rest_is_described_and_the_id_is_busy() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        who = await opened(client, OLD)
        world.disk.capacity = used(world.disk) + 350
        await ended(client, who, commit=True, version=4)
        assert await states(client) == {"t": "PrepareCommit"}
        done = [
            partition
            for partition in range(PARTITIONS)
            if await markers(client, "orders", partition=partition)
        ]
        assert 0 < len(done) < PARTITIONS
        answer = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["t"]})
        (row,) = answer["transaction_states"]
        rows = {each["topic"]: each["partitions"] for each in row["topics"]}
        assert rows["orders"] == [each for each in range(PARTITIONS) if each not in done]
        busy = "CONCURRENT_TRANSACTIONS"
        assert (await end(client, who, commit=True, version=4))["error_code"] == busy
        opposite = await end(client, who, commit=False, version=4)
        assert opposite["error_code"] == "INVALID_TXN_STATE"
        assert await add(client, who, "orders", 0) == [busy]
        assert (await init(client, "t"))["error_code"] == busy
        for partition in range(PARTITIONS):
            late = await produce(
                client, who, "orders", sent(who, 1, b"late"), partition=partition, version=9
            )
            assert late["error_code"] == "NOT_ENOUGH_REPLICAS", "decided: it must not grow"
        world.disk.capacity = None
        await asyncio.sleep(1)
        await assert_whole(client)

    play(script, **TIGHT)


@pytest.mark.parametrize("left", LEFT_BY)
def test_a_decision_that_found_no_room_for_its_markers_survives_a_crash(left: str) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, **TIGHT) as running:
            client = await running.client()
            who = await opened(client, OLD)
            world.disk.capacity = used(world.disk) + 350
            await ended(client, who, commit=True, version=4)
            image = LEFT_BY[left](world.disk)
            world.disk.capacity = None
        async with again(world, image, **TIGHT) as (_, client):
            await assert_whole(client)

    simulate(1, main)


def test_a_timeout_that_finds_no_room_is_tried_again_until_it_does() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", timeout_ms=2000)
        await wrote(client, who, "orders", b"a")
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk)
        await asyncio.sleep(10)
        assert await states(client) == {"t": "Ongoing"}
        assert await ends(client, "orders") == (0, 1)
        world.disk.capacity = None
        await asyncio.sleep(1)
        assert await states(client) == {"t": "CompleteAbort"}
        assert await ends(client, "orders") == (2, 2)

    play(script, **TIGHT)


def test_a_new_transaction_that_finds_no_room_begins_nothing() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk)
        assert await add(client, who, "orders", 0) == ["COORDINATOR_NOT_AVAILABLE"]
        implicit = await produce(client, who, "orders", sent(who, 0, b"a"))
        assert implicit["error_code"] == "NOT_ENOUGH_REPLICAS", "which producers try again after"
        assert await commit_offset(client, who, "g", "orders", 1) == "COORDINATOR_NOT_AVAILABLE"
        assert (await init(client, "t"))["error_code"] == "COORDINATOR_NOT_AVAILABLE"
        world.disk.capacity = None
        assert await states(client) == {"t": "Empty"}
        await wrote(client, who, "orders", b"a")
        await ended(client, who, commit=True)
        assert await committed(client, "orders") == [b"a"]

    play(script, **TIGHT)


def test_on_a_full_disk_every_first_request_about_transactions_has_an_answer() -> None:
    """Where the internal topics would have to be made, and producer ids to be claimed."""
    busy = "COORDINATOR_NOT_AVAILABLE"

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk)
        asked = {"key": "t", "key_type": 1}
        found = await client.ask(ApiKey.FIND_COORDINATOR, 3, asked)
        assert found["error_code"] == busy
        assert (await init(client, "t"))["error_code"] == busy
        alone = await init(client, None)
        # It has no coordinator to look for, and would look for that of nobody.
        assert alone["error_code"] == "COORDINATOR_LOAD_IN_PROGRESS"
        world.disk.capacity = None
        assert (await client.ask(ApiKey.FIND_COORDINATOR, 3, asked))["error_code"] == "NONE"
        who = await ready(client, "t")
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk)
        fields = {**end_fields(who, commit=True), "group_id": "g"}
        answer = await client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, fields)
        assert answer["error_code"] == busy
        world.disk.capacity = None
        assert await commit_offset(client, who, "g", "orders", 7) == "NONE"
        await ended(client, who, commit=True)
        assert await committed_offset(client, "g", "orders") == ("NONE", 7)

    play(script, **TIGHT)
