"""A broker that keeps house: what goes wrong for one partition is told, and is nobody else's
trouble; what is old goes in time, also where nobody writes any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from onceflow.errors import LogCorrupt
from onceflow.group.offsets import expired
from onceflow.log.compaction.cleaner import _Judge
from onceflow.log.partition_log import PartitionLog
from onceflow.producers.table import ProducerTable
from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.txn import machine
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    RawClient,
    Running,
    batch,
    play,
    simulated_broker,
    values_in,
)
from tests.unit.broker.txn.transactional_requests import produce, ready, sent, states, wrote

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LATEST = 2**63 - 1
COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "200",
    "min_cleanable_dirty_ratio": "0",
}


def log_of(running: Running, topic: str) -> PartitionLog:
    return running.server.node.topics.by_name[topic].partitions[0].log


async def overwrite(client: RawClient, topic: str, times: int = 6, **options: Any) -> None:
    """So that all records but the last two are sealed and outdated."""
    for number in range(times):
        answer = await client.produce(topic, batch(b"%d" % number + b"x" * 100, **options))
        assert answer["error_code"] == "NONE", answer


async def values(client: RawClient, topic: str) -> list[int]:
    """The numbers that are left; -1 is a tombstone."""
    found = [value for each in await batches_of(client, topic) for _, value in values_in(each)]
    return [-1 if value is None else int(value.rstrip(b"x")) for value in found]


async def batches_of(client: RawClient, topic: str) -> list[bytes]:
    """All that there is to read, segment by segment."""
    found: list[bytes] = []
    offset = (await client.list_offset(topic, -2))["offset"]
    while data := (await client.fetch(topic, offset))["records"]:
        found.append(data)
        offset = [each.header.next_offset for each in iter_stored(data)][-1]
    return found


# --- numbers at the edge -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "timestamp"),
    [
        ({"delete_retention_ms": str(LATEST)}, None),
        ({}, -(2**63)),
        ({"delete_retention_ms": str(LATEST), "max_compaction_lag_ms": str(LATEST)}, -(2**63)),
    ],
)
def test_a_broker_compacts_whatever_may_be_set_and_sent(
    settings: dict[str, Any], timestamp: int | None
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            for name in ("extreme", "plain"):
                await client.create(name, **COMPACTED, **(settings if name == "extreme" else {}))
            when = world.clock.wall_ms() if timestamp is None else timestamp
            await overwrite(client, "plain")
            await overwrite(client, "extreme", 3, timestamp=when)
            gone = await client.produce("extreme", batch(None, timestamp=when))
            assert gone["error_code"] == "NONE"
            await client.produce("extreme", batch(b"7" + b"x" * 200, key=b"other"))
            await asyncio.sleep(60)
            assert not running.server.failed.done()
            assert await values(client, "plain") == [4, 5]
            assert await values(client, "extreme") == [-1, 7]
        async with simulated_broker(world, host="second") as running:
            client = await running.client()
            await asyncio.sleep(60)
            await overwrite(client, "plain", 3)
            await asyncio.sleep(60)
            assert not running.server.failed.done()
            assert await values(client, "extreme") == [-1, 7]
            assert await values(client, "plain") == [1, 2]

    simulate(3, main)


@pytest.mark.parametrize(
    "settings",
    [
        {"log_cleaner_backoff_ms": LATEST, "log_retention_check_interval_ms": LATEST},
        {"offsets_retention_check_interval_ms": LATEST},
        {"producer_id_expiration_ms": LATEST, "transactional_id_expiration_ms": LATEST},
        {"connections_max_idle_ms": LATEST},
    ],
)
def test_a_broker_starts_with_the_largest_of_times(settings: dict[str, Any]) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", retention_ms=str(LATEST), segment_ms=str(LATEST))
        await client.produce("orders", batch(b"1"))
        running.server.node.expire_producers()
        running.server.node.transactions.expire()
        await asyncio.sleep(700)
        assert await values(await running.client(), "orders") == [1]
        assert not running.server.failed.done()

    play(script, **settings)


# --- failures of one partition -------------------------------------------------------------------


def test_a_partition_that_cannot_be_compacted_is_named_and_the_others_are_compacted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = _Judge.retained

    def overflow(self: _Judge, batches: list[StoredBatch]) -> Iterator[StoredBatch]:
        if any(b"poison" in bytes(each.buffer) for each in batches):
            raise OverflowError("int too big to convert")
        return sound(self, batches)

    monkeypatch.setattr(_Judge, "retained", overflow)

    async def main(world: World) -> None:
        for start in range(2):
            async with simulated_broker(world, host=f"start{start}") as running:
                client = await running.client()
                if not start:
                    await client.create("bad", **COMPACTED)
                    await client.create("good", **COMPACTED)
                    await client.produce("bad", batch(b"poison", key=b"poison"))
                await overwrite(client, "bad")
                await overwrite(client, "good")
                await asyncio.sleep(90)
                assert not running.server.failed.done()
                assert await values(client, "good") == [4, 5]
                failures = running.server.node.store.quarantine.failures
                assert 1 <= failures["compaction"] <= 3, "tried again, and not all the time"
        monkeypatch.setattr(_Judge, "retained", sound)
        async with simulated_broker(world, host="mended") as running:
            await asyncio.sleep(90)
            bad = log_of(running, "bad")
            assert bad.compaction.cleaned_to > 0

    with caplog.at_level(logging.INFO):
        simulate(3, main)
    told = [each for each in caplog.records if each.levelname == "ERROR"]
    assert told
    for each in told:
        line = each.getMessage()
        assert line.startswith("compaction failed for bad-0 at bad-0.")
        assert "/00000000000000000000.log, and is tried again later: OverflowError: int too" in line
        assert each.exc_info
    assert not [each for each in caplog.records if each.levelname == "CRITICAL"]
    totals = [each.getMessage() for each in caplog.records if "served" in each.getMessage()]
    assert "jobs of housekeeping failed (compaction " in totals[0]
    assert "housekeeping" not in totals[-1]


def test_producers_of_other_partitions_are_forgotten_though_one_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = ProducerTable.expire
    broken: list[ProducerTable] = []

    def expire(self: ProducerTable, *args: Any, **options: Any) -> int:
        if self in broken:
            raise KeyError("a producer that is not there")
        return sound(self, *args, **options)

    monkeypatch.setattr(ProducerTable, "expire", expire)

    async def script(world: World, running: Running, client: RawClient) -> None:
        who = await ready(client)
        for topic in ("bad", "good"):
            await client.create(topic)
            now = world.clock.wall_ms()
            await produce(client, who, topic, sent(who, 0, b"a", timestamp=now))
        topics = running.server.node.topics.by_name
        broken.append(topics["bad"].partitions[0].producers)
        await asyncio.sleep(100)
        assert topics["good"].partitions[0].producers.find(who.producer_id) is None
        assert topics["bad"].partitions[0].producers.find(who.producer_id) is not None
        broken.clear()
        await asyncio.sleep(500)
        assert topics["bad"].partitions[0].producers.find(who.producer_id) is None

    settings = {
        "producer_id_expiration_ms": 60_000,
        "producer_id_expiration_check_interval_ms": 10_000,
    }
    play(script, **settings)
    assert "expiry of producers failed for bad-0" in caplog.text


@pytest.mark.parametrize("error", [ZeroDivisionError, LogCorrupt])
def test_every_job_survives_a_failure_that_nobody_thought_of(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        server: Any = running.server
        looks: list[float] = []

        def look() -> None:
            looks.append(world.clock.monotonic())
            raise error("nobody thought of this")

        server._every("looking around", 10, look)
        await asyncio.sleep(35)
        assert len(looks) == 3
        assert server.node.store.quarantine.failures == {"looking around": 3}
        assert (await client.ask(ApiKey.METADATA, 12, {"topics": []}))["brokers"]

    play(script)
    assert "looking around failed for the broker" in caplog.text
    assert "nobody thought of this" in caplog.text


async def commit(client: RawClient, group: str, offset: int) -> None:
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "orders", "partitions": [part]}],
    }
    answer = await client.ask(ApiKey.OFFSET_COMMIT, 9, fields)
    assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"


def test_groups_expire_though_one_of_them_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"bad"}

    def expired_unless_broken(group: Any, *args: Any) -> Any:
        if group.group_id in broken:
            raise ValueError("a group like no other")
        return expired(group, *args)

    monkeypatch.setattr("onceflow.group.driver.expired", expired_unless_broken)

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for group in ("bad", "good"):
            await commit(client, group, 5)
        await asyncio.sleep(200)
        groups = running.server.node.groups
        assert groups.find("good") is None
        assert groups.find("bad") is not None
        broken.clear()
        await asyncio.sleep(600)
        assert groups.find("bad") is None

    play(script, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
    assert "expiry of a group's offsets failed for bad" in caplog.text


def test_transactions_time_out_though_one_of_them_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"bad"}
    sound = machine.time_out

    def time_out(transaction: Any, *args: Any, **options: Any) -> Any:
        if transaction.transactional_id in broken:
            raise ValueError("a transaction like no other")
        return sound(transaction, *args, **options)

    monkeypatch.setattr("onceflow.broker.txn.state_store.machine.time_out", time_out)

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for name in ("bad", "good"):
            await wrote(client, await ready(client, name, timeout_ms=5000), "orders", b"x")
        await asyncio.sleep(20)
        assert await states(client) == {"bad": "Ongoing", "good": "CompleteAbort"}
        failures = running.server.node.store.quarantine.failures
        assert failures == {"timeout of a transaction": 1}
        broken.clear()
        await asyncio.sleep(60)
        assert await states(client) == {"bad": "CompleteAbort", "good": "CompleteAbort"}

    play(script)
    assert "timeout of a transaction failed for bad" in caplog.text


# --- age -----------------------------------------------------------------------------------------


def test_records_without_a_timestamp_go_by_retention_too() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", retention_ms=str(HOUR_MS), internal_segment_bytes="200")
        await overwrite(client, "orders", timestamp=-1)
        await asyncio.sleep(3000)
        client = await running.client()
        assert await values(client, "orders") == [0, 1, 2, 3, 4, 5]
        await asyncio.sleep(1500)
        client = await running.client()
        assert (await client.list_offset("orders", -2))["offset"] == 6

    play(script)


def test_a_clock_that_was_ahead_does_not_keep_a_log_from_being_compacted() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", **COMPACTED, message_timestamp_type="LogAppendTime")
        world.clock.jump_wall(30 * DAY_MS)
        await overwrite(client, "orders")
        world.clock.jump_wall(-30 * DAY_MS)
        await overwrite(client, "orders")
        await asyncio.sleep(60)
        assert await values(client, "orders") == [4, 5]

    play(script)


def test_a_topic_that_nobody_writes_to_is_compacted_in_time_and_then_left_alone() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create(
            "orders",
            cleanup_policy="compact",
            max_compaction_lag_ms=str(HOUR_MS),
            min_cleanable_dirty_ratio="1.0",
        )
        await overwrite(client, "orders", timestamp=world.clock.wall_ms())
        await asyncio.sleep(3550)
        client = await running.client()
        assert await values(client, "orders") == [0, 1, 2, 3, 4, 5]
        await asyncio.sleep(100)
        client = await running.client()
        assert await values(client, "orders") == [5]
        ops = len(world.disk.ops)
        await asyncio.sleep(2000)
        assert len(world.disk.ops) == ops, "an idle broker writes nothing"

    play(script)


def test_a_dirty_topic_is_compacted_soon_without_anybody_asking_for_a_checkpoint() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", **COMPACTED)
        await overwrite(client, "orders")
        await asyncio.sleep(60)
        assert await values(client, "orders") == [4, 5]

    play(script)


# --- what else the settings promise --------------------------------------------------------------


def test_after_a_kill_segments_are_no_larger_than_their_topic_wants() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, journal_first_file_bytes=16 << 20) as running:
            client = await running.client()
            await client.create("orders", segment_bytes=str(1 << 20))
            for _ in range(7):
                answer = await client.produce("orders", batch(bytes(500_000)))
                assert answer["error_code"] == "NONE"
            before = [segment.size for segment in log_of(running, "orders").segments]
            image = SimDisk(world.disk.tree)
        assert len(before) == 4
        async with simulated_broker(world, disk=image, host="second") as running:
            assert not running.server.node.store.report.clean
            after = [segment.size for segment in log_of(running, "orders").segments]
            assert after == before

    simulate(3, main)


def test_compaction_keeps_the_sequence_of_a_producer_as_long_as_it_is_remembered() -> None:
    """By the broker's clock: the records are stamped long ago, as in a backfill."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", **COMPACTED)
        who = await ready(client)
        partition = running.server.node.topics.by_name["orders"].partitions[0]
        now = world.clock.wall_ms()
        records = sent(who, 0, b"1" + b"x" * 200, timestamp=now - 2 * DAY_MS)
        assert (await produce(client, who, "orders", records))["error_code"] == "NONE"

        async def rewritten() -> set[int]:
            for _ in range(3):
                await client.produce("orders", batch(b"2" + b"x" * 200, key=b"k"))
            await asyncio.sleep(40)
            return {
                each.header.producer_id
                for data in await batches_of(client, "orders")
                for each in iter_stored(data)
            }

        assert who.producer_id in await rewritten()
        partition.producers.expire(DAY_MS, DAY_MS)  # it is silent from here on
        partition.producers.expire(2 * DAY_MS, DAY_MS)
        assert who.producer_id not in await rewritten()

    play(script)
