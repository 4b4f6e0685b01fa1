"""Records in and out, frame by frame: offsets, long polls, limits, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from onceflow.broker.topics.topics import HostedTopic
from onceflow.log.partition_log import PartitionLog, Span
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    RawClient,
    Running,
    batch,
    fetch_fields,
    fetched,
    play,
    produce_fields,
    produced,
    simulated_broker,
    values_in,
)
from tests.unit.broker.held_journal import HeldJournal

LONG = 60_000


def play_held(script: Callable[[HeldJournal, Running, RawClient], Awaitable[None]]) -> None:
    """Runs a script that decides when the journal is written."""

    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            await script(held, running, await running.client())
            held.release()

    simulate(7, main)


def topic_of(running: Running, name: str) -> HostedTopic:
    return running.server.node.topics.by_name[name]


# --- offsets -------------------------------------------------------------------------------------


def test_records_come_back_as_they_were_sent_with_the_offsets_that_were_answered() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        first, second = batch(b"a", b"b"), batch(b"c")
        answers = [
            await client.produce("orders", first),
            await client.produce("orders", second, acks=1),
            await client.produce("orders", first, partition=1),
        ]
        assert [each["base_offset"] for each in answers] == [0, 2, 0]
        assert all(each["log_start_offset"] == 0 for each in answers)
        answer = await client.fetch("orders", 0)
        assert values_in(answer["records"]) == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert (answer["high_watermark"], answer["last_stable_offset"]) == (3, 3)
        sent = first[17:] + second[17:]
        got = answer["records"]
        assert got[17 : len(first)] + got[len(first) + 17 :] == sent, "all from the CRC on"
        middle = await client.fetch("orders", 1)
        assert values_in(middle["records"])[0] == (0, b"a"), "whole batches"
        assert values_in((await client.fetch("orders", 2))["records"]) == [(2, b"c")]
        assert (await client.fetch("orders", 3))["records"] == b""

    play(script)


def test_one_partition_that_is_refused_does_not_touch_the_others() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        parts = [
            {"index": 0, "records": batch(b"good")},
            {"index": 1, "records": batch(b"bad")[:-1]},
            {"index": 7, "records": batch(b"lost")},
            {"index": 2, "records": None},
        ]
        topics = [
            {"name": "orders", "partition_data": parts},
            {"name": "absent", "partition_data": parts[:1]},
        ]
        fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
        answer = await client.ask(ApiKey.PRODUCE, 9, fields)
        codes = [
            [each["error_code"] for each in topic["partition_responses"]]
            for topic in answer["responses"]
        ]
        unknown = "UNKNOWN_TOPIC_OR_PARTITION"
        assert codes == [["NONE", "INVALID_RECORD", unknown, "INVALID_RECORD"], [unknown]]
        assert values_in((await client.fetch("orders", 0))["records"]) == [(0, b"good")]
        assert topic_of(running, "orders").partitions[1].log.end_offset == 0

    play(script)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_that_do_not_exist_are_refused(acks: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        answer = await client.produce("orders", batch(b"a"), acks=acks)
        assert answer["error_code"] == "INVALID_REQUIRED_ACKS"
        assert topic_of(running, "orders").partitions[0].log.end_offset == 0

    play(script)


def test_topics_by_id() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        topic_id = await client.create("orders")
        for each, code in ((topic_id, "NONE"), (UUID(int=5), "UNKNOWN_TOPIC_ID")):
            part = {"index": 0, "records": batch(b"by id")}
            topics = [{"topic_id": each, "partition_data": [part]}]
            fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
            assert produced(await client.ask(ApiKey.PRODUCE, 13, fields))["error_code"] == code
            answer = await client.ask(ApiKey.FETCH, 16, fetch_fields(each, 0))
            assert fetched(answer)["error_code"] == code
        by_name = values_in((await client.fetch("orders", 0))["records"])
        assert by_name == [(0, b"by id")]
        bad_partition = await client.ask(
            ApiKey.FETCH, 16, fetch_fields(topic_id, 0, partitions=[3])
        )
        assert fetched(bad_partition)["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"

    play(script)


# --- durability ----------------------------------------------------------------------------------


def test_nothing_is_answered_or_shown_before_it_is_durable() -> None:
    async def script(held: HeldJournal, running: Running, client: RawClient) -> None:
        await client.create("orders")
        reader, waiting = await running.client(), await running.client()
        log = topic_of(running, "orders").partitions[0].log
        held.is_holding = True
        waiting.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=LONG, min_bytes=1))
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"a", b"b")))
        await asyncio.sleep(5)
        assert (log.end_offset, log.high_watermark) == (2, 0), "it is in the log's file already"
        early = await reader.fetch("orders", 0)
        assert (early["records"], early["high_watermark"]) == (b"", 0)
        assert (await reader.fetch("orders", 2))["records"] == b"", "the end is no error"
        assert (await reader.list_offset("orders", -1))["offset"] == 0
        assert (await reader.list_offset("orders", 0))["offset"] == -1
        assert (await reader.list_offset("orders", -3))["offset"] == -1
        late = await running.client()  # comes when the record is on its way already
        late.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=LONG, min_bytes=1))
        await asyncio.sleep(5)
        assert not client.frames
        assert not waiting.frames
        assert not late.frames
        before = asyncio.get_running_loop().time()
        held.release()
        assert produced(await client.receive(ApiKey.PRODUCE, 9))["base_offset"] == 0
        for each in (waiting, late):
            answer = fetched(await each.receive(ApiKey.FETCH, 12))
            assert values_in(answer["records"]) == [(0, b"a"), (1, b"b")]
        assert asyncio.get_running_loop().time() - before < 1
        assert (await reader.list_offset("orders", -1))["offset"] == 2

    play_held(script)


def test_creating_a_topic_is_answered_when_that_is_durable() -> None:
    async def script(held: HeldJournal, running: Running, client: RawClient) -> None:
        held.is_holding = True
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
        fields = {"topics": [{**topic, "assignments": [], "configs": []}], "timeout": 1000}
        client.send(ApiKey.CREATE_TOPICS, 7, fields)
        await asyncio.sleep(5)
        assert not client.frames
        held.release()
        answer = await client.receive(ApiKey.CREATE_TOPICS, 7)
        assert answer["topics"][0]["error_code"] == "NONE"

    play_held(script)


# --- long polls ----------------------------------------------------------------------------------


def test_a_fetch_waits_for_its_bytes_and_no_longer_than_it_said() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        reader = await running.client()
        size = len(batch(b"a"))
        started = world.clock.monotonic()
        empty = await reader.fetch("orders", 0, max_wait=3000, min_bytes=1)
        assert empty["records"] == b""
        assert 3.0 <= world.clock.monotonic() - started < 3.1
        reader.send(
            ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=LONG, min_bytes=2 * size + 1)
        )
        for count in range(1, 4):
            await client.produce("orders", batch(b"a"))
            await asyncio.sleep(1)
            assert bool(reader.frames) == (count == 3), "after the third there is enough"
        assert len(fetched(await reader.receive(ApiKey.FETCH, 12))["records"]) == 3 * size
        started = world.clock.monotonic()
        some = await reader.fetch("orders", 0, max_wait=2000, min_bytes=1 << 20)
        assert len(some["records"]) == 3 * size, "what there is, when the time is up"
        assert 2.0 <= world.clock.monotonic() - started < 2.1

    play(script)


def test_a_fetch_of_many_partitions_is_woken_by_any() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 5)
        reader = await running.client()
        fields = fetch_fields("orders", 0, partitions=range(5), max_wait=LONG, min_bytes=1)
        reader.send(ApiKey.FETCH, 12, fields)
        await asyncio.sleep(1)
        await client.produce("orders", batch(b"here"), partition=3)
        answer = await reader.receive(ApiKey.FETCH, 12)
        found = [bool(each["records"]) for each in answer["responses"][0]["partitions"]]
        assert found == [False, False, False, True, False]
        assert not any(each._waiting for each in topic_of(running, "orders").partitions)

    play(script)


def test_an_append_costs_a_fetch_that_waits_a_look_at_one_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[int] = []
    read = PartitionLog.read

    def counted(self: PartitionLog, offset: int, *more: Any, **named: Any) -> Span:
        reads.append(self.log_id.partition)
        return read(self, offset, *more, **named)

    monkeypatch.setattr(PartitionLog, "read", counted)

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 50)
        reader = await running.client()
        size = len(batch(b"a"))
        fields = fetch_fields("orders", 0, partitions=range(50), max_wait=LONG, min_bytes=12 * size)
        reader.send(ApiKey.FETCH, 12, fields)
        await asyncio.sleep(1)
        reads.clear()
        for _ in range(10):
            await client.produce("orders", batch(b"a"), partition=3)
        await client.produce("orders", batch(b"a"), partition=7)
        await asyncio.sleep(1)
        assert reads == [3] * 10 + [7], "and not all of them"
        assert not reader.frames
        await client.produce("orders", batch(b"a"), partition=9)
        answer = await reader.receive(ApiKey.FETCH, 12)
        found = [len(each["records"]) // size for each in answer["responses"][0]["partitions"]]
        assert {index: number for index, number in enumerate(found) if number} == {
            3: 10,
            7: 1,
            9: 1,
        }

    play(script)


def test_appends_of_one_group_of_the_journal_wake_a_fetch_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[int] = []
    read = PartitionLog.read

    def counted(self: PartitionLog, offset: int, *more: Any, **named: Any) -> Span:
        reads.append(self.log_id.partition)
        return read(self, offset, *more, **named)

    async def script(held: HeldJournal, running: Running, client: RawClient) -> None:
        await client.create("orders")
        reader = await running.client()
        fields = fetch_fields("orders", 0, max_wait=LONG, min_bytes=1 << 20)
        reader.send(ApiKey.FETCH, 12, fields)
        await asyncio.sleep(1)
        held.is_holding = True
        for _ in range(20):
            client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"a")))
        await asyncio.sleep(1)
        monkeypatch.setattr(PartitionLog, "read", counted)
        held.release()
        for _ in range(20):
            await client.receive(ApiKey.PRODUCE, 9)
        assert len(reads) <= 2, "two groups: what was being written, and what gathered meanwhile"

    play_held(script)


def test_what_is_named_twice_is_fetched_once_as_it_was_named_last() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        await client.create("others")
        for _ in range(2):
            await client.produce("orders", batch(b"a"))
        await client.produce("others", batch(b"b"))
        one, two = (fetch_fields("orders", at, partitions=[0, 1, 0]) for at in (0, 1))
        others = fetch_fields("others", 0, partitions=[0, 0])
        topics = [one["topics"][0], others["topics"][0], two["topics"][0]]
        topics[2]["partitions"].append({**topics[0]["partitions"][1]})
        answer = await client.ask(ApiKey.FETCH, 12, {**one, "topics": topics})
        found = {
            row["topic"]: [
                (each["partition_index"], each["error_code"], values_in(each["records"]))
                for each in row["partitions"]
            ]
            for row in answer["responses"]
        }
        assert found == {
            "orders": [(0, "NONE", [(1, b"a")]), (1, "NONE", [])],
            "others": [(0, "NONE", [(0, b"b")])],
        }

    play(script)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_reader_without_a_descriptor_does_not_touch_who_writes(durability: str) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, durability=durability) as running:
            client = await running.client()
            await client.create("orders", 1, segment_bytes="1048576")
            for _ in range(3):
                await client.produce("orders", batch(b"x" * 600_000))
            first, second = await running.client("first"), await running.client("second")
            many = fetch_fields("orders", 0, max_wait=LONG, min_bytes=1 << 23)
            first.send(ApiKey.FETCH, 12, many)
            await asyncio.sleep(1)
            second.send(ApiKey.FETCH, 12, fetch_fields("orders", 3, max_wait=LONG, min_bytes=1))
            await asyncio.sleep(1)
            files = topic_of(running, "orders").partitions[0].log._files
            files._borrowed.clear()
            files._most_lent = 0
            assert (await client.produce("orders", batch(b"new")))["error_code"] == "NONE"
            files._most_lent = 64
            assert fetched(await first.receive(ApiKey.FETCH, 12))["error_code"] != "NONE"
            assert fetched(await second.receive(ApiKey.FETCH, 12))["records"]

    simulate(3, main)


def test_deleting_a_topic_wakes_who_waits_for_it() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        reader = await running.client()
        reader.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=LONG, min_bytes=1))
        await asyncio.sleep(1)
        topics = [{"name": "orders", "topic_id": None}]
        answer = await client.ask(ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 1000})
        assert answer["responses"][0]["error_code"] == "NONE"
        await asyncio.sleep(1)
        assert reader.frames
        told = fetched(await reader.receive(ApiKey.FETCH, 12))
        assert told["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        gone = await client.produce("orders", batch(b"late"))
        assert gone["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"

    play(script)


def test_an_error_is_told_at_once() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for topic, options, code in (
            ("orders", {"offset": 1}, "OFFSET_OUT_OF_RANGE"),
            ("orders", {"offset": -1}, "OFFSET_OUT_OF_RANGE"),
            ("orders", {"partitions": [1]}, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("orders", {"partitions": [-1]}, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("absent", {}, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("orders", {"epoch": 1}, "UNKNOWN_LEADER_EPOCH"),
            ("orders", {"epoch": 0}, "NONE"),
        ):
            started = world.clock.monotonic()
            waits = {"max_wait": LONG, "min_bytes": 0 if code == "NONE" else 1}
            asked: dict[str, Any] = {"offset": 0, **waits, **options}
            answer = await client.fetch(topic, **asked)
            assert answer["error_code"] == code
            assert world.clock.monotonic() - started < 1
            assert answer["records"] == b""

    play(script)


def test_a_client_that_knows_an_older_epoch_is_fenced() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.produce("orders", batch(b"a", b"b"))
        running.server.node.topics.begin_epochs()
        assert (await client.fetch("orders", 0, epoch=0))["error_code"] == "FENCED_LEADER_EPOCH"
        assert (await client.fetch("orders", 0, epoch=1))["error_code"] == "NONE"
        stale = await client.list_offset("orders", -1, current_leader_epoch=0)
        assert stale["error_code"] == "FENCED_LEADER_EPOCH"
        latest = await client.list_offset("orders", -1)
        assert (latest["offset"], latest["leader_epoch"]) == (2, 1)
        assert (await client.list_offset("orders", -2))["leader_epoch"] == 0

    play(script)


# --- limits --------------------------------------------------------------------------------------


def test_max_bytes_cut_between_batches_and_the_first_is_sent_however_large() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        size = len(batch(bytes(5000)))
        for number in range(6):
            await client.produce("orders", batch(bytes(5000)), partition=number % 2)
        for limit, batches in (
            (1, 1),
            (0, 1),
            (-5, 1),
            (size, 1),
            (2 * size - 1, 1),
            (2 * size, 2),
        ):
            answer = await client.fetch("orders", 0, partition_max_bytes=limit)
            assert len(answer["records"]) == batches * size, limit
            answer = await client.fetch("orders", 0, max_bytes=limit)
            assert len(answer["records"]) == batches * size, limit
        for most, sizes in (
            (1, [1, 0]),
            (3 * size, [3, 0]),
            (4 * size, [3, 1]),
            (9 * size, [3, 3]),
        ):
            fields = fetch_fields("orders", 0, partitions=[0, 1], max_bytes=most)
            answer = await client.ask(ApiKey.FETCH, 12, fields)
            found = [len(each["records"]) for each in answer["responses"][0]["partitions"]]
            assert found == [size * each for each in sizes], most

    play(script)


def test_an_empty_partition_first_does_not_keep_a_large_batch_back() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        await client.produce("orders", batch(bytes(5000)), partition=1)
        fields = fetch_fields("orders", 0, partitions=[0, 1], max_bytes=100)
        answer = await client.ask(ApiKey.FETCH, 12, fields)
        assert len(answer["responses"][0]["partitions"][1]["records"]) > 5000

    play(script)


# --- sessions, empty requests --------------------------------------------------------------------


def test_fetch_sessions_are_declined() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        asked = fetch_fields("orders", 0, session_id=0, session_epoch=0)
        answer = await client.ask(ApiKey.FETCH, 12, asked)
        assert (answer["session_id"], answer["error_code"]) == (0, "NONE")
        asked = fetch_fields("orders", 0, session_id=77, session_epoch=1)
        answer = await client.ask(ApiKey.FETCH, 12, asked)
        assert (answer["error_code"], answer["responses"]) == ("FETCH_SESSION_ID_NOT_FOUND", [])

    play(script)


def test_a_fetch_of_nothing_does_not_wait() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        fields = {**fetch_fields("orders", 0, max_wait=LONG, min_bytes=1), "topics": []}
        started = world.clock.monotonic()
        assert (await client.ask(ApiKey.FETCH, 12, fields))["responses"] == []
        assert world.clock.monotonic() - started < 1

    play(script)
