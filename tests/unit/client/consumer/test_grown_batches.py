"""Batches that are small when they are sent and large when they are decompressed: all is read, a
portion at a time, and one that is too large alone says where to go on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import onceflow
from onceflow.blocking import Admin, Producer
from onceflow.client.consumer import fetched
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.consumer import RecordsUnreadable
from onceflow.client.net.cluster import Cluster
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.worker.reader import BlockingReader
from onceflow.records import columns
from onceflow.records.batch import Codec, StoredBatch
from onceflow.records.columns import decode_portion, encode
from onceflow.spark.source.offsets import OffsetSpan
from onceflow.spark.source.task import ReadTask
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, batch
from tests.unit.client.consumer.simulated_readers import P0, P1, fetcher, read

MB = 1 << 20


def grown(size: int, codec: Codec = Codec.ZSTD) -> bytes:
    """A batch with a record of so many bytes, in few."""
    rows = pa.record_batch({"value": pa.array([bytes(size)], pa.binary())})
    return bytes(encode(rows, codec=codec, now_ms=1).buffer)


@pytest.fixture
def small_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Arrow could hold 4 MB in a column, and not 2 GiB."""
    monkeypatch.setattr(columns, "_LARGEST_COLUMN", 4 * MB)
    monkeypatch.setattr(fetched, "DECODED_BYTES", 2 * MB, raising=False)


async def all_offsets(reader: Fetcher, number: int) -> list[tuple[int, int]]:
    """Partition and offset of so many records; none of the tables is too large."""
    found: list[tuple[int, int]] = []
    while len(found) < number:
        table = await reader.next_table(5)
        assert table is not None
        assert table.nbytes < 4 * MB
        found += [(each["partition"], each["offset"]) for each in table.to_pylist()]
    return found


@pytest.mark.usefixtures("small_columns")
def test_what_is_more_than_a_column_together_is_read_in_portions() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for _ in range(12):
            await client.produce("orders", grown(MB))
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert await all_offsets(reader, 12) == [(0, at) for at in range(12)]
            assert reader.position(P0) == 12
            assert reader.queued_bytes == 0
        tables = read_range(cluster, P0, 2, 11, settings=ReaderSettings.of())
        found = [each async for each in tables]
        assert all(each.nbytes < 4 * MB for each in found)
        assert [at for each in found for at in each["offset"].to_pylist()] == list(range(2, 11))

    read(script)


@pytest.mark.usefixtures("small_columns")
def test_a_partition_that_grows_does_not_keep_another_waiting() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for _ in range(12):
            await client.produce("orders", grown(MB))
        await client.produce("orders", batch(b"small"), partition=1)
        async with fetcher(world, cluster, {P0: 0, P1: 0}) as reader:
            found = await all_offsets(reader, 13)
            assert [at for number, at in found if number == 0] == list(range(12))
            assert found.index((1, 0)) < 5

    read(script, partitions=2)


