"""Taps on the simulated network: requests that come twice, late, changed, held or never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from onceflow.testing.connection import TappedWrite
from onceflow.testing.faults import Deliver, Gate, Hold, Redeliver, Side, TapAction
from onceflow.testing.loop import SimulationError
from onceflow.testing.transport import SimTransport
from onceflow.testing.world import World, run


class Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost = False
        self.error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.wire = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.error = exc


class Pair:
    """A client on host "a" and the servers that host "b" made, one for each connection."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.servers: list[Peer] = []

    def _accept(self) -> Peer:
        self.servers.append(Peer())
        return self.servers[-1]

    async def open(self) -> Pair:
        await self._world.net.host("b").listen("b", 9092, self._accept)
        _, self.client = await self._world.net.host("a").connect("b", 9092, Peer)
        return self


def on_seeds(program: Callable[[World], Awaitable[None]], *, seeds: int) -> None:
    for seed in range(seeds):
        run(seed, program)


def test_a_tap_duplicates_a_request_on_another_connection() -> None:
    async def program(world: World) -> None:
        def twice(write: TappedWrite) -> list[TapAction]:
            assert (write.direction, write.data) == (Side.CLIENT, b"request")
            return [Deliver(write.data), Redeliver(write.data, after_s=5.0)]

        world.net.tap(twice)
        pair = await Pair(world).open()
        pair.client.wire.write(b"request")
        await asyncio.sleep(1)
        assert [server.received for server in pair.servers] == [b"request"]
        await asyncio.sleep(10)
        assert [server.received for server in pair.servers] == [b"request", b"request"]
        world.net.tap(None)
        pair.servers[1].wire.write(b"answer to no one")
        await asyncio.sleep(100)
        assert pair.client.received == b""
        assert pair.servers[1].lost

    on_seeds(program, seeds=5)


def test_a_late_request_arrives_after_its_connection_is_gone() -> None:
    async def program(world: World) -> None:
        world.net.tap(lambda write: [Redeliver(write.data, after_s=20.0)])
        pair = await Pair(world).open()
        pair.client.wire.write(b"request")
        pair.client.wire.close()
        await asyncio.sleep(10)
        assert pair.servers[0].lost
        await asyncio.sleep(20)
        assert [server.received for server in pair.servers] == [b"", b"request"]

    on_seeds(program, seeds=5)


def test_a_redelivery_that_finds_no_server_is_dropped() -> None:
    async def program(world: World) -> None:
        world.net.tap(lambda write: [Redeliver(write.data, after_s=20.0)])
        pair = await Pair(world).open()
        pair.client.wire.write(b"request")
        world.net.kill("b")
        await asyncio.sleep(50)
        assert [server.received for server in pair.servers] == [b""]

    on_seeds(program, seeds=3)


def test_a_tap_drops_changes_and_holds() -> None:
    async def program(world: World) -> None:
        gate = Gate()

        def tap(write: TappedWrite) -> list[TapAction]:
            match write.data:
                case b"drop":
                    return []
                case b"hold":
                    return [Hold(write.data, gate)]
                case _:
                    return [Deliver(write.data.upper())]

        world.net.tap(tap)
        pair = await Pair(world).open()
        for data in (b"a", b"drop", b"hold", b"b"):
            pair.client.wire.write(data)
        await asyncio.sleep(30)
        assert pair.servers[0].received == b"A"
        assert pair.client.wire.get_write_buffer_size() == 5
        gate.open()
        await asyncio.sleep(30)
        assert pair.servers[0].received == b"AholdB", "what follows waits behind what is held"

    on_seeds(program, seeds=20)


def test_only_requests_can_be_redelivered() -> None:
    async def program(world: World) -> None:
        world.net.tap(lambda write: [Redeliver(write.data, after_s=1.0)])
        pair = await Pair(world).open()
        with pytest.raises(SimulationError, match="only what a client wrote"):
            pair.servers[0].wire.write(b"answer")

    on_seeds(program, seeds=1)


def test_a_tap_may_strike_the_connection_itself() -> None:
    async def program(world: World) -> None:
        def tap(write: TappedWrite) -> list[TapAction]:
            write.connection.reset()
            return [Deliver(write.data)]

        world.net.tap(tap)
        pair = await Pair(world).open()
        pair.client.wire.write(b"request")
        await asyncio.sleep(30)
        assert pair.servers[0].received == b""
        assert isinstance(pair.client.error, ConnectionResetError)

    on_seeds(program, seeds=3)
