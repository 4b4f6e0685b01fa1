"""What a blocking call brings, until the thread that called has it.

A thread can be interrupted wherever it is, by a signal whose handler raises, and the program may go
on: rows that came just then would be taken from the topic, and nobody has them; a transaction that
was begun just then would be open, and nobody ends it. So a call is either received, which is noted
in the very last step before it returns, or given up. What a given-up call has brought is taken back
before anything else is done with the client; one that still waits is ended first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, TypeVar

from onceflow.blocking.loop import LoopThread, Settle, WouldWaitForever
from onceflow.client import ClientError, ListenerGuard

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]
TakeBack = Callable[[Any], Coroutine[Any, Any, None]]

in_a_listener: ListenerGuard[LoopThread] = ListenerGuard("in_a_listener")
"""In which client's listener the code runs, also when that is another thread."""

_AT_ONCE: Final[AbstractContextManager[object]] = nullcontext()
"""The turn of calls that need not wait for each other."""


class _Call:
    """Between a thread that asks and the client's own."""

    __slots__ = (
        "has_ended",
        "has_result",
        "is_end",
        "is_given_up",
        "is_received",
        "result",
        "take_back",
        "task",
    )

    def __init__(self, take_back: TakeBack, *, is_end: bool = False) -> None:
        self.take_back = take_back
        self.is_end = is_end
        self.is_given_up = False
        self.is_received = False
        self.has_result = False
        self.has_ended = False
        """By itself, well or not, and not because nobody waits for it any more."""
        self.result: Any = None
        self.task: asyncio.Task[Any] | None = None


class OutstandingCalls:
    """Those of a client of which it is not known yet that they were received."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._calls: list[_Call] = []
        loop.settling = self._settling
        loop.on_fork = self._forget_all

    def _forget_all(self) -> None:
        """In a child that was forked off: they are the parent's."""
        self._calls.clear()

    def _wait(self, call: _Call, work: Work[T], turn: AbstractContextManager[object]) -> T:
        try:
            self._calls.append(call)
            with turn:
                found = self._loop.run(self._kept(call, work))
            # No call may stand between this and the return: Python runs handlers of signals after
            # calls, and what they raise would lose what is noted as received.
            call.is_received = True
            return found
        except BaseException:
            call.is_given_up = True
            if not self._loop.is_running:  # nobody settles it, nor has anything to take back
                self._forget(call)
            raise

    def _forget(self, call: _Call) -> None:
        with suppress(ValueError):  # another thread has
            self._calls.remove(call)

    async def _kept(self, call: _Call, work: Work[T]) -> T:
        if call.is_given_up:  # before it has begun
            raise asyncio.CancelledError
        call.task = asyncio.current_task()
        try:
            found = await work()
        except Exception:
            call.has_ended = True
            raise
        call.result, call.has_result, call.has_ended = found, True, True
        return found

    def _settling(self) -> Settle | None:
        """What is to be done before the next call, if anything."""
        if not self._calls:
            return None
        calls = tuple(self._calls)
        if not all(each.is_received for each in calls):
            return self._settle
        for each in calls:  # and not those that another thread has begun since
            self._forget(each)
        return None

    async def _settle(self) -> None:
        for call in list(self._calls):
            if call.is_given_up and call.task is not None and not call.task.done():
                call.task.cancel()
                await asyncio.wait([call.task])
            if call not in self._calls or not (call.is_given_up or call.is_received):
                continue
            if not call.is_received:
                await self._undo(call)
            self._forget(call)

    async def _undo(self, call: _Call) -> None:
        """Perhaps a second time, if that one has to wait: whoever waits for it may be interrupted,
        too, and several threads may be about to make the next call."""
        if not call.has_ended if call.is_end else call.has_result:
            with suppress(ClientError):  # which the next call meets as well
                await call.take_back(call.result)


class Handover(OutstandingCalls):
    """Of a client whose results are handed out to one thread at a time. `take_back` is told, on the
    client's thread, what was handed out and never received."""

    def __init__(self, loop: LoopThread, take_back: Callable[[Any], None]) -> None:
        super().__init__(loop)
        self._take_back = take_back
        self._turn = threading.Lock()

    def _forget_all(self) -> None:
        super()._forget_all()
        self._turn = threading.Lock()  # a thread of the parent may have held the other one

    def hand_out(self, work: Work[T]) -> T:
        """The result of `work`, which is given back if it does not reach the caller."""
        if in_a_listener.is_by(self._loop):
            raise WouldWaitForever("a listener cannot poll: the poll that called it waits")
        return self._wait(_Call(self._return), work, self._turn)

    async def _return(self, result: Any) -> None:
        self._take_back(result)


class BeginsAndEnds(OutstandingCalls):
    """Of a client that is told to begin something and to end it, by any number of threads: what
    nobody knows to have begun is ended, and what somebody wanted to end does not stay open."""

    def hand_out(self, work: Work[T], take_back: TakeBack) -> T:
        """If its result does not reach the caller, `take_back` is given it on the client's
        thread."""
        return self._wait(_Call(take_back), work, _AT_ONCE)

    def end(self, work: Work[T], take_back: TakeBack) -> T:
        """If it was cut short, perhaps before its first step, `take_back` is called instead."""
        return self._wait(_Call(take_back, is_end=True), work, _AT_ONCE)
