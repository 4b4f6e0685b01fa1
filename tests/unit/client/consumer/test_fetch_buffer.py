"""A table that is prepared before somebody asks for it: it is what leaves next, or is forgotten."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from onceflow.client.consumer import fetch_buffer as delivery
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.net.cluster import Cluster
from onceflow.testing.world import World
from tests.unit.broker.broker_under_test import RawClient, batch
from tests.unit.client.consumer.simulated_readers import P0, P1, fetcher, read


async def offsets(reader: Fetcher, most: int = 2) -> list[tuple[int, int]]:
    """Partition and offset of what comes next."""
    table = await reader.next_table(1, max_rows=most)
    assert table is not None
    return [(each["partition"], each["offset"]) for each in table.to_pylist()]


def prepare(reader: Fetcher, most: int) -> pa.Table | None:
    return reader.buffer.prepare(most)


def test_what_was_prepared_is_what_is_delivered_and_positions_move_only_then() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.produce("orders", batch(b"a", b"b", b"c", b"d", b"e"))
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert prepare(reader, 2) is None, "nothing has come yet"
            assert await offsets(reader) == [(0, 0), (0, 1)]
            prepared = prepare(reader, 2)
            assert prepared is not None
            assert (prepared.column("value").to_pylist(), reader.position(P0)) == ([b"c", b"d"], 2)
            assert await reader.next_table(1, max_rows=2) is prepared
            assert reader.position(P0) == 4
            assert await offsets(reader) == [(0, 4)]
            assert prepare(reader, 2) is None, "all is delivered"

    read(script)


def test_what_was_prepared_is_forgotten_when_something_else_would_leave() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for number in (0, 1):
            await client.produce("orders", batch(b"a", b"b", b"c", b"d"), partition=number)
        async with fetcher(world, cluster, {P0: 0, P1: 0}) as reader:
            assert await offsets(reader, 1) == [(0, 0)]
            assert prepare(reader, 2) is not None
            assert await offsets(reader, 1) == [(0, 1)], "another number of rows"
            assert prepare(reader, 1) is not None
            reader.pause([P0])
            assert await offsets(reader, 1) == [(1, 0)]
            reader.resume([P0])
            assert prepare(reader, 1) is not None
            reader.seek(P0, 0)
            assert await offsets(reader, 1) == [(1, 1)]
            assert prepare(reader, 1) is not None
            assert [each.offset for each in await reader.next_records(1, max_records=1)] == [2]
            assert await offsets(reader, 1) == [(1, 3)]
            reader.drop([P1])
            assert await offsets(reader, 1) == [(0, 0)]
            assert prepare(reader, 1) is not None
            reader.drop([P0])
            assert prepare(reader, 1) is None
            assert await reader.next_table(0.1, max_rows=1) is None

    read(script, partitions=2)


def test_for_some_rows_a_portion_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PORTION_BYTES", 1)

    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for _ in range(4):
            await client.produce("orders", batch(b"a", b"b"))
        async with fetcher(world, cluster, {P0: 0}, max_partition_fetch_bytes=1) as reader:
            assert await offsets(reader, 1) == [(0, 0)]
            await asyncio.sleep(1)  # each batch came with an answer of its own
            assert await offsets(reader, 9) == [(0, 1)]
            queued = reader.queued_bytes
            assert await offsets(reader, 9) == [(0, 2), (0, 3)]
            assert 0 < reader.queued_bytes < queued, "the rest is left as it came"
            rest = await reader.next_table(1)
            assert rest is not None
            assert rest.column("offset").to_pylist() == [4, 5, 6, 7]

    read(script)
