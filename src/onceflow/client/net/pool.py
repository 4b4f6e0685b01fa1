"""Connections to the brokers of a cluster: one to each that is needed, opened once for all tasks
that need it at the same time, opened again when it has failed, and by every process for itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Coroutine, Hashable
from enum import IntEnum
from typing import Any, TypeVar

from onceflow.client.address import BrokerAddress
from onceflow.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionClosed,
    NotKafka,
    TlsFailed,
)
from onceflow.client.events import CONNECTIONS
from onceflow.client.net.cluster_settings import ClusterSettings
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.net.view import ClusterView
from onceflow.runtime import Net, Rand

T = TypeVar("T")


class SingleFlight:
    """Many tasks want the same thing at the same time, and one call gets it for all of them.

    Belongs to one event loop; a forked child begins with none under way. A task that is cancelled
    while it waits disturbs no other."""

    __slots__ = ("_flights", "_pid")

    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}
        self._pid = os.getpid()

    async def run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, or of a call for the same key that is under way."""
        self._notice_fork()
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.get_running_loop().create_task(work())
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
        # Shielded: the cancellation of one waiter must not cancel the call that others wait for.
        try:
            result: T = await asyncio.shield(flight)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if flight.cancelled() and waiting is not None and not waiting.cancelling():
                raise ConnectionClosed("the client was closed meanwhile") from None
            raise
        return result

    def _landed(self, key: Hashable, flight: asyncio.Task[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # looked at, even when no caller waits any more

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._flights.clear()  # they run in the parent

    def close(self) -> None:
        """Cancels the calls under way."""
        self._notice_fork()
        for flight in self._flights.values():
            flight.cancel()
        self._flights.clear()


class ConnectionLane(IntEnum):
    """Connections to one broker do not wait for each other; requests on one do."""

    SHARED = 0
    FETCH = 1
    """For requests that brokers hold until there is something to read."""
    GROUP = 2
    """For requests that brokers hold until all members of a group have joined."""
    SECONDARY = 3
    """For more batches than one connection carries."""


class Pool:
    """Lets the view learn the feature levels that each new connection reports."""

    def __init__(self, settings: ClusterSettings, net: Net, rand: Rand, view: ClusterView) -> None:
        self._settings = settings
        self._net = net
        self._rand = rand
        self._view = view
        self._tls: ssl.SSLContext | None = None
        self._connections: dict[tuple[BrokerAddress, ConnectionLane], BrokerConnection] = {}
        self._failures: dict[BrokerAddress, float] = {}
        self._flights = SingleFlight()
        self._pid = os.getpid()

    async def any(self) -> BrokerConnection:
        """An open connection, else one to the first address that can be reached; addresses that
        failed come last."""
        for (_, lane), connection in self._connections.items():
            if lane is ConnectionLane.SHARED and connection.is_open:
                return connection
        errors: list[ClientError] = []
        for address in sorted(
            self._view.addresses(), key=lambda each: self._failures.get(each, 0.0)
        ):
            try:
                return await self.get(address)
            except (BrokerUnreachable, NotKafka, TlsFailed) as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise BrokerUnreachable("no broker can be reached: " + "; ".join(map(str, errors)))

    async def get(
        self, address: BrokerAddress, lane: ConnectionLane = ConnectionLane.SHARED
    ) -> BrokerConnection:
        """The connection to a broker; raises what `BrokerConnection.open` does."""
        if self._pid != os.getpid():
            # The sockets are the parent's: nothing but our knowledge of them ends here.
            self._pid = os.getpid()
            self.close()
        connection = self.at_hand(address, lane)
        if connection is not None:
            return connection
        return await self._flights.run((address, lane), lambda: self._open(address, lane))

    def at_hand(
        self, address: BrokerAddress, lane: ConnectionLane = ConnectionLane.SHARED
    ) -> BrokerConnection | None:
        """The connection to a broker if it is open."""
        connection = self._connections.get((address, lane))
        return connection if connection is not None and connection.is_open else None

    async def _open(self, address: BrokerAddress, lane: ConnectionLane) -> BrokerConnection:
        settings = self._settings
        if self._tls is None:
            self._tls = settings.security.tls_context()
        try:
            connection = await BrokerConnection.open(
                self._net,
                address,
                client_id=settings.client_id,
                connect_timeout_s=settings.connect_timeout_s,
                request_timeout_s=settings.request_timeout_s,
                security=settings.security,
                tls=self._tls,
                rand=self._rand,
            )
        except ClientError as error:
            level = logging.DEBUG if address in self._failures else logging.INFO
            CONNECTIONS.tell(level, "unreachable", "%(reason)s", **_named(address, reason=error))
            self._failures[address] = asyncio.get_running_loop().time()
            raise
        self._failures.pop(address, None)
        named = _named(address, lane=lane.name.lower())
        CONNECTIONS.info("connected", "connected to %(address)s (%(lane)s)", **named)
        self._connections[address, lane] = connection
        self._view.learn_features(connection.offer)
        return connection

    def close(self) -> None:
        """Closes all connections."""
        self._flights.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def _named(address: BrokerAddress, **fields: object) -> dict[str, object]:
    return {"address": str(address), **{name: str(value) for name, value in fields.items()}}
