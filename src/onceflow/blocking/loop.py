"""One thread with an event loop, on which an async client lives while others call it blocking."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import uvloop

from onceflow.client.errors import ClientError, CrossedFork

T = TypeVar("T")

_STOP_S: Final = 10.0


class NotRunning(ClientError):
    """A client that is not started yet, or is closed already."""

    advice = "use it in a `with` block"


class WouldWaitForever(ClientError):
    """A blocking call on the client's own thread, from one of its callbacks: it would wait for
    itself."""

    advice = "return from the callback first"


class LoopThread:
    """Any thread may `run` something on it; each waits for its own result."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        loop = self._loop = uvloop.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_serve, args=(loop,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; what is still under way there is cancelled."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_S)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Its result. Raises `TimeoutError` when there is none in time; then it is cancelled."""
        try:
            loop = self._check()
        except ClientError:
            work.close()
            raise
        return _result(asyncio.run_coroutine_threadsafe(work, loop), timeout_s)

    def call(self, function: Callable[[], T]) -> T:
        """What a plain function gives, called on that thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def _check(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():
            raise CrossedFork("a blocking client was made before a fork: make one in the child")
        if self._loop is None:
            raise NotRunning("the client is not started, or is closed")
        if self._thread is threading.current_thread():
            raise WouldWaitForever("a blocking call on the client's own thread")
        return self._loop


def _result(future: Future[T], timeout_s: float | None) -> T:
    try:
        return future.result(timeout_s)
    except BaseException:
        # Who is interrupted does not want it any more; one that has ended does not mind.
        future.cancel()
        raise


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()
