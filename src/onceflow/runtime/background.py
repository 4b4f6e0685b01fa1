"""Blocking work, away from the owner of the state.

A job is a generator: it does blocking work on files that it was handed and changes no state. Each
`yield` is a point at which a simulated scheduler may let the owner go on, so that a simulation
meets the interleavings that threads have; threads just run through. `done` is called on the
owner's thread with the error that ended the job, or None.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Protocol

from onceflow.runtime.aio import Aio
from onceflow.runtime.disk import DurableWrite

Job = Iterator[None]
Done = Callable[[Exception | None], None]
Post = Callable[[Callable[[], None]], object]
"""Runs a callback on the owner's thread, later: `loop.call_soon_threadsafe` is one."""

_QUICK_S = 0.001
_QUICK_BYTES = 64 << 10
"""What is larger, or was slower last time, is not waited for: nobody else is served meanwhile."""
_WARY_WRITES = 16
"""So many are not, for each `_QUICK_S` that one has taken."""


class Lane(Enum):
    """Jobs of one lane run one after the other; a long one never delays another lane."""

    JOURNAL = "journal"
    BULK = "bulk"
    GROW = "grow"
    COMPACT = "compact"
    CHECK = "check"


class Background(Protocol):
    """Where blocking work goes."""

    def submit(self, lane: Lane, job: Job, done: Done) -> None: ...

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls back on the owner's thread after the present step of the owner."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Blocks the owner until `until()`; jobs go on and their `done` are called meanwhile."""

    def close(self) -> None:
        """Waits for the jobs under way; none may be submitted afterwards."""


def _outcome(job: Job) -> Exception | None:
    try:
        for _ in job:
            pass
    except Exception as error:  # handed to `done`: the owner decides
        return error
    return None


class Inline:
    """Runs everything before the call that asked for it returns: for tools and simple tests.

    What is asked for while something runs waits its turn, so that nobody is called in the middle
    of a step of theirs, just as with threads.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(self, lane: Lane, job: Job, done: Done) -> None:
        self.soon(lambda: done(_outcome(job)))

    def soon(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)
        if not self._is_running:
            self._is_running = True
            try:
                while self._waiting:
                    self._waiting.popleft()()
            finally:
                self._is_running = False

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            if not self._waiting:
                raise RuntimeError("nothing is under way that could end this wait")
            self._waiting.popleft()()

    def close(self) -> None:
        pass


class Threads:
    """One thread a lane; results come back through `post`, in the order the jobs ended.

    Completions pass through a queue of our own, so that `wait` can serve them while it blocks
    the owner's thread; `post` only asks the owner to look into that queue. What the owner itself
    wants done soon needs no thread-safe way: `soon` may be `loop.call_soon`, which wakes nobody.
    """

    def __init__(
        self, post: Post | None = None, soon: Post | None = None, aio: Aio | None = None
    ) -> None:
        """With `aio` direct writes need no thread; the owner calls `serve` when it is readable."""
        self._aio = aio
        self._wary = 0
        self._post = post
        self._post_soon = soon or post
        self._due: deque[Callable[[], None]] = deque()
        self._completions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lanes = {lane: queue.SimpleQueue[tuple[Job, Done] | None]() for lane in Lane}
        self._threads = [
            threading.Thread(
                target=self._work, args=(lane,), name=f"onceflow-{lane.value}", daemon=True
            )
            for lane in Lane
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, lane: Lane) -> None:
        jobs = self._lanes[lane]
        while (item := jobs.get()) is not None:
            job, done = item
            error = _outcome(job)
            self._complete(partial(done, error))
            del item, job, done  # what they hold must not wait for the next one

    def _complete(self, callback: Callable[[], None]) -> None:
        self._completions.put(callback)
        if self._post is not None:
            with suppress(RuntimeError):  # the loop is closed; `wait` and `close` still serve
                self._post(self.serve)

    def serve(self) -> None:
        """Calls what is due and what has completed; on the owner's thread only."""
        if self._aio is not None:
            self._aio.collect()
        while self._due or not self._completions.empty():
            self._call_next()

    def _call_next(self) -> None:
        (self._due.popleft() if self._due else self._completions.get())()

    def submit(self, lane: Lane, job: Job, done: Done) -> None:
        if self._aio is None or not isinstance(job, DurableWrite) or not self._aio.takes(job):
            self._lanes[lane].put((job, done))
        elif job.is_alone and len(job.data) <= _QUICK_BYTES and not self._is_wary():
            self._write_now(job, done)
        else:
            self._aio.submit(job, done)

    def _is_wary(self) -> bool:
        self._wary = max(self._wary - 1, 0)
        return self._wary > 0

    def _write_now(self, write: DurableWrite, done: Done) -> None:
        """For an owner that would only wait. To be woken up by threads of the kernel, which have
        to be woken up first, takes a good part of what the write itself does."""
        began = perf_counter()
        error = _outcome(write)
        self._wary = _WARY_WRITES * int((perf_counter() - began) / _QUICK_S)
        done(error)

    def soon(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)
        if self._post_soon is not None:
            with suppress(RuntimeError):
                self._post_soon(self.serve)

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            is_idle = not self._due and self._completions.empty()
            if is_idle and self._aio is not None and self._aio.is_busy:
                self._aio.collect(wait=True)
            else:
                self._call_next()

    def close(self) -> None:
        for lane in Lane:
            self._lanes[lane].put(None)
        for thread in self._threads:
            thread.join()
        self.serve()
        if self._aio is not None:
            self._aio.close()
