"""An asyncio event loop with virtual time, in which a seed decides the order of callbacks.

What it promises:
- It never sleeps. When nothing is ready, time jumps to the next timer.
- The callbacks that are ready together run in an order drawn from the seed, except that those
  of one object (the steps of a task, the callbacks of a transport) keep theirs. A callback
  scheduled by another still runs after everything that was ready before it.
- Equal seeds give equal runs: every callback feeds a running hash with its time and a label
  that holds no address. Tasks and futures hash by the order of their creation, so that asyncio's
  own sets of tasks are walked in the same order each time.
- It fails by name instead of hanging or hiding: a deadlock, a spent budget, a thread, a real
  socket and an exception that no one caught each raise.
- A process is whatever `spawn` set off, and all that follows from it. One that is stopped does
  nothing until it is continued, as by SIGSTOP; one that is killed does nothing any more.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar, TypeVarTuple

from onceflow.errors import OnceflowError
from onceflow.runtime import Rand

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# What a task may wrap, as the standard library's own signatures say it.
if sys.version_info >= (3, 12):
    TaskBody: TypeAlias = Coroutine[Any, Any, T]
else:
    TaskBody: TypeAlias = Generator[Any, None, T] | Coroutine[Any, Any, T]

MAX_STEPS = 5_000_000
MAX_VIRTUAL_SECONDS = 7 * 86_400.0
_MOST_WAITS: Final = 100
# Inherited by every callback and task that a process sets off: contexts are copied along.
_PROCESS: Final[ContextVar[str]] = ContextVar("simulated process", default="")


class SimulationError(OnceflowError):
    """The simulation cannot go on, or was asked for something that would not repeat."""


class SimulationDeadlock(SimulationError):
    """Nothing is ready, no timer is set, and the simulation is not finished."""


class SimulationBudgetExceeded(SimulationError):
    """More steps or more virtual time than the simulation was given."""


class SimulationCallbackFailed(SimulationError):
    """A callback or a task raised and no one caught it."""


class SimFuture(asyncio.Future[T]):
    """A future that hashes by its place in the order of creation, not by its address."""

    def __init__(self, sequence: int, loop: asyncio.AbstractEventLoop) -> None:
        self._sequence = sequence
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._sequence


class SimTask(asyncio.Task[T]):
    """A task that hashes by its place in the order of creation, not by its address."""

    def __init__(
        self,
        coro: TaskBody[T],
        *,
        sequence: int,
        loop: asyncio.AbstractEventLoop,
        name: str,
        context: Context | None,
        **options: Any,
    ) -> None:
        # Before the base class: it puts the task into a set, which asks for the hash.
        self._sequence = sequence
        self.process = _PROCESS.get() if context is None else context.get(_PROCESS, "")
        super().__init__(coro, loop=loop, name=name, context=context, **options)

    def __hash__(self) -> int:
        return self._sequence


class _Entry(NamedTuple):
    handle: asyncio.Handle
    callback: Callable[..., object]


class SimLoop(asyncio.BaseEventLoop):
    """One simulated machine room: all hosts of a simulation share this loop."""

    def __init__(
        self,
        rand: Rand,
        *,
        max_steps: int = MAX_STEPS,
        max_virtual_seconds: float = MAX_VIRTUAL_SECONDS,
        trace_sink: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self._rand = rand
        self._now = 0.0
        self._steps = 0
        self._max_steps = max_steps
        self._max_virtual_seconds = max_virtual_seconds
        self._last_step = max_steps
        self._last_time = max_virtual_seconds
        self._sequence = 0
        self._runnable: deque[_Entry] = deque()
        self._timers: list[tuple[float, int, _Entry]] = []
        self._stop_requested = False
        self._trace = hashlib.blake2b(digest_size=16)
        self._trace_sink = trace_sink
        self._uncaught: tuple[str, BaseException | None] | None = None
        self._failed: list[asyncio.Task[Any]] = []
        self._stopped: dict[str, list[_Entry]] = {}
        """By process that was stopped, what it does when it is continued."""
        self._killed: set[str] = set()
        self._never_ended: list[asyncio.Task[Any]] = []
        self._last_steps: list[_Entry] = []
        """Of those: without them they could not even be cancelled, when the simulation ends."""
        self.set_exception_handler(SimLoop._keep_uncaught)

    # --- the trace ----------------------------------------------------------------------------

    def note(self, label: str, data: bytes = b"") -> None:
        """Feed one event into the trace; `label` must not depend on addresses or hash order."""
        line = f"{self._now.hex()} {label} {len(data)}\n"
        self._trace.update(line.encode())
        self._trace.update(data)
        if self._trace_sink is not None:
            self._trace_sink(line)

    def trace_hash(self) -> str:
        """The hash of everything that happened so far."""
        return self._trace.hexdigest()

    @property
    def timer_count(self) -> int:
        """How many calls are due later."""
        return sum(not entry.handle.cancelled() for _, _, entry in self._timers)

    # --- scheduling ---------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._refuse_when_closed()
        handle = asyncio.Handle(callback, args, self, context)
        self._runnable.append(_Entry(handle, callback))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._refuse_when_closed()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._next_sequence(), _Entry(handle, callback)))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self._next_sequence(), self)

    def create_task(
        self,
        coro: TaskBody[T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        self._refuse_when_closed()
        sequence = self._next_sequence()
        if name is None:
            # asyncio's own default counts over the whole process, so a second run would differ.
            name = f"{getattr(coro, '__qualname__', type(coro).__qualname__)}#{sequence}"
        task = SimTask(
            coro, sequence=sequence, loop=self, name=str(name), context=context, **options
        )
        task.add_done_callback(self._keep_failed)
        return task

    def stop(self) -> None:
        self._stop_requested = True
        super().stop()

    def close(self) -> None:
        super().close()
        self._runnable.clear()
        self._timers.clear()

    # --- one turn -----------------------------------------------------------------------------

    def _run_once(self) -> None:
        """One turn, called by `run_forever`: what is ready now, in an order the seed decides."""
        self._drop_cancelled_timers()
        if not self._runnable and not self._stop_requested:
            self._jump_to_next_timer()
        while self._timers and self._timers[0][0] <= self._now:
            self._runnable.append(heapq.heappop(self._timers)[2])
        batch, self._runnable = self._runnable, deque()
        for entry in self._in_drawn_order(batch):
            if not entry.handle.cancelled() and self._may_run(entry):
                self._step(entry)
        self._stop_requested = False

    def _may_run(self, entry: _Entry) -> bool:
        """Not what a killed process would do, nor yet what a stopped one would."""
        if not self._stopped and not self._killed:
            return True
        context: Context = getattr(entry.handle, "_context")  # noqa: B009  # asyncio's own, untold
        process = context.get(_PROCESS, "")
        if process in self._stopped:
            self._stopped[process].append(entry)
            return False
        if process in self._killed:
            if isinstance(getattr(entry.callback, "__self__", None), asyncio.Task):
                self._last_steps.append(entry)
            return False
        return True

    def _drop_cancelled_timers(self) -> None:
        while self._timers and self._timers[0][2].handle.cancelled():
            heapq.heappop(self._timers)

    def _jump_to_next_timer(self) -> None:
        if not self._timers:
            waiting = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))
            raise SimulationDeadlock(
                f"nothing is ready and no timer is set at {self._now:.6f} s of virtual time, "
                f"but these tasks still wait: {waiting or 'none, only a future'}"
            ) from self._forgotten_failure()
        when = self._timers[0][0]
        if when > self._last_time:
            raise SimulationBudgetExceeded(
                f"the next timer is due at {when:.6f} s of virtual time, "
                f"past the limit of {self._last_time:.6f} s"
            ) from self._forgotten_failure()
        self._now = max(self._now, when)

    def _in_drawn_order(self, batch: deque[_Entry]) -> list[_Entry]:
        # Shuffled are the owners, one mention for each callback; then each mention takes its
        # owner's next callback. So owners interleave freely and no owner is reordered.
        if len(batch) < 2:
            return list(batch)
        owners: list[int] = []
        queues: dict[int, deque[_Entry]] = {}
        for position, entry in enumerate(batch):
            owner = getattr(entry.callback, "__self__", None)
            # Identity only groups here; the order below is that of the batch and the seed.
            key = -1 - position if owner is None else id(owner)
            owners.append(key)
            queues.setdefault(key, deque()).append(entry)
        self._rand.shuffle(owners)
        return [queues[key].popleft() for key in owners]

    def _step(self, entry: _Entry) -> None:
        self._steps += 1
        if self._steps > self._last_step:
            raise SimulationBudgetExceeded(
                f"more than {self._max_steps} callbacks ran; "
                f"virtual time is {self._now:.6f} s: perhaps something spins"
            )
        self.note(_label(entry.callback))
        entry.handle._run()
        if self._uncaught is not None:
            message, cause = self._uncaught
            self._uncaught = None
            raise SimulationCallbackFailed(message) from cause

    # --- processes ----------------------------------------------------------------------------

    def spawn(self, process: str, coro: TaskBody[T]) -> asyncio.Task[T]:
        """Runs `coro` as the process of that name."""
        context = copy_context()
        context.run(_PROCESS.set, process)
        return self.create_task(coro, context=context)

    def stop_process(self, process: str) -> None:
        """Nothing of the process runs until `continue_process`; time passes, and bytes wait."""
        self.note(f"stop {process}")
        self._stopped.setdefault(process, [])

    def continue_process(self, process: str) -> None:
        """All that came up meanwhile is late."""
        self.note(f"continue {process}")
        self._runnable.extend(self._stopped.pop(process, []))

    def kill_process(self, process: str) -> None:
        """Nothing of the process runs any more, not even what would tidy up after it."""
        self.note(f"kill {process}")
        self._killed.add(process)
        self._stopped.pop(process, None)
        # Kept: collected as garbage, they would unwind at a moment that does not repeat.
        self._never_ended += sorted(
            (
                task
                for task in asyncio.all_tasks(self)
                if isinstance(task, SimTask) and task.process == process
            ),
            key=hash,
        )

    def stand_still(self, seconds: float) -> None:
        """The whole machine was stopped for so long: all that was due meanwhile is late."""
        self.note(f"stand still {seconds}")
        self._now += seconds

    # --- ends ---------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Cancel what still runs, give it a fresh budget to unwind, and close the loop."""
        self._last_step = self._steps + self._max_steps
        self._last_time = self._now + self._max_virtual_seconds
        self._killed.clear()
        self._runnable.extend(self._last_steps)
        for process in list(self._stopped):
            self.continue_process(process)
        try:
            self._unwind(self._never_ended)
            tasks = sorted(asyncio.all_tasks(self), key=hash)
            for task in tasks:
                task.cancel()
            if tasks:
                self.run_until_complete(_all_ended(tasks))
            self.run_until_complete(self.shutdown_asyncgens())
            forgotten = self._forgotten_failure()
            if forgotten is not None:
                raise SimulationCallbackFailed(
                    f"a task failed and no one asked for its result: {forgotten!r}"
                ) from forgotten
        finally:
            self.close()

    def _unwind(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Ends tasks of killed processes, which may wait in their last steps for what never comes:
        those are cut short, too."""
        for _ in range(_MOST_WAITS):
            waiting = [task for task in tasks if not task.done()]
            if not waiting:
                return
            for task in waiting:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0.01))

    def _keep_failed(self, task: asyncio.Task[Any]) -> None:
        # asyncio reports a failure that no one asked for when the task is collected as garbage,
        # a moment that does not repeat. So failures are kept, and judged at the end.
        self._failed = [kept for kept in (*self._failed, task) if kept._log_traceback]

    def _forgotten_failure(self) -> BaseException | None:
        """The first failure of a task that no one has asked for, if any."""
        forgotten = [task.exception() for task in self._failed if task._log_traceback]
        return forgotten[0] if forgotten else None

    @staticmethod
    def _keep_uncaught(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(loop, SimLoop) and loop._uncaught is None:
            error = context.get("exception")
            loop._uncaught = (f"{context['message']}: {error!r}", error)

    # --- what would not repeat ----------------------------------------------------------------

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> NoReturn:
        raise SimulationError(
            f"call_soon_threadsafe({_label(callback)}): threads do not repeat; "
            "an async generator that was dropped half-way also ends here: aclose() it"
        )

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], object], *args: *Ts) -> NoReturn:
        raise SimulationError(f"run_in_executor({_label(func)}): threads do not repeat")

    async def create_connection(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise SimulationError("create_connection: a real socket in a simulation; use its Net")

    async def create_server(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise SimulationError("create_server: a real socket in a simulation; use its Net")

    # --- small helpers ------------------------------------------------------------------------

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def _refuse_when_closed(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")


async def _all_ended(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _label(callback: Callable[..., object]) -> str:
    """A name for a callback that is the same in every process."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    if isinstance(callback, functools.partial):
        return _label(callback.func)
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))
