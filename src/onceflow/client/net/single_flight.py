"""Many who want the same thing at the same time, and one who gets it for all of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from onceflow.client.errors import ConnectionClosed

T = TypeVar("T")


class SingleFlight:
    """Belongs to one event loop; a child that was forked off begins with none under way. Who is
    cancelled while waiting disturbs nobody else."""

    __slots__ = ("_flights", "_pid")

    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}
        self._pid = os.getpid()

    async def run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, or of one for the same key that is under way."""
        self._notice_fork()
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.get_running_loop().create_task(work())
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
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
            flight.exception()  # looked at, even when all who waited have gone

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._flights.clear()  # they run in the parent

    def close(self) -> None:
        """Ends what is under way."""
        self._notice_fork()
        for flight in self._flights.values():
            flight.cancel()
        self._flights.clear()
