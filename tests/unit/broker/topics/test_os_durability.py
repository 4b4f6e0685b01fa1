"""`durability=os`: changes of topics wait for a checkpoint, and many of them for the same one."""

from __future__ import annotations

import asyncio
from typing import Any

from onceflow.testing.crash import crash_images
from onceflow.testing.disk import Op, Rename, SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    RawClient,
    Running,
    batch,
    play,
    produce_fields,
    produced,
    simulated_broker,
    values_in,
)
from tests.unit.log.simulated_store import full_for_checkpoints

TOPICS = 300


def checkpoints(disk: SimDisk) -> list[Op]:
    """Notes those that are made from now on."""
    made: list[Op] = []

    def note(op: Op) -> None:
        if isinstance(op, Rename) and op.new == "checkpoint":
            made.append(op)

    disk.watch = note
    return made


def test_many_new_topics_take_few_checkpoints() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        made = checkpoints(world.disk)
        names = [{"name": f"topic-{number}"} for number in range(TOPICS)]
        await client.ask(ApiKey.METADATA, 9, {"topics": names, "allow_auto_topic_creation": True})
        assert len(running.server.node.topics.by_name) == TOPICS
        assert 1 <= len(made) <= 10

    play(script, durability="os")


def crashed(world: World, *, kind: str) -> SimDisk:
    """The disk as a power cut leaves it now, or a killed process."""
    if kind == "killed":
        return SimDisk(world.disk.tree)
    images = crash_images(world.disk, seed=1, subsets=0, first=len(world.disk.ops))
    return next(image.disk for image in images if image.kind == "nothing unsynced")


def test_a_change_that_was_answered_is_there_after_a_kill_and_after_a_power_cut() -> None:
    images: dict[str, SimDisk] = {}

    async def main(world: World) -> None:
        async with simulated_broker(world, durability="os") as running:
            client = await running.client()
            for name in ("kept", "gone", "grown"):
                await client.create(name)
            gone = {"topics": [{"name": "gone", "topic_id": None}], "timeout": 1000}
            await client.ask(ApiKey.DELETE_TOPICS, 6, gone)
            more = {"topics": [{"name": "grown", "count": 3, "assignments": None}], "timeout": 1}
            await client.ask(ApiKey.CREATE_PARTITIONS, 3, more)
            await client.ask(
                ApiKey.METADATA,
                9,
                {"topics": [{"name": "asked"}], "allow_auto_topic_creation": True},
            )
            for kind in ("killed", "power cut"):
                images[kind] = crashed(world, kind=kind)

    simulate(5, main)
    for kind, image in images.items():

        async def again(world: World, image: SimDisk = image) -> list[tuple[str, int]]:
            async with simulated_broker(world, disk=image, durability="os") as running:
                topics = running.server.node.topics.by_name.values()
                return sorted((topic.name, len(topic.partitions)) for topic in topics)

        found, _ = simulate(6, again)
        assert found == [("asked", 1), ("grown", 3), ("kept", 1)], kind


def test_a_record_is_not_acknowledged_before_a_start_would_find_its_log() -> None:
    """Who did not wait for the creation may find the topic before a checkpoint names its logs: a
    start would not know them."""
    images: list[SimDisk] = []

    async def main(world: World) -> None:
        async with simulated_broker(world, durability="os") as running:
            client, other = await running.client(), await running.client()
            world.disk.fail = full_for_checkpoints
            fields = {"num_partitions": 1, "replication_factor": 1}
            topic = {"name": "orders", **fields, "assignments": [], "configs": []}
            client.send(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
            while "orders" not in running.server.node.topics.by_name:
                await asyncio.sleep(0.001)
            for value in (b"first", b"second"):
                other.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(value)))
            await asyncio.sleep(3)
            assert not client.frames
            assert not other.frames
            reader = await running.client()
            assert not (await reader.fetch("orders", 0))["records"], "nor is it shown"
            world.disk.fail = lambda _: False
            for offset in (0, 1):
                answer = produced(await other.receive(ApiKey.PRODUCE, 9))
                assert (answer["error_code"], answer["base_offset"]) == ("NONE", offset)
            made: Any = await client.receive(ApiKey.CREATE_TOPICS, 7)
            assert made["topics"][0]["error_code"] == "NONE"
            fetched = await reader.fetch("orders", 0)
            assert values_in(fetched["records"]) == [(0, b"first"), (1, b"second")]
            images.append(SimDisk(world.disk.tree))  # killed

    async def again(world: World) -> None:
        async with simulated_broker(world, disk=images[0], durability="os") as running:
            client = await running.client()
            fetched = await client.fetch("orders", 0)
            assert values_in(fetched["records"]) == [(0, b"first"), (1, b"second")]

    simulate(5, main)
    simulate(6, again)


def test_a_reader_who_waits_learns_of_records_that_a_checkpoint_has_let_through() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        other = await running.client()
        world.disk.fail = full_for_checkpoints
        fields = {"num_partitions": 1, "replication_factor": 1}
        topic = {"name": "orders", **fields, "assignments": [], "configs": []}
        client.send(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
        while "orders" not in running.server.node.topics.by_name:
            await asyncio.sleep(0.001)
        other.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"x")))
        await asyncio.sleep(1)
        reader = await running.client()
        waits = asyncio.ensure_future(reader.fetch("orders", 0, max_wait=15_000, min_bytes=1))
        await asyncio.sleep(1)
        world.disk.fail = lambda _: False
        async with asyncio.timeout(10):
            assert values_in((await waits)["records"]) == [(0, b"x")]

    play(script, durability="os")
