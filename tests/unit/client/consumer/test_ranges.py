"""Reading exactly a range of offsets, whatever is in it, and what is said when that cannot be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.codec.fetch import FetchAnswer
from onceflow.client.codec.versions import SPOKEN
from onceflow.client.consumer.range_reading import RangeReading
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.consumer import OffsetOutOfRange, RangeUnavailable, RecordsUnreadable
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import delete_records
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.worker.reader import BlockingReader
from onceflow.errors import InvalidSetting
from onceflow.records.plain import PlainRecord, write_records
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import encode, message_class
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.schema import recast
from tests.unit.broker.broker_under_test import RawClient, batch
from tests.unit.broker.txn.transactional_requests import ended, ready, wrote
from tests.unit.client.consumer.simulated_readers import P0, read
from tests.unit.client.scripted_broker import ADDRESS, NO_TIME, listen, metadata, new
from tests.unit.client.worker.socket_broker import ScriptedBroker

SMALL = ReaderSettings.of(max_partition_fetch_bytes=100)
"""One batch an answer."""


async def offsets(cluster: Cluster, start: int, end: int, **more: Any) -> list[int]:
    found: list[Any] = []
    async for table in read_range(cluster, P0, start, end, **{"settings": SMALL, **more}):
        found += table.column("offset").to_pylist()
    return found


def test_every_range_of_a_log_is_read_exactly() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for size in (1, 3, 2, 4):
            await client.produce("orders", batch(*[b"v"] * size))
        for start in range(11):
            for end in range(start, 11):
                assert await offsets(cluster, start, end) == list(range(start, end))

    read(script)


def test_offsets_without_records_are_passed_over_to_the_end_of_the_range() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a", b"b")
        who = await ended(client, who, commit=True)  # offset 2
        await wrote(client, who, "orders", b"c")
        await ended(client, who, commit=False)  # offset 4
        for end, expected in ((5, [0, 1]), (4, [0, 1]), (3, [0, 1]), (2, [0, 1]), (1, [0])):
            assert await offsets(cluster, 0, end) == expected
        for start in (2, 3, 4):
            assert await offsets(cluster, start, 5) == []
        uncommitted = ReaderSettings.of(isolation_level="read_uncommitted")
        assert await offsets(cluster, 1, 5, settings=uncommitted) == [1, 3]

    read(script)


def test_a_range_that_an_open_transaction_holds_back_is_waited_for() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a")
        waiting = asyncio.create_task(offsets(cluster, 0, 1, timeout_s=20))
        await asyncio.sleep(3)
        assert not waiting.done()
        who = await ended(client, who, commit=True)
        assert await waiting == [0]
        await wrote(client, who, "orders", b"b")
        expected = "offset 2 up to 3 within 2 s: its last stable offset is 2, its end 3"
        with pytest.raises(RangeUnavailable, match=expected):
            await offsets(cluster, 0, 3, timeout_s=2)

    read(script)


def test_what_the_log_does_not_hold_is_told() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for _ in range(3):
            await client.produce("orders", batch(b"v"))
        await delete_records(cluster, {P0: 2})
        with pytest.raises(OffsetOutOfRange, match="no offset 0; it holds the offsets from 2 up"):
            await offsets(cluster, 0, 3)
        assert await offsets(cluster, 2, 3) == [2]
        with pytest.raises(OffsetOutOfRange, match="no offset 9"):
            await offsets(cluster, 9, 10)

    read(script)


def test_who_stops_early_leaves_nothing_behind() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for _ in range(3):
            await client.produce("orders", batch(b"v"))
        tables = read_range(cluster, P0, 0, 3, settings=SMALL)
        assert (await anext(tables)).num_rows == 1
        await tables.aclose()
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if "_progress" in repr(task)]

    read(script)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3)])
def test_a_range_begins_before_its_end(start: int, end: int) -> None:
    with pytest.raises(InvalidSetting, match="are no range"):
        RangeReading(P0, start, end, read_committed=True)


def answer(records: bytes, *, high_watermark: int = 10, stable: int = 10) -> FetchAnswer:
    return FetchAnswer(P0, 0, high_watermark, stable, 0, (), memoryview(records), -1)


def stored(offset: int, count: int = 1) -> bytes:
    records = [PlainRecord(None, b"v")] * count
    return bytes(write_records(records, 0).assign(offset, 0).buffer)


def test_the_end_of_a_range_that_was_compacted_away_is_its_end_all_the_same() -> None:
    reading = RangeReading(P0, 2, 8, read_committed=True)
    assert len(reading.take(answer(stored(2)))) == 1
    assert (reading.position, reading.is_done) == (3, False)
    # Asked together with others it may only have had no room in the answer.
    for is_alone, stable, position in ((False, 8, 3), (True, 7, 3), (True, 8, 8)):
        assert reading.take(answer(b"", stable=stable), is_alone=is_alone) == []
        assert (reading.position, reading.is_done) == (position, position == 8)
    jump = RangeReading(TopicPartition("orders", 0), 0, 5, read_committed=True)
    assert jump.take(answer(stored(7))) == []
    assert (jump.is_done, jump.position) == (True, 5)


def test_damage_is_told_with_its_offset_and_not_before_what_is_sound_was_given() -> None:
    damaged = bytearray(stored(1))
    damaged[-1] ^= 1
    reading = RangeReading(P0, 0, 5, read_committed=False)
    assert len(reading.take(answer(stored(0) + bytes(damaged)))) == 1
    with pytest.raises(RecordsUnreadable, match=r"at offset 1.*CRC") as told:
        reading.take(answer(bytes(damaged)))
    assert (told.value.partition, told.value.offset) == (P0, 1)
    with pytest.raises(RecordsUnreadable, match="not one whole batch"):
        reading.take(answer(stored(1)[:-1]))


# --- brokers that slow their readers down -----------------------------------------------------


def nothing() -> Any:
    """As Apache Kafka answers beyond a quota: without any partition."""
    return new(ApiKey.FETCH, "response")(
        throttle_time=NO_TIME, error_code=ErrorCode.NONE, responses=()
    )


def two_records() -> Any:
    written = write_records([PlainRecord(None, b"a"), PlainRecord(None, b"b")], 0)
    topic = new(ApiKey.FETCH, "response", "FetchableTopicResponse")
    partition = new(ApiKey.FETCH, "response", "PartitionData")
    found = partition(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=2,
        last_stable_offset=2,
        aborted_transactions=None,
        records=bytes(written.buffer),
    )
    return new(ApiKey.FETCH, "response")(
        throttle_time=NO_TIME,
        error_code=ErrorCode.NONE,
        responses=(topic(topic=P0.topic, partitions=(found,)),),
    )


def test_an_answer_with_no_partition_in_it_is_no_end() -> None:
    answers = [nothing(), nothing(), two_records()]

    async def main(world: World) -> None:
        about = metadata({P0.topic: {0: 1}})
        fetch = {ApiKey.FETCH: lambda *_: answers.pop(0)}
        await listen(world.net.host("broker"), {ApiKey.METADATA: lambda *_: about, **fetch})
        async with Cluster([ADDRESS], net=world.net.host("client")) as cluster:
            assert await offsets(cluster, 0, 2) == [0, 1]

    run(1, main)
    assert not answers


def test_nor_to_a_reader_that_blocks() -> None:
    answers = [nothing(), nothing(), two_records()]
    kind = message_class(ApiKey.FETCH, SPOKEN[ApiKey.FETCH].newest, "response")
    with ScriptedBroker() as broker:
        broker.extra[ApiKey.FETCH] = lambda _: b"\0" + encode(recast(answers.pop(0), kind))
        with BlockingReader(ReaderSettings.of(bootstrap_servers=str(broker.address))) as reader:
            found = [row for batch in reader.read(*P0, 0, 2) for row in batch.to_pylist()]
    assert [row["value"] for row in found] == [b"a", b"b"]
    assert not answers
