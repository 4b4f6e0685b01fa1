"""The door to the network: listen and connect, with asyncio's own transports and protocols.

A protocol is an `asyncio.Protocol` or an `asyncio.BufferedProtocol`; a transport keeps the
contract of `asyncio.Transport`. `connect` fails with `ConnectionRefusedError`, `TimeoutError`
or another `OSError`. Closing a listener stops accepting; connections that it accepted live on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 4
_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)

P = TypeVar("P", bound=asyncio.BaseProtocol)
_Joined: TypeAlias = tuple[asyncio.Transport, asyncio.BaseProtocol]


class Listener(Protocol):
    """An open door for connections."""

    @property
    def host(self) -> str:
        """The local address."""
        ...

    @property
    def port(self) -> int:
        """The local port; the real one when port 0 was asked for."""
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
    """Accepts for the running asyncio loop.

    Not the loop's own server: of connections that come while there is no descriptor left, uvloop's
    accepts and drops every one. Here they wait in the system's queue until there is one again.
    """

    __slots__ = ("_factory", "_host", "_joining", "_loop", "_port", "_retry", "_sock")

    def __init__(
        self, sock: socket.socket, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._sock = sock
        self._factory = protocol_factory
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._joining: set[asyncio.Task[_Joined]] = set()  # else nothing holds them
        address = sock.getsockname()
        self._host: str = address[0]
        self._port: int = address[1]
        self._listen()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        """Accepts a few waiting connections; if there are more, the loop calls again. Only once
        these have their protocols, which may close them for lack of room: a crowd that connects at
        once must never hold more than a few descriptors that others need."""
        if self._joining:
            return
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning(
                    "a connection cannot be accepted, trying again in %g s: %s (raise ulimit -n?)",
                    _RETRY_SECONDS,
                    error.strerror,
                )
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(_RETRY_SECONDS, self._listen)
                return
            accepted.setblocking(False)
            joining = self._loop.create_task(
                self._loop.connect_accepted_socket(self._factory, accepted)
            )
            self._joining.add(joining)
            joining.add_done_callback(self._joined)

    def _joined(self, joining: asyncio.Task[_Joined]) -> None:
        self._joining.discard(joining)
        if not joining.cancelled() and (error := joining.exception()) is not None:
            _log.warning("an accepted connection could not be served: %s", error)

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()


class RealNet:
    """TCP on the running asyncio loop, which sets TCP_NODELAY on every stream socket itself."""

    __slots__ = ()

    async def listen(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> RealListener:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Not left to the loop: uvloop looks names up on threads of its own, and a process that has
        # such threads cannot fork off a child that ends in an orderly way.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.setblocking(False)
            sock.listen(_BACKLOG)
            return RealListener(sock, protocol_factory)
        except BaseException:
            sock.close()
            raise

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
