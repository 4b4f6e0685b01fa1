"""What the eighth day, a lost topic record or a conflicting default must never cost: a record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.broker.config.topic_config import Operation
from onceflow.broker.node import Node
from onceflow.broker.topics.internal_logs import OFFSETS_TOPIC, POLICIES, TRANSACTIONS_TOPIC
from onceflow.broker.topics.metadata_log import METADATA_LOG, topic_gone
from onceflow.broker.topics.partition import EpochStart, next_epochs
from onceflow.errors import LogCorrupt
from onceflow.log.config import DAY_MS
from onceflow.log.partition_log import PartitionLog
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.types import LogId
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    ALL_TOPICS,
    RawClient,
    Running,
    batch,
    simulated_broker,
    values_in,
)
from tests.unit.broker.txn.transactional_requests import committed_offset, killed, ready

CHECK_MS = 1_000
SOON_S = 3 * CHECK_MS / 1000
"""Retention has looked more than once."""
IMPATIENT: dict[str, Any] = {"log_retention_check_interval_ms": CHECK_MS}
KEEPS_NOTHING = {"log.retention.ms": "3000", "log.segment.bytes": "1048576"}
FOR_EVER: dict[str, Any] = {"retention_ms": "-1"}


async def names(client: RawClient) -> set[str]:
    answer = await client.ask(ApiKey.METADATA, 12, ALL_TOPICS)
    return {topic["name"] for topic in answer["topics"]}


async def values(client: RawClient, topic: str) -> list[bytes | None]:
    answer = await client.fetch(topic)
    return [value for _, value in values_in(answer["records"])]


async def commit(client: RawClient, topic: str, offset: int) -> None:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    fields = {
        "group_id": "readers",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": [part]}],
    }
    answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, fields)
    assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"


def log_of(running: Running, topic: str) -> PartitionLog:
    return running.server.node.topics.by_name[topic].partitions[0].log


def metadata(node: Node) -> PartitionLog:
    return node.store.logs[METADATA_LOG]


@pytest.mark.parametrize("defaults", [{}, KEEPS_NOTHING], ids=["week", "seconds"])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_topics_outlive_their_topic_records_week(durability: str, defaults: dict[str, str]) -> None:
    settings: dict[str, Any] = {
        **IMPATIENT,
        "durability": durability,
        "topic_defaults": defaults,
    }

    async def main(world: World) -> None:
        async with simulated_broker(world, **settings) as running:
            client = await running.client()
            await client.create("orders", **FOR_EVER)
            await client.produce("orders", batch(b"paid"))
            first = await ready(client)
            await commit(client, "orders", 1)
            world.clock.jump_wall(8 * DAY_MS)
            await asyncio.sleep(SOON_S)
        async with simulated_broker(world, **settings) as running:
            client = await running.client()
            assert await names(client) == {"orders", OFFSETS_TOPIC}
            assert await values(client, "orders") == [b"paid"]
            assert (await ready(client)).producer_id > first.producer_id

    simulate(7, main)


def test_a_younger_topic_record_does_not_cost_the_older_ones() -> None:
    """As the first, with one more record behind the roll that retention makes."""

    async def main(world: World) -> None:
        async with simulated_broker(world, **IMPATIENT) as running:
            client = await running.client()
            await client.create("old", **FOR_EVER)
            await client.produce("old", batch(b"kept"))
            metadata(running.server.node).roll()
            world.clock.jump_wall(8 * DAY_MS)
            await client.create("young")
            await asyncio.sleep(SOON_S)
        async with simulated_broker(world, **IMPATIENT) as running:
            client = await running.client()
            assert await names(client) == {"old", "young"}
            assert await values(client, "old") == [b"kept"]

    simulate(7, main)


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_neither_defaults_nor_stored_configs_change_an_internal_policy(topic: str) -> None:
    defaults = {"log.cleanup.policy": "delete", "log.retention.ms": "3000"}

    async def main(world: World) -> None:
        async with simulated_broker(world, topic_defaults=defaults) as running:
            node = running.server.node
            list(node.auto_create(topic))
            record = node.topics.by_name[topic].record
            # As an earlier version let a client alter it.
            record.configs.update({"cleanup.policy": "delete", "retention.ms": "1000"})
            node.topics._write(record.to_record())
        async with simulated_broker(world, topic_defaults=defaults) as running:
            node = running.server.node
            assert dict(node.topics.by_name[topic].config.overrides) == POLICIES[topic]
            for partition in node.topics.by_name[topic].partitions:
                assert partition.log.config.compact
                assert not partition.log.config.delete

    simulate(7, main)


# --- logs that no topic record names ---------------------------------------------------------


async def lost_records(world: World, **settings: Any) -> SimDisk:
    """A directory whose topic records are gone, as retention once left it."""
    async with simulated_broker(world, **settings) as running:
        client = await running.client()
        await client.create("orders", 2, **FOR_EVER)
        await client.create("never-used")
        await client.produce("orders", batch(b"a"), partition=1)
        await commit(client, "orders", 7)
        node = running.server.node
        node.store.delete_records(metadata(node), metadata(node).high_watermark)
    return world.disk


def test_a_start_that_cannot_explain_logs_refuses_and_removes_nothing() -> None:
    async def main(world: World) -> None:
        await lost_records(world)
        for host in ("second", "third"):  # the refusal is no way around itself
            with pytest.raises(
                LogCorrupt, match="no record of __consumer_offsets, never-used, ord"
            ):
                async with simulated_broker(world, host=host):
                    pass
        async with simulated_broker(world, host="fourth", adopt_unknown_logs=True) as running:
            client = await running.client()
            assert await names(client) == {"orders", "never-used", OFFSETS_TOPIC}
            answer = await client.fetch("orders", partitions=[1])
            assert [value for _, value in values_in(answer["records"])] == [b"a"]
            assert await committed_offset(client, "readers", "orders") == ("NONE", 7)
        async with simulated_broker(world, host="fifth") as running:  # from now on they are known
            assert "orders" in await names(await running.client())
            node = running.server.node
            node.store.create("half-made", [LogId(node.topics.new_id(), 0)])
        async with simulated_broker(world, host="sixth") as running:  # and so is what is not
            assert "half-made" not in {log.topic for log in running.server.node.store.logs.values()}

    simulate(7, main)


def test_producer_ids_whose_claim_was_lost_are_not_given_out_again() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            first = await ready(client, "sender")
            node = running.server.node
            node.store.delete_records(metadata(node), metadata(node).high_watermark)
        async with simulated_broker(world, adopt_unknown_logs=True) as running:
            client = await running.client()
            assert (await ready(client)).producer_id > first.producer_id

    simulate(7, main)


def test_an_adopted_topic_whose_name_is_taken_gets_another_one() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            lost = await client.create("orders", **FOR_EVER)
            await client.produce("orders", batch(b"old"))
            node = running.server.node
            node.store.delete_records(metadata(node), metadata(node).high_watermark)
            node.topics.by_name.clear()
            node.topics._names.clear()
            await client.create("orders")
        async with simulated_broker(world, adopt_unknown_logs=True) as running:
            client = await running.client()
            assert await names(client) == {"orders", f"orders.{lost.hex[:8]}"}
            assert await values(client, f"orders.{lost.hex[:8]}") == [b"old"]

    simulate(7, main)


def test_what_a_cut_off_creation_or_deletion_left_goes(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            gone = await client.create("gone")
            await client.produce("gone", batch(b"deleted"))
            node = running.server.node
            node.topics._write(topic_gone(gone))
            node.store.create("half-made", [LogId(node.topics.new_id(), 0)])
            await asyncio.sleep(1)
            left = killed(world.disk)
        async with simulated_broker(world, host="again", disk=left) as running:
            assert await names(await running.client()) == set()
            assert set(running.server.node.store.logs) == {METADATA_LOG}

    simulate(7, main)
    assert "the creation of half-made was cut off" in caplog.text
    assert "the deletion of gone was cut off" in caplog.text


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_refused_start_leaves_to_the_next_one_what_it_has_to_repair(durability: str) -> None:
    async def main(world: World) -> None:
        left = killed(await lost_records_killed(world, durability))
        with pytest.raises(LogCorrupt):
            async with simulated_broker(world, host="b", disk=left, durability=durability):
                pass
        settings: dict[str, Any] = {"durability": durability, "adopt_unknown_logs": True}
        async with simulated_broker(world, host="c", disk=left, **settings) as running:
            report = running.server.node.store.report
            assert report.may_have_lost == (durability == "os")

    simulate(7, main)


async def lost_records_killed(world: World, durability: str) -> SimDisk:
    async with simulated_broker(world, durability=durability) as running:
        client = await running.client()
        await client.create("orders")
        await client.produce("orders", batch(b"a"))
        node = running.server.node
        node.store.delete_records(metadata(node), metadata(node).high_watermark)
        await asyncio.sleep(1)
        return killed(world.disk)


# --- configs that stopped fitting -------------------------------------------------------------


def test_a_default_that_conflicts_with_a_topic_does_not_prevent_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    defaults = {"log.cleaner.min.compaction.lag.ms": "5000", "log.retention.ms": "86400000"}

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("compacted", max_compaction_lag_ms="1000")
        async with simulated_broker(world, topic_defaults=defaults) as running:
            config = log_of(running, "compacted").config
            assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (0, 1000)
            assert config.retention_ms == 86_400_000

    simulate(7, main)
    assert "the config of topic compacted cannot be used as it is" in caplog.text


async def alter_topic(client: RawClient, name: str, value: str | None) -> None:
    operation = Operation.DELETE if value is None else Operation.SET
    change = {"name": name, "config_operation": operation, "value": value}
    resource = {"resource_type": 2, "resource_name": "orders", "configs": [change]}
    fields = {"resources": [resource], "validate_only": False}
    answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
    assert answer["responses"][0]["error_code"] == "NONE"


def test_a_topic_whose_own_config_cannot_be_read_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create(
                "orders",
                retention_ms="1000",
                segment_bytes="2097152",
                cleanup_policy="compact,delete",
            )
            node = running.server.node
            record = node.topics.by_name["orders"].record
            record.configs.update({"retention.ms": "a week", "of.tomorrow": "1"})
            node.topics._write(record.to_record())
        async with simulated_broker(world) as running:
            config = log_of(running, "orders").config
            assert (config.delete, config.compact, config.segment_bytes) == (False, False, 2 << 20)
            client = await running.client()
            await alter_topic(client, "max.message.bytes", "1000")
            stored = running.server.node.topics.by_name["orders"].record.configs
            assert stored == {
                "cleanup.policy": "compact,delete",
                "segment.bytes": "2097152",
                "retention.ms": "a week",
                "of.tomorrow": "1",
                "max.message.bytes": "1000",
            }
            config = log_of(running, "orders").config
            assert (config.delete, config.compact) == (False, False), "nobody mended it"
            await alter_topic(client, "of.tomorrow", None)
            await alter_topic(client, "retention.ms", "5000")
            config = log_of(running, "orders").config
            assert (config.delete, config.compact, config.retention_ms) == (True, True, 5000)

    simulate(7, main)
    assert "the config of topic orders cannot be used as it is" in caplog.text


# --- leader epochs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "start", "end", "expected"),
    [
        ([(0, 0)], 0, 10, [(0, 0), (1, 10)]),
        ([(0, 0)], 0, 0, [(1, 0)]),
        ([(0, 0), (1, 10)], 0, 10, [(0, 0), (2, 10)]),  # nothing was written in epoch 1
        ([(0, 0), (1, 10)], 0, 7, [(0, 0), (2, 7)]),  # or what was is lost
        ([(0, 0), (1, 10), (2, 20)], 12, 25, [(1, 10), (2, 20), (3, 25)]),
        ([(0, 0), (1, 10), (2, 20)], 20, 25, [(2, 20), (3, 25)]),
        ([(0, 0), (1, 10)], 30, 30, [(1, 10), (2, 30)]),
    ],
)
def test_only_epochs_with_records_are_kept(
    epochs: list[tuple[int, int]], start: int, end: int, expected: list[tuple[int, int]]
) -> None:
    starts = tuple(EpochStart(*each) for each in epochs)
    assert list(next_epochs(starts, start, end)) == expected


def test_unclean_starts_do_not_grow_the_metadata_log_for_ever() -> None:
    async def main(world: World) -> None:
        disk, sizes = world.disk, []
        for number in range(26):
            host = f"broker-{number}"
            async with simulated_broker(world, host=host, disk=disk, durability="os") as running:
                client = await running.client()
                if not number:
                    await client.create("orders", 50)
                topic = running.server.node.topics.by_name["orders"]
                assert all(len(each.epochs) == 1 for each in topic.partitions)
                sizes.append(metadata(running.server.node).size)
                disk = killed(disk)
        # A start writes what it always wrote, but for the digits of the epochs.
        assert sizes[-1] - sizes[-2] < 1.1 * (sizes[3] - sizes[2])

    simulate(7, main)
