"""For how long a partition remembers its producers, and what that costs: by the broker's own clock,
over restarts and jumps of the wall clock, whatever timestamps the clients have chosen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest

from onceflow.broker.handlers import describe_producers
from onceflow.broker.requests.answers import AnswerPromise
from onceflow.broker.requests.client import RequestContext
from onceflow.broker.requests.slices import Slices
from onceflow.producers.draft import SLICE, SnapshotDraft
from onceflow.producers.state import ProducerMemory
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, play, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    Who,
    again,
    committed,
    ended,
    ends,
    ensure_partition,
    killed,
    names_of,
    produce,
    ready,
    sent,
    wrote,
)

HOUR_S = 3600
DAY_S = 24 * HOUR_S
DAY_MS = DAY_S * 1000
MONTH_MS = 30 * DAY_MS


def backfilled(world: World, who: Who, sequence: int = 0) -> bytes:
    """A batch as of two days ago."""
    now = world.clock.wall_ms()
    return sent(who, sequence, b"payment", timestamp=now - 2 * DAY_MS)


def remembers(running: Running, who: Who) -> bool:
    return ensure_partition(running, "orders").producers.find(who.producer_id) is not None


async def retried(client: RawClient, who: Who, records: bytes) -> int:
    """At which offset a batch is said to be; a repeat is where it was."""
    answer = await produce(client, who, "orders", records)
    assert answer["error_code"] == "NONE", answer
    return int(answer["base_offset"])


def test_a_retry_of_a_backfill_is_not_written_a_second_time() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", retention_ms="-1")
        who = await ready(client)
        records = backfilled(world, who)
        assert await retried(client, who, records) == 0
        for _ in range(23):
            await asyncio.sleep(HOUR_S)
            client = await running.client()
            assert await retried(client, who, records) == 0, "written a second time"
        assert await ends(client, "orders") == (1, 1)

    play(script)


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 2**62])
def test_a_producer_is_forgotten_after_a_day_of_silence_whatever_its_records_say(
    timestamp_ms: int,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create(
            "orders", retention_ms="-1", message_timestamp_after_max_ms=str(2**63 - 1)
        )
        who = await ready(client)
        assert await retried(client, who, sent(who, 0, b"a", timestamp=timestamp_ms)) == 0
        await asyncio.sleep(DAY_S - 1)
        assert remembers(running, who)
        await asyncio.sleep(HOUR_S)
        assert not remembers(running, who)

    play(script)


@pytest.mark.parametrize("jump_ms", [MONTH_MS, -MONTH_MS])
def test_a_jump_of_the_wall_clock_neither_ends_nor_prolongs_what_is_remembered(
    jump_ms: int,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", retention_ms="-1")
        before = await ready(client)
        await retried(client, before, sent(before, 0, b"a", timestamp=world.clock.wall_ms()))
        world.clock.jump_wall(jump_ms)
        after = await ready(client)
        await retried(client, after, sent(after, 0, b"a", timestamp=world.clock.wall_ms()))
        await asyncio.sleep(HOUR_S)
        world.clock.jump_wall(-jump_ms)
        await asyncio.sleep(22 * HOUR_S)
        assert remembers(running, before)
        assert remembers(running, after)
        await asyncio.sleep(2 * HOUR_S)
        assert not remembers(running, before)
        assert not remembers(running, after)

    play(script)


@pytest.mark.parametrize("jump_ms", [0, MONTH_MS, -MONTH_MS])
def test_time_without_a_broker_does_not_count(jump_ms: int) -> None:
    """What the wall clock says at a start, after a stop or a jump, nobody can tell apart."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders", retention_ms="-1")
            who = await ready(client)
            records = backfilled(world, who)
            assert await retried(client, who, records) == 0
            await asyncio.sleep(12 * HOUR_S)
        world.clock.jump_wall(jump_ms)
        await asyncio.sleep(3 * DAY_S)
        async with again(world, world.disk) as (running, client):
            await asyncio.sleep(11 * HOUR_S)
            assert remembers(running, who)
            await asyncio.sleep(2 * HOUR_S)
            assert not remembers(running, who), "12 hours before the restart, 13 behind it"

    simulate(3, main)


