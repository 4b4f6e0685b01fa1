"""What a blocking call brings, until the thread that called has it.

A thread can be interrupted wherever it is, by a signal whose handler raises, and the program may go
on: rows that came just then would be taken from the topic, and nobody has them. So a call is either
received, which is noted in the very last step before it returns, or given up. What a given-up call
has brought is taken back before anything else is done with the client; one that still waits is
ended first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from onceflow.blocking.loop import LoopThread, Settle, WouldWaitForever
from onceflow.client.waited_for import WaitedFor

T = TypeVar("T")

in_a_listener: WaitedFor[LoopThread] = WaitedFor("in_a_listener")
"""In which client's listener the code runs, also when that is another thread."""


class _Call:
    """Between a thread that asks and the client's own."""

    __slots__ = ("has_result", "is_given_up", "is_received", "result", "task")

    def __init__(self) -> None:
        self.is_given_up = False
        self.is_received = False
        self.has_result = False
        self.result: Any = None
        self.task: asyncio.Task[Any] | None = None


class Handover:
    """Of a client whose results are handed out to one thread at a time. `take_back` is told, on the
    client's thread, what was handed out and never received."""

    def __init__(self, loop: LoopThread, take_back: Callable[[Any], None]) -> None:
        self._loop = loop
        self._take_back = take_back
        self._calls: list[_Call] = []
        """Those of which it is not known yet that they were received."""
        self._begin()
        loop.settling = self._settling
        loop.on_fork = self._begin

    def _begin(self) -> None:
        """Also in a child that was forked off: a thread of the parent may have held the lock."""
        self._turn = threading.Lock()
        self._calls.clear()

    def hand_out(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, which is given back if it does not reach the caller."""
        call = _Call()
        try:
            if in_a_listener.is_by(self._loop):
                raise WouldWaitForever("a listener cannot poll: the poll that called it waits")
            with self._turn:
                self._calls.append(call)
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

    async def _kept(self, call: _Call, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if call.is_given_up:  # before it has begun
            raise asyncio.CancelledError
        call.task = asyncio.current_task()
        found = await work()
        call.result, call.has_result = found, True
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
            self._calls.remove(call)
            if call.has_result and not call.is_received:
                self._take_back(call.result)
