"""A full disk is relieved by deleting: topics, records, what is too old. No restart is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onceflow.testing.world import World
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, batch, play
from tests.unit.log.simulated_store import used

RESERVE = 128 << 10
CAPACITY = 6 << 20
SETTINGS: dict[str, Any] = {
    "journal_largest_file_bytes": 128 << 10,
    "journal_files": 2,
    "reserve_bytes": RESERVE,
    "topic_defaults": {"log.segment.bytes": "1048576"},
}


async def fill(client: RawClient, topic: str) -> int:
    """Appends until the disk is full; the number of batches that were taken."""
    for count in range(1000):
        if (await client.produce(topic, batch(bytes(30_000))))["error_code"] != "NONE":
            return count
    raise AssertionError("the disk never fills")


async def delete_topic(running: Running, client: RawClient) -> None:
    fields = {"topics": [{"name": "large", "topic_id": None}], "timeout": 1000}
    answer = await client.ask(ApiKey.DELETE_TOPICS, 6, fields)
    assert answer["responses"][0]["error_code"] == "NONE"


async def delete_records(running: Running, client: RawClient) -> None:
    partition = {"partition_index": 0, "offset": -1}
    fields = {"topics": [{"name": "large", "partitions": [partition]}], "timeout": 1000}
    answer = await client.ask(ApiKey.DELETE_RECORDS, 2, fields)
    assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"


async def retain_less(running: Running, client: RawClient) -> None:
    config = {"name": "retention.bytes", "config_operation": 0, "value": "0"}
    resource = {"resource_type": 2, "resource_name": "large", "configs": [config]}
    fields = {"resources": [resource]}
    answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
    assert answer["responses"][0]["error_code"] == "NONE"
    await asyncio.sleep(30)


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("relieve", [delete_topic, delete_records, retain_less])
def test_a_full_disk_takes_records_again_when_some_were_deleted(
    relieve: Callable[[Running, RawClient], Any], durability: str
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("large")
        await client.create("small")
        await client.produce("small", batch(b"before"))
        await asyncio.sleep(1)
        world.disk.capacity = CAPACITY
        taken = await fill(client, "large")
        assert taken > 30
        refused = await client.produce("small", batch(bytes(30_000)))
        assert refused["error_code"] == "KAFKA_STORAGE_ERROR"
        await client.fetch("large", 0)  # its files are open, too
        await relieve(running, client)
        await asyncio.sleep(8)
        assert await fill(client, "small") > taken // 2
        assert not running.server.failed.done()

    settings = {**SETTINGS, "log_retention_check_interval_ms": 10_000}
    play(script, durability=durability, **settings)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_disk_that_others_have_filled_is_relieved_too(durability: str) -> None:
    """To the last bytes, those of the reserve too: but a checkpoint has its room already, and can
    do without indexes."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("large")
        await client.create("small")
        for _ in range(100):
            await client.produce("large", batch(bytes(30_000)))
            await client.produce("small", batch(bytes(10_000)))
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk) + 400
        refused = await client.produce("small", batch(bytes(30_000)))
        assert refused["error_code"] == "KAFKA_STORAGE_ERROR"
        await delete_topic(running, client)
        await asyncio.sleep(8)
        assert world.disk.free_bytes() > 2 << 20
        assert (await client.produce("small", batch(bytes(30_000))))["error_code"] == "NONE"
        assert not running.server.failed.done()

    play(script, durability=durability, **SETTINGS)