def test_after_a_crash_without_a_snapshot_silence_begins_at_the_start() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders", retention_ms="-1")
            who = await ready(client)
            records = backfilled(world, who)
            assert await retried(client, who, records) == 0
            await asyncio.sleep(20 * HOUR_S)
            image = killed(world.disk)
        assert not names_of(image, ".producers")
        async with again(world, image) as (running, client):
            await asyncio.sleep(23 * HOUR_S)
            client = await running.client()
            assert await retried(client, who, records) == 0
            await asyncio.sleep(25 * HOUR_S)
            assert not remembers(running, who)

    simulate(3, main)


def test_a_quiet_broker_that_is_restarted_every_day_forgets_in_the_end() -> None:
    """Nothing is appended, so no snapshot of another offset is made: the old one is brought up to
    date instead."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders", retention_ms="-1")
            who = await ready(client)
            assert await retried(client, who, backfilled(world, who)) == 0
        for day in range(3):
            async with again(world, world.disk, host=f"day-{day}") as (running, client):
                assert remembers(running, who) == (day < 2)
                await asyncio.sleep(14 * HOUR_S)
                assert remembers(running, who) == (day < 1)

    simulate(3, main)


def test_compaction_leaves_the_last_batch_of_whoever_is_remembered() -> None:
    """Else a start that finds no snapshot would not know of it, and a retry be written again."""

    async def main(world: World) -> None:
        settings: dict[str, Any] = {"log_retention_check_interval_ms": 60_000}
        async with simulated_broker(world, **settings) as running:
            client = await running.client()
            await client.create(
                "orders",
                cleanup_policy="compact",
                min_cleanable_dirty_ratio="0",
                segment_bytes=str(1 << 20),
                segment_ms="1000",
            )
            who, other = await ready(client), await ready(client)
            records = backfilled(world, who)
            assert await retried(client, who, records) == 0
            for number in range(3):
                await asyncio.sleep(2)
                now = world.clock.wall_ms()
                await retried(client, other, sent(other, number, b"newer", timestamp=now))
            running.server.node.store.request_checkpoint()
            await asyncio.sleep(120)
            log = ensure_partition(running, "orders").log
            assert log.compaction.cleaned_to >= 2
            image = killed(world.disk)
        for name in names_of(image, ".producers"):
            image.unlink(name)
        async with again(world, image) as (_, client):
            assert await retried(client, who, records) == 0, "written a second time"

    simulate(3, main)


def test_what_a_partition_keeps_of_transactions_does_not_grow_when_nobody_reads() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        for number in range(200):
            await wrote(client, who, "orders", b"a")
            who = await ended(client, who, commit=number % 4 != 0)
        producers = ensure_partition(running, "orders").producers
        assert len(producers._ended_markers) <= 33
        assert len(producers.aborted) == 50
        part = {"partition_index": 0, "offset": 400}
        fields = {"topics": [{"name": "orders", "partitions": [part]}], "timeout": 1000}
        await client.ask(ApiKey.DELETE_RECORDS, 2, fields)
        assert len(producers.aborted) == 0, "of records that are deleted"
        await wrote(client, who, "orders", b"last")
        assert await ends(client, "orders") == (400, 401)
        await ended(client, who, commit=True)
        assert await committed(client, "orders", 400) == [b"last"]

    play(script)


def crowd(running: Running, count: int, partition: int = 0) -> None:
    """As if so many producers had written."""
    table = ensure_partition(running, "orders", partition).producers
    for producer_id in range(10_000, 10_000 + count):
        table._producers[producer_id] = ProducerMemory(epoch=3, last_timestamp=5)


async def rolled(world: World, running: Running, client: RawClient, producers: int) -> Who:
    """A producer whose second batch closes a segment, among many others."""
    await client.create("orders", segment_bytes=str(1 << 20), segment_ms="1000")
    who = await ready(client)
    await retried(client, who, sent(who, 0, b"a", timestamp=world.clock.wall_ms()))
    crowd(running, producers)
    await asyncio.sleep(2)
    await retried(client, who, sent(who, 1, b"b", timestamp=world.clock.wall_ms()))
    return who


def test_a_roll_does_not_wait_for_the_snapshot_of_many_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[None] = []
    advanced_in: list[int] = []
    advance, turn = SnapshotDraft.advance, Slices._turn

    def advanced(draft: SnapshotDraft, most: int = SLICE) -> None:
        advanced_in.append(len(turns))
        advance(draft, most)

    def turned(slices: Slices) -> None:
        turns.append(None)
        turn(slices)

    monkeypatch.setattr(Slices, "_turn", turned)

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            monkeypatch.setattr(SnapshotDraft, "advance", advanced)
            who = await rolled(world, running, client, 10 * SLICE)
            records = sent(who, 2, b"c", timestamp=world.clock.wall_ms())
            assert await retried(client, who, records) == 2
            await asyncio.sleep(1)
            assert not ensure_partition(running, "orders").producers._drafts
            assert len(set(advanced_in)) == 11, "each slice in a turn of its own"
            running.server.node.store.request_checkpoint()
            await asyncio.sleep(1)
            image = killed(world.disk)
        assert any(f"{1:020}" in name for name in names_of(image, ".producers"))
        async with again(world, image) as (running, client):
            assert len(ensure_partition(running, "orders").producers.ids()) == 10 * SLICE + 1
            assert await retried(client, who, records) == 2

    simulate(3, main)


def test_a_stop_in_the_middle_of_a_snapshot_finishes_it() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            running.server.node.slices.close()  # the others never have their turn
            who = await rolled(world, running, await running.client(), 10 * SLICE)
            assert ensure_partition(running, "orders").producers._drafts
        async with again(world, world.disk) as (running, client):
            assert len(ensure_partition(running, "orders").producers.ids()) == 10 * SLICE + 1
            assert await retried(client, who, sent(who, 1, b"b")) == 1

    simulate(3, main)


async def described(client: RawClient, *indexes: int) -> list[Any]:
    topics = [{"name": "orders", "partition_indexes": list(indexes)}]
    answer = await client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})
    found: list[Any] = answer["topics"][0]["partitions"]
    return found


def test_very_many_producers_are_described_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[None] = []
    turn = Slices._turn

    def turned(slices: Slices) -> None:
        turns.append(None)
        turn(slices)

    monkeypatch.setattr(Slices, "_turn", turned)

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", partitions=3)
        crowd(running, 5000)
        crowd(running, 10, partition=1)
        found = await described(client, 1, 2)
        assert [len(each["active_producers"]) for each in found] == [10, 0]
        assert not turns, "few are described at once"
        found = await described(client, 0, 1, 2, 7, 0)
        counts = [len(each["active_producers"]) for each in found]
        assert counts == [5000, 10, 0, 0]
        assert [each["error_code"] for each in found] == [
            "NONE",
            "NONE",
            "NONE",
            "UNKNOWN_TOPIC_OR_PARTITION",
        ]
        assert len(turns) >= 4
        assert found[0]["active_producers"][7] == {
            "producer_id": 10_007,
            "producer_epoch": 3,
            "last_sequence": -1,
            "last_timestamp": 5,
            "coordinator_epoch": -1,
            "current_txn_start_offset": -1,
        }

    play(script)


def test_nobody_is_described_to_a_client_that_has_gone() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        crowd(running, 5000)
        node = running.server.node
        topics = (TopicRequest(name="orders", partition_indexes=(0,)),)
        request = DescribeProducersRequest(topics=topics)
        answer = describe_producers.handle(node, RequestContext(0, "test", "test"), request)
        assert isinstance(answer, AnswerPromise)
        answer.abandon()
        await asyncio.sleep(1)
        assert not answer.is_resolved
        assert not node.slices._waiting

    play(script)