@pytest.mark.usefixtures("small_columns")
def test_records_one_by_one_and_what_is_seeked_or_paused_meanwhile() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for _ in range(8):
            await client.produce("orders", grown(MB))
        async with fetcher(world, cluster, {P0: 0}) as reader:
            (first,) = await reader.next_records(5, max_records=1)
            assert (first.offset, len(first.value or b"")) == (0, MB)
            assert reader.ahead(P0) == (7, 8)
            reader.pause([P0])
            assert await reader.next_records(1) == []
            reader.resume([P0])
            found = [each.offset for each in await reader.next_records(5)]
            assert found[:1] == [1]
            reader.seek(P0, 6)
            assert await all_offsets(reader, 2) == [(0, 6), (0, 7)]

    read(script)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_one_that_is_too_large_alone_says_where_to_go_on(codec: Codec) -> None:
    limit = {"max_decompressed_batch_bytes": MB}

    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.produce("orders", batch(b"a", b"b"))
        await client.produce("orders", grown(2 * MB, codec))
        await client.produce("orders", batch(b"d"))
        async with fetcher(world, cluster, {P0: 0}, **limit) as reader:
            assert await all_offsets(reader, 2) == [(0, 0), (0, 1)]
            for _ in range(2):
                with pytest.raises(RecordsUnreadable, match=r"orders-0.* at offset 2") as told:
                    await reader.next_table(5)
                assert (told.value.partition, told.value.offset) == (P0, 2)
                assert told.value.next_offset == 3
                assert "max.decompressed.batch.bytes" in str(told.value)
                assert "begins at offset 3" in str(told.value)
                assert "seek past it" in told.value.advice
                assert reader.position(P0) == 2
            reader.seek(P0, told.value.next_offset)
            assert await all_offsets(reader, 1) == [(0, 3)]
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert await all_offsets(reader, 4) == [(0, at) for at in range(4)]
        tables = read_range(cluster, P0, 0, 4, settings=ReaderSettings.of(**limit))
        assert (await anext(tables))["offset"].to_pylist() == [0, 1]
        with pytest.raises(RecordsUnreadable, match="begins at offset 3"):
            await anext(tables)

    read(script)


def test_how_many_records_are_ahead_is_told_also_of_what_cannot_be_read() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        rows = pa.record_batch({"value": pa.array([bytes(MB)] * 70, pa.binary())})
        await client.create("large", max_message_bytes=str(1 << 24))
        records = encode(rows.slice(0, 60), codec=Codec.ZSTD, now_ms=1)
        await client.produce("large", bytes(records.buffer))
        place = TopicPartition("large", 0)
        async with fetcher(world, cluster, {place: 3}, max_decompressed_batch_bytes=MB) as reader:
            with pytest.raises(RecordsUnreadable, match="at offset 3"):
                await reader.next_table(5)
            assert reader.ahead(place)[0] >= 0

    read(script)


def test_portions_end_before_what_cannot_be_read_and_begin_with_the_error() -> None:
    good = [StoredBatch.parse(batch(b"a")), StoredBatch.parse(batch(b"b", b"c"))]
    wrong = bytearray(batch(b"d"))
    wrong[61] ^= 2  # the length of its record
    damaged = StoredBatch(good[0].header, memoryview(wrong))
    for batches, used in (([*good, damaged, *good], 2), ([good[0], damaged, *good], 1)):
        portion = decode_portion(batches, 1 << 30)
        assert 1 <= portion.batches <= used
        rows = sum(each.header.record_count for each in batches[: portion.batches])
        assert portion.rows.num_rows == rows
    with pytest.raises(onceflow.errors.RecordError):
        decode_portion([damaged, *good], 1 << 30)
    assert decode_portion([], 10).batches == 0
    assert decode_portion(good, 1).batches == 1


def test_readers_of_worker_processes_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "DECODED_BYTES", 2 * MB, raising=False)
    with onceflow.Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        with Producer(
            broker.bootstrap, max_request_size=8 * MB, batch_size=1, compression_type="zstd"
        ) as producer:
            for size in (MB, MB, MB, 3 * MB, 10):
                producer.send("orders", bytes(size), partition=0)
                producer.flush()
        settings = ReaderSettings.of(bootstrap_servers=broker.bootstrap)
        with BlockingReader(settings) as reader:
            found = list(reader.read("orders", 0, 0, 5))
        assert [each.num_rows for each in found] == [2, 2, 1]
        assert [at for each in found for at in each["offset"].to_pylist()] == list(range(5))
        small = ReaderSettings.of(
            bootstrap_servers=broker.bootstrap, max_decompressed_batch_bytes=2 * MB
        )
        task = ReadTask(small, ("value", "offset"), fail_on_data_loss=True)
        rows: list[Any] = []

        def read_all() -> None:
            for each in task.read([OffsetSpan("orders", 0, 0, 5)]):
                rows.extend(each["offset"].to_pylist())

        with pytest.raises(RecordsUnreadable, match=r"orders-0.* offset 3.* offset 4"):
            read_all()
        assert rows == [0, 1, 2]
