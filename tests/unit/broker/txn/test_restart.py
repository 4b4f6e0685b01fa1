"""Producers across the end of a broker: what was a repeat before is one after, whatever is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.runtime.disk import Access
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, broker, run, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    LEFT_BY,
    Who,
    again,
    committed,
    ended,
    ends,
    ensure_partition,
    killed,
    names_of,
    produce,
    ready,
    sent,
    wrote,
)

SMALL_SEGMENTS: dict[str, Any] = {"segment_bytes": "1048576", "segment_ms": "86400000"}
BATCHES = 8
"""More than are remembered."""


async def fill(client: RawClient, who: Who, *, size: int = 1) -> None:
    for number in range(BATCHES):
        answer = await produce(client, who, "orders", sent(who, number, bytes(size)))
        assert answer["base_offset"] == number


async def assert_remembered(client: RawClient, who: Who, *, size: int = 1) -> None:
    """The last five are repeats, older ones are refused, and the next one is taken."""
    for number in range(BATCHES - 5, BATCHES):
        answer = await produce(client, who, "orders", sent(who, number, bytes(size)))
        assert (answer["error_code"], answer["base_offset"]) == ("NONE", number)
    older = await produce(client, who, "orders", sent(who, BATCHES - 6, bytes(size)))
    assert older["error_code"] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert (await client.list_offset("orders", -1))["offset"] == BATCHES
    following = await produce(client, who, "orders", sent(who, BATCHES, bytes(size)))
    assert following["base_offset"] == BATCHES


def test_the_last_five_are_known_after_an_orderly_stop() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client)
            await fill(client, who)
        assert names_of(world.disk, ".producers"), "the stop has written them down"
        async with again(world, world.disk) as (_, client):
            await assert_remembered(client, who)

    simulate(3, main)


@pytest.mark.parametrize(
    ("durability", "left"), [("fsync", "kill"), ("fsync", "power cut"), ("os", "kill")]
)
def test_the_last_five_are_known_after_a_crash(durability: str, left: str) -> None:
    """But for a power cut without syncs, which loses the records too."""

    async def main(world: World) -> None:
        async with simulated_broker(world, durability=durability) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client)
            await fill(client, who)
            image = LEFT_BY[left](world.disk)
            async with again(world, image, durability=durability) as (_, client):
                await assert_remembered(client, who)

    simulate(3, main)


def flipped(disk: SimDisk, path: str) -> None:
    file = disk.open(path, Access.WRITE)
    middle = file.size() // 2
    file.pwrite(middle, bytes([file.pread(middle, 1)[0] ^ 1]))


def cut(disk: SimDisk, path: str) -> None:
    file = disk.open(path, Access.WRITE)
    file.truncate(file.size() // 2)


def emptied(disk: SimDisk, path: str) -> None:
    disk.open(path, Access.WRITE).truncate(0)


def removed(disk: SimDisk, path: str) -> None:
    disk.unlink(path)


@pytest.mark.parametrize("damage", [flipped, cut, emptied, removed])
@pytest.mark.parametrize("which", [slice(None), slice(-1, None)], ids=["every one", "the newest"])
def test_a_damaged_snapshot_is_passed_over(
    damage: Callable[[SimDisk, str], None], which: slice
) -> None:
    size = 400_000  # so that segments are sealed, and there is an older snapshot

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders", **SMALL_SEGMENTS)
            who = await ready(client)
            await fill(client, who, size=size)
        snapshots = [each for each in names_of(world.disk, ".producers") if "orders" in each]
        assert len(snapshots) == 2
        for path in sorted(snapshots)[which]:
            damage(world.disk, path)
        async with again(world, world.disk) as (_, client):
            await assert_remembered(client, who, size=size)

    simulate(3, main)


def test_a_copy_of_the_data_directory_of_a_running_broker_knows_the_repeats(tmp_path: Path) -> None:
    """The failover rule, on a real disk: whoever opens the same bytes gives the same answers."""

    async def main() -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        async with broker(first) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client)
            await fill(client, who)
            # What is still being prepared gets its name when it is whole.
            shutil.copytree(first, second, ignore=shutil.ignore_patterns("*.unfinished"))
            async with broker(second) as copied:
                await assert_remembered(await copied.client(), who)

    run(main)


def test_a_copy_taken_in_a_transaction_can_go_on_with_it() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t")
            await wrote(client, who, "orders", b"a")
            async with again(world, killed(world.disk)) as (_, other):
                assert await ends(other, "orders") == (0, 1)
                repeat = await produce(other, who, "orders", sent(who, 0, b"a"))
                assert (repeat["error_code"], repeat["base_offset"]) == ("NONE", 0)
                await produce(other, who, "orders", sent(who, 1, b"b"))
                await ended(other, who, commit=True)
                assert await committed(other, "orders") == [b"a", b"b"]

    simulate(3, main)


def test_transactions_on_a_real_disk_are_as_they_were_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders")
            gone, kept, left = [await ready(client, name) for name in ("gone", "kept", "left")]
            for who, value in ((gone, b"a"), (kept, b"b"), (left, b"c")):
                await wrote(client, who, "orders", value)
            await ended(client, gone, commit=False)
            await ended(client, kept, commit=True)
            assert await ends(client, "orders") == (2, 5)
        async with broker(tmp_path) as running:
            client = await running.client()
            assert await ends(client, "orders") == (2, 5)
            assert await committed(client, "orders") == [b"b"]
            await ended(client, left, commit=True)
            assert await committed(client, "orders") == [b"b", b"c"]
            assert await ends(client, "orders") == (6, 6)

    run(main)


def test_after_a_restart_only_the_log_that_is_left_tells_of_producers() -> None:
    """In memory a producer outlives its records; a broker that starts has only what is left."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client)
            await fill(client, who)
            part = {"partition_index": 0, "offset": -1}
            fields = {"topics": [{"name": "orders", "partitions": [part]}], "timeout": 1000}
            await client.ask(ApiKey.DELETE_RECORDS, 2, fields)
            image = killed(world.disk)
        async with again(world, image) as (running, client):
            assert (await client.list_offset("orders", -2))["offset"] == BATCHES
            assert ensure_partition(running, "orders").producers.find(who.producer_id) is None
            last = await produce(client, who, "orders", sent(who, BATCHES - 1, b"\0"))
            assert last["base_offset"] == BATCHES, "nobody knows that this is a repeat"
        async with again(world, world.disk, host="orderly") as (_, client):
            last = await produce(client, who, "orders", sent(who, BATCHES - 1, b"\0"))
            assert last["base_offset"] == BATCHES - 1, "a snapshot at the log's start knows"

    simulate(3, main)
