"""Clients that send more than they take, or more than there is room for: they wait, nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.net.connection import MOST_IN_A_TURN
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import encode
from onceflow.wire.header import request_header
from onceflow.wire.primitives import INT32
from tests.interop.broker.raw.raw_client import make_request
from tests.unit.broker.broker_under_test import (
    ALL_TOPICS,
    LOOPS,
    SOFTWARE,
    LoopFactory,
    RawClient,
    Running,
    batch,
    broker,
    fetch_fields,
    fetched,
    produce_fields,
    produced,
    round_trip,
    run,
    simulated_broker,
    small_buffers,
)
from tests.unit.broker.produce.odd_batches import bomb

MANY = 2000


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def loops(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


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
            seconds = connection.seconds_in_frame(running.server._runtime.clock.monotonic() + 60)
            assert seconds < 1, "the client has said all: it is we who wait"
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


def count_turns(running: Running, api_key: ApiKey) -> list[int]:
    """How many requests the first connection takes in each turn from now on."""
    served = running.server.node.served
    turns: list[int] = []
    connection = next(iter(running.server._connections))
    feed = connection._feed

    def counted(size: int) -> None:
        before = served[api_key]
        feed(size)
        turns.append(served[api_key] - before)

    connection._feed = counted  # type: ignore[method-assign]
    return turns


def test_long_requests_take_more_of_a_turn(tmp_path: Path, loops: LoopFactory) -> None:
    wanted = [{"name": f"topic-{number}", "topic_id": None} for number in range(200)]
    long = {"topics": wanted, "allow_auto_topic_creation": False}
    body = encode(make_request(ApiKey.METADATA, 12, long))
    many = 60

    async def main() -> None:
        async with broker(tmp_path) as running:
            busy, other = await running.client(), await running.client()
            await round_trip(other)
            turns = count_turns(running, ApiKey.METADATA)
            for _ in range(many):
                busy.send_body(ApiKey.METADATA, 12, body)
            for _ in range(many):
                await busy.receive_frame()
            assert sum(turns) == many
            assert max(turns) <= MOST_IN_A_TURN // (len(body) >> 10) + 1

    run(main, loops)


@pytest.mark.parametrize("work", ["compresses", "decompresses"])
def test_small_requests_of_much_work_take_more_of_a_turn(
    tmp_path: Path, loops: LoopFactory, work: str
) -> None:
    records = batch(b"small") if work == "compresses" else bomb(512 << 10)
    body = encode(make_request(ApiKey.PRODUCE, 9, produce_fields("orders", records)))
    many = 60

    async def main() -> None:
        async with broker(tmp_path) as running:
            busy = await running.client()
            codec = "gzip" if work == "compresses" else "producer"
            await busy.create("orders", compression_type=codec)
            turns = count_turns(running, ApiKey.PRODUCE)
            for _ in range(many):
                busy.send_body(ApiKey.PRODUCE, 9, body)
            for _ in range(many):
                await busy.receive_frame()
            assert sum(turns) == many
            assert max(turns) <= MOST_IN_A_TURN // 4

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


def test_large_requests_that_come_at_once_are_finished_one_after_the_other(
    tmp_path: Path, loops: LoopFactory
) -> None:
    many, most = 12, 3 << 20

    async def main() -> None:
        async with broker(tmp_path, buffered_bytes=most) as running:
            other = await running.client()
            await other.create("orders", 1, max_message_bytes="4000000")
            clients = [await running.client() for _ in range(many)]
            body = encode(make_request(0, 9, produce_fields("orders", batch(bytes(1_500_000)))))
            frame = request_header(ApiKey.PRODUCE, 9, 1, "x") + body
            frame = INT32.pack(len(frame)) + frame
            for client in clients:
                client.send_bytes(frame[:-1])
            stopped = 0
            while not stopped:
                await round_trip(other)
                stopped = sum(not each._is_reading for each in running.server._connections)
            held = [each.buffered_bytes for each in running.server._connections]
            assert sum(each for each in held if each > 1 << 20) <= most + (2 << 20)
            for client in clients:
                client.send_bytes(frame[-1:])
            for client in clients:
                await client.receive_frame()
            assert (await other.list_offset("orders", -1))["offset"] == many

    run(main, loops)


def half_sent(size: int, most: int = 8 << 20) -> bytes:
    return INT32.pack(size) + bytes(min(size // 2, most))


def test_a_large_request_that_is_never_finished_holds_up_the_others_only_so_long() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, buffered_bytes=1 << 20) as running:
            never, then, other = [await running.client() for _ in range(3)]
            await other.create("orders")
            for client in (never, then):
                client.send_bytes(half_sent(3_000_000))
                await asyncio.sleep(0.1)
            reading = [each._is_reading for each in running.server._connections]
            assert reading == [True, False, True]
            await asyncio.sleep(2)
            assert never.is_lost
            assert not then.is_lost, "nobody waits for its place"
            assert all(each._is_reading for each in running.server._connections)
            await asyncio.sleep(35)
            assert then.is_lost

    simulate(1, main)


def test_a_request_that_is_paused_again_and_again_has_no_more_time_than_another() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            slow, other = await running.client(), await running.client()
            await other.create("orders")
            slow.send_bytes(half_sent(3_000_000))
            await asyncio.sleep(1)
            connection = next(iter(running.server._connections))
            for _ in range(50):
                connection._stop_reading()
                await asyncio.sleep(0.5)
                connection.look_again()
                await asyncio.sleep(0.5)
            connection._stop_reading()
            await asyncio.sleep(60)
            connection.look_again()
            assert not slow.is_lost, "it was read from for 26 seconds"
            await asyncio.sleep(10)
            assert slow.is_lost

    simulate(1, main)


def test_who_waits_for_room_in_vain_is_let_go() -> None:
    """One that is sent at a good pace all the time, and never comes to an end."""

    async def main(world: World) -> None:
        async with simulated_broker(world, buffered_bytes=1 << 20) as running:
            steady, then, other = [await running.client() for _ in range(3)]
            steady.send_bytes(INT32.pack(16 << 20))
            for tenth in range(312):
                steady.send_bytes(bytes(53_000))
                if tenth == 5:
                    then.send_bytes(half_sent(3_000_000))
                await asyncio.sleep(0.1)
            assert not steady.is_lost
            assert then.is_lost
            await round_trip(other)

    simulate(1, main)


@pytest.mark.parametrize(
    ("many", "size", "sent", "is_trickling"),
    [
        (60, 16 << 20, 1 << 20, True),
        (900, 16 << 20, 300_000, False),
        (900, 900_000, 450_000, False),
        (900, 900_000, 450_000, True),
    ],
    ids=["60 of 16 MB", "900 of 16 MB", "900 as large as ours", "900 that trickle"],
)
def test_a_large_request_is_served_beside_many_that_are_half_sent(
    many: int, size: int, sent: int, is_trickling: bool
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            other = await running.client()
            await other.create("orders")
            await other.produce("orders", batch(b"a first one"))
            slow = [await running.client() for _ in range(many)]
            for client in slow:
                client.send_bytes(half_sent(size, sent))
            trickle = asyncio.ensure_future(_trickle(slow)) if is_trickling else None
            for _ in range(3):
                asked = world.clock.monotonic()
                answer = await other.produce("orders", batch(bytes(900_000)))
                assert answer["error_code"] == "NONE"
                assert world.clock.monotonic() - asked < 5
            assert sum(each.buffered_bytes for each in running.server._connections) < 330 << 20
            if trickle is not None:
                trickle.cancel()

    simulate(1, main)


async def _trickle(clients: list[RawClient]) -> None:
    while True:
        await asyncio.sleep(0.2)
        for client in clients:
            client.send_bytes(b"x")


def test_a_small_request_waits_for_nobody(tmp_path: Path, loops: LoopFactory) -> None:
    async def main() -> None:
        async with broker(tmp_path, buffered_bytes=1 << 20) as running:
            for _ in range(20):
                (await running.client()).send_bytes(half_sent(3_000_000))
            other = await running.client()
            await other.create("orders")
            for number in range(20):
                answer = await other.produce("orders", batch(bytes(60_000)))
                assert answer["base_offset"] == number
            held = [each.buffered_bytes for each in running.server._connections]
            assert sum(held) < 3_000_000 + 20 * (256 << 10)

    run(main, loops)


def is_crowded(running: Running) -> bool:
    return running.server._memory.is_crowded


def test_who_stops_sending_makes_room_for_who_does_not(tmp_path: Path, loops: LoopFactory) -> None:
    async def main() -> None:
        async with broker(tmp_path, buffered_bytes=4 << 20) as running:
            other = await running.client()
            await other.create("orders")
            for _ in range(5):
                (await running.client()).send_bytes(half_sent(900_000))
            while not is_crowded(running):
                await round_trip(other)
            for number in range(2):
                answer = await other.produce("orders", batch(bytes(900_000)))
                assert answer["base_offset"] == number
            while is_crowded(running):
                await round_trip(other)
            assert len(running.server._scratch.window) == 64 << 10
            while "looks at slow senders" in running.server._timers:
                await round_trip(other)
            assert len(running.server._scratch.window) == 256 << 10, "as before"

    run(main, loops)
