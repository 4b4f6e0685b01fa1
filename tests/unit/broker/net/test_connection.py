"""Connections to a real broker on loopback: answers in order, and peers that go away."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.router import SERVED
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    ALL_TOPICS,
    LOOPS,
    LoopFactory,
    RawClient,
    Running,
    batch,
    broker,
    fetch_fields,
    fetched,
    open_sockets,
    produce_fields,
    produced,
    round_trip,
    run,
    small_buffers,
)

EARLIEST = {
    "replica_id": -1,
    "isolation_level": 0,
    "timeout": 1000,
    "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -2}]}],
}


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def loops(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


# --- order ---------------------------------------------------------------------------------------


def test_answers_wait_for_the_answer_before_them(tmp_path: Path, loops: LoopFactory) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            waiting, other = await running.client(), await running.client()
            await other.create("orders")
            long_poll = fetch_fields("orders", 0, max_wait=60_000, min_bytes=1)
            waiting.send(ApiKey.FETCH, 12, long_poll)
            waiting.send(ApiKey.METADATA, 12, ALL_TOPICS)
            waiting.send(ApiKey.LIST_OFFSETS, 7, EARLIEST)
            waiting.send(ApiKey.FETCH, 4, long_poll)
            waiting.send(ApiKey.API_VERSIONS, 0, {})
            for _ in range(3):
                await round_trip(other)
            assert not waiting.frames
            assert not waiting.is_lost
            await other.produce("orders", batch(b"one"))
            first = fetched(await waiting.receive(ApiKey.FETCH, 12))
            assert first["high_watermark"] == 1
            metadata = await waiting.receive(ApiKey.METADATA, 12)
            assert [each["name"] for each in metadata["topics"]] == ["orders"]
            offsets = await waiting.receive(ApiKey.LIST_OFFSETS, 7)
            assert offsets["topics"][0]["partitions"][0]["offset"] == 0
            assert fetched(await waiting.receive(ApiKey.FETCH, 4))["records"] == first["records"]
            assert (await waiting.receive(ApiKey.API_VERSIONS, 0))["error_code"] == "NONE"

    run(main, loops)


def test_pipelined_produce_requests_are_appended_and_answered_in_order(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders", 2)
            for number in range(10):
                records = batch(b"%d" % number)
                fields = produce_fields("orders", records, partition=number % 2)
                client.send(ApiKey.PRODUCE, 9, fields)
            answers = [produced(await client.receive(ApiKey.PRODUCE, 9)) for _ in range(10)]
            assert [(each["index"], each["base_offset"]) for each in answers] == [
                (number % 2, number // 2) for number in range(10)
            ]

    run(main, loops)


def test_what_a_client_says_of_itself_is_taken_from_each_of_its_requests(
    tmp_path: Path, loops: LoopFactory
) -> None:
    """Clients nearly always say the same, which the broker relies on for speed alone."""
    names = ["first", "first", "other", "much-longer", "x", "n" * 30_000, "", "first"]
    joining = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }

    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            for name in names:
                client.name = name
                for version in (4, 5, 6):
                    client.send(ApiKey.JOIN_GROUP, version, joining)
                    answer = await client.receive(ApiKey.JOIN_GROUP, version)
                    assert answer["error_code"] == "MEMBER_ID_REQUIRED"
                    assert answer["member_id"].startswith(f"{name}-")
                (connection,) = running.server._connections
                longest = max(len(each.said) for each in connection._cached_headers.values())
                assert longest <= 512, "nobody fills our memory"
                client.send(ApiKey.API_VERSIONS, 0, {})  # shorter than a usual header may be
                assert (await client.receive(ApiKey.API_VERSIONS, 0))["error_code"] == "NONE"

    run(main, loops)


def test_only_so_many_kinds_of_requests_are_kept_of_a_client(
    tmp_path: Path, loops: LoopFactory
) -> None:
    asked = [
        (key, version)
        for key in (ApiKey.METADATA, ApiKey.LIST_GROUPS)
        for version in range(SERVED[key].lowest, SERVED[key].highest + 1)
    ]

    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            for key, version in asked * 2:
                client.send(key, version, {})
                await client.receive(key, version)
                (connection,) = running.server._connections
                assert 1 <= len(connection._cached_headers) <= 16
            assert len(asked) > 16

    run(main, loops)


def test_a_produce_that_wants_no_answer_gets_none(tmp_path: Path, loops: LoopFactory) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders")
            unanswered = produce_fields("orders", batch(b"quiet"), acks=0)
            client.send(ApiKey.PRODUCE, 9, unanswered, answered=False)
            answer = await client.fetch("orders", 0, max_wait=60_000, min_bytes=1)
            assert b"quiet" in answer["records"]
            assert (await client.produce("orders", batch(b"loud")))["base_offset"] == 1

    run(main, loops)


def test_an_error_of_an_unanswered_produce_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client, other = await running.client(), await running.client()
            unanswered = produce_fields("absent", batch(b"quiet"), acks=0)
            client.send(ApiKey.PRODUCE, 9, unanswered, answered=False)
            await client.closed()
            await round_trip(other)

    run(main)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "acks=0 to absent-0 failed: UNKNOWN_TOPIC_OR_PARTITION" in line


# --- peers that go away --------------------------------------------------------------------------


async def settled(expected: int) -> None:
    """Waits until no more sockets are open than expected."""
    for _ in range(2000):
        gc.collect()
        if open_sockets() <= expected:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{open_sockets()} sockets are open, {expected} were expected")


async def filled(running: Running, batches: int) -> RawClient:
    client = await running.client()
    await client.create("orders")
    for _ in range(batches):
        answer = await client.produce("orders", batch(bytes(1 << 20)[:1_000_000]))
        assert answer["error_code"] == "NONE"
    return client


def test_peers_that_vanish_in_the_midst_of_an_answer_leave_nothing_behind(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            other = await filled(running, 8)
            before = open_sockets()
            for number in range(10):
                leaver = await running.client()
                small_buffers(leaver)
                leaver.transport.pause_reading()
                fields = fetch_fields("orders", 0, partition_max_bytes=1 << 24)
                for _ in range(1 + number % 3):
                    leaver.send(ApiKey.FETCH, 12, fields)
                await round_trip(other)
                if number % 2:
                    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # a reset instead of an end
                    sock: Any = leaver.transport.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                leaver.close()
            await settled(before)
            assert len(running.server._connections) == 1
            answer = await other.fetch("orders", 7, partition_max_bytes=1 << 24)
            assert len(answer["records"]) > 1_000_000

    run(main, loops)


def test_a_large_answer_read_bit_by_bit_is_whole(tmp_path: Path, loops: LoopFactory) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            other = await filled(running, 6)
            slow = await running.client()
            small_buffers(slow)
            fields = fetch_fields("orders", 0, partition_max_bytes=1 << 24)
            for _ in range(3):
                slow.send(ApiKey.FETCH, 12, fields)
            expected = await other.fetch("orders", 0, partition_max_bytes=1 << 24)
            for _ in range(3):
                assert fetched(await slow.receive(ApiKey.FETCH, 12)) == expected

    run(main, loops)


def test_a_peer_that_leaves_before_its_answer_is_waited_for_no_longer(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            other = await running.client()
            await other.create("orders")
            partition = running.server.node.topics.partition("orders", 0)
            assert partition is not None
            leavers = [await running.client() for _ in range(5)]
            for leaver in leavers:
                fields = fetch_fields("orders", 0, max_wait=2**31 - 1, min_bytes=1)
                for _ in range(3):
                    leaver.send(ApiKey.FETCH, 12, fields)
            await round_trip(other)
            assert len(partition._waiting) == 15
            for leaver in leavers:
                leaver.close()
            while len(running.server._connections) > 1:
                await round_trip(other)
            assert not partition._waiting
            assert (await other.produce("orders", batch(b"on")))["base_offset"] == 0

    run(main, loops)


def test_a_produce_of_a_peer_that_left_is_appended_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            other, leaver = await running.client(), await running.client()
            await other.create("orders")
            leaver.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"farewell")))
            leaver.transport.close()
            answer = await other.fetch("orders", 0, max_wait=60_000, min_bytes=1)
            assert b"farewell" in answer["records"]

    run(main)


def test_stopping_answers_what_is_durable_and_leaves_no_socket(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        before = open_sockets()
        async with broker(tmp_path) as running:
            client, waiting = await running.client(), await running.client()
            await client.create("orders")
            waiting.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=60_000, min_bytes=9))
            await round_trip(client)
            client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"last")))
            while running.server.node.topics.by_name["orders"].partitions[0].log.end_offset == 0:
                await asyncio.sleep(0)
        assert produced(await client.receive(ApiKey.PRODUCE, 9))["base_offset"] == 0
        await client.closed()
        await waiting.closed()
        await settled(before)
        async with broker(tmp_path) as running:
            client = await running.client()
            assert b"last" in (await client.fetch("orders", 0))["records"]

    run(main, loops)
