"""One conformance suite for both Nets: what a program may rely on, real or simulated."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from onceflow.runtime.net import Net, RealNet
from onceflow.testing.faults import NetFaults
from onceflow.testing.world import World, run

HOST = "127.0.0.1"
Program: TypeAlias = Callable[[Net], Awaitable[None]]
Runner: TypeAlias = Callable[[Program], None]


def run_real(program: Program) -> None:
    async def main() -> None:
        await asyncio.wait_for(program(RealNet()), timeout=30)

    asyncio.run(main())


def run_sim(program: Program) -> None:
    async def main(world: World) -> None:
        await program(world.net.host("a"))

    for seed in range(5):
        run(seed, main)


def run_sim_in_pieces(program: Program) -> None:
    async def main(world: World) -> None:
        await program(world.net.host("a"))

    for seed in range(5):
        run(seed, main, faults=NetFaults(split_chance=0.5, window_bytes=5000))


RUNNERS: list[Runner] = [run_real, run_sim, run_sim_in_pieces]


@pytest.fixture(params=RUNNERS, ids=["real", "sim", "sim-in-pieces"])
def conform(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param
    return runner


class Recorder:
    """What both kinds of protocol below write down, and how a test waits for it."""

    def __init__(self, *, keep_open_at_eof: bool = False) -> None:
        self.calls: list[str] = []
        self.received = bytearray()
        self.transport: asyncio.Transport | None = None
        self.error: Exception | None = None
        self._keep_open_at_eof = keep_open_at_eof
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._record("made")

    def eof_received(self) -> bool:
        self._record("eof")
        return self._keep_open_at_eof

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._record("lost")

    def pause_writing(self) -> None:
        self._record("pause")

    def resume_writing(self) -> None:
        self._record("resume")

    def _record(self, call: str) -> None:
        self.calls.append(call)
        self._changed.set()

    def _got(self, data: bytes) -> None:
        self.received += data
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def until_call(self, call: str) -> None:
        await self.until(lambda: call in self.calls)

    async def until_received(self, size: int) -> None:
        await self.until(lambda: len(self.received) >= size)

    @property
    def wire(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport


class Streaming(Recorder, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        assert data
        self._got(data)


class Buffered(Recorder, asyncio.BufferedProtocol):
    """With a buffer much smaller than what is sent, as a broker's may be."""

    def __init__(self, *, keep_open_at_eof: bool = False) -> None:
        super().__init__(keep_open_at_eof=keep_open_at_eof)
        self._buffer = bytearray(1000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert nbytes > 0
        self._got(bytes(self._buffer[:nbytes]))


class BufferedEcho(Buffered):
    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.wire.write(self._buffer[:nbytes])


class StreamingEcho(Streaming):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.wire.write(data)


async def pair(
    net: Net, *, keep_open_at_eof: bool = False
) -> tuple[Streaming, Streaming, Callable[[], Awaitable[None]]]:
    """A connected client and server; the third value closes everything."""
    server = Streaming(keep_open_at_eof=keep_open_at_eof)
    listener = await net.listen(HOST, 0, lambda: server)
    _, client = await net.connect(listener.host, listener.port, Streaming)
    await server.until_call("made")

    async def end() -> None:
        client.wire.abort()
        server.wire.abort()
        await client.until_call("lost")
        await server.until_call("lost")
        await listener.close()

    return client, server, end


def pattern(size: int) -> bytes:
    return bytes(i * 31 % 251 for i in range(size))


@pytest.mark.parametrize("server", [BufferedEcho, StreamingEcho])
@pytest.mark.parametrize("client", [Buffered, Streaming])
def test_echo(conform: Runner, server: type[Recorder], client: type[Recorder]) -> None:
    sent = pattern(30_000)

    async def program(net: Net) -> None:
        protocols: list[Recorder] = []

        def accept() -> asyncio.BaseProtocol:
            protocol = server()
            protocols.append(protocol)
            assert isinstance(protocol, asyncio.BaseProtocol)
            return protocol

        def dial() -> Buffered | Streaming:
            protocol = client()
            assert isinstance(protocol, Buffered | Streaming)
            return protocol

        listener = await net.listen(HOST, 0, accept)
        transport, protocol = await net.connect(listener.host, listener.port, dial)
        assert protocol.calls == ["made"]
        assert transport.get_protocol() is protocol
        transport.write(sent[:1])
        transport.write(bytearray(sent[1:7000]))
        transport.writelines([sent[7000:20_000], memoryview(sent)[20_000:]])
        await protocol.until_received(len(sent))
        assert protocol.received == sent
        assert protocols[0].received == sent
        transport.close()
        assert transport.is_closing()
        await protocol.until_call("lost")
        await protocols[0].until_call("lost")
        assert (protocol.error, protocols[0].error) == (None, None)
        assert protocols[0].calls[-2:] == ["eof", "lost"]
        await listener.close()

    conform(program)


def test_names_of_both_ends_agree(conform: Runner) -> None:
    async def program(net: Net) -> None:
        client, server, end = await pair(net)
        assert client.wire.get_extra_info("peername") == server.wire.get_extra_info("sockname")
        assert client.wire.get_extra_info("sockname") == server.wire.get_extra_info("peername")
        assert client.wire.get_extra_info("no such thing", 5) == 5
        await end()

    conform(program)


def test_two_listeners_get_two_ports_and_a_taken_one_is_refused(conform: Runner) -> None:
    async def program(net: Net) -> None:
        first = await net.listen(HOST, 0, Streaming)
        second = await net.listen(HOST, 0, Streaming)
        assert 0 < first.port != second.port > 0
        with pytest.raises(OSError, match="in use"):
            await net.listen(HOST, first.port, Streaming)
        await first.close()
        await second.close()
        again = await net.listen(HOST, first.port, Streaming)
        assert again.port == first.port
        await again.close()

    conform(program)


def test_connect_without_listener_is_refused(conform: Runner) -> None:
    async def program(net: Net) -> None:
        listener = await net.listen(HOST, 0, Streaming)
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await net.connect(HOST, listener.port, Streaming)

    conform(program)


def test_closing_a_listener_leaves_its_connections(conform: Runner) -> None:
    async def program(net: Net) -> None:
        server = Streaming()
        listener = await net.listen(HOST, 0, lambda: server)
        _, client = await net.connect(listener.host, listener.port, Streaming)
        await server.until_call("made")
        await listener.close()
        client.wire.write(b"still here")
        await server.until_received(10)
        server.wire.close()
        await client.until_call("lost")
        assert client.calls == ["made", "eof", "lost"]

    conform(program)


def test_half_close_lets_the_other_direction_live(conform: Runner) -> None:
    async def program(net: Net) -> None:
        client, server, end = await pair(net, keep_open_at_eof=True)
        assert client.wire.can_write_eof()
        client.wire.write(b"question")
        client.wire.write_eof()
        with pytest.raises(RuntimeError):
            client.wire.write(b"more")
        await server.until_call("eof")
        assert server.received == b"question"
        assert not server.wire.is_closing()
        server.wire.write(b"answer")
        await client.until_received(6)
        await end()

    conform(program)


def test_close_flushes_and_writes_after_it_vanish(conform: Runner) -> None:
    sent = pattern(40_000)

    async def program(net: Net) -> None:
        client, server, end = await pair(net)
        client.wire.write(sent)
        client.wire.close()
        await server.until_call("lost")
        assert server.received == sent
        await client.until_call("lost")
        client.wire.write(b"into the void")
        client.wire.close()
        client.wire.abort()
        assert client.calls.count("lost") == 1
        await end()

    conform(program)


def test_abort_ends_both_sides(conform: Runner) -> None:
    async def program(net: Net) -> None:
        client, server, end = await pair(net)
        client.wire.abort()
        assert client.wire.is_closing()
        assert "lost" not in client.calls, "callbacks come from the loop, not from the call"
        await client.until_call("lost")
        await server.until_call("lost")
        await end()

    conform(program)


def test_a_full_pipe_pauses_the_writer_and_a_read_resumes_it(conform: Runner) -> None:
    sent = pattern(1000) * 12_000

    async def program(net: Net) -> None:
        client, server, end = await pair(net)
        client.wire.set_write_buffer_limits(high=10_000, low=2000)
        server.wire.pause_reading()
        client.wire.write(sent)
        assert client.calls == ["made", "pause"]
        assert client.wire.get_write_buffer_size() > 10_000
        for _ in range(100):
            await asyncio.sleep(0)
        assert client.calls == ["made", "pause"]
        assert server.received == b""
        server.wire.resume_reading()
        await client.until_call("resume")
        assert client.wire.get_write_buffer_size() <= 2000
        await server.until_received(len(sent))
        assert server.received == sent
        with pytest.raises(ValueError, match="must be >="):
            client.wire.set_write_buffer_limits(high=1, low=2)
        await end()

    conform(program)


def test_writing_to_a_closed_peer_ends_in_an_error(conform: Runner) -> None:
    async def program(net: Net) -> None:
        client, server, end = await pair(net, keep_open_at_eof=True)
        client.wire.close()
        await client.until_call("lost")
        await server.until_call("eof")
        while "lost" not in server.calls:
            server.wire.write(b"anybody?")
            await asyncio.sleep(0.001)
        assert isinstance(server.error, ConnectionError)
        await end()

    conform(program)


def test_a_cancelled_connect_leaves_no_connection_behind(conform: Runner) -> None:
    async def program(net: Net) -> None:
        servers: list[Streaming] = []

        def accept() -> Streaming:
            servers.append(Streaming())
            return servers[-1]

        listener = await net.listen(HOST, 0, accept)
        for turns in range(8):
            dial = asyncio.create_task(net.connect(listener.host, listener.port, Streaming))
            for _ in range(turns):
                await asyncio.sleep(0)
            dial.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                transport, protocol = await dial
                transport.abort()
                await protocol.until_call("lost")
        # A last connection that is served proves that the ones before it were accepted too.
        _, last = await net.connect(listener.host, listener.port, Streaming)
        last.wire.abort()
        await last.until_call("lost")
        while not servers:
            await asyncio.sleep(0)
        for server in servers:
            await server.until_call("lost")
        await listener.close()

    conform(program)


def test_real_sockets_do_not_wait_to_fill_packets() -> None:
    async def program(net: Net) -> None:
        client, server, end = await pair(net)
        for wire in (client.wire, server.wire):
            sock = wire.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await end()

    run_real(program)


def test_a_name_with_several_addresses_is_refused_by_name() -> None:
    async def program(net: Net) -> None:
        listener = await net.listen(HOST, 0, Streaming)
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await net.connect("localhost", listener.port, Streaming)

    run_real(program)


def test_of_a_crowd_that_is_sent_away_few_have_a_descriptor_at_a_time() -> None:
    crowd, here, most, gone = 200, 0, 0, asyncio.Event()

    class Closed(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal here, most
            here += 1
            most = max(most, here)
            assert isinstance(transport, asyncio.Transport)
            transport.abort()

        def connection_lost(self, error: Exception | None) -> None:
            nonlocal here, crowd
            here -= 1
            crowd -= 1
            if not crowd:
                gone.set()

    async def main() -> None:
        listener = await RealNet().listen("127.0.0.1", 0, Closed)
        with contextlib.ExitStack() as stack:
            for _ in range(crowd):  # all of them wait before the loop has its next turn
                address = (listener.host, listener.port)
                stack.enter_context(socket.create_connection(address, 10))
            async with asyncio.timeout(30):
                await gone.wait()
        await listener.close()

    asyncio.run(main())
    assert most <= 8
