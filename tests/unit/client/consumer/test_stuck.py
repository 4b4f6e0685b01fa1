"""One partition, one member, one listener or one close that is in trouble: the others get on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.consumer.consumer import Consumer, RebalanceListener
from onceflow.client.consumer.fetch_state import Chunk, FetchCore
from onceflow.client.consumer.fetched import Record
from onceflow.client.errors.consumer import ConsumerError, WrongUse
from onceflow.client.errors.requests import ClientError
from onceflow.client.net.retry import RetryPolicy
from onceflow.runtime.rand import RealRand
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.broker.broker_under_test import batch
from tests.unit.client.consumer.scripted_coordinator import coordinator, offsets
from tests.unit.client.consumer.simulated_consumers import (
    GROUP,
    Heard,
    Polling,
    Stage,
    hold,
    read,
    stage,
)
from tests.unit.client.consumer.simulated_readers import P0, P1
from tests.unit.client.request_taps import Late, Request, RequestTap, once
from tests.unit.client.scripted_broker import ADDRESS, NO_TIME, listen, metadata, new

FAST: dict[str, Any] = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6_000}


def first_offsets(_: int, request: Any) -> Any:
    partition = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsPartitionResponse")
    topic = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsTopicResponse")
    return new(ApiKey.LIST_OFFSETS, "response")(
        throttle_time=NO_TIME,
        topics=tuple(
            topic(
                name=each.name,
                partitions=tuple(
                    partition(
                        partition_index=one.partition_index,
                        error_code=ErrorCode.NONE,
                        timestamp=-1,
                        offset=5,
                        leader_epoch=-1,
                    )
                    for one in each.partitions
                ),
            )
            for each in request.topics
        ),
    )


NOTHING = offsets({0: (-1, ErrorCode.NONE), 1: (-1, ErrorCode.NONE)})
WAITS = offsets({0: (-1, ErrorCode.NONE), 1: (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)})


@pytest.mark.parametrize(
    ("leaders", "committed"),
    [({0: 1, 1: -1}, NOTHING), ({0: 1, 1: 1}, WAITS), ({0: 1}, NOTHING)],
    ids=["no leader", "a transaction", "no such partition"],
)
def test_one_partition_that_cannot_be_placed_keeps_no_other_waiting(
    leaders: dict[int, int], committed: Any
) -> None:
    async def main(world: World) -> None:
        seen = await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: lambda *_: metadata({"orders": leaders}),
                ApiKey.FIND_COORDINATOR: coordinator,
                ApiKey.OFFSET_FETCH: lambda *_: committed,
                ApiKey.LIST_OFFSETS: first_offsets,
                ApiKey.FETCH: lambda *_: None,
            },
        )
        async with Consumer(
            str(ADDRESS),
            net=world.net.host("c"),
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            await consumer.assign([P1, P0])
            polling = asyncio.get_running_loop().create_task(consumer.poll(5))
            async with asyncio.timeout(2):
                assert await consumer.position(P0) == 5
            await asyncio.sleep(1)
            assert ApiKey.FETCH in {key for key, _ in seen}
            polling.cancel()

    run(1, main)


def test_a_paused_partition_does_not_starve_the_others() -> None:
    async def program(on: Stage) -> None:
        for _ in range(20):
            await on.produce(bytes(10_000))
        async with on.consumer(fetch_queued_max_bytes=50_000) as consumer:
            await consumer.assign([P0, P1])
            first = await read(consumer, 1)
            await asyncio.sleep(5)  # the queue fills up
            consumer.pause([P0])
            await on.produce(b"healthy", partition=1)
            assert [each.value for each in await read(consumer, 1)] == [b"healthy"]
            consumer.resume([P0])
            rest = await read(consumer, 20 - len(first))
            assert [each.offset for each in [*first, *rest]] == [*range(20)]

    stage(program, partitions=2)


async def polls_on(consumer: Consumer, for_s: float, pause_s: float) -> tuple[list[Record], int]:
    """What comes, and how many errors; after each the program waits a moment."""
    found: list[Record] = []
    errors = 0
    loop = asyncio.get_running_loop()
    end = loop.time() + for_s
    while loop.time() < end:
        try:
            found += await consumer.poll(1)
        except ClientError:
            errors += 1
            assert errors < 10 * for_s, "it does nothing but ask and fail"
            await asyncio.sleep(pause_s)
    return found, errors


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
@pytest.mark.parametrize("group", [{}, {"group_id": GROUP, "enable_auto_commit": False}])
def test_an_error_that_stays_is_told_now_and_then_and_starves_nobody(
    group: dict[str, Any], pause_s: float
) -> None:
    """Of a partition that does not exist nobody knows where to begin."""

    async def program(on: Stage) -> None:
        async with on.consumer(**group, max_poll_records=2) as consumer:
            await on.produce(*(b"%d" % number for number in range(20)))
            await consumer.assign([P0, TopicPartition("orders", 7)])
            found, errors = await polls_on(consumer, 30, pause_s)
            assert [each.offset for each in found] == [*range(20)]
            assert errors >= 10

    stage(program)


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
def test_a_deleted_topic_is_told_now_and_then_and_starves_nobody(pause_s: float) -> None:
    async def program(on: Stage) -> None:
        await on.client.create("gone", 1)
        await on.produce(b"a")
        await on.client.produce("gone", batch(b"b"))
        async with on.consumer(max_poll_records=2) as consumer:
            await consumer.assign(["orders", "gone"])
            await read(consumer, 2)
            fields = {"topics": [{"name": "gone", "topic_id": None}], "timeout": 1000}
            await on.client.ask(ApiKey.DELETE_TOPICS, 6, fields)
            await on.produce(*(b"%d" % number for number in range(20)))
            found, errors = await polls_on(consumer, 60, pause_s)
            assert [each.offset for each in found] == [*range(1, 21)]
            assert errors >= 10

    stage(program)


def test_a_poll_does_not_look_at_each_partition_that_is_read() -> None:
    async def program(on: Stage) -> None:
        async with on.consumer() as consumer:
            await consumer.assign(["orders"])
            positions = consumer._work.positions
            assert len(positions._unplaced) == 50
            async with asyncio.timeout(10):
                await positions.placed(positions.assigned)
            assert not positions._unplaced, "what is looked at in each poll"

    stage(program, partitions=50)


def test_a_deleted_topic_does_not_hold_up_a_rebalance() -> None:
    async def program(on: Stage) -> None:
        await on.client.create("gone", 1)
        await on.produce(b"a", b"b")
        async with on.member(**FAST) as one, on.member(**FAST) as other:
            one.subscribe(["orders", "gone"])
            assert len(await read(one, 2)) == len(one.assignment) - 1
            await on.client.ask(
                ApiKey.DELETE_TOPICS,
                6,
                {
                    "topics": [{"name": "gone", "topic_id": None}],
                    "timeout": 1000,
                },
            )

            async def poll_on() -> None:
                while True:
                    with suppress(ClientError):  # that there is no such topic
                        await one.poll(0.1)

            polling = asyncio.get_running_loop().create_task(poll_on())
            other.subscribe(["orders"])
            try:
                async with asyncio.timeout(5):
                    await hold(other, 1)
            finally:
                polling.cancel()
            assert (await other.committed([P0]))[P0].offset == 2

    stage(program, partitions=2)


class Calls(RebalanceListener):
    """Does something when it hears of partitions."""

    def __init__(self, word: str, what: Any) -> None:
        self.word, self.what = word, what
        self.times = 0

    async def _hear(self, word: str) -> None:
        if word == self.word:
            self.times += 1
            await self.what()

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await self._hear("assigned")

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._hear("revoked")


def test_a_listener_may_unsubscribe() -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a")
        async with on.member(**FAST) as consumer, on.member(**FAST) as other:
            listener = Calls("assigned", consumer.unsubscribe)
            consumer.subscribe(["orders"], listener)
            async with asyncio.timeout(10):
                assert await consumer.poll(5) == []
            assert (consumer.subscription, consumer.assignment) == (None, frozenset())
            other.subscribe(["orders"])
            async with asyncio.timeout(5):
                await hold(other, 2)
            consumer.subscribe(["orders"])  # and it can come back
            polling = Polling(other)
            await hold(consumer, 1)
            await polling.stop()
        assert listener.times == 1

    stage(program, partitions=2)


def test_a_listener_that_unsubscribes_when_it_gives_up() -> None:
    async def program(on: Stage) -> None:
        async with on.member(**FAST) as consumer:
            consumer.subscribe(["orders"], Calls("revoked", consumer.unsubscribe))
            await hold(consumer, 2)
            consumer.subscribe(["others"], Calls("revoked", consumer.unsubscribe))
            async with asyncio.timeout(10):
                while consumer.subscription is not None:
                    await consumer.poll(1)
            async with asyncio.timeout(10):
                await consumer.unsubscribe()

    stage(program, partitions=2)


@pytest.mark.parametrize("word", ["assigned", "revoked"])
@pytest.mark.parametrize("how", ["poll", "next", "close", "cancelled"])
def test_what_a_listener_must_not_do_is_told(word: str, how: str) -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a")

        async def what() -> None:
            if how == "poll":
                await consumer.poll(1)
            elif how == "next":
                await anext(consumer)
            elif how == "close":
                await consumer.close()
            else:
                raise asyncio.CancelledError

        async with asyncio.timeout(60), on.member(**FAST) as consumer:
            consumer.subscribe(["orders"], Calls(word, what))
            kind = ConsumerError if how == "cancelled" else WrongUse
            if word == "assigned":
                with pytest.raises(kind):
                    await read(consumer, 1)
                assert len(await read(consumer, 1)) == 1
            else:
                await read(consumer, 1)
            if word == "revoked":
                with pytest.raises(kind):
                    await consumer.unsubscribe()
            assert consumer.assignment == (frozenset({P0, P1}) if word == "assigned" else set())

    stage(program, partitions=2)


def quiet_after(on: Stage, tap: RequestTap) -> Any:
    """Whether a host that was closed says nothing any more."""

    async def check() -> None:
        await asyncio.sleep(2)
        before = len(tap.seen)
        await asyncio.sleep(120)
        assert tap.seen[before:] == []
        assert not [
            each
            for each in on.world.net.connections
            if any(end.host.startswith("consumer-cut") for end in each.addresses.values())
        ]

    return check()


@pytest.mark.parametrize("how", ["cancelled", "timed out", "cancelled twice"])
@pytest.mark.parametrize(
    "key", [ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP, ApiKey.HEARTBEAT, None], ids=str
)
def test_a_close_that_is_cut_short_ends_everything(how: str, key: ApiKey | None) -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a")

        async def sleeps() -> None:
            await asyncio.sleep(1_000)

        cut, other = on.member("consumer-cut", **FAST), on.member("other", **FAST)
        await cut.start()
        cut.subscribe(["orders"], Calls("revoked", sleeps) if key is None else Heard())
        await read(cut, 1)

        def judge(request: Request) -> Any:
            return Late(25) if request.key is key else None

        tap = RequestTap(on.world.loop, judge, prefix="consumer-cut")
        on.world.net.tap(tap)
        await asyncio.sleep(0.5)
        if how == "timed out":
            async with asyncio.timeout(2.5):
                await cut.close(timeout_s=2)
        else:
            closing = asyncio.get_running_loop().create_task(cut.close())
            await asyncio.sleep(0.5)
            closing.cancel()
            if how == "cancelled twice":
                await asyncio.sleep(0.2)
                closing.cancel()
            async with asyncio.timeout(2):
                await asyncio.gather(closing, return_exceptions=True)
        await quiet_after(on, tap)
        async with other:
            other.subscribe(["orders"])
            async with asyncio.timeout(1):
                await hold(other, 2)
        await cut.close()  # a second time it does nothing

    stage(program, partitions=2)


def test_who_polls_while_it_is_closed_is_told_at_once() -> None:
    async def program(on: Stage) -> None:
        consumer = on.member(**FAST)
        await consumer.start()
        consumer.subscribe(["orders"])
        await hold(consumer, 2)
        polling = asyncio.get_running_loop().create_task(consumer.poll(1_000))
        await asyncio.sleep(1)
        await asyncio.gather(consumer.close(), consumer.close())
        async with asyncio.timeout(1):
            with pytest.raises(WrongUse):
                await polling

    stage(program, partitions=2)


def test_a_member_with_an_unreadable_subscription_is_given_nothing() -> None:
    async def program(on: Stage) -> None:
        async with on.member(**FAST) as member:
            member.subscribe(["orders"])
            await hold(member, 2)
            stranger = await on.running.client("stranger")
            fields: dict[str, Any] = {
                "group_id": GROUP,
                "session_timeout": 6_000,
                "rebalance_timeout": 60_000,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b"\xff\xff nonsense"}],
            }
            polling = Polling(member)
            joined = await stranger.ask(ApiKey.JOIN_GROUP, 3, fields)
            assert joined["error_code"] == "NONE", joined
            member_id, generation = joined["member_id"], joined["generation_id"]
            synced = await stranger.ask(
                ApiKey.SYNC_GROUP,
                0,
                {
                    "group_id": GROUP,
                    "generation_id": generation,
                    "member_id": member_id,
                    "assignments": [],
                },
            )
            assert synced["error_code"] == "NONE", synced
            await polling.until(lambda: len(member.assignment) == 2)
            await on.produce(b"a")
            await polling.until(lambda: len(polling.received) == 1)
            await polling.stop()

    stage(program, partitions=2)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_what_is_not_subscribed_to_any_more_is_not_handed_out(strategy: str) -> None:
    """Another subscription comes while the member joins."""

    async def program(on: Stage) -> None:
        await on.client.create("others", 2)
        await on.produce(b"a")
        tap = RequestTap(on.world.loop, once(ApiKey.JOIN_GROUP, Late(3), after=1))
        on.world.net.tap(tap)
        async with on.member(partition_assignment_strategy=strategy, **FAST) as member:
            heard = Heard()
            member.subscribe(["orders"], heard)
            polling = Polling(member)
            await asyncio.sleep(1)
            member.subscribe(["others"], heard)
            await polling.until(lambda: len(member.assignment) == 2)
            await asyncio.sleep(5)
            assert {each.topic for each in member.assignment} == {"others"}
            assert polling.received == []
            await polling.stop()

    stage(program, partitions=2)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_static_member_comes_back_with_another_subscription(strategy: str) -> None:
    async def program(on: Stage) -> None:
        await on.client.create("others", 2)
        await on.produce(b"a")
        settings = {**FAST, "partition_assignment_strategy": strategy, "enable_auto_commit": False}
        async with on.member(**settings, group_instance_id="leader") as leader:
            leader.subscribe(["orders", "others"])
            await hold(leader, 4)
            polling = Polling(leader)
            async with on.member(**settings, group_instance_id="i") as member:
                member.subscribe(["orders"])
                before = Polling(member)
                await before.until(lambda: len(member.assignment) > 0)
                await before.stop()
            async with on.member(**settings, group_instance_id="i") as member:
                member.subscribe(["others"])
                of_member = Polling(member)
                await of_member.until(lambda: len(member.assignment) > 0)
                await asyncio.sleep(5)
                assert {each.topic for each in member.assignment} == {"others"}
                assert of_member.received == []
                await of_member.stop()
            await polling.stop()

    stage(program, partitions=2)


class _Watched(deque[Any]):
    """Counts how often somebody goes through it."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()


def test_a_full_queue_is_gone_through_only_for_what_was_paused() -> None:
    core = FetchCore(
        read_committed=True, most_queued_bytes=10, retry=RetryPolicy(), rand=RealRand()
    )
    core.add({P0: 0, P1: 0})
    queue = core._queue = _Watched()
    for partition in (P0, P1):
        core._push(Chunk(partition, core.reading(partition).turn, [], 0, 5, 10))
    core.make_room()
    assert queue.walks == 0
    core.pause(P0)
    core.make_room()
    assert [each.partition for each in core._queue] == [P1]


@pytest.mark.parametrize("offset", [None, 99])
def test_nowhere_to_begin_is_told_now_and_then(offset: int | None) -> None:
    """`auto.offset.reset=none`, to a program that polls on at once."""

    async def program(on: Stage) -> None:
        await on.produce(b"0")
        async with on.member(auto_offset_reset="none", enable_auto_commit=False) as consumer:
            if offset is not None:
                await consumer.commit({P0: offset})
            await consumer.assign([P0])
            found, errors = await polls_on(consumer, 10, 0.0)
            assert not found
            assert 5 <= errors <= 50

    stage(program)
