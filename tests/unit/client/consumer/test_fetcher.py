"""Reading by column and by record: what is delivered, in which order, and where reading goes on."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from onceflow.client.consumer.fetched import FETCHED_SCHEMA, Record
from onceflow.client.errors.consumer import NoPosition, NotAssigned, OffsetOutOfRange
from onceflow.client.errors.requests import NoSuchPartition, TopicNotFound
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import delete_records
from onceflow.client.types import PartitionEnds
from onceflow.errors import InvalidSetting
from onceflow.records.batch import Codec
from onceflow.records.columns import encode
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, batch
from tests.unit.broker.txn.transactional_requests import ended, ready, wrote
from tests.unit.client.consumer.simulated_readers import P0, P1, fetcher, read, values


def test_columns_are_those_of_a_kafka_source() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        headers = [[("a", b"1"), ("b", None)], []]
        columns = pa.record_batch(
            {
                "key": pa.array([b"k", None], pa.binary()),
                "value": pa.array([None, b""], pa.binary()),
                "headers": pa.array(
                    headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                ),
                "timestamp": pa.array([NOW_MS, NOW_MS + 1], pa.int64()),
            }
        )
        await client.produce("orders", bytes(encode(columns, codec=Codec.ZSTD).buffer))
        async with fetcher(world, cluster, {P0: 0}) as reader:
            table = await reader.next_table(1)
            assert table is not None
            assert table.schema == FETCHED_SCHEMA
            first, second = table.to_pylist()
            assert first == {
                "key": b"k",
                "value": None,
                "topic": "orders",
                "partition": 0,
                "offset": 0,
                "timestamp": datetime.fromtimestamp(NOW_MS / 1000, UTC),
                "timestamp_type": 0,
                "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
            }
            assert (second["key"], second["value"], second["headers"]) == (None, b"", [])
            reader.seek(P0, 0)
            assert await reader.next_records(1) == [
                Record("orders", 0, 0, NOW_MS, 0, b"k", None, (("a", b"1"), ("b", None))),
                Record("orders", 0, 1, NOW_MS + 1, 0, None, b"", ()),
            ]

    read(script)


def test_the_brokers_own_time_is_told_as_such() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.create("stamped", message_timestamp_type="LogAppendTime")
        await client.produce("stamped", batch(b"a", b"b"))
        async with fetcher(world, cluster, {TopicPartition("stamped", 0): 0}) as reader:
            (first, second) = await reader.next_records(1)
            assert (first.timestamp_type, second.timestamp_type) == (1, 1)
            assert first.timestamp == second.timestamp != NOW_MS

    read(script)


def test_reading_starts_in_the_middle_of_a_batch_and_follows_the_log() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.produce("orders", batch(b"a", b"b", b"c"))
        async with fetcher(world, cluster, {P0: 1}) as reader:
            assert reader.position(P0) == 1
            assert await values(reader, wait_s=1) == [b"b", b"c"]
            assert (reader.position(P0), reader.ends(P0)) == (3, PartitionEnds(0, 3, 3))
            waiting = asyncio.create_task(reader.next_records(5))
            await asyncio.sleep(1)
            await client.produce("orders", batch(b"d"))
            assert [each.value for each in await waiting] == [b"d"]
            assert await reader.next_records(0.5) == []
            assert reader.position(P0) == 4

    read(script)


def test_records_come_in_portions_and_positions_move_with_them() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.produce("orders", batch(*(b"%d" % number for number in range(10))))
        async with fetcher(world, cluster, {P0: 0}) as reader:
            first = await reader.next_records(1, max_records=4)
            assert ([each.offset for each in first], reader.position(P0)) == ([0, 1, 2, 3], 4)
            table = await reader.next_table(1, max_rows=1)
            assert table is not None
            assert (table.column("value").to_pylist(), reader.position(P0)) == ([b"4"], 5)
            assert await values(reader, wait_s=1) == [b"5", b"6", b"7", b"8", b"9"]
            assert reader.position(P0) == 10

    read(script)


def test_what_was_aborted_or_is_open_is_not_delivered_and_the_position_passes_it() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"aborted")
        who = await ended(client, who, commit=False)
        await wrote(client, who, "orders", b"committed")
        who = await ended(client, who, commit=True)
        await wrote(client, who, "orders", b"aborted too")
        who = await ended(client, who, commit=False)
        await wrote(client, who, "orders", b"open")
        await client.produce("orders", batch(b"behind"))
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert await values(reader, wait_s=1) == [b"committed"]
            assert reader.position(P0) == 6
            assert reader.ends(P0) == PartitionEnds(0, 8, 6)
            await ended(client, who, commit=True)
            assert await values(reader, wait_s=1) == [b"open", b"behind"]
        everything = [b"aborted", b"committed", b"aborted too", b"open", b"behind"]
        settings = {"isolation_level": "read_uncommitted"}
        async with fetcher(world, cluster, {P0: 0}, **settings) as reader:
            assert await values(reader, wait_s=1) == everything

    read(script)


def test_a_seek_drops_what_was_fetched_and_held() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.produce("orders", batch(*(b"%d" % number for number in range(6))))
        async with fetcher(world, cluster, {P0: 0}) as reader:
            await reader.next_records(1, max_records=2)
            reader.seek(P0, 5)
            assert reader.position(P0) == 5
            assert await values(reader, wait_s=1) == [b"5"]
            reader.seek(P0, 4)
            assert await values(reader, wait_s=1) == [b"4", b"5"]
            with pytest.raises(NotAssigned, match="orders-1 is not assigned"):
                reader.seek(P1, 0)
            with pytest.raises(InvalidSetting, match="offset -5"):
                reader.seek(P0, -5)

    read(script)


def test_a_paused_partition_keeps_its_place_while_the_others_go_on() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for partition in (0, 1):
            records = batch(*(b"%d-%d" % (partition, number) for number in range(3)))
            await client.produce("orders", records, partition=partition)
        async with fetcher(world, cluster, {P0: 0, P1: 0}) as reader:
            (first,) = await reader.next_records(1, max_records=1)
            held = TopicPartition(first.topic, first.partition)
            reader.pause([held])
            other = 1 - first.partition
            expected = [b"%d-%d" % (other, number) for number in range(3)]
            assert await values(reader, wait_s=1) == expected
            assert reader.position(held) == 1
            reader.resume([held])
            rest = [b"%d-1" % held.partition, b"%d-2" % held.partition]
            assert await values(reader, wait_s=1) == rest

    read(script, partitions=2)


def test_an_assignment_replaces_the_one_before() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for partition in (0, 1):
            await client.produce("orders", batch(b"%d" % partition), partition=partition)
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert await values(reader, wait_s=1) == [b"0"]
            reader.assign({P1: 0})
            assert (reader.assigned, await values(reader, wait_s=1)) == ([P1], [b"1"])
            reader.assign({P0: 0, P1: 1})
            assert await values(reader, wait_s=1) == [b"0"]

    read(script, partitions=2)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [b"b", b"c"]), ("latest", [])])
def test_where_there_is_no_position_the_policy_decides(policy: str, expected: list[bytes]) -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for value in (b"a", b"b", b"c"):
            await client.produce("orders", batch(value))
        await delete_records(cluster, {P0: 1})
        for start in (None, 0, 99):  # none, deleted, never written
            settings = {"auto_offset_reset": policy}
            async with fetcher(world, cluster, {P0: start}, **settings) as reader:
                assert await values(reader, wait_s=1) == expected
                assert reader.position(P0) == 3

    read(script)


def test_the_latest_of_committed_records_is_before_an_open_transaction() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"open")
        async with fetcher(world, cluster, {P0: None}) as reader:
            assert await values(reader, wait_s=1) == []
            await ended(client, who, commit=True)
            assert await values(reader, wait_s=1) == [b"open"]

    read(script)


def test_without_a_policy_there_is_an_error_until_the_reader_seeks() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.produce("orders", batch(b"a"))
        none = {"auto_offset_reset": "none"}
        async with fetcher(world, cluster, {P0: 7}, **none) as reader:
            for _ in range(2):
                with pytest.raises(OffsetOutOfRange, match=r"no offset 7; .* from 0 up to 1"):
                    await reader.next_table(1)
            assert reader.position(P0) == 7
            reader.seek(P0, 0)
            assert await values(reader, wait_s=1) == [b"a"]
        async with fetcher(world, cluster, {P0: None}, **none) as reader:
            for _ in range(2):
                with pytest.raises(NoPosition, match="orders-0"):
                    await reader.next_records(1)
            assert reader.position(P0) is None
            reader.seek(P0, 0)
            assert await values(reader, wait_s=1) == [b"a"]

    read(script)


def test_going_on_elsewhere_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        with caplog.at_level(logging.WARNING):
            settings = {"auto_offset_reset": "earliest"}
            async with fetcher(world, cluster, {P0: 5}, **settings) as reader:
                assert await values(reader, wait_s=1) == []
        assert "orders-0 has no offset 5; reading goes on from the earliest" in caplog.text

    read(script)


def test_a_topic_or_partition_that_is_not_there_is_told_and_the_others_are_read() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        await client.produce("orders", batch(b"a"))
        nowhere = TopicPartition("nowhere", 0)
        async with fetcher(world, cluster, {nowhere: 0, P0: 0, P1: 0}) as reader:
            errors, found = [], []
            for _ in range(6):
                try:
                    found += await reader.next_records(1)
                except (TopicNotFound, NoSuchPartition) as error:
                    errors.append(type(error))
            assert [each.value for each in found] == [b"a"]
            assert set(errors) == {TopicNotFound, NoSuchPartition}

    read(script)


def test_no_more_is_fetched_ahead_than_there_is_room_for() -> None:
    async def script(world: World, client: RawClient, cluster: Cluster) -> None:
        for number in range(50):
            await client.produce("orders", batch(b"%d" % number + bytes(1000)))
        settings = {"fetch_queued_max_bytes": 5000, "max_partition_fetch_bytes": 2000}
        async with fetcher(world, cluster, {P0: 0}, **settings) as reader:
            first = await reader.next_records(1, max_records=1)
            await asyncio.sleep(30)
            assert reader.queued_bytes <= 7000
            rest = await values(reader, wait_s=1)
            assert len(first) + len(rest) == 50

    read(script)
