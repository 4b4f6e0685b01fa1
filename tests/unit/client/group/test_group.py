"""Members of a group on a simulated network: what they hear, and what happens to those who are cut
off, slow, cancelled or badly served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.errors.consumer import CommitFailed
from onceflow.types import TopicPartition
from tests.unit.client.consumer.simulated_consumers import Heard, Polling, Stage, hold, read, stage
from tests.unit.client.consumer.simulated_readers import P0

ALL = [0, 1, 2, 3]


def test_one_member_has_all_and_gives_it_up_at_the_end() -> None:
    async def program(on: Stage) -> None:
        heard = Heard()
        async with on.member() as member:
            member.subscribe(["orders"], heard)
            assert member.assignment == frozenset()
            await hold(member, 4)
            assert member.subscription is not None
            assert member.subscription.topics == {"orders"}
            metadata = member.group_metadata()
            assert (metadata.generation, metadata.instance_id) == (1, None)
        assert heard.words == [("assigned", ALL), ("revoked", ALL)]

    stage(program, partitions=4)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_share_and_commit_before_partitions_go(strategy: str) -> None:
    async def program(on: Stage) -> None:
        for partition in ALL:
            await on.produce(b"a", b"b", partition=partition)
        settings: dict[str, Any] = {
            "partition_assignment_strategy": strategy,
            "heartbeat_interval_ms": 500,
        }
        one, other = on.member(**settings), on.member(**settings)
        async with one, other:
            heard = Heard()
            one.subscribe(["orders"], heard)
            await read(one, 8)
            other.subscribe(["orders"])
            polling = Polling(one)
            await hold(other, 2)
            await polling.until(lambda: len(one.assignment) == 2)
            # What changed hands was committed by itself: nothing is read twice.
            assert await other.poll(2) == []
            assert polling.received == []
            assert not one.assignment & other.assignment
            await polling.stop()
            words = [each for each in heard.words if each[1]]
            if strategy == "cooperative-sticky":
                assert [word for word, _ in words] == ["assigned", "revoked"]
                assert len(words[1][1]) == 2
            else:
                assert [word for word, _ in words] == ["assigned", "revoked", "assigned"]
                assert words[1] == ("revoked", ALL)

    stage(program, partitions=4)


def test_cooperative_members_read_on_while_others_join() -> None:
    async def program(on: Stage) -> None:
        settings: dict[str, Any] = {
            "partition_assignment_strategy": "cooperative-sticky",
            "heartbeat_interval_ms": 500,
        }
        one, slow = on.member(**settings), on.member("slow", **settings)
        async with one, slow:
            heard = Heard()
            one.subscribe(["orders"], heard)
            await hold(one, 4)
            slow.subscribe(["orders"])
            joining = Polling(slow)
            await asyncio.sleep(0.2)
            # The group waits for `one`, which is asked at its next heartbeat, and reads meanwhile.
            await on.produce(b"a")
            assert [each.value for each in await read(one, 1)] == [b"a"]
            await hold(one, 2)
            await joining.until(lambda: len(slow.assignment) == 2)
            await joining.stop()

    stage(program, partitions=4)


def test_a_member_that_is_cut_off_has_lost_what_it_had() -> None:
    async def program(on: Stage) -> None:
        settings: dict[str, Any] = {"session_timeout_ms": 6_000, "request_timeout_ms": 2_000}
        cut, other = on.member("cut", **settings), on.member(**settings)
        async with cut, other:
            heard = Heard()
            cut.subscribe(["orders"], heard)
            await on.produce(b"a", b"b")
            assert len(await read(cut, 2)) == 2
            on.world.net.partition("cut", "broker")
            other.subscribe(["orders"])
            # It has committed nothing: the other one begins at the beginning.
            assert [each.value for each in await read(other, 2)] == [b"a", b"b"]
            on.world.net.heal()
            with pytest.raises(CommitFailed):
                await cut.commit()
            polling = Polling(other)
            while len(heard.words) < 3:  # and it comes back, with or without a partition
                await cut.poll(0.1)
            await polling.stop()
            assert heard.words[:2] == [("assigned", [0]), ("lost", [0])]
            assert heard.words[2][0] == "assigned"

    stage(program)


def test_who_does_not_poll_leaves_and_long_polls_are_polls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a", b"b")
        async with on.member(max_poll_interval_ms=2_000, enable_auto_commit=False) as member:
            heard = Heard()
            member.subscribe(["orders"], heard)
            assert len(await read(member, 2)) == 2
            assert await member.poll(30) == []
            await member.commit({P0: 1})
            assert heard.words == [("assigned", [0])]
            await asyncio.sleep(3)
            with pytest.raises(CommitFailed, match=r"max\.poll\.interval\.ms = 2000"):
                await member.commit({P0: 2})
            with pytest.raises(CommitFailed):
                member.group_metadata()
            # The next poll joins again, and goes on from what was committed.
            assert [each.value for each in await read(member, 1)] == [b"b"]
            assert heard.words == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]

    with caplog.at_level(logging.WARNING, logger="onceflow"):
        stage(program)
    assert "leaving group 'shop': the consumer has not polled" in caplog.text


def test_records_taken_one_by_one_are_polls_too() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*(b"%d" % number for number in range(10)))
        async with on.member(max_poll_interval_ms=2_000) as member:
            heard = Heard()
            member.subscribe(["orders"], heard)
            async for record in member:
                await asyncio.sleep(1.5)
                if record.offset == 9:
                    break
            assert heard.words == [("assigned", [0])]

    stage(program)


def test_a_loop_hands_out_nothing_of_what_it_was_told_to_give_up() -> None:
    async def program(on: Stage) -> None:
        for partition in (0, 1):
            await on.produce(*(b"%d" % number for number in range(50)), partition=partition)
        settings: dict[str, Any] = {
            "heartbeat_interval_ms": 200,
            "partition_assignment_strategy": "range",
        }
        one, other = on.member(**settings), on.member(**settings)
        async with one, other:
            one.subscribe(["orders"])
            seen = [await anext(one) for _ in range(10)]
            other.subscribe(["orders"])
            polling = Polling(other)
            while len(one.assignment) != 1:
                # Not the rest of what was fetched: the group comes first.
                seen.append(await anext(one))
                await asyncio.sleep(0.1)
            while len(seen) + len(polling.received) < 100:
                seen.append(await anext(one))
            places = [(each.partition, each.offset) for each in (*seen, *polling.received)]
            assert len(set(places)) == len(places) == 100
            await polling.stop()

    stage(program, partitions=2)


@pytest.mark.parametrize("how", ["poll", "poll_by_partition", "one by one"])
def test_what_a_loop_has_left_is_not_handed_out_when_it_belongs_to_another(how: str) -> None:
    """The member has taken one record, and slept too long."""

    async def program(on: Stage) -> None:
        heard = Heard()
        await on.produce(*(b"%d" % number for number in range(5)))
        settings: dict[str, Any] = {"heartbeat_interval_ms": 500, "enable_auto_commit": False}
        async with (
            on.member(max_poll_interval_ms=10_000, **settings) as one,
            on.member(**settings) as other,
        ):
            one.subscribe(["orders"], heard)
            assert (await anext(one)).offset == 0
            await asyncio.sleep(15)
            other.subscribe(["orders"])
            assert len(await read(other, 5)) == 5
            await other.commit()
            polling = Polling(other)
            found: Any = []
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    if how == "one by one":
                        found = [await anext(one)]
                    else:
                        found = await getattr(one, how)(1)
            assert not found
            assert heard.words[:2] == [("assigned", [0]), ("lost", [0])]
            await polling.stop()

    stage(program)


def test_what_a_listener_raises_is_raised_by_poll_and_does_no_harm() -> None:
    class Clumsy(Heard):
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            await super().on_partitions_assigned(partitions)
            raise ArithmeticError("assigned")

    async def program(on: Stage) -> None:
        await on.produce(b"a")
        async with on.member() as member:
            member.subscribe(["orders"], Clumsy())
            with pytest.raises(ArithmeticError):
                await member.poll(5)
            assert len(await read(member, 1)) == 1

    stage(program)


def test_a_listener_may_seek_and_commit() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*(b"%d" % number for number in range(10)))
        member = on.member(enable_auto_commit=False)

        class Careful(Heard):
            async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
                for each in partitions:
                    await member.seek(each, 7)

            async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
                await member.commit()

        async with member:
            member.subscribe(["orders"], Careful())
            assert [each.offset for each in await read(member, 3)] == [7, 8, 9]
        async with on.member() as other:
            assert (await other.committed([P0]))[P0].offset == 10

    stage(program)


def test_a_poll_that_is_cancelled_leaves_nothing_half_done() -> None:
    class Slow(Heard):
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            await asyncio.sleep(1)
            await super().on_partitions_assigned(partitions)

    async def program(on: Stage) -> None:
        await on.produce(b"a")
        async with on.member() as member:
            heard = Slow()
            member.subscribe(["orders"], heard)
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await member.poll(5)
            assert len(await read(member, 1)) == 1
            assert heard.words == [("assigned", [0])]

    stage(program)


def test_a_member_can_be_closed_while_it_waits_for_the_others() -> None:
    async def program(on: Stage) -> None:
        async with on.member(heartbeat_interval_ms=9_000) as one, on.member() as other:
            one.subscribe(["orders"])
            await hold(one, 1)
            other.subscribe(["orders"])
            assert await other.poll(0.5) == []
            await other.close()
            # Its place is free again, and the group does not wait for it.
            await hold(one, 1)
            assert await one.poll(20) == []
            assert len(one.assignment) == 1

    stage(program)


def test_static_members_come_back_without_anybody_noticing() -> None:
    async def program(on: Stage) -> None:
        one = on.member(group_instance_id="one", heartbeat_interval_ms=500)
        async with one:
            heard = Heard()
            one.subscribe(["orders"], heard)
            async with on.member(group_instance_id="two") as two:
                two.subscribe(["orders"])
                polling = Polling(one)
                await hold(two, 2)
                held = two.assignment
            words = list(heard.words)
            async with on.member(group_instance_id="two") as two:
                two.subscribe(["orders"])
                await hold(two, 2)
                assert two.assignment == held
                assert heard.words == words
            await polling.stop()

    stage(program, partitions=4)


def test_a_new_subscription_takes_the_place_of_the_old_one() -> None:
    async def program(on: Stage) -> None:
        await on.client.create("payments", 2)
        async with on.member(partition_assignment_strategy="cooperative-sticky") as member:
            member.subscribe(["orders"])
            await hold(member, 1)
            member.subscribe(["orders", "payments"])
            await hold(member, 3)
            member.subscribe(["payments"])
            await hold(member, 2)
            member.subscribe(pattern="pay.*|ord.*")
            await hold(member, 3)

    stage(program)


def test_a_topic_that_comes_later_is_taken_up_soon() -> None:
    async def program(on: Stage) -> None:
        async with on.member(allow_auto_create_topics=False) as member:
            member.subscribe(["orders", "later"])
            await hold(member, 1)
            await on.client.create("later", 2)
            async with asyncio.timeout(5):  # of virtual time, and not metadata.max.age.ms
                await hold(member, 3)

    stage(program)


def test_the_broker_goes_away_and_comes_back() -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a")
        async with on.member("steady", request_timeout_ms=2_000) as member:
            heard = Heard()
            member.subscribe(["orders"], heard)
            assert len(await read(member, 1)) == 1
            for connection in on.world.net.connections:
                connection.reset()
            on.client = await on.running.client()
            await on.produce(b"b")
            assert [each.value for each in await read(member, 1)] == [b"b"]
            await member.commit()
            assert heard.words == [("assigned", [0])]

    stage(program)
