"""A consumer by itself: what it hands out, where it is, what it commits, how far it is behind, and
what it is not to be used for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from onceflow.client.codec.transactions import GroupMember, OffsetToCommit
from onceflow.client.consumer.lag import PartitionLag
from onceflow.client.errors.consumer import (
    CommitFailed,
    ConsumerClosed,
    NoPosition,
    NotAssigned,
    WrongUse,
)
from onceflow.client.errors.requests import BrokerError, TopicNotFound
from onceflow.errors import InvalidSetting
from onceflow.types import TopicPartition
from tests.unit.broker.txn.transactional_requests import ended, ready, wrote
from tests.unit.client.consumer.simulated_consumers import GROUP, Stage, hold, read, stage
from tests.unit.client.consumer.simulated_readers import P0, P1

VALUES = [b"%d" % number for number in range(10)]


def test_records_one_by_one_and_a_position_that_follows() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.consumer() as consumer:
            await consumer.assign([P0])
            taken = []
            async for record in consumer:
                taken.append(record.value)
                assert await consumer.position(P0) == record.offset + 1
                if record.offset == 3:
                    break
            assert taken == VALUES[:4]
            # Somebody else goes on where the loop was left.
            assert [each.offset for each in await consumer.poll(1, max_records=2)] == [4, 5]
            table = await consumer.poll_table(1)
            assert table is not None
            assert table.column("offset").to_pylist() == [6, 7, 8, 9]
            assert await consumer.poll_table(1) is None

    stage(program)


@pytest.mark.parametrize("how", ["seek", "pause", "assign"])
def test_what_was_fetched_for_a_loop_is_given_back(how: str) -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        await on.produce(*VALUES, partition=1)
        async with on.consumer() as consumer:
            await consumer.assign(["orders"])
            first = await anext(consumer)
            place = TopicPartition(first.topic, first.partition)
            other = P1 if place == P0 else P0
            if how == "seek":
                await consumer.seek(place, 8)
                found = [(each.partition, each.offset) for each in await read(consumer, 12)]
                mine = [offset for number, offset in found if number == place.partition]
                assert mine == [8, 9]
                assert len(found) == 12
            elif how == "pause":
                consumer.pause([place])
                assert consumer.paused == {place}
                found = [(each.partition, each.offset) for each in await read(consumer, 10)]
                assert {number for number, _ in found} == {other.partition}
                consumer.resume([place])
                assert [each.offset for each in await read(consumer, 9)] == list(range(1, 10))
            else:
                await consumer.assign([place])
                assert [each.offset for each in await read(consumer, 9)] == list(range(1, 10))
                assert consumer.assignment == {place}

    stage(program, partitions=2)


def test_by_partition() -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a", b"b")
        await on.produce(b"c", partition=1)
        async with on.consumer() as consumer:
            await consumer.assign(["orders"])
            found: dict[TopicPartition, list[Any]] = {}
            while sum(map(len, found.values())) < 3:
                for place, records in (await consumer.poll_by_partition(1)).items():
                    found.setdefault(place, []).extend(each.value for each in records)
            assert found == {P0: [b"a", b"b"], P1: [b"c"]}

    stage(program, partitions=2)


def test_pausing_before_it_is_known_where_to_read() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.consumer() as consumer:
            await consumer.assign([P0])
            consumer.pause([P0])
            assert await consumer.poll(2) == []
            assert await consumer.position(P0) == 0
            consumer.resume([P0])
            assert len(await read(consumer, 10)) == 10

    stage(program)


def test_seeking_before_it_is_known_where_to_read() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.consumer(auto_offset_reset="none") as consumer:
            await consumer.assign([P0])
            await consumer.seek(P0, 9)
            assert [each.offset for each in await read(consumer, 1)] == [9]

    stage(program)


def test_without_a_position_it_is_said_again_and_again() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.consumer(auto_offset_reset="none") as consumer:
            await consumer.assign([P0])
            for _ in range(2):
                with pytest.raises(NoPosition):
                    await consumer.poll(5)
            with pytest.raises(NoPosition):
                await consumer.position(P0)
            await consumer.seek_to_end()
            assert await consumer.position(P0) == 10
            await on.produce(b"new")
            assert [each.value for each in await read(consumer, 1)] == [b"new"]

    stage(program)


def test_rewinding_to_what_was_committed_or_to_the_beginning_of_reading() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.member(auto_offset_reset="latest", enable_auto_commit=False) as consumer:
            await consumer.assign([P0])
            assert await consumer.position(P0) == 10
            await on.produce(b"a", b"b", b"c")
            assert len(await read(consumer, 3)) == 3
            await consumer.rewind()  # and not to the end, where it would begin today
            assert await consumer.position(P0) == 10
            assert [each.value for each in await read(consumer, 3)] == [b"a", b"b", b"c"]
            await consumer.commit({P0: OffsetToCommit(12, "two of three")})
            await consumer.rewind([P0])
            assert [each.value for each in await read(consumer, 1)] == [b"c"]
            assert await consumer.committed() == {P0: OffsetToCommit(12, "two of three")}
            assert consumer.group_metadata() == GroupMember(GROUP)

    stage(program)


def test_commits_by_itself_what_was_handed_out_before_the_last_poll() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.member(auto_commit_interval_ms=1000, max_poll_records=4) as consumer:
            await consumer.assign([P0])
            await read(consumer, 4)
            await asyncio.sleep(2)
            assert await consumer.committed() == {}
            await consumer.poll(0)  # asks for more: done with the first four
            await asyncio.sleep(0.1)
            assert (await consumer.committed())[P0].offset == 4
        async with on.member(enable_auto_commit=False) as consumer:
            # Closing in an orderly way has committed the rest.
            await consumer.assign([P0])
            assert await consumer.position(P0) == 8

    stage(program)


def test_leaving_by_an_exception_commits_nothing() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)

        async def work() -> None:
            async with on.member() as consumer:
                await consumer.assign([P0])
                async for record in consumer:
                    raise LookupError(record)

        with pytest.raises(LookupError):
            await work()
        async with on.member() as consumer:
            assert await consumer.committed([P0]) == {}

    stage(program)


def test_at_most_once_commits_before_it_hands_out() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.member(delivery="at-most-once", max_poll_records=4) as consumer:
            await consumer.assign([P0])
            assert len(await read(consumer, 4)) == 4
            assert (await consumer.committed())[P0].offset == 4
            await anext(consumer)
            assert (await consumer.committed())[P0].offset == 8

    stage(program)


def test_what_cannot_be_committed_first_is_not_handed_out() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.member(delivery="at-most-once") as consumer:
            await consumer.assign([P0])
            async with on.member() as member:
                member.subscribe(["orders"])
                await hold(member, 1)
                with pytest.raises(CommitFailed, match="only they may commit"):
                    await consumer.poll(5)
                await member.close(commit=False)
            assert len(await read(consumer, 10)) == 10
            assert (await consumer.committed())[P0].offset == 10

    stage(program)


def test_a_commit_that_goes_wrong_in_the_background_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.member(auto_commit_interval_ms=0) as member, on.member() as by_hand:
            member.subscribe(["orders"])
            await hold(member, 1)
            await by_hand.assign([P0])
            await by_hand.poll(0)
            await by_hand.position(P0)

    with caplog.at_level(logging.WARNING, logger="onceflow"):
        stage(program)
    assert "positions of group 'shop' were not committed: group 'shop' has members" in caplog.text


# --- lag -----------------------------------------------------------------------------------------


def test_lag_counts_records_and_neither_markers_nor_what_was_aborted() -> None:
    async def program(on: Stage) -> None:
        who = await ready(on.client, "t")
        await wrote(on.client, who, "orders", b"aborted", b"aborted")
        who = await ended(on.client, who, commit=False)
        await wrote(on.client, who, "orders", b"a", b"b")
        who = await ended(on.client, who, commit=True)
        async with on.consumer(max_poll_records=1) as consumer:
            await consumer.assign([P0])
            consumer.pause([P0])
            # Nothing was fetched: six offsets, of which two are records.
            assert await consumer.lag() == {P0: PartitionLag(6, False, 0)}
            assert await consumer.lag(exact=True) == {P0: PartitionLag(2, True, 0)}
            consumer.resume([P0])
            assert [each.value for each in await consumer.poll(1)] == [b"a"]
            assert await consumer.lag([P0]) == {P0: PartitionLag(1, True, 0)}
            await read(consumer, 1)
            assert await consumer.lag() == {P0: PartitionLag(0, True, 0)}
            # An open transaction holds back what was written since, too.
            await wrote(on.client, who, "orders", b"open", b"open")
            await on.produce(b"behind")
            assert await consumer.poll(1) == []
            assert await consumer.lag() == {P0: PartitionLag(0, True, 3)}
        async with on.consumer(isolation_level="read_uncommitted") as consumer:
            await consumer.assign([P0])
            assert len(await read(consumer, 7)) == 7
            assert await consumer.lag() == {P0: PartitionLag(0, True, 0)}

    stage(program)


def test_lag_counts_what_a_loop_has_not_taken_and_begins_in_the_middle_of_a_batch() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.consumer() as consumer:
            await consumer.assign([P0])
            await consumer.seek(P0, 3)
            await anext(consumer)
            assert await consumer.lag() == {P0: PartitionLag(6, True, 0)}
            await consumer.seek(P0, 7)
            consumer.pause([P0])
            await consumer.poll(2)
            assert (await consumer.lag(exact=True))[P0] == PartitionLag(3, True, 0)

    stage(program)


# --- what it is not for --------------------------------------------------------------------------


def test_wrong_use_is_told() -> None:
    async def program(on: Stage) -> None:
        closed = on.member()
        with pytest.raises(ConsumerClosed):
            closed.subscribe(["orders"])
        with pytest.raises(ConsumerClosed):
            await closed.poll(0)
        async with on.consumer() as consumer:
            with pytest.raises(WrongUse, match=r"set group\.id"):
                consumer.subscribe(["orders"])
            with pytest.raises(WrongUse, match=r"set group\.id"):
                await consumer.commit({P0: 1})
            with pytest.raises(WrongUse, match=r"set group\.id"):
                consumer.group_metadata()
            with pytest.raises(TopicNotFound):
                await consumer.assign(["order"])
            with pytest.raises(WrongUse, match="give a list"):
                await consumer.assign("orders")
            with pytest.raises(NotAssigned):
                await consumer.seek(P0, 1)
            with pytest.raises(NotAssigned):
                consumer.pause([P0])
            await consumer.assign([P0])
            with pytest.raises(InvalidSetting):
                await consumer.seek(P0, -5)
            polling = asyncio.create_task(consumer.poll(5))
            await asyncio.sleep(0.1)
            with pytest.raises(WrongUse, match="another task"):
                await consumer.poll(0)
            await polling
        async with on.member() as member:
            with pytest.raises(WrongUse, match="topics, or to a pattern"):
                member.subscribe()
            with pytest.raises(WrongUse, match="give a list"):
                member.subscribe("orders")
            with pytest.raises(WrongUse, match="topics, or to a pattern"):
                member.subscribe(["orders"], pattern="o.*")
            await member.assign([P0])
            with pytest.raises(WrongUse, match="unsubscribe"):
                member.subscribe(["orders"])
            await member.unsubscribe()
            member.subscribe(["orders"])
            with pytest.raises(WrongUse, match="unsubscribe"):
                await member.assign([P0])
        await member.close()

    stage(program)


def test_a_partition_that_does_not_exist_is_told_by_poll() -> None:
    async def program(on: Stage) -> None:
        async with on.consumer(default_api_timeout_ms=1000) as consumer:
            await consumer.assign([TopicPartition("orders", 7)])
            with pytest.raises(Exception, match="no partition 7"):
                await consumer.poll(30)

    stage(program)


def test_offsets_that_are_too_long_a_story_are_refused() -> None:
    async def program(on: Stage) -> None:
        async with on.member() as consumer:
            await consumer.assign([P0])
            with pytest.raises(BrokerError, match="longer than the broker allows"):
                await consumer.commit({P0: OffsetToCommit(1, "x" * 5000)})

    stage(program)


@pytest.mark.parametrize("how", ["rewind", "pause", "poll_table", "assign"])
def test_taking_records_one_by_one_does_not_move_where_reading_began(how: str) -> None:
    async def program(on: Stage) -> None:
        await on.produce(*(b"%d" % number for number in range(20)))
        async with on.member(enable_auto_commit=False) as consumer:
            await consumer.assign([P0])
            async for record in consumer:
                if record.offset == 9:
                    break
            if how == "pause":
                consumer.pause([P0])
                consumer.resume([P0])
            elif how == "poll_table":
                table = await consumer.poll_table(1)
                assert table is not None
                assert table.num_rows == 10
            elif how == "assign":
                await consumer.assign([P0, P1])
            await consumer.rewind([P0])
            assert await consumer.position(P0) == 0

    stage(program, partitions=2)
