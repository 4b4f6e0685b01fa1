"""The simulated Net: named hosts on one loop, connections in memory, faults on demand.

`SimNet.host(name)` is the network as that host sees it, and what a program under test is given.
The names "localhost", "127.0.0.1" and "::1" mean the host that asks. While two hosts are
partitioned, what is in flight between them waits, and a connect tries again as TCP does until
it times out.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable
from typing import TypeVar

from onceflow.runtime import Rand
from onceflow.testing.connection import Address, SimConnection, Tap
from onceflow.testing.faults import NetConditions, NetFaults, Redeliver, Side
from onceflow.testing.loop import SimLoop
from onceflow.testing.transport import SimTransport

P = TypeVar("P", bound=asyncio.BaseProtocol)

LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
WILDCARDS = frozenset(("", "0.0.0.0", "::"))
FIRST_EPHEMERAL_PORT = 49_152
EPHEMERAL_PORTS = 16_384
# The pauses between a kernel's attempts to connect; their sum is its timeout of 127 s.
CONNECT_RETRY_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
# How long a redelivered request's connection stays open for the server to work on it.
REDELIVERY_LINGER_S = 60.0


class SimListener:
    """An open port of a simulated host."""

    __slots__ = ("_address", "_net", "context", "protocol_factory")

    def __init__(
        self, net: SimNet, address: Address, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._net = net
        self._address = address
        self.protocol_factory = protocol_factory
        self.context = contextvars.copy_context()

    @property
    def host(self) -> str:
        return self._address.host

    @property
    def port(self) -> int:
        return self._address.port

    async def close(self) -> None:
        self._net.stop_listening(self._address, self)


class SimHost:
    """The Net of one named host."""

    __slots__ = ("_net", "name")

    def __init__(self, net: SimNet, name: str) -> None:
        self._net = net
        self.name = name

    async def listen(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> SimListener:
        if host != self.name and host not in LOCAL_NAMES | WILDCARDS:
            raise OSError(errno.EADDRNOTAVAIL, f"host {self.name} cannot listen on {host}")
        return self._net.start_listening(self.name, port, protocol_factory)

    async def connect(
        self, host: str, port: int, protocol_factory: Callable[[], P]
    ) -> tuple[SimTransport, P]:
        target = self.name if host in LOCAL_NAMES else host
        return await self._net.open(self.name, Address(target, port), protocol_factory)


class SimNet:
    """All hosts, all connections, and the orders a test gives the network."""

    def __init__(self, loop: SimLoop, rand: Rand, faults: NetFaults | None = None) -> None:
        self._loop = loop
        self._conditions = NetConditions(rand, faults or NetFaults())
        self._listeners: dict[Address, SimListener] = {}
        self._connections: dict[int, SimConnection] = {}
        self._opened = 0
        self._ports_given = 0
        self._tap: Tap | None = None
        self._redeliveries: set[asyncio.Task[None]] = set()

    def host(self, name: str) -> SimHost:
        """The network as the host called `name` sees it."""
        return SimHost(self, name)

    @property
    def connections(self) -> list[SimConnection]:
        """The connections of which an end is still open, oldest first."""
        return list(self._connections.values())

    # --- orders of a test -----------------------------------------------------------------------

    def set_faults(self, faults: NetFaults) -> None:
        """Draw from these chances from here on."""
        self._conditions.faults = faults

    def partition(self, a: str, b: str) -> None:
        """Let nothing pass between two hosts; what is sent waits."""
        self._loop.note(f"partition {a} {b}")
        self._conditions.partition(a, b)

    def join(self, a: str, b: str) -> None:
        """End a partition; what waited goes on its way."""
        self._loop.note(f"join {a} {b}")
        self._conditions.join(a, b)
        self._resume_links()

    def slow_down(self, a: str, b: str, bytes_per_second: float) -> None:
        """Give the line between two hosts a speed."""
        self._loop.note(f"slow {a} {b} {bytes_per_second}")
        self._conditions.slow_down(a, b, bytes_per_second)

    def heal(self) -> None:
        """A healthy network from here on; connections that are already broken stay so."""
        self._loop.note("heal")
        self._conditions.heal()
        self._tap = None
        for connection in self.connections:
            for side in Side:
                connection.links[side].dribble = False
        self._resume_links()

    def tap(self, tap: Tap | None) -> None:
        """Ask `tap` what becomes of each write; None asks no one."""
        self._tap = tap

    def kill(self, host: str) -> None:
        """End a host's process: its ports close, its peers see the end, it hears nothing."""
        self._loop.note(f"kill {host}")
        for address in [address for address in self._listeners if address.host == host]:
            del self._listeners[address]
        for connection in self.connections:
            for side in Side:
                if connection.addresses[side].host == host:
                    connection.kill(side)

    # --- what hosts call ------------------------------------------------------------------------

    def start_listening(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> SimListener:
        address = Address(host, port or self._free_port(host))
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"address already in use: {host}:{port}")
        listener = SimListener(self, address, protocol_factory)
        self._listeners[address] = listener
        self._loop.note(f"listen {host}:{address.port}")
        return listener

    def stop_listening(self, address: Address, listener: SimListener) -> None:
        if self._listeners.get(address) is listener:
            del self._listeners[address]
            self._loop.note(f"unlisten {address.host}:{address.port}")

    async def open(
        self,
        source: str,
        target: Address,
        protocol_factory: Callable[[], P],
        *,
        tapped: bool = True,
    ) -> tuple[SimTransport, P]:
        await self._reach(source, target.host)
        await asyncio.sleep(self._conditions.delay())
        listener = self._listeners.get(target)
        if listener is None or self._conditions.happens(self._conditions.faults.refuse_chance):
            self._loop.note(f"refuse {source} {target.host}:{target.port}")
            await asyncio.sleep(self._conditions.delay())
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"connect to {target.host}:{target.port} refused"
            )
        connection = self._establish(source, target, tapped=tapped)
        try:
            self._loop.call_soon(_accept, listener, connection, context=listener.context.copy())
            await asyncio.sleep(self._conditions.delay())
            protocol = protocol_factory()
            started: asyncio.Future[None] = self._loop.create_future()
            self._loop.call_soon(connection.client.start, protocol, started)
            await started
        except BaseException:
            connection.client.abort()
            raise
        return connection.client, protocol

    # --- inside ---------------------------------------------------------------------------------

    async def _reach(self, source: str, target: str) -> None:
        for pause in CONNECT_RETRY_S:
            if not self._conditions.is_partitioned(source, target):
                return
            await asyncio.sleep(pause)
        raise TimeoutError(errno.ETIMEDOUT, f"connect from {source} to {target} timed out")

    def _establish(self, source: str, target: Address, *, tapped: bool) -> SimConnection:
        self._opened += 1
        connection = SimConnection(
            self._loop,
            self._conditions,
            number=self._opened,
            client=Address(source, self._next_port()),
            server=target,
            tap=(lambda: self._tap) if tapped else (lambda: None),
            redeliver=self._redeliver,
            on_ended=self._forget,
        )
        self._connections[connection.number] = connection
        self._loop.note(f"c{connection.number} open {source} {target.host}:{target.port}")
        return connection

    def _forget(self, connection: SimConnection) -> None:
        self._connections.pop(connection.number, None)

    def _resume_links(self) -> None:
        for connection in self.connections:
            for side in Side:
                connection.links[side].resume()

    def _next_port(self) -> int:
        self._ports_given += 1
        return FIRST_EPHEMERAL_PORT + self._ports_given % EPHEMERAL_PORTS

    def _free_port(self, host: str) -> int:
        port = self._next_port()
        while Address(host, port) in self._listeners:
            port = self._next_port()
        return port

    def _redeliver(self, connection: SimConnection, action: Redeliver) -> None:
        source = connection.addresses[Side.CLIENT].host
        target = connection.addresses[Side.SERVER]
        task = self._loop.create_task(
            self._redelivery(source, target, action), name=f"redelivery of c{connection.number}"
        )
        # Kept while it runs, for a loop holds its tasks by weak references only.
        self._redeliveries.add(task)
        task.add_done_callback(self._redeliveries.discard)

    async def _redelivery(self, source: str, target: Address, action: Redeliver) -> None:
        await asyncio.sleep(action.after_s)
        try:
            transport, _ = await self.open(source, target, asyncio.Protocol, tapped=False)
        except OSError as error:
            self._loop.note(f"redelivery failed {type(error).__name__}")
            return
        transport.write(action.data)
        await asyncio.sleep(REDELIVERY_LINGER_S)
        transport.abort()


def _accept(listener: SimListener, connection: SimConnection) -> None:
    if not connection.server.is_lost:
        connection.server.start(listener.protocol_factory())
