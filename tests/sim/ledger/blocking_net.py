"""The blocking client on a simulated network: its sockets, its clock and its pauses.

A call that blocks lets the world run until it is done. So the driver of a Spark query can be held
against a simulated broker, and weeks can pass in any of its calls.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest

from onceflow.client.net.cluster import Cluster
from onceflow.client.worker import (
    cluster as worker_cluster,
    connection as worker_socket,
    transaction_client as finisher,
)
from onceflow.spark.sink import (
    batch as batch_run,
    hanging_transactions as left_open,
    topics as sink_topics,
)
from onceflow.testing.world import World

T = TypeVar("T")
Step = Callable[[], None]
_WITH_CLOCKS: Final = (batch_run, finisher)
_WITH_RANDOM: Final = (batch_run, finisher, left_open)


class SimSocket(asyncio.Protocol):
    """As much of a blocking socket as the client uses."""

    def __init__(self, world: World, host: str, address: tuple[str, int], step: Step) -> None:
        self._loop = world.loop
        self._step = step
        self._received = bytearray()
        self._is_lost = False
        self._news = asyncio.Event()
        self._timeout = 60.0
        made = world.net.host(host).connect(*address, lambda: self)
        self._transport, _ = self._loop.run_until_complete(made)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._news.set()

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: object) -> None:
        """There is nothing to delay for."""

    def sendall(self, data: bytes) -> None:
        self._step()
        if self._is_lost:
            raise BrokenPipeError("the other side has hung up")
        self._transport.write(data)

    def recv_into(self, view: memoryview) -> int:
        self._loop.run_until_complete(self._until_news())
        size = min(len(view), len(self._received))
        view[:size] = self._received[:size]
        del self._received[:size]
        self._step()
        return size

    async def _until_news(self) -> None:
        async with asyncio.timeout(self._timeout):
            while not self._received and not self._is_lost:
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._transport.abort()


@contextmanager
def blocking_clients(world: World, host: str, step: Step) -> Iterator[None]:
    """The blocking client works in that world, as a process on that host; `step` is called
    whenever it has just been told something, or is about to ask."""
    loop = world.loop

    def connect(address: tuple[str, int], timeout: float) -> SimSocket:
        try:
            return SimSocket(world, host, address, step)
        except TimeoutError as error:
            raise OSError(str(error)) from error

    def pause(seconds: float) -> None:
        loop.run_until_complete(asyncio.sleep(seconds))

    def run(work: Coroutine[Any, Any, T]) -> T:
        return loop.run_until_complete(work)

    sockets = SimpleNamespace(
        create_connection=connect,
        socket=socket.socket,
        IPPROTO_TCP=socket.IPPROTO_TCP,
        TCP_NODELAY=socket.TCP_NODELAY,
    )
    clocks = SimpleNamespace(
        sleep=pause,
        monotonic=world.clock.monotonic,
        perf_counter=time.perf_counter,
    )
    rand = world.rand.fork(host)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_socket, "socket", sockets)
        for module in (finisher, worker_cluster, left_open):
            patch.setattr(module, "time", clocks)
        for module in _WITH_CLOCKS:
            patch.setattr(module, "RealClock", lambda: world.clock)
        for module in _WITH_RANDOM:
            patch.setattr(module, "RealRand", lambda: rand)
        patch.setattr(left_open, "Cluster", partial(Cluster, net=world.net.host(host)))
        patch.setattr(left_open, "run_on_own_thread", run)
        patch.setattr(sink_topics, "ensure_topic", lambda *_: None)  # all of them are there
        yield
