"""One thread with an event loop, on which an async client lives while others call it blocking."""

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
    """A client that is not started yet, or is closed already."""

    advice = "use it in a `with` block"


class WouldWaitForever(ClientError):
    """A blocking call on the client's own thread, from one of its callbacks: it would wait for
    itself."""

    advice = "return from the callback first"


class LoopThread:
    """Any thread may `run` something on it; each waits for its own result. It may be started again
    when it was stopped."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._life: Life | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        """Of those who start it."""
        self.settling: Callable[[], Settle | None] = _nothing
        """What is to be done before anything else, if anything (`handover`)."""
        self.on_fork: Callable[[], None] = _nothing
        """Called when it is started in a child of the process in which it was made."""

    @property
    def life(self) -> Life | None:
        """The one that goes on, if any; that of a parent does not, after a fork."""
        return self._life if self._pid == os.getpid() else None

    @property
    def is_running(self) -> bool:
        return self.life is not None

    def starting(self) -> threading.Lock:
        """To be held by whoever starts a client, until that is done: of several threads one does,
        and the others find it started."""
        if self._pid != os.getpid():
            # A child that was forked off; a thread of the parent may have held the lock.
            self._life, self._turn, self._pid = None, threading.Lock(), os.getpid()
            self.on_fork()
        return self._turn

    def start(self) -> Life | None:
        """None when it runs already."""
        if self.is_running:
            return None
        life = Life(self._name)
        try:
            life.thread.start()
            # Only now: who is interrupted before would leave one that nobody serves.
            self._life, self._pid = life, os.getpid()
        except BaseException:
            life.stop()
            raise
        return life

    def stop(self, last: Settle | None = None, *, life: Life | None = None) -> None:
        """Ends the thread, of that life if one is given; what is still under way there is
        cancelled. Then `last` is begun, and cancelled too: for whoever could not wait for a client
        to be closed."""
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
        """Its result. Raises `TimeoutError` when there is none in time; then it is cancelled. When
        the thread is stopped meanwhile this ends too, with its result or with an error. `life`: on
        no other one."""
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
            # Who is interrupted does not want it any more; one that has ended does not mind.
            waiting.call_off()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """What a plain function gives, called on that thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def check(self, wanted: Life | None = None) -> Life:
        """The one on which something can be run by this thread; raises why there is none."""
        if self._pid != os.getpid():
            raise CrossedFork("a blocking client was made before a fork: make one in the child")
        life = wanted or self._life
        if life is None:
            raise NotRunning("the client is not started, or is closed")
        if life.thread is threading.current_thread():
            raise WouldWaitForever("a blocking call on the client's own thread")
        return life


class Life:
    """From a start to its stop: a loop, the thread that it runs on, and those who wait for it."""

    def __init__(self, name: str) -> None:
        take_standard_descriptors()
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.last: Settle | None = None
        self.waiting: set[Waiting[Any]] = set()
        """All who have asked and have no answer. Threads only add themselves."""
        self._is_ending = False
        self.is_over = False
        """Nothing runs on the loop any more: who asks later is refused."""

    def stop(self) -> None:
        """Tells the loop to end, once: a second time would stop it while it ends its tasks."""
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
                loop.run_until_complete(asyncio.sleep(0))  # so that it has begun
                _end_tasks(loop)
        finally:
            # In this order, as `Waiting.ask` has the opposite one: who adds itself too late to be
            # found here sees that it is over. What was only queued in the loop never runs, neither
            # the beginning of a call nor the news of its end.
            self.is_over = True
            for each in tuple(self.waiting):
                each.let_go()
            loop.close()


def _nothing() -> None:
    """For clients that hand out nothing that could be lost on the way."""


class Waiting(Generic[T]):
    """One thread that waits for work on another. With nothing but a lock between them: a thread can
    be interrupted inside of whatever is written in Python, also where that holds a lock which the
    other one needs, and a future of `concurrent.futures` is such a thing."""

    __slots__ = ("_first", "_gate", "_life", "_task", "_work")

    def __init__(self, life: Life, work: Coroutine[Any, Any, T], first: Settle | None) -> None:
        self._life = life
        self._work = work
        self._first = first
        self._task: asyncio.Task[T] | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def ask(self) -> None:
        """Has it begun on the client's thread, unless that has ended: then there is no need to
        wait."""
        self._life.waiting.add(self)
        if self._life.is_over:
            self.let_go()
            return
        with suppress(RuntimeError):  # the loop was closed since: all who waited were let go
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
        """Nobody has to wait any more; a second time it does nothing."""
        self._life.waiting.discard(self)
        if self._task is None or self._task.done():
            self._work.close()  # which may not have begun
        with suppress(RuntimeError):  # it was let go already
            self._gate.release()

    def call_off(self) -> None:
        """Ends it, unless it has ended."""
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
    """Where threads wait, and are interrupted."""
    return waiting.result(timeout_s)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    while left := asyncio.all_tasks(loop):  # also what came while others were ending
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
