"""A broker whose disk is full or broken: what it says, what it keeps, and when it stops."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from onceflow.broker.config.settings import ListenAddress
from onceflow.broker.server import Runtime, Server
from onceflow.errors import DiskFailed, ListenFailed, PathInUse
from onceflow.testing.disk import Op, SimDisk, SyncWrite, Write
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    RawClient,
    Running,
    batch,
    config,
    fetch_fields,
    play,
    produce_fields,
    produced,
    simulated_broker,
    values_in,
)
from tests.unit.broker.tight_disk import TIGHT, used
from tests.unit.log.simulated_store import full_for_checkpoints


def test_a_full_disk_refuses_what_it_cannot_hold_and_goes_on_when_there_is_room() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        assert (await client.produce("orders", batch(b"before")))["base_offset"] == 0
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk) + 300
        for _ in range(3):
            answer = await client.produce("orders", batch(bytes(2000)))
            assert answer["error_code"] == "KAFKA_STORAGE_ERROR"
            assert "full" in answer["error_message"] or "free" in answer["error_message"]
        fields = {"name": "more", "num_partitions": 500, "replication_factor": 1}
        topics = [{**fields, "assignments": [], "configs": []}]
        fetched = await client.fetch("orders", 0)
        assert values_in(fetched["records"]) == [(0, b"before")], "readers notice nothing"
        world.disk.capacity = None
        assert (await client.produce("orders", batch(b"after")))["base_offset"] == 1
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 1000})
        assert answer["topics"][0]["error_code"] == "NONE"
        fetched = await client.fetch("orders", 0)
        assert values_in(fetched["records"]) == [(0, b"before"), (1, b"after")]
        assert not running.server.failed.done()

    play(script, **TIGHT)


def test_what_waits_for_room_in_the_journal_goes_on_by_itself_when_there_is_some() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        records = batch(bytes(20_000))
        for _ in range(5):
            await client.produce("orders", records)
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk) + 100_000
        for _ in range(30):
            client.send(ApiKey.PRODUCE, 9, produce_fields("orders", records))
        await asyncio.sleep(30)
        assert not client.frames, "neither durable nor refused"
        world.disk.capacity = None
        await asyncio.sleep(10)
        codes = [produced(await client.receive(ApiKey.PRODUCE, 9))["error_code"] for _ in range(30)]
        assert codes[0] == "NONE"
        assert set(codes) == {"NONE", "KAFKA_STORAGE_ERROR"}, "what did not fit was refused"
        assert (await client.list_offset("orders", -1))["offset"] == 5 + codes.count("NONE")

    play(script, **TIGHT)


@pytest.mark.parametrize("is_for_checkpoints", [True, False])
def test_a_broker_stops_on_a_full_disk_too_and_comes_back_with_everything(
    is_for_checkpoints: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, **TIGHT) as running:
            client = await running.client()
            await client.create("orders")
            for number in range(20):
                assert (await client.produce("orders", batch(b"x")))["base_offset"] == number
            await asyncio.sleep(1)
            world.disk.capacity = used(world.disk)
            if not is_for_checkpoints:
                world.disk.fail = full_for_checkpoints
        world.disk.capacity = None
        world.disk.fail = lambda _: False
        async with simulated_broker(world, host="second", **TIGHT) as running:
            client = await running.client()
            assert (await client.list_offset("orders", -1))["offset"] == 20

    simulate(5, main)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert ["not a clean stop" in line for line in warnings] == [True] * (not is_for_checkpoints)


def test_a_topic_that_finds_no_room_is_not_there_at_all() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk)
        topic = {"name": "more", "num_partitions": 3, "replication_factor": 1}
        fields = {"topics": [{**topic, "assignments": [], "configs": []}], "timeout": 1000}
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, fields)
        assert answer["topics"][0]["error_code"] == "KAFKA_STORAGE_ERROR"
        assert list(running.server.node.topics.by_name) == ["orders"]
        assert not [log for log in running.server.node.store.logs.values() if log.topic == "more"]
        world.disk.capacity = None
        await client.create("later")
        assert not running.server.failed.done()

    play(script, **TIGHT, reserve_bytes=4096)


def test_a_change_of_a_topic_that_finds_no_room_changes_nothing_and_can_be_tried_again() -> None:
    grow = {"topics": [{"name": "orders", "count": 3, "assignments": None}], "timeout": 1000}
    config = {"name": "retention.ms", "config_operation": 0, "value": "77"}
    resource = {"resource_type": 2, "resource_name": "orders", "configs": [config]}

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await asyncio.sleep(1)
        topic = running.server.node.topics.by_name["orders"]
        before = topic.record
        for code, partitions, retention in (("KAFKA_STORAGE_ERROR", 1, None), ("NONE", 3, "77")):
            world.disk.capacity = used(world.disk) if code != "NONE" else None
            answer = await client.ask(ApiKey.CREATE_PARTITIONS, 3, grow)
            assert answer["results"][0]["error_code"] == code
            altered = await client.ask(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]}
            )
            assert altered["responses"][0]["error_code"] == code
            assert len(topic.partitions) == topic.record.partitions == partitions
            assert topic.config.overrides.get("retention.ms") == retention
            assert (topic.record == before) is (code != "NONE")
        assert (await client.produce("orders", batch(b"new"), partition=2))["base_offset"] == 0

    play(script, **TIGHT)


def failing(disk: SimDisk, kind: type[Any]) -> None:
    def fail(op: Op) -> bool:
        return isinstance(op, kind)

    disk.fail = fail


@pytest.mark.parametrize("kind", [SyncWrite, Write])
def test_a_disk_that_fails_stops_the_broker_and_nothing_is_acknowledged(
    kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client, waiting = await running.client(), await running.client()
            await client.create("orders")
            await client.produce("orders", batch(b"safe"))
            waiting.send(ApiKey.FETCH, 12, fetch_fields("orders", 1, max_wait=900_000, min_bytes=1))
            await asyncio.sleep(1)
            failing(world.disk, kind)
            for _ in range(3):
                client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"lost")))
            try:
                for _ in range(3):
                    answer = produced(await client.receive(ApiKey.PRODUCE, 9))
                    assert answer["error_code"] == "KAFKA_STORAGE_ERROR"
            except ConnectionError:
                assert client.is_lost
            assert isinstance(await running.server.failed, DiskFailed)
            assert not waiting.frames, "what is not durable is not shown"
        world.disk.fail = lambda _: False
        async with simulated_broker(world, host="second") as running:
            client = await running.client()
            found = values_in((await client.fetch("orders", 0))["records"])
            assert found[0] == (0, b"safe")
            assert (await client.produce("orders", batch(b"again")))["base_offset"] == len(found)

    with caplog.at_level(logging.CRITICAL):
        simulate(3, main)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "CRITICAL"]
    assert "the disk failed, the broker stops" in line


def test_requests_after_the_failure_are_refused_or_hung_up_on_but_never_acknowledged() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            failing(world.disk, SyncWrite)
            client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"lost")))
            await running.server.failed
            requests: list[tuple[ApiKey, int, dict[str, Any]]] = [
                (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "orders", "topic_id": None}]}),
                (
                    ApiKey.CREATE_PARTITIONS,
                    3,
                    {"topics": [{"name": "orders", "count": 9, "assignments": None}]},
                ),
                (
                    ApiKey.DELETE_RECORDS,
                    2,
                    {"topics": [{"name": "orders", "partitions": []}]},
                ),
            ]
            for key, version, fields in requests:
                other = await running.client()
                answer: Any = None
                try:
                    answer = await other.ask(key, version, {**fields, "timeout": 1000})
                except ConnectionError:
                    continue
                rows = answer.get("responses") or answer.get("results") or []
                assert all(each["error_code"] != "NONE" for each in rows), key.name

    simulate(3, main)


def test_a_data_directory_in_use_is_refused() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world):
            runtime = Runtime(
                world.clock,
                world.rand.fork("second"),
                world.net.host("second"),
                world.disk,
                world.background,
            )
            second = Server(config(listen=ListenAddress("localhost", 9092)), runtime)
            with pytest.raises(PathInUse):
                await second.start()

    simulate(1, main)


def test_a_port_in_use_gives_the_data_directory_back() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world):
            runtime = Runtime(
                world.clock,
                world.rand.fork("second"),
                world.net.host("broker"),
                SimDisk(),
                world.background,
            )
            second = Server(config(listen=ListenAddress("localhost", 9092)), runtime)
            with pytest.raises(ListenFailed, match="in use"):
                await second.start()
            third = Server(config(listen=ListenAddress("localhost", 9093)), runtime)
            await third.start()
            await third.stop()

    simulate(1, main)


def test_a_topic_can_be_deleted_from_a_full_disk() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.produce("orders", batch(bytes(100_000)))
        await asyncio.sleep(1)
        world.disk.capacity = used(world.disk) + 500_000
        refused = await client.produce("orders", batch(bytes(60_000)))
        for _ in range(200):
            if refused["error_code"] != "NONE":
                break
            world.disk.capacity = used(world.disk) + 500_000
            refused = await client.produce("orders", batch(bytes(60_000)))
        assert refused["error_code"] == "KAFKA_STORAGE_ERROR"
        gone = await client.ask(
            ApiKey.DELETE_TOPICS,
            6,
            {"topics": [{"name": "orders", "topic_id": None}], "timeout": 1000},
        )
        assert gone["responses"][0]["error_code"] == "NONE"
        world.disk.capacity = None

    play(script, reserve_bytes=1 << 20)


def test_a_broker_whose_journal_finds_no_room_can_be_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> int:
        async with simulated_broker(world, **TIGHT) as running:
            client = await running.client()
            await client.create("orders")
            for _ in range(5):
                await client.produce("orders", batch(bytes(20_000)))
            await asyncio.sleep(1)
            world.disk.capacity = used(world.disk) + 100_000
            world.disk.fail = full_for_checkpoints
            for _ in range(30):
                fields = produce_fields("orders", batch(bytes(20_000)))
                client.send(ApiKey.PRODUCE, 9, fields)
            await asyncio.sleep(3)
            return len(client.frames)

    with caplog.at_level(logging.WARNING):
        answered, _ = simulate(0, main, max_virtual_seconds=1000)
    assert answered < 30  # those whose group found no room are not acknowledged
    assert "not a clean stop" in caplog.text
