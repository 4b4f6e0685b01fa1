"""The simulated network: order and integrity of bytes, and each fault by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from onceflow.runtime.net import Net
from onceflow.testing.connection import SimConnection
from onceflow.testing.faults import NetFaults, Side
from onceflow.testing.loop import (
    SimulationCallbackFailed,
    SimulationDeadlock,
    SimulationError,
)
from onceflow.testing.transport import SimTransport
from onceflow.testing.world import World, run


class Peer(asyncio.Protocol):
    """Writes down what it hears, chunk by chunk and with the time."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.times: list[float] = []
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.wire = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.times.append(asyncio.get_running_loop().time())

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.error = exc

    @property
    def received(self) -> bytes:
        return b"".join(self.chunks)


class Pair:
    """A connected client on host "a" and the servers that host "b" made on the way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: list[Peer] = []

    def accept(self) -> Peer:
        self.servers.append(Peer())
        return self.servers[-1]

    async def open(self) -> Pair:
        await self.world.net.host("b").listen("0.0.0.0", 9092, self.accept)
        _, self.client = await self.world.net.host("a").connect("b", 9092, Peer)
        return self

    @property
    def server(self) -> Peer:
        return self.servers[0]

    @property
    def connection(self) -> SimConnection:
        return self.world.net.connections[0]


async def a_while() -> None:
    await asyncio.sleep(30)


def on_seeds(
    program: Callable[[World], Awaitable[None]],
    faults: NetFaults | None = None,
    seeds: int = 20,
) -> None:
    for seed in range(seeds):
        run(seed, program, faults=faults)


def pattern(size: int) -> bytes:
    return bytes(i * 31 % 251 for i in range(size))


@pytest.mark.parametrize(
    "faults",
    [
        NetFaults(dribble_chance=1.0, delay_s=(0.0, 0.01)),
        NetFaults(split_chance=0.9, delay_s=(0.0, 5.0)),
        NetFaults(split_chance=0.5, delay_s=(0.0, 0.0), window_bytes=7),
    ],
    ids=["dribble", "split-and-delay", "tiny-window-no-delay"],
)
def test_bytes_arrive_whole_and_in_order(faults: NetFaults) -> None:
    sent = pattern(600)

    async def program(world: World) -> None:
        pair = await Pair(world).open()
        for start in range(0, len(sent), 50):
            pair.client.wire.write(sent[start : start + 50])
            pair.server.wire.write(sent[start : start + 50])
        pair.client.wire.write_eof()
        await asyncio.sleep(10_000)
        assert pair.server.received == sent
        assert pair.client.received == sent
        assert len(pair.server.chunks) > 12
        assert pair.server.calls == ["made", "eof", "lost"]
        if faults.dribble_chance:
            assert {len(chunk) for chunk in pair.server.chunks} == {1}

    on_seeds(program, faults)


def test_a_reset_is_seen_by_both_sides_and_loses_what_was_in_flight() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        pair.client.wire.write(b"lost")
        pair.connection.reset()
        await a_while()
        for peer in (pair.client, pair.server):
            assert isinstance(peer.error, ConnectionResetError)
            assert peer.calls == ["made", "lost"]
        assert pair.server.received == b""
        assert world.net.connections == []

    on_seeds(program)


def test_chances_of_reset_lose_requests_or_answers() -> None:
    outcomes: set[tuple[bytes, bytes]] = set()

    async def program(world: World) -> None:
        pair = await Pair(world).open()
        pair.client.wire.write(b"request")
        await asyncio.sleep(0.001)
        pair.server.wire.write(b"answer")
        await a_while()
        outcomes.add((pair.server.received, pair.client.received))
        if pair.client.error is not None:
            assert isinstance(pair.server.error, ConnectionResetError)

    on_seeds(program, NetFaults(reset_chance=0.6), seeds=60)
    assert outcomes >= {(b"", b""), (b"request", b""), (b"request", b"answer")}


def test_a_lost_response_is_dropped_and_then_reset() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        pair.server.wire.write(b"one")
        await a_while()
        pair.connection.lose_responses()
        pair.client.wire.write(b"request")
        await a_while()
        assert pair.client.calls == ["made"], "nothing shows before the server writes"
        pair.server.wire.write(b"two")
        await a_while()
        assert pair.server.received == b"request"
        assert pair.client.received == b"one"
        assert isinstance(pair.client.error, ConnectionResetError)
        assert isinstance(pair.server.error, ConnectionResetError)

    on_seeds(program)


def test_a_seeded_lost_response() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        pair.client.wire.write(b"request")
        await a_while()
        pair.server.wire.write(b"answer")
        await a_while()
        assert (pair.server.received, pair.client.received) == (b"request", b"")
        assert isinstance(pair.client.error, ConnectionResetError)

    on_seeds(program, NetFaults(lose_response_chance=1.0))


def test_half_close_by_the_network_ends_one_direction() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        pair.server.keep_open = True
        pair.client.wire.write(b"before")
        pair.connection.half_close(Side.CLIENT)
        pair.client.wire.write(b"after")
        await a_while()
        assert (pair.server.received, pair.server.calls) == (b"before", ["made", "eof"])
        pair.server.wire.write(b"answer")
        await a_while()
        assert (pair.client.received, pair.client.calls) == (b"answer", ["made"])

    on_seeds(program)


def test_a_partition_holds_data_until_it_is_joined() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        world.net.partition("a", "b")
        pair.client.wire.write(b"one")
        await asyncio.sleep(100)
        pair.client.wire.write(b"two")
        pair.server.wire.write(b"back")
        await asyncio.sleep(100)
        assert (pair.server.received, pair.client.received) == (b"", b"")
        world.net.join("a", "b")
        pair.client.wire.write(b"three")
        await a_while()
        assert (pair.server.received, pair.client.received) == (b"onetwothree", b"back")

    on_seeds(program, NetFaults(split_chance=0.5))


def test_other_hosts_are_not_partitioned() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        world.net.partition("a", "b")
        _, other = await world.net.host("c").connect("b", 9092, Peer)
        other.wire.write(b"hello")
        await a_while()
        assert [server.received for server in pair.servers] == [b"", b"hello"]

    on_seeds(program)


def test_connecting_over_a_partition_times_out_or_waits() -> None:
    async def program(world: World) -> None:
        await world.net.host("b").listen("b", 9092, Peer)
        world.net.partition("a", "b")
        with pytest.raises(TimeoutError):
            await world.net.host("a").connect("b", 9092, Peer)
        assert world.loop.time() == 127.0
        world.loop.call_later(10, world.net.join, "a", "b")
        await world.net.host("a").connect("b", 9092, Peer)
        assert 127.0 + 10 < world.loop.time() < 127.0 + 16

    on_seeds(program, seeds=3)


def test_refused_connects() -> None:
    async def program(world: World) -> None:
        pair = Pair(world)
        with pytest.raises(ConnectionRefusedError):
            await pair.open()
        assert pair.servers == []
        world.net.set_faults(NetFaults())
        await world.net.host("a").connect("b", 9092, Peer)

    on_seeds(program, NetFaults(refuse_chance=1.0), seeds=3)


def test_a_slow_line_takes_its_time() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        world.net.slow_down("b", "a", bytes_per_second=1000.0)
        start = world.loop.time()
        pair.client.wire.write(bytes(5000))
        pair.client.wire.write(bytes(5000))
        await asyncio.sleep(60)
        assert len(pair.server.received) == 10_000
        assert 10.0 <= pair.server.times[-1] - start < 10.1

    on_seeds(program, seeds=3)


def test_heal_ends_every_fault() -> None:
    async def program(world: World) -> None:
        world.net.set_faults(NetFaults(dribble_chance=1.0))
        pair = await Pair(world).open()
        world.net.set_faults(NetFaults(reset_chance=1.0, refuse_chance=1.0))
        world.net.partition("a", "b")
        world.net.slow_down("a", "b", bytes_per_second=1.0)
        world.net.tap(lambda write: [])
        world.net.heal()
        start = world.loop.time()
        pair.client.wire.write(bytes(1000))
        await world.net.host("a").connect("b", 9092, Peer)
        await a_while()
        assert pair.server.chunks == [bytes(1000)]
        assert pair.server.times[0] - start < 0.01

    on_seeds(program, seeds=3)


def test_a_killed_host_hears_nothing_and_its_peers_see_the_end() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        pair.client.wire.write(b"question")
        world.net.kill("b")
        pair.server.wire.write(b"from the grave")
        await a_while()
        assert (pair.server.received, pair.server.calls) == (b"", ["made"])
        assert pair.client.received == b""
        assert pair.client.calls[-1] == "lost"
        with pytest.raises(ConnectionRefusedError):
            await world.net.host("a").connect("b", 9092, Peer)
        await Pair(world).open()

    on_seeds(program)


def test_a_host_killed_behind_a_partition_is_not_noticed() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        world.net.partition("a", "b")
        world.net.kill("b")
        await asyncio.sleep(10_000)
        assert pair.client.calls == ["made"]
        world.net.join("a", "b")
        await a_while()
        assert pair.client.calls == ["made", "eof", "lost"]

    on_seeds(program, seeds=3)


def test_closing_with_unread_input_resets_the_peer() -> None:
    async def program(world: World) -> None:
        pair = await Pair(world).open()
        pair.server.wire.pause_reading()
        pair.client.wire.write(b"never read")
        await a_while()
        pair.server.wire.close()
        await a_while()
        assert (pair.server.error, pair.server.received) == (None, b"")
        assert isinstance(pair.client.error, ConnectionResetError)

    on_seeds(program)


def test_a_failing_protocol_stops_the_run() -> None:
    class Failing(Peer):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError("in the protocol")

    async def main(world: World) -> None:
        await world.net.host("b").listen("b", 1, Failing)
        transport, _ = await world.net.host("a").connect("b", 1, Peer)
        transport.write(b"x")
        await a_while()

    with pytest.raises(SimulationCallbackFailed, match=r"c1 server.*in the protocol"):
        run(1, main)


def test_a_lost_answer_without_timeout_is_a_deadlock() -> None:
    async def main(world: World) -> None:
        pair = await Pair(world).open()
        world.net.partition("a", "b")
        pair.client.wire.write(b"request")
        await asyncio.Event().wait()

    with pytest.raises(SimulationDeadlock):
        run(1, main)


def test_hosts_listen_on_their_own_names_only() -> None:
    async def program(world: World) -> None:
        host: Net = world.net.host("b")
        with pytest.raises(OSError, match="cannot listen on a"):
            await host.listen("a", 1, Peer)
        listener = await host.listen("localhost", 1, Peer)
        assert (listener.host, listener.port) == ("b", 1)
        await host.connect("127.0.0.1", 1, Peer)
        with pytest.raises(ConnectionRefusedError):
            await world.net.host("a").connect("localhost", 1, Peer)

    on_seeds(program, seeds=1)


@pytest.mark.parametrize("delay_s", [(-1.0, 1.0), (2.0, 1.0)])
def test_faults_that_make_no_sense_are_refused(delay_s: tuple[float, float]) -> None:
    with pytest.raises(SimulationError, match="delay_s"):
        NetFaults(delay_s=delay_s)
    with pytest.raises(SimulationError, match="window_bytes"):
        NetFaults(window_bytes=0)
