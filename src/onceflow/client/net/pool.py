"""Connections to the brokers of a cluster: one to each that is needed, opened once for all tasks
that need it at the same time, opened again when it has failed, and by every process for itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from onceflow.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionClosed,
    NotKafka,
    TlsFailed,
)
from onceflow.client.events import CONNECTIONS
from onceflow.client.net.address import BrokerAddress
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.net.retry import RetryPolicy
from onceflow.client.net.security import PLAINTEXT, Security
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


_NOTHING_KNOWN: Final[Mapping[str, int]] = MappingProxyType({})


class ConnectionLane(IntEnum):
    """Connections to one broker do not wait for each other; requests on one do."""

    SHARED = 0
    FETCH = 1
    """For requests that brokers hold until there is something to read."""
    GROUP = 2
    """For requests that brokers hold until all members of a group have joined."""
    SECONDARY = 3
    """For more batches than one connection carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A client's timeouts, its id and its security."""

    client_id: str = "onceflow"
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    metadata_max_age_s: float = 300.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    security: Security = PLAINTEXT


class Pool:
    """`features` are the newest finalized levels that a broker has reported."""

    def __init__(self, settings: ClusterSettings, net: Net, rand: Rand) -> None:
        self._settings = settings
        self._net = net
        self._rand = rand
        self._tls: ssl.SSLContext | None = None
        self._connections: dict[tuple[BrokerAddress, ConnectionLane], BrokerConnection] = {}
        self._failures: dict[BrokerAddress, float] = {}
        self._flights = SingleFlight()
        self._pid = os.getpid()
        self.features = _NOTHING_KNOWN
        self.features_epoch = -1

    async def any_of(self, addresses: Iterable[BrokerAddress]) -> BrokerConnection:
        """An open connection, else one to the first address that can be reached; addresses that
        failed come last."""
        for (_, lane), connection in self._connections.items():
            if lane is ConnectionLane.SHARED and connection.is_open:
                return connection
        errors: list[ClientError] = []
        for address in sorted(
            dict.fromkeys(addresses), key=lambda each: self._failures.get(each, 0.0)
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
        # Never back to an older epoch: a broker that is behind would undo `transaction.version`.
        if connection.features_epoch >= self.features_epoch:
            self.features, self.features_epoch = connection.features, connection.features_epoch
        return connection

    def close(self) -> None:
        """Closes all connections."""
        self._flights.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def _named(address: BrokerAddress, **fields: object) -> dict[str, object]:
    return {"address": str(address), **{name: str(value) for name, value in fields.items()}}
