"""What readers see of transactions: the last stable offset, what was aborted, and markers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from onceflow.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, iter_stored
from onceflow.records.control import MarkerType
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    RawClient,
    Running,
    batch,
    fetch_fields,
    fetched,
    play,
    simulated_broker,
)
from tests.unit.broker.held_journal import HeldJournal
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    LEFT_BY,
    NEW,
    READ_COMMITTED,
    Generation,
    Who,
    again,
    committed,
    end_fields,
    ended,
    ends,
    fetch,
    markers,
    ready,
    sent,
    wrote,
)

INDEXED = 40
"""More than the transactions of `index.interval.bytes` in the test that counts them."""
both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)


@both
def test_a_reader_of_committed_records_gets_nothing_from_an_open_transaction_on(
    speaks: Generation,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.produce("orders", batch(b"before"))
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"in", speaks=speaks)
        await client.produce("orders", batch(b"after"))
        assert await committed(client, "orders") == [b"before"]
        found = await fetch(client, "orders")
        assert (found["last_stable_offset"], found["high_watermark"]) == (1, 3)
        assert await ends(client, "orders") == (1, 3)
        for offset in (1, 2, 3):
            beyond = await fetch(client, "orders", offset)
            assert (beyond["error_code"], beyond["records"]) == ("NONE", b"")
        uncommitted = await fetch(client, "orders", isolation_level=0)
        assert len(list(iter_stored(uncommitted["records"]))) == 3
        assert uncommitted["aborted_transactions"] is None
        assert uncommitted["last_stable_offset"] == 1
        await ended(client, who, commit=True, version=speaks.end)
        assert await committed(client, "orders") == [b"before", b"in", b"after"]
        assert await ends(client, "orders") == (4, 4)

    play(script)


def test_the_earliest_of_several_open_transactions_holds_readers_back() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        first, second, third = [await ready(client, name) for name in ("a", "b", "c")]
        for who in (first, second, third):
            await wrote(client, who, "orders", str(who.transactional_id).encode())
        await ended(client, second, commit=True)
        assert await ends(client, "orders") == (0, 4)
        await ended(client, first, commit=False)
        assert await ends(client, "orders") == (2, 5)
        assert await committed(client, "orders") == [b"b"]
        await ended(client, third, commit=True)
        assert await ends(client, "orders") == (6, 6)
        assert await committed(client, "orders") == [b"b", b"c"]

    play(script)


def test_the_end_of_a_transaction_is_seen_when_it_is_durable_and_wakes_who_waits() -> None:
    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            client, reader = await running.client(), await running.client()
            await client.create("orders")
            who = await ready(client, "t")
            await wrote(client, who, "orders", b"a")
            waits: dict[str, Any] = {
                "isolation_level": READ_COMMITTED,
                "max_wait": 60_000,
                "min_bytes": 1,
            }
            reader.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, **waits))
            await asyncio.sleep(1)
            held.is_holding = True
            client.send(ApiKey.END_TXN, 5, end_fields(who, commit=True))
            await asyncio.sleep(5)
            assert not reader.frames
            assert not client.frames
            other = await running.client()
            assert await ends(other, "orders") == (0, 1)
            held.release()
            found = fetched(await reader.receive(ApiKey.FETCH, 12))
            assert found["last_stable_offset"] == 2
            assert len(list(iter_stored(found["records"]))) == 2

    simulate(1, main)


@both
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_a_control_batch_of_one_offset(speaks: Generation, commit: bool) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        who = await ready(client, "t")
        for partition in (0, 1):
            await wrote(client, who, "orders", b"a", b"b", partition=partition, speaks=speaks)
        await ended(client, who, commit=commit, version=speaks.end)
        for partition in (0, 1):
            found = await fetch(client, "orders", partition=partition, isolation_level=0)
            data, control = [stored.header for stored in iter_stored(found["records"])]
            assert data.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT
            assert control.attributes == TRANSACTIONAL_BIT | CONTROL_BIT
            assert (control.base_offset, control.last_offset, control.record_count) == (2, 2, 1)
            assert control.base_sequence == -1
            ((_, marker),) = await markers(client, "orders", partition=partition)
            assert marker.type is (MarkerType.COMMIT if commit else MarkerType.ABORT)
            assert marker.producer_id == who.producer_id
            assert marker.producer_epoch == who.epoch + (speaks is NEW)
            assert marker.coordinator_epoch == 0
            assert marker.timestamp_ms >= NOW_MS

    play(script)


def test_a_fetch_is_told_of_the_aborted_transactions_of_its_own_range_only() -> None:
    count = 300

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        long = await ready(client, "long")
        await wrote(client, long, "orders", b"long")  # offset 0, to the very end
        who = await ready(client, "t")
        starts = []
        for _ in range(count):
            starts.append(await wrote(client, who, "orders", b"gone"))
            who = await ended(client, who, commit=False)
        await ended(client, long, commit=False)
        for start in (starts[0], starts[count // 2], starts[-1]):
            size = len(sent(who, 0, b"gone"))
            found = await fetch(client, "orders", start, partition_max_bytes=size)
            assert [stored.header.base_offset for stored in iter_stored(found["records"])] == [
                start
            ]
            told = sorted(row["first_offset"] for row in found["aborted_transactions"])
            assert told[:2] == [0, start]
            assert len(told) < INDEXED, "a range is known as exactly as the index has it"
        whole = await fetch(client, "orders")
        assert len(whole["aborted_transactions"]) == count + 1
        behind = await fetch(client, "orders", starts[-1] + 2)
        (row,) = behind["aborted_transactions"]
        assert row["first_offset"] == 0, "one that began before and ends behind"
        assert await committed(client, "orders") == []

    play(script)


@both
@pytest.mark.parametrize(
    ("durability", "left"),
    [
        ("fsync", "kill"),
        ("fsync", "power cut"),
        ("fsync", "orderly stop"),
        ("os", "kill"),
        ("os", "orderly stop"),
    ],
)
def test_what_was_stable_and_what_was_aborted_is_so_after_a_restart(
    speaks: Generation, durability: str, left: str
) -> None:
    async def main(world: World) -> None:
        settings: dict[str, Any] = {"durability": durability}
        async with simulated_broker(world, **settings) as running:
            client = await running.client()
            await client.create("orders")
            open_one = await ready(client, "open")
            done = await ready(client, "done")
            done = await _history(client, done, speaks)
            await wrote(client, open_one, "orders", b"open", speaks=speaks)
            await wrote(client, done, "orders", b"later", sequence=_next(speaks), speaks=speaks)
            await ended(client, done, commit=True, version=speaks.end)
            before = await ends(client, "orders")
            seen = await committed(client, "orders")
            image = LEFT_BY[left](world.disk) if left in LEFT_BY else world.disk
        async with again(world, image, **settings) as (_, client):
            await asyncio.sleep(0.1)
            assert await ends(client, "orders") == before
            assert await committed(client, "orders") == seen
            await ended(client, open_one, commit=True, version=speaks.end)
            assert await committed(client, "orders") == [*seen, b"open", b"later"]

    simulate(1, main)


HISTORY = (True, False, False, True, False)


async def _history(client: RawClient, who: Who, speaks: Generation) -> Who:
    for number, commit in enumerate(HISTORY):
        sequence = number if speaks.adds else 0
        await wrote(client, who, "orders", b"%d" % number, sequence=sequence, speaks=speaks)
        who = await ended(client, who, commit=commit, version=speaks.end)
    return who


def _next(speaks: Generation) -> int:
    return len(HISTORY) if speaks.adds else 0


def test_neither_offset_goes_back_over_restarts_of_every_kind() -> None:
    """A reader looks, the broker ends in some way, and the reader looks again: fifteen times."""
    rand = random.Random(5)

    async def main(world: World) -> None:
        disk, highest = world.disk, (0, 0)
        names = ("a", "b", "c")
        for number in range(15):
            async with again(world, disk, host=f"broker-{number}") as (_, client):
                if not number:
                    await client.create("orders")
                found = await ends(client, "orders")
                assert found >= highest
                assert found[1] >= highest[1]
                for name in rand.sample(names, 2):
                    who = await ready(client, name)
                    await wrote(client, who, "orders", b"x")
                    if rand.random() < 0.6:
                        await ended(client, who, commit=rand.random() < 0.5)
                highest = await ends(client, "orders")
                left = rand.choice([*LEFT_BY, "orderly stop"])
                image = LEFT_BY[left](disk) if left in LEFT_BY else disk
            disk = image

    simulate(2, main)


def test_a_search_by_time_finds_nothing_that_is_not_stable() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.produce("orders", batch(b"before", timestamp=NOW_MS))
        who = await ready(client, "t")
        records = sent(who, 0, b"in", timestamp=NOW_MS + 10)
        await _produced(client, who, records)
        for isolation, expected in ((0, 1), (1, -1)):
            assert await _first_since(client, NOW_MS + 5, isolation) == expected
        await ended(client, who, commit=True)
        assert await _first_since(client, NOW_MS + 5, 1) == 1

    play(script)


async def _produced(client: RawClient, who: Who, records: bytes) -> None:
    topics = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
    fields = {"transactional_id": "t", "acks": -1, "timeout": 1000, "topic_data": topics}
    answer = await client.ask(ApiKey.PRODUCE, 12, fields)
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == "NONE"


async def _first_since(client: RawClient, timestamp: int, isolation: int) -> int:
    part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    fields: dict[str, Any] = {"replica_id": -1, "isolation_level": isolation, "timeout": 1000}
    fields["topics"] = [{"name": "orders", "partitions": [part]}]
    answer = await client.ask(ApiKey.LIST_OFFSETS, 11, fields)
    return int(answer["topics"][0]["partitions"][0]["offset"])


@pytest.mark.parametrize("upto", [1, 2, -1])
def test_deleted_records_of_an_open_transaction_do_not_hold_readers_below_the_start(
    upto: int,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a", b"b")
        await client.produce("orders", batch(b"c"))
        part = {"partition_index": 0, "offset": upto}
        fields = {"topics": [{"name": "orders", "partitions": [part]}], "timeout": 1000}
        gone = await client.ask(ApiKey.DELETE_RECORDS, 2, fields)
        start = gone["topics"][0]["partitions"][0]["low_watermark"]
        assert start == (3 if upto < 0 else upto)
        assert await ends(client, "orders") == (start, 3)
        found = await fetch(client, "orders", start)
        assert found["error_code"] == "NONE"
        assert found["last_stable_offset"] == start
        await ended(client, who, commit=False)
        assert await ends(client, "orders") == (4, 4)
        assert await committed(client, "orders", start) == ([] if upto < 0 else [b"c"])

    play(script)


def test_aborted_transactions_below_the_start_of_the_log_are_forgotten() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        for _ in range(10):
            await wrote(client, who, "orders", b"a")
            who = await ended(client, who, commit=False)
        aborted = running.server.node.topics.by_name["orders"].partitions[0].producers.aborted
        assert len(aborted) == 10
        part = {"partition_index": 0, "offset": 10}
        fields = {"topics": [{"name": "orders", "partitions": [part]}], "timeout": 1000}
        await client.ask(ApiKey.DELETE_RECORDS, 2, fields)
        await ends(client, "orders")
        assert len(aborted) == 5

    play(script)
