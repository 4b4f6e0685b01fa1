"""What a connection held is free when it ends: without the collector of cycles, and for the system.

The collector runs when so many *objects* were made, however large they are: a few hundred
connections that left a large buffer each in a cycle would be more than a machine has.
"""

from __future__ import annotations

import gc
import select
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceflow.broker.net.connection import AcceptedConnection
from onceflow.wire.api import ApiKey
from tests.interop.onceflow_server import OnceflowServer
from tests.unit.broker.broker_under_test import (
    ALL_TOPICS,
    LOOPS,
    LoopFactory,
    RawClient,
    Running,
    batch,
    broker,
    fetch_fields,
    produce_fields,
    round_trip,
    run,
    small_buffers,
)
from tests.unit.broker.net.process_watch import ProcessWatch

HALF = struct.pack(">i", 4 << 20) + bytes(2 << 20)


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def loops(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def sends_nothing(client: RawClient, other: RawClient) -> None:
    pass


async def sends_half_a_frame(client: RawClient, other: RawClient) -> None:
    client.send_bytes(HALF)


async def is_answered(client: RawClient, other: RawClient) -> None:
    await client.ask(ApiKey.METADATA, 12, ALL_TOPICS)


async def waits_for_durability(client: RawClient, other: RawClient) -> None:
    for _ in range(3):
        assert (await client.produce("orders", batch(b"x")))["error_code"] == "NONE"
    client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"not waited for")))


async def waits_for_records(client: RawClient, other: RawClient) -> None:
    for _ in range(3):
        client.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=60_000, min_bytes=1 << 20))


async def got_records_after_a_wait(client: RawClient, other: RawClient) -> None:
    client.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=60_000, min_bytes=1))
    await round_trip(other)
    await other.produce("orders", batch(b"x"))
    await client.receive(ApiKey.FETCH, 12)
    await client.fetch("orders", 1, max_wait=5, min_bytes=1)


async def takes_no_answers(client: RawClient, other: RawClient) -> None:
    small_buffers(client)
    client.transport.pause_reading()
    for _ in range(2000):
        client.send(ApiKey.METADATA, 12, ALL_TOPICS)


DOINGS: tuple[Callable[[RawClient, RawClient], Awaitable[None]], ...] = (
    sends_nothing,
    sends_half_a_frame,
    is_answered,
    waits_for_durability,
    waits_for_records,
    got_records_after_a_wait,
    takes_no_answers,
)


@pytest.mark.parametrize("doing", DOINGS, ids=lambda doing: doing.__name__)
def test_a_connection_that_ends_leaves_nothing_to_the_collector(
    doing: Callable[[RawClient, RawClient], Awaitable[None]], tmp_path: Path, loops: LoopFactory
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            other = await running.client()
            await other.create("orders", 20)
            with no_collector():
                gone = [await _connect_and_end(running, other, doing) for _ in range(5)]
                await _settled(running, other)
                alive = [each() for each in gone if each() is not None]
            assert not alive, [gc.get_referrers(each) for each in alive]

    run(main, loops)


async def _connect_and_end(
    running: Running, other: RawClient, doing: Callable[[RawClient, RawClient], Awaitable[None]]
) -> weakref.ref[AcceptedConnection]:
    client = await running.client()
    while len(running.server._connections) < 2:
        await round_trip(other)
    seen = weakref.ref(next(reversed(running.server._connections)))
    await doing(client, other)
    await round_trip(other)
    client.close()
    await _settled(running, other)
    return seen


async def _settled(running: Running, other: RawClient) -> None:
    while len(running.server._connections) > 1:
        await round_trip(other)
    await other.produce("orders", batch(b"the journal has done what was asked before"))
    await round_trip(other)


# --- the whole process ---------------------------------------------------------------------------

MANY, FRAME = 40, 16 << 20
QUIET_SECONDS = 0.1
"""What is not taken for so long is not going to be."""


def test_partial_frames_die_with_their_connections(tmp_path: Path) -> None:
    """The memory of a real broker, after rounds of connections that send most of the largest frame
    and go."""
    after = []
    with OnceflowServer(tmp_path / "data", settings={}) as broker:
        watch = ProcessWatch(broker.pid)
        for _ in range(6):
            send_most_of_many_frames(int(broker.bootstrap.rsplit(":", 1)[1]))
            watch.wait_until_all_are_gone()
            after.append(watch.resident_bytes >> 20)
    # The allocator keeps up to 64 MB that nobody uses.
    assert after[5] - after[1] < 70, after
    assert max(after) < 250, after


def send_most_of_many_frames(port: int) -> None:
    """As much as the broker takes of them."""
    part = memoryview(struct.pack(">i", FRAME) + bytes(FRAME - (1 << 20)))
    left: dict[socket.socket, memoryview] = {}
    for _ in range(MANY):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        left[sock] = part
    while ready := select.select([], [each for each in left if left[each]], [], QUIET_SECONDS)[1]:
        for sock in ready:
            try:
                left[sock] = left[sock][sock.send(left[sock]) :]
            except OSError:
                left[sock] = memoryview(b"")  # the broker has hung up
    for sock in left:
        sock.close()
