"""The door to the network: listen and connect, with asyncio's own transports and protocols.

A protocol is an `asyncio.Protocol` or an `asyncio.BufferedProtocol`; a transport keeps the
contract of `asyncio.Transport`. `connect` fails with `ConnectionRefusedError`, `TimeoutError`
or another `OSError`. Closing a listener stops accepting; connections that it accepted live on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

_BACKLOG = 1024

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Listener(Protocol):
    """An open door for connections."""

    @property
    def host(self) -> str:
        """The address that is listened on."""
        ...

    @property
    def port(self) -> int:
        """The port that is listened on; the real one when port 0 was asked for."""
        ...

    async def close(self) -> None:
        """Stop accepting; the port is free when this returns."""
        ...


class Net(Protocol):
    """The network as seen from one process."""

    async def listen(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener:
        """Accept connections, each served by a new protocol of the factory's."""
        ...

    async def connect(
        self, host: str, port: int, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """Open a connection; `connection_made` has been called when this returns."""
        ...


class RealListener:
    """A server of the running asyncio loop."""

    __slots__ = ("_host", "_port", "_server")

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        address = server.sockets[0].getsockname()
        self._host: str = address[0]
        self._port: int = address[1]

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        # Not followed by `wait_closed`: from Python 3.12 on that waits for every accepted
        # connection to end, and whoever accepted them decides when they do.
        self._server.close()


class RealNet:
    """TCP on the running asyncio loop, which sets TCP_NODELAY on every stream socket itself."""

    __slots__ = ()

    async def listen(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> RealListener:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Not left to the loop: uvloop looks names up on threads of its own, and a process that has
        # such threads cannot fork off a child that ends in an orderly way.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.setblocking(False)
            server = await loop.create_server(protocol_factory, sock=sock, backlog=_BACKLOG)
        except BaseException:
            sock.close()
            raise
        return RealListener(server)

    async def connect(
        self, host: str, port: int, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        loop = asyncio.get_running_loop()
        failure = OSError(f"no address is known for {host}:{port}")
        # One address at a time: asked for a name with several, asyncio folds their failures
        # into a bare OSError and the caller could not tell a refusal from a timeout.
        for family, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return await loop.create_connection(
                    protocol_factory, str(address[0]), port, family=family
                )
            except OSError as error:
                failure = error
        raise failure
