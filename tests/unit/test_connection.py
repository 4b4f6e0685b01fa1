"""Connections to a real broker on loopback: order, back-pressure, and peers that go away."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from onceflow.broker.connection import MOST_IN_A_TURN
from onceflow.wire.api import ApiKey
from onceflow.wire.primitives import INT32
from tests.unit.broker_helpers import (
    RawClient,
    Running,
    batch,
    broker,
    fetch_fields,
    fetched,
    open_sockets,
    produce_fields,
    produced,
    run,
)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
ALL_TOPICS = {"topics": None, "allow_auto_topic_creation": False}
EARLIEST = {
    "replica_id": -1,
    "isolation_level": 0,
    "timeout": 1000,
    "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -2}]}],
}
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loops(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


async def round_trip(client: RawClient) -> None:
    """Whatever another client asked for before this has been read by the broker."""
    answer = await client.ask(ApiKey.API_VERSIONS, 3, SOFTWARE)
    assert answer["error_code"] == "NONE"


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


# --- back-pressure -------------------------------------------------------------------------------

MANY = 2000


def small_buffers(client: RawClient) -> None:
    """The kernel keeps little for a client, so that what it does not read stays with the broker."""
    sock: Any = client.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)


def test_a_client_that_does_not_read_is_not_read_from_and_holds_up_nobody(
    tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            deaf, other = await running.client(), await running.client()
            await other.create("orders", 100)
            other.send(ApiKey.METADATA, 12, ALL_TOPICS, answered=False)
            whole = await other.receive_frame()
            small_buffers(deaf)
            deaf.transport.pause_reading()
            for _ in range(MANY):
                deaf.send(ApiKey.METADATA, 12, ALL_TOPICS)
            connection = next(iter(running.server._connections))
            outbox: Any = connection._outbox
            number = 0
            while not outbox.is_blocked or number < 20:
                assert (await other.produce("orders", batch(b"on")))["base_offset"] == number
                number += 1
            assert not connection._is_reading
            held = sum(len(each) for each in outbox._queue)
            assert held < 2 * MOST_IN_A_TURN * len(whole)
            assert not connection.is_inside_frame, "the client has said all: it is we who wait"
            deaf.transport.resume_reading()
            frames = [await deaf.receive_frame() for _ in range(MANY)]
            assert [each[:4] for each in frames] == [INT32.pack(1 + at) for at in range(MANY)]
            assert {each[4:] for each in frames} == {whole[4:]}

    run(main, loops)


def test_one_read_of_many_requests_takes_many_turns(tmp_path: Path, loops: LoopFactory) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            busy, other = await running.client(), await running.client()
            await round_trip(other)
            for _ in range(MANY):
                busy.send(ApiKey.METADATA, 12, ALL_TOPICS)
            other.send(ApiKey.API_VERSIONS, 3, SOFTWARE)
            await other.receive(ApiKey.API_VERSIONS, 3)
            assert len(busy.frames) < MANY, "its neighbour was served in between"
            for _ in range(MANY):
                await busy.receive_frame()

    run(main, loops)


def test_many_unanswered_requests_are_not_read_either(tmp_path: Path, loops: LoopFactory) -> None:
    many = 500

    async def main() -> None:
        async with broker(tmp_path) as running:
            client, other = await running.client(), await running.client()
            await other.create("orders")
            for _ in range(many):
                fields = fetch_fields("orders", 0, max_wait=60_000, min_bytes=1)
                client.send(ApiKey.FETCH, 12, fields)
            await round_trip(other)
            partition = running.server.node.topics.partition("orders", 0)
            assert partition is not None
            assert len(partition._waiting) == 64
            await other.produce("orders", batch(b"one"))
            for _ in range(many):
                assert fetched(await client.receive(ApiKey.FETCH, 12))["high_watermark"] == 1

    run(main, loops)


def test_a_slow_journal_stops_the_reading_of_all_until_it_has_caught_up(tmp_path: Path) -> None:
    value = bytes(900_000)

    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders")
            for _ in range(60):
                client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(value)))
            store = running.server.node.store
            most = 0
            for number in range(60):
                answer = produced(await client.receive(ApiKey.PRODUCE, 9))
                assert (answer["error_code"], answer["base_offset"]) == ("NONE", number)
                most = max(most, store.waiting_bytes)
            assert most < 20 << 20

    run(main)


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
