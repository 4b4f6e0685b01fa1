"""A broker in the real world: one event loop, the real disk and network, signals as asked.

`run` serves until its caller stops it. A thread loads the heavy modules that only requests need
after the broker listens, so that it is ready at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

import uvloop

from onceflow.broker.config import BrokerConfig, ListenAddress
from onceflow.broker.router import route
from onceflow.broker.server import Runtime, Server
from onceflow.errors import OnceflowError, PathInUse
from onceflow.records import read_kernels
from onceflow.runtime import (
    NO_LIMIT,
    RealClock,
    RealDisk,
    RealNet,
    RealRand,
    Threads,
    descriptor_limit,
    raise_descriptor_limit,
    take_short_slices,
    take_standard_descriptors,
)
from onceflow.wire import ApiKey

_FIRST_ASKED_FOR = (
    (ApiKey.API_VERSIONS, 3),
    (ApiKey.METADATA, 12),
    (ApiKey.PRODUCE, 10),
    (ApiKey.FETCH, 16),
)

_IN_USE_SECONDS: Final = 5.0
"""How long a start waits for a data directory that another broker has."""
_LOOK_SECONDS: Final = 0.1
_KERNELS_AFTER_SECONDS: Final = 0.5
"""A client that waited for the broker asks for versions and metadata at once, and would wait for
the kernels too, because loading them holds the GIL. An earlier Produce loads them itself."""

_log = logging.getLogger(__name__)


class BrokerFailed(OnceflowError):
    """The broker had to stop by itself; the message says why."""


def run(
    config: BrokerConfig,
    on_ready: Callable[[ListenAddress], None],
    until: Callable[[], Awaitable[object]],
    *,
    owns_process: bool,
) -> None:
    """Serves from `on_ready` until what `until()` gave is done; it is called before anything else.
    Raises `BrokerFailed` when the disk fails, and whatever kept the broker from starting.

    In a process of its own the broker takes all descriptors that it may have; else the limit is the
    program's, and the broker takes half of it."""
    take_standard_descriptors()
    descriptors = raise_descriptor_limit() if owns_process else descriptor_limit() // 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, on_ready, until, descriptors))


async def serve(
    config: BrokerConfig,
    on_ready: Callable[[ListenAddress], None],
    until: Callable[[], Awaitable[object]],
    descriptors: int = NO_LIMIT,
) -> None:
    """As `run`, on the running loop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.ensure_future(until())
    background = Threads(post=loop.call_soon_threadsafe, soon=loop.call_soon)
    take_short_slices()
    disk = RealDisk(config.data_dir)
    runtime = Runtime(RealClock(), RealRand(), RealNet(), disk, background, descriptors)
    server = Server(config, runtime)
    try:
        on_ready(await _started(server, stop))
        warm_up = _WarmUp()
        either: set[asyncio.Future[Any]] = {stop, server.failed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        warm_up.stop()
    finally:
        stop.cancel()
        await server.stop()
    if server.failed.done():
        raise BrokerFailed(f"the broker stopped because its disk failed: {server.failed.result()}")


async def _started(server: Server, stop: asyncio.Future[object]) -> ListenAddress:
    """Starts the server, and waits for a data directory that is in use: the broker that has it may
    be about to stop, for example because its parent was killed, and this one takes its place."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    is_told = False
    while True:
        try:
            return await server.start()
        except PathInUse as error:
            if stop.done() or loop.time() >= began + _IN_USE_SECONDS:
                raise
            if not is_told:
                _log.info("waiting for up to %.0f s: %s", _IN_USE_SECONDS, error)
                is_told = True
            await asyncio.wait({stop}, timeout=_LOOK_SECONDS)


class _WarmUp:
    """Loads, on a thread, what the first requests need; can be stopped between two modules."""

    def __init__(self) -> None:
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._load, name="onceflow-warm-up", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            for key, version in _FIRST_ASKED_FOR:
                if not self._is_stopped.is_set():
                    route(key, version)
            if not self._is_stopped.wait(_KERNELS_AFTER_SECONDS):
                read_kernels()
        except Exception:
            # The request that needs it will find out, and say so to its client.
            _log.exception("loading ahead failed")

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()
