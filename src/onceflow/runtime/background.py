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
from typing import Final, Protocol

from onceflow.runtime.disk import DurableWrite

Job = Iterator[None]
Done = Callable[[Exception | None], None]
Post = Callable[[Callable[[], None]], object]
"""Runs a callback on the owner's thread, later: `loop.call_soon_threadsafe` is one."""

_AT_ONCE_BYTES: Final = 512 << 10
"""A larger write goes to a thread: the owner serves no request while it writes."""
_QUICK_MS: Final = 1.0
"""The time that a write may take, and as much again for `_AT_ONCE_BYTES`."""
_HANGING_MS: Final = 10.0
"""Longer than any wait for the interpreter's lock: such a write waited for the disk."""
_WARY_WRITES: Final = 16
"""For each millisecond of a slow write, this many of the next writes go to a thread."""
_MOST_WARY_WRITES: Final = 4096


class JobLane(Enum):
    """Jobs of one lane run one after the other; a long one never delays another lane."""

    JOURNAL = "journal"
    BULK = "bulk"
    GROW = "grow"
    COMPACT = "compact"
    CHECK = "check"


_BULKY: Final = frozenset((JobLane.BULK, JobLane.GROW, JobLane.COMPACT))
"""Lanes whose jobs load the disk for long: meanwhile the owner writes nothing itself."""


class Background(Protocol):
    """Where blocking work goes."""

    def submit(self, lane: JobLane, job: Job, done: Done) -> None:
        """`done` may be called before this returns."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls back on the owner's thread after the present step of the owner."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Blocks the owner until `until()`; jobs go on and their `done` are called meanwhile."""

    def close(self) -> None:
        """Waits for the jobs under way; none may be submitted afterwards."""


def outcome_of(job: Job) -> Exception | None:
    """Runs the job; the error that ended it."""
    try:
        for _ in job:
            pass
    except Exception as error:  # handed to `done`: the owner decides
        return error
    return None


class Inline:
    """Runs everything before the call that asked for it returns: for tools and simple tests.

    A job submitted while another one runs waits its turn, so that no callback interrupts a step of
    its owner, just as with threads.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(self, lane: JobLane, job: Job, done: Done) -> None:
        self.soon(lambda: done(outcome_of(job)))

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
    the owner's thread; `post` only asks the owner to look into that queue. Callbacks from the owner
    itself need no thread-safe way: `soon` may be `loop.call_soon`, which wakes no other thread.

    The owner does a direct, synchronous write of moderate size itself, and calls `done` before
    `submit` returns. Handing it to another thread, or to a worker of the kernel, first costs the
    wait for a core; where clients burn all cores that takes longer than the write. But the owner
    serves no request meanwhile. So the thread writes to a disk that was slow, until it finds it
    quick again, and to one that other lanes load: a flush waits for what they have written.
    """

    def __init__(self, post: Post | None = None, soon: Post | None = None) -> None:
        self._wary_writes = 0
        self._was_slow = False
        self._bulky_jobs = 0
        self._post = post
        self._post_soon = soon or post
        self._due: deque[Callable[[], None]] = deque()
        self._completions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lanes = {lane: queue.SimpleQueue[tuple[Job, Done] | None]() for lane in JobLane}
        self._threads = [
            threading.Thread(
                target=self._work, args=(lane,), name=f"onceflow-{lane.value}", daemon=True
            )
            for lane in JobLane
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, lane: JobLane) -> None:
        jobs = self._lanes[lane]
        while (item := jobs.get()) is not None:
            job, done = item
            error = outcome_of(job)
            self._complete(partial(done, error))
            del item, job, done  # what they hold must not wait for the next one

    def _complete(self, callback: Callable[[], None]) -> None:
        self._completions.put(callback)
        if self._post is not None:
            with suppress(RuntimeError):  # the loop is closed; `wait` and `close` still serve
                self._post(self.serve)

    def serve(self) -> None:
        """Runs due callbacks and those of completed jobs; on the owner's thread only."""
        # Callbacks that these add wait for a later turn of the loop: a complete group sends its
        # answers before the owner blocks in the write of the next one.
        for _ in range(len(self._due)):
            if self._due:  # one of them may have called `wait`, which runs all
                self._due.popleft()()
        while not self._completions.empty():
            self._completions.get()()

    def _call_next(self) -> None:
        (self._due.popleft() if self._due else self._completions.get())()

    def submit(self, lane: JobLane, job: Job, done: Done) -> None:
        if isinstance(job, DurableWrite):
            self._write(lane, job, done)
            return
        if lane in _BULKY:
            self._bulky_jobs += 1
            done = partial(self._bulky_job_ended, done)
        self._lanes[lane].put((job, done))

    def _bulky_job_ended(self, done: Done, error: Exception | None) -> None:
        self._bulky_jobs -= 1
        done(error)

    def _write(self, lane: JobLane, write: DurableWrite, done: Done) -> None:
        def ended(error: Exception | None) -> None:
            self._learn(write)
            done(error)

        if self._wary_writes:
            self._wary_writes -= 1
        elif write.is_direct and len(write.data) <= _AT_ONCE_BYTES and not self._bulky_jobs:
            ended(outcome_of(write))
            return
        self._lanes[lane].put((write, ended))

    def _learn(self, write: DurableWrite) -> None:
        """Two slow writes in a row, or a very slow one, mean that the disk is slow. A single one
        may have waited for a core or for the interpreter, and a thread would do so twice as often.
        """
        is_slow = write.took_ms > _QUICK_MS * (1 + len(write.data) / _AT_ONCE_BYTES)
        if is_slow and (self._was_slow or write.took_ms > _HANGING_MS):
            self._wary_writes = min(_WARY_WRITES * int(write.took_ms), _MOST_WARY_WRITES)
        self._was_slow = is_slow

    def soon(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)
        if self._post_soon is not None:
            with suppress(RuntimeError):
                self._post_soon(self.serve)

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self._call_next()

    def close(self) -> None:
        for lane in JobLane:
            self._lanes[lane].put(None)
        for thread in self._threads:
            thread.join()
        while self._due or not self._completions.empty():
            self._call_next()
