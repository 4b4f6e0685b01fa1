"""Where a consumer begins to read: what was asked for an assignment counts for that one alone, and
one partition of which nobody can tell does not keep the others waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.consumer import CommitFailed
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.unit.client.consumer.simulated_consumers import Polling, Stage, read, stage
from tests.unit.client.consumer.simulated_readers import P0, P1
from tests.unit.client.request_taps import Late, RequestTap, once

FAST: dict[str, Any] = {"heartbeat_interval_ms": 200, "enable_auto_commit": False}


async def committed_by(on: Stage, values: int) -> None:
    """The group has committed so many of `orders`, and there are twice as many."""
    for partition in (0, 1):
        for number in range(2 * values):
            await on.produce(b"%d" % number, partition=partition)
    async with on.member("admin") as first:
        await first.assign([P0, P1])
        await first.commit({P0: values, P1: values})


LATE = [ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS]


@pytest.mark.parametrize("key", LATE, ids=str)
def test_a_partition_that_comes_back_begins_at_what_is_committed_then(key: ApiKey) -> None:
    """It was asked where to begin, and the answer is late; meanwhile somebody else has it."""

    async def program(on: Stage) -> None:
        await on.client.create("fresh", 1)
        await committed_by(on, 10)
        fresh = TopicPartition("fresh", 0)
        async with on.member(**FAST) as slow, on.member("other", **FAST) as other:
            tap = RequestTap(on.world.loop, once(key, Late(9)))
            on.world.net.tap(tap)
            await slow.assign([P0, fresh])
            polling = Polling(slow)
            await polling.until(lambda: key in {each.key for each in tap.seen})
            await slow.assign([fresh])
            await other.assign([P0])
            await other.commit({P0: 15})
            polling.received.clear()
            await slow.assign([P0, fresh])
            await asyncio.sleep(30)
            assert [each.offset for each in polling.received] == [*range(15, 20)]
            await polling.stop()

    stage(program, partitions=2)


async def _seeks(consumer: Consumer) -> None:
    await consumer.seek_to_end()


async def _rewinds(consumer: Consumer) -> None:
    await consumer.rewind()


@pytest.mark.parametrize(
    ("key", "late"), [(ApiKey.LIST_OFFSETS, _seeks), (ApiKey.OFFSET_FETCH, _rewinds)]
)
def test_a_seek_that_is_answered_late_does_not_undo_a_later_one(key: ApiKey, late: Any) -> None:
    async def program(on: Stage) -> None:
        await committed_by(on, 10)
        async with on.member(**FAST) as consumer:
            await consumer.assign([P0])
            await read(consumer, 10)
            on.world.net.tap(RequestTap(on.world.loop, once(key, Late(5))))
            asked = asyncio.get_running_loop().create_task(late(consumer))
            await asyncio.sleep(1)
            await consumer.seek(P0, 3)
            await asked
            assert await consumer.position(P0) == 3
            assert [each.offset for each in await read(consumer, 17)] == [*range(3, 20)]

    stage(program, partitions=2)


def test_a_seek_that_is_answered_when_the_partition_is_gone_does_nothing() -> None:
    async def program(on: Stage) -> None:
        await committed_by(on, 10)
        async with on.member(**FAST) as consumer:
            await consumer.assign([P0])
            await read(consumer, 10)
            on.world.net.tap(RequestTap(on.world.loop, once(ApiKey.LIST_OFFSETS, Late(5))))
            asked = asyncio.get_running_loop().create_task(consumer.seek_to_beginning())
            await asyncio.sleep(1)
            await consumer.assign([P1])
            await consumer.assign([P0, P1])
            await asked
            assert await consumer.position(P0) == 10

    stage(program, partitions=2)


def test_an_offset_that_waits_for_its_turn_is_committed_as_the_member_that_read_it() -> None:
    """A commit waits behind another one that is slow; meanwhile the group is shared out anew."""

    async def program(on: Stage) -> None:
        await on.client.create("fresh", 1)
        await committed_by(on, 10)
        async with on.member(**FAST) as consumer:
            consumer.subscribe(["orders"])
            await read(consumer, 20)
            on.world.net.tap(RequestTap(on.world.loop, once(ApiKey.OFFSET_COMMIT, Late(9))))
            loop = asyncio.get_running_loop()
            commits = []
            for offset in (11, 12):
                commits.append(loop.create_task(consumer.commit({P0: offset})))
                await asyncio.sleep(0.1)
            consumer.subscribe(["orders", "fresh"])
            polling = Polling(consumer)
            await polling.until(lambda: len(consumer.assignment) == 3)
            await polling.stop()
            outcomes = await asyncio.gather(*commits, return_exceptions=True)
            assert [type(each) for each in outcomes] == [type(None), CommitFailed]
            assert (await consumer.committed([P0]))[P0].offset == 11

    stage(program, partitions=2)
