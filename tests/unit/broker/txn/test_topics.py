"""Transactions when topics come and go, when ids grow old, and where nothing was written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.broker.topics.internal_logs import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from onceflow.broker.topics.metadata_log import log_records
from onceflow.testing.world import World, run as simulate
from onceflow.txn.records import decode_key
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, play, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    NEW,
    OLD,
    Generation,
    add,
    again,
    commit_offset,
    committed,
    committed_offset,
    end,
    ended,
    ends,
    killed,
    markers,
    ready,
    states,
    wrote,
)

both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)
OLD_IDS: dict[str, Any] = {
    "transactional_id_expiration_ms": 60_000,
    "transaction_expiration_check_interval_ms": 1_000,
}


# --- topics that come and go ---------------------------------------------------------------------


async def deleted(client: RawClient, topic: str) -> None:
    asked = {"topics": [{"name": topic, "topic_id": None}], "timeout": 1000}
    answer = await client.ask(ApiKey.DELETE_TOPICS, 6, asked)
    assert answer["responses"][0]["error_code"] == "NONE"


@both
@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_that_is_deleted_does_not_keep_its_transactions_from_ending(
    speaks: Generation, is_made_again: bool
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            await client.create("gone")
            who = await ready(client, "t")
            for topic in ("orders", "gone"):
                await wrote(client, who, topic, b"a", speaks=speaks)
            await deleted(client, "gone")
            if is_made_again:
                await client.create("gone")
            await ended(client, who, commit=True, version=speaks.end)
            assert await committed(client, "orders") == [b"a"]
            assert (await states(client))["t"] == "CompleteCommit"
            if is_made_again:
                assert await committed(client, "gone") == []
                stable, high = await ends(client, "gone")
                assert stable == high
            image = killed(world.disk)
        async with again(world, image) as (_, client):
            assert await committed(client, "orders") == [b"a"]
            assert (await states(client))["t"] == "CompleteCommit"

    simulate(1, main)


def test_a_topic_that_is_deleted_before_a_timeout_does_not_stop_it() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.create("gone")
        who = await ready(client, "t", timeout_ms=1000)
        for topic in ("gone", "orders"):
            await wrote(client, who, topic, b"a")
        await deleted(client, "gone")
        await asyncio.sleep(2)
        assert await states(client) == {"t": "CompleteAbort"}
        assert await ends(client, "orders") == (2, 2)

    play(script)


@pytest.mark.parametrize("commit", [True, False])
def test_a_partition_that_was_added_but_never_written_is_no_trouble(commit: bool) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders", 2)
            who = await ready(client, "t")
            assert await add(client, who, "orders", 0, 1) == ["NONE", "NONE"]
            await wrote(client, who, "orders", b"a", speaks=OLD)
            await ended(client, who, commit=commit, version=OLD.end)
            stable, high = await ends(client, "orders", 1)
            assert stable == high
            assert await committed(client, "orders", partition=1) == []
            await wrote(client, who, "orders", b"b", partition=1, speaks=OLD)
            await ended(client, who, commit=True, version=OLD.end)
            assert await committed(client, "orders", partition=1) == [b"b"]
            image = killed(world.disk)
        async with again(world, image) as (_, client):
            assert await committed(client, "orders") == [b"a"] * commit
            assert await committed(client, "orders", partition=1) == [b"b"]

    simulate(1, main)


# --- old ids -------------------------------------------------------------------------------------


@both
def test_an_id_that_is_idle_for_long_is_forgotten_with_a_tombstone(speaks: Generation) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, **OLD_IDS) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t")
            await wrote(client, who, "orders", b"a", speaks=speaks)
            after = await ended(client, who, commit=True, version=speaks.end)
            await asyncio.sleep(30)
            assert await states(client) == {"t": "CompleteCommit"}
            await asyncio.sleep(32)
            assert await states(client) == {}
            topic = running.server.node.topics.by_name[TRANSACTIONS_TOPIC]
            last = {
                decode_key(record.key or b""): record.value
                for partition in topic.partitions
                for record in log_records(partition.log)
            }
            assert last == {"t": None}
            late = await end(client, after, commit=True, version=speaks.end)
            assert late["error_code"] == "INVALID_PRODUCER_ID_MAPPING"
            assert await add(client, after, "orders", 0) == ["INVALID_PRODUCER_ID_MAPPING"]
            image = killed(world.disk)
            new = await ready(client, "t")
            assert new.producer_id != who.producer_id
        async with again(world, image, **OLD_IDS) as (_, client):
            assert await states(client) == {}
            new = await ready(client, "t")
            assert new.producer_id != who.producer_id
            assert await committed(client, "orders") == [b"a"]

    simulate(1, main)


def test_an_id_with_an_open_transaction_is_never_forgotten() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", timeout_ms=900_000)
        await wrote(client, who, "orders", b"a")
        await asyncio.sleep(300)
        assert await states(client) == {"t": "Ongoing"}
        await ended(client, who, commit=True)
        assert await committed(client, "orders") == [b"a"]

    play(script, **OLD_IDS)


def test_markers_go_to_the_partitions_of_the_transaction_and_to_no_others() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        who = await ready(client, "t")
        for partition in (0, 2):
            await wrote(client, who, "orders", b"a", partition=partition, speaks=NEW)
        await ended(client, who, commit=True)
        found = [len(await markers(client, "orders", partition=each)) for each in range(3)]
        assert found == [1, 0, 1]

    play(script)


# --- the broker's own topics ---------------------------------------------------------------------


@pytest.mark.parametrize("topic", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC])
def test_the_topics_that_keep_transactions_and_groups_cannot_grow(topic: str) -> None:
    """By their number an id has its partition: in another one a start would find it twice, and
    might take the older record for the newer."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            names = [f"t{number}" for number in range(8)]
            open_ones = [await ready(client, name) for name in names]
            for who in open_ones:
                await wrote(client, who, "orders", b"a")
                assert await commit_offset(client, who, f"g-{who[0]}", "orders", 1) == "NONE"
            row = {"name": topic, "count": 7, "assignments": None}
            asked = {"topics": [row], "timeout": 1000, "validate_only": False}
            (answer,) = (await client.ask(ApiKey.CREATE_PARTITIONS, 3, asked))["results"]
            assert answer["error_code"] == "INVALID_TOPIC_EXCEPTION"
            for who in open_ones:
                await ended(client, who, commit=True)
        async with again(world, world.disk) as (_, client):
            assert await states(client) == dict.fromkeys(names, "CompleteCommit")
            found = [await committed_offset(client, f"g-{name}", "orders") for name in names]
            assert found == [("NONE", 1)] * len(names)

    simulate(1, main)


@pytest.mark.parametrize("number", [1, 9])
def test_another_number_of_partitions_is_for_topics_that_are_yet_to_be_made(number: int) -> None:
    async def main(world: World) -> None:
        groups = [f"g{each}" for each in range(6)]

        async def commits(client: RawClient, offset: int) -> None:
            for group in groups:
                who = await ready(client, f"t-{group}")
                assert await commit_offset(client, who, group, "orders", offset) == "NONE"
                await ended(client, who, commit=True)

        async def found(client: RawClient) -> set[tuple[str, int]]:
            return {await committed_offset(client, group, "orders") for group in groups}

        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            await commits(client, 1)
        other = {
            "offsets_topic_num_partitions": number,
            "transaction_state_log_num_partitions": number,
        }
        async with again(world, world.disk, "other", **other) as (_, client):
            assert await found(client) == {("NONE", 1)}
            await commits(client, 2)
        async with again(world, world.disk, "as before") as (_, client):
            assert await found(client) == {("NONE", 2)}

    simulate(1, main)
