"""One thread with an event loop, on which an async client lives while other threads call it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, Generic, TypeAlias, TypeVar

import uvloop

from onceflow.client import ClientError, CrossedFork
from onceflow.runtime import take_standard_descriptors

T = TypeVar("T")
Settle: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_STOP_S: Final = 10.0


class NotRunning(ClientError):
    """The client is not started yet, or was closed."""

    advice = "use it in a `with` block"


class WouldWaitForever(ClientError):
    """A callback of the client made a blocking call on the client's own thread: it would wait for
    itself."""

    advice = "return from the callback first"


class LoopThread:
    """A thread on which other threads `run` coroutines, each waiting for its own result. It can be
    started again after a stop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._life: Life | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        """Held by the thread that starts it."""
        self.settling: Callable[[], Settle | None] = _nothing
        """Returns what has to run before the next call, if anything (`handover`)."""
        self.on_fork: Callable[[], None] = _nothing
        """Called when it is started in a forked child of the process in which it was made."""

    @property
    def life(self) -> Life | None:
        """The current life, if it runs; None in a forked child, which has no such thread."""
        return self._life if self._pid == os.getpid() else None

    @property
    def is_running(self) -> bool:
        return self.life is not None

    def starting(self) -> threading.Lock:
        """The lock to hold while starting a client: of several threads one starts it, and the
        others find it started."""
        if self._pid != os.getpid():
            # In a forked child: a thread of the parent may have held the lock during the fork.
            self._life, self._turn, self._pid = None, threading.Lock(), os.getpid()
            self.on_fork()
        return self._turn

    def start(self) -> Life | None:
        """Starts a life; returns None when one runs already."""
        if self.is_running:
            return None
        life = Life(self._name)
        try:
            life.thread.start()
            # Set only now: an interruption before this line would leave a life without a thread.
            self._life, self._pid = life, os.getpid()
        except BaseException:
            life.stop()
            raise
        return life

    def stop(self, last: Settle | None = None, *, life: Life | None = None) -> None:
        """Ends the thread of the given life, or of the current one, and cancels what still runs on
        it. Then starts `last` and cancels it at its first wait: it closes the client when its
        caller cannot wait for that."""
        life = life or self.life
        if life is None:
            return
        if self._life is life:
            self._life = None
        life.last = life.last or last
        life.stop()
        life.thread.join(_STOP_S)

    def run(
        self, work: Coroutine[Any, Any, T], timeout_s: float | None = None, life: Life | None = None
    ) -> T:
        """Runs a coroutine, in the given life if there is one, and returns its result. Raises
        `TimeoutError` and cancels it when there is no result in time. Returns or raises when the
        thread is stopped meanwhile."""
        try:
            life = self.check(life)
        except ClientError:
            work.close()
            raise
        waiting = Waiting(life, work, self.settling())
        try:
            waiting.ask()
            return wait_for(waiting, timeout_s)
        except BaseException:
            # The interrupted caller no longer needs the result. Harmless if the work has ended.
            waiting.call_off()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Calls a plain function on that thread, and returns its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def check(self, wanted: Life | None = None) -> Life:
        """The life in which this thread can run something; raises the reason if there is none."""
        if self._pid != os.getpid():
            raise CrossedFork("a blocking client was made before a fork: make one in the child")
        life = wanted or self._life
        if life is None:
            raise NotRunning("the client is not started, or is closed")
        if life.thread is threading.current_thread():
            raise WouldWaitForever("a blocking call on the client's own thread")
        return life


class Life:
    """One life, from a start to its stop: a loop, its thread, and the calls that wait for it."""

    def __init__(self, name: str) -> None:
        take_standard_descriptors()
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.last: Settle | None = None
        self.waiting: set[Waiting[Any]] = set()
        """The calls without a result. Application threads only add to it."""
        self._is_ending = False
        self.is_over = False
        """Whether the loop has ended: later calls are refused."""

    def stop(self) -> None:
        """Ends the loop, once: a second stop would interrupt it while it ends its tasks."""
        with suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._is_ending:
            self.loop.stop()
        self._is_ending = True

    def _serve(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            _end_tasks(loop)
            if self.last is not None:
                loop.create_task(self.last())
                loop.run_until_complete(asyncio.sleep(0))  # lets it begin
                _end_tasks(loop)
        finally:
            # First the flag, then the calls; `Waiting.ask` does it the other way round. So a call
            # that adds itself too late for this loop sees the flag, and none waits for ever.
            # Callbacks that are still queued in the event loop never run.
            self.is_over = True
            for each in tuple(self.waiting):
                each.let_go()
            loop.close()


def _nothing() -> None:
    """For clients without results that could be lost on the way."""


class Waiting(Generic[T]):
    """A call: one thread that waits for work on another. They share a bare lock and no
    `concurrent.futures.Future`: a thread can be interrupted inside any Python code, and inside a
    future it could leave a lock held that the other thread needs."""

    __slots__ = ("_first", "_gate", "_life", "_task", "_work")

    def __init__(self, life: Life, work: Coroutine[Any, Any, T], first: Settle | None) -> None:
        self._life = life
        self._work = work
        self._first = first
        self._task: asyncio.Task[T] | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def ask(self) -> None:
        """Starts the work on the client's thread; if that has ended, lets the caller go at once."""
        self._life.waiting.add(self)
        if self._life.is_over:
            self.let_go()
            return
        with suppress(RuntimeError):  # the loop was closed since, and has let all callers go
            self._life.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._life.loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> T:
        if self._first is not None:
            await self._first()
        return await self._work

    def _ended(self, task: asyncio.Task[T]) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Lets the waiting thread go on; a second call does nothing."""
        self._life.waiting.discard(self)
        if self._task is None or self._task.done():
            self._work.close()  # it may not have begun
        with suppress(RuntimeError):  # it was let go already
            self._gate.release()

    def call_off(self) -> None:
        """Cancels the work, unless it has ended."""
        with suppress(RuntimeError):  # the loop is closed
            self._life.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is None:
            self.let_go()
        else:
            self._task.cancel()

    def result(self, timeout_s: float | None) -> T:
        """Waits; raises `TimeoutError` when that takes too long."""
        if not self._gate.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            raise TimeoutError(f"there was no answer within {timeout_s} s")
        task = self._task
        if task is None:
            raise NotRunning("the client was closed before this had begun")
        if task.cancelled() or not task.done():
            raise CancelledError("the client was closed meanwhile")
        return task.result()


def wait_for(waiting: Waiting[T], timeout_s: float | None) -> T:
    """The place where threads wait, and where a signal interrupts them."""
    return waiting.result(timeout_s)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    while left := asyncio.all_tasks(loop):  # ending tasks may start new ones
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
