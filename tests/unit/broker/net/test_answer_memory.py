"""Answers that clients do not take: what one connection holds of them, and all together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.net.connection import LARGE_ANSWER_BYTES, MOST_HELD_BYTES, AcceptedConnection
from onceflow.broker.net.memory import AnswerMemory
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    LOOPS,
    LoopFactory,
    RawClient,
    Running,
    batch,
    broker,
    fetch_fields,
    fetched,
    round_trip,
    run,
    simulated_broker,
    small_buffers,
)

LIST = ",".join(f"{number}:{number}" for number in range(3000))
NAMES = [f"orders-{number}" for number in range(8)]
ALL_LISTS = {
    "resources": [
        {
            "resource_type": 2,
            "resource_name": name,
            "configuration_keys": ["leader.replication.throttled.replicas"],
        }
        for name in NAMES
    ],
    "include_synonyms": False,
    "include_documentation": False,
}
"""A small request with a large answer."""
MANY = 30


class Receiver:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def close(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_first_that_did_not_take_its_answer_has_to_go() -> None:
    memory = AnswerMemory(100)
    first, second, third = Receiver(), Receiver(), Receiver()
    memory.hold(first, 40)
    memory.hold(second, 50)
    memory.hold(first, 10)
    assert not first.reasons
    memory.hold(third, 20)
    assert ["does not take its answers (50 bytes)" in each for each in first.reasons] == [True]
    assert not second.reasons
    assert memory.held_bytes == 70
    for each in (first, second, third, third):
        memory.release(each)
    assert memory.held_bytes == 0


def test_one_that_is_alone_may_hold_more() -> None:
    memory = AnswerMemory(100)
    only, other = Receiver(), Receiver()
    memory.hold(only, 500)
    assert not only.reasons
    memory.hold(other, 1)
    assert len(only.reasons) == 1
    assert not other.reasons


# --- connections ---------------------------------------------------------------------------------


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def loops(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


def held(connection: AcceptedConnection) -> int:
    """Bytes of answers that have not left."""
    outbox: Any = connection._outbox
    ready = [part for slot in connection._slots for part in slot.parts or ()]
    return sum(len(each) for each in (*outbox._queue, *ready))


async def deaf_client(running: Running) -> tuple[RawClient, AcceptedConnection]:
    client = await running.client()
    small_buffers(client)
    client.transport.pause_reading()
    while not any(each.peer.endswith(f":{port_of(client)}") for each in connections(running)):
        await asyncio.sleep(0)
    (connection,) = [
        each for each in connections(running) if each.peer.endswith(f":{port_of(client)}")
    ]
    return client, connection


def connections(running: Running) -> list[AcceptedConnection]:
    return list(running.server._connections)


def port_of(client: RawClient) -> int:
    port: int = client.transport.get_extra_info("sockname")[1]
    return port


def ask(client: RawClient) -> None:
    client.send(ApiKey.DESCRIBE_CONFIGS, 4, ALL_LISTS, answered=False)


async def size_of_answer(client: RawClient) -> int:
    for name in NAMES:
        await client.create(name, leader_replication_throttled_replicas=LIST)
    ask(client)
    size = len(await client.receive_frame())
    assert size > 2 * LARGE_ANSWER_BYTES
    return size


def test_one_client_holds_little_more_than_one_large_answer(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            other = await running.client()
            whole = await size_of_answer(other)
            deaf, connection = await deaf_client(running)
            for _ in range(MANY):
                ask(deaf)
            while connection._is_reading:
                await round_trip(other)
            for _ in range(5):
                await round_trip(other)
                assert held(connection) < 2 * whole
            assert running.server._answers.held_bytes <= 2 * whole
            deaf.transport.resume_reading()
            for _ in range(MANY):
                assert len(await deaf.receive_frame()) == whole
            await round_trip(other)
            assert running.server._answers.held_bytes == 0

    run(main, loops)


def test_answers_behind_one_that_is_awaited_are_not_gathered_without_end(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            other = await running.client()
            await other.create("orders")
            whole = await size_of_answer(other)
            client = await running.client()
            await round_trip(client)
            connection = connections(running)[-1]
            client.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=60_000, min_bytes=1))
            for _ in range(MANY):
                ask(client)
            while connection._is_reading:
                await round_trip(other)
            assert MOST_HELD_BYTES <= held(connection) < MOST_HELD_BYTES + whole + 64_000
            assert running.server._answers.held_bytes > 0
            await other.produce("orders", batch(b"now"))
            assert fetched(await client.receive(ApiKey.FETCH, 12))["high_watermark"] == 1
            for _ in range(MANY):
                await client.receive_frame()
            assert connection._held_bytes == 0
            assert running.server._answers.held_bytes == 0

    run(main, loops)


def test_large_requests_that_wait_are_not_gathered_without_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client, other = await running.client(), await running.client()
            await other.create("orders", 100)
            fields = fetch_fields("orders", 0, partitions=range(100), max_wait=60_000, min_bytes=1)
            for _ in range(30):
                client.send(ApiKey.FETCH, 12, {**fields, "rack_id": "r" * 30_000})
            connection = connections(running)[0]
            while connection._is_reading:
                await round_trip(other)
            assert len(connection._slots) == MOST_HELD_BYTES // 33_000 + 1
            await other.produce("orders", batch(b"now"))
            for _ in range(30):
                await client.receive_frame()
            assert connection._held_bytes == 0

    run(main)


def test_all_clients_together_hold_only_so_much() -> None:
    most = 2 << 20

    async def main(world: World) -> None:
        async with simulated_broker(world, buffered_bytes=most) as running:
            other = await running.client()
            whole = await size_of_answer(other)
            deaf = [await running.client() for _ in range(3 * most // whole)]
            for client in deaf:
                client.transport.pause_reading()
                for _ in range(5):
                    ask(client)
                await round_trip(other)
                assert running.server._answers.held_bytes <= most
            unsent = [
                each._transport.get_write_buffer_size()
                for each in running.server._connections
                if each._transport is not None
            ]
            assert sum(unsent) <= most
            await asyncio.sleep(1)
            kept = [each for each in deaf if not each.is_lost]
            assert kept == deaf[-len(kept) :], "the last ones had the least time"
            assert len(kept) >= most // whole - 1
            for client in kept:
                client.transport.resume_reading()
                for _ in range(5):
                    await client.receive_frame()
            assert running.server._answers.held_bytes == 0

    simulate(1, main)


def test_a_client_that_is_gone_is_noticed_though_it_is_not_read_from(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client, other = await running.client(), await running.client()
            await other.create("orders")
            for _ in range(64):
                fields = fetch_fields("orders", 0, max_wait=2**31 - 1, min_bytes=1)
                client.send(ApiKey.FETCH, 12, fields)
            connection = connections(running)[0]
            while connection._is_reading:
                await round_trip(other)
            running.server._sweep()
            await round_trip(other)
            assert len(connections(running)) == 2
            client.close()
            while not connection.is_abandoned:
                await round_trip(other)
            running.server._sweep()
            while len(connections(running)) > 1:
                await round_trip(other)
            partition = running.server.node.topics.partition("orders", 0)
            assert partition is not None
            assert not partition._waiting

    run(main, loops)


# --- one request ---------------------------------------------------------------------------------

TIMES = 1000
ONE_PARTITION = {"name": "orders", "partition_indexes": [0] * TIMES}
ONE_GROUP = {"group_id": "group", "topics": [ONE_PARTITION] * 2}
ONE_RESOURCE = {"resource_type": 2, "resource_name": "orders", "configuration_keys": None}
REPEATED: dict[ApiKey, tuple[int, dict[str, Any]]] = {
    ApiKey.METADATA: (12, {"topics": [{"name": "orders", "topic_id": None}] * TIMES}),
    ApiKey.DESCRIBE_GROUPS: (5, {"groups": ["group"] * TIMES}),
    ApiKey.DESCRIBE_CONFIGS: (4, {"resources": [ONE_RESOURCE] * TIMES}),
    ApiKey.DESCRIBE_PRODUCERS: (0, {"topics": [ONE_PARTITION] * 2}),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, {"transactional_ids": ["t"] * TIMES}),
    ApiKey.OFFSET_FETCH: (9, {"groups": [ONE_GROUP] * 2, "require_stable": False}),
}


@pytest.mark.parametrize("key", REPEATED, ids=lambda key: key.name)
def test_what_is_asked_for_again_and_again_is_told_once(key: ApiKey, tmp_path: Path) -> None:
    version, fields = REPEATED[key]

    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders", 5)
            client.send(key, version, fields, answered=False)
            assert len(await client.receive_frame()) < 10_000

    run(main)


def test_a_group_that_is_asked_for_in_parts_is_told_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            groups = [
                {"group_id": "one", "topics": [{"name": "a", "partition_indexes": [2, 0]}]},
                {"group_id": "two", "topics": None},
                {"group_id": "one", "topics": [{"name": "b", "partition_indexes": [1]}]},
                {"group_id": "one", "topics": [{"name": "a", "partition_indexes": [1, 2]}]},
            ]
            answer = await client.ask(ApiKey.OFFSET_FETCH, 9, {"groups": groups})
            found = {
                (group["group_id"], topic["name"]): [
                    each["partition_index"] for each in topic["partitions"]
                ]
                for group in answer["groups"]
                for topic in group["topics"]
            }
            assert found == {("one", "a"): [2, 0, 1], ("one", "b"): [1]}
            assert [each["group_id"] for each in answer["groups"]] == ["one", "two"]

    run(main)
