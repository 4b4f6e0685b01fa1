"""Hands the result of a blocking call to the thread that called, or takes it back.

A signal handler that raises can interrupt a thread anywhere, and the program may go on. Records
that arrived at that moment would be consumed without reaching the application; a transaction begun
at that moment would stay open. So every call is either received, which is noted in the last step
before it returns, or given up. The result of a call that was given up is taken back before the
client does anything else; a call that is still running is cancelled first.
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
"""The client whose listener is running, also when it runs on another thread."""

_AT_ONCE: Final[AbstractContextManager[object]] = nullcontext()
"""Stands in for a lock where calls need not wait for each other."""


class _Call:
    """A call from an application's thread to the client's thread."""

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
        """Whether it returned or raised by itself, and was not cancelled as given up."""
        self.result: Any = None
        self.task: asyncio.Task[Any] | None = None


class OutstandingCalls:
    """A client's calls that are not known to be received yet."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._calls: list[_Call] = []
        loop.settling = self._settling
        loop.on_fork = self._forget_all

    def _forget_all(self) -> None:
        """Forgets the calls in a forked child: they are the parent's."""
        self._calls.clear()

    def _wait(self, call: _Call, work: Work[T], turn: AbstractContextManager[object]) -> T:
        try:
            self._calls.append(call)
            with turn:
                result = self._loop.run(self._kept(call, work))
            # No call may stand between this line and the return: Python runs signal handlers after
            # calls, and if one raised there, a result noted as received would be lost.
            call.is_received = True
            return result
        except BaseException:
            call.is_given_up = True
            if not self._loop.is_running:  # closed: there is nothing to take back
                self._forget(call)
            raise

    def _forget(self, call: _Call) -> None:
        with suppress(ValueError):  # another thread has removed it
            self._calls.remove(call)

    async def _kept(self, call: _Call, work: Work[T]) -> T:
        if call.is_given_up:  # before it has begun
            raise asyncio.CancelledError
        call.task = asyncio.current_task()
        try:
            result = await work()
        except Exception:
            call.has_ended = True
            raise
        call.result, call.has_result, call.has_ended = result, True, True
        return result

    def _settling(self) -> Settle | None:
        """What has to run before the next call, if anything."""
        if not self._calls:
            return None
        calls = tuple(self._calls)
        if not all(each.is_received for each in calls):
            return self._settle
        for each in calls:  # the copy, without calls that another thread has begun since
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
        """Takes back the result of a call. May run twice for one call, as the thread that waits for
        it can be interrupted too, and several threads can be about to make the next call."""
        if not call.has_ended if call.is_end else call.has_result:
            with suppress(ClientError):  # the next call raises it as well
                await call.take_back(call.result)


class Handover(OutstandingCalls):
    """The calls of a client that gives results to one thread at a time. `take_back` is called on
    the client's thread with a result that no thread received."""

    def __init__(self, loop: LoopThread, take_back: Callable[[Any], None]) -> None:
        super().__init__(loop)
        self._take_back = take_back
        self._turn = threading.Lock()

    def _forget_all(self) -> None:
        super()._forget_all()
        self._turn = threading.Lock()  # a thread of the parent may hold the old one for ever

    def hand_out(self, work: Work[T]) -> T:
        """The result of `work`, which is taken back if it does not reach the caller."""
        if in_a_listener.is_by(self._loop):
            raise WouldWaitForever("a listener cannot poll: the poll that called it waits")
        return self._wait(_Call(self._return), work, self._turn)

    async def _return(self, result: Any) -> None:
        self._take_back(result)


class BeginsAndEnds(OutstandingCalls):
    """The calls of a client in which threads begin and end things, such as transactions: one whose
    beginning no thread has learned of is ended, and one that a thread was ending does not stay
    open."""

    def hand_out(self, work: Work[T], take_back: TakeBack) -> T:
        """The result of `work`; if it does not reach the caller, `take_back` is called with it on
        the client's thread."""
        return self._wait(_Call(take_back), work, _AT_ONCE)

    def end(self, work: Work[T], take_back: TakeBack) -> T:
        """Runs `work`, which ends something; if that is cut short, perhaps before its first step,
        `take_back` is called instead."""
        return self._wait(_Call(take_back, is_end=True), work, _AT_ONCE)
