"""Timers by name, on top of a function that calls back later.

Restarting a timer, as every heartbeat does, only moves its deadline: the scheduled call finds out
when it comes. A cancelled timer never fires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from onceflow.runtime import Clock, TimerHandle

Name = TypeVar("Name")


CallLater = Callable[[float, Callable[[], None]], TimerHandle]


@dataclass(slots=True)
class _Running:
    deadline: float
    due: float
    """When the scheduled call comes: at the deadline or before."""
    handle: TimerHandle


class Timers(Generic[Name]):
    """All timers of one owner."""

    __slots__ = ("_call_later", "_clock", "_fired", "_running")

    def __init__(self, clock: Clock, call_later: CallLater, fired: Callable[[Name], None]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._fired = fired
        self._running: dict[Name, _Running] = {}

    def set(self, name: Name, delay: float) -> None:
        """Starts or restarts a timer."""
        now = self._clock.monotonic()
        deadline = now + delay
        running = self._running.get(name)
        # Only where the scheduled call comes in time: an earlier deadline needs a call of its own.
        if running is not None and running.due <= deadline:
            running.deadline = deadline
            return
        if running is not None:
            running.handle.cancel()
        self._running[name] = _Running(deadline, deadline, self._call(name, delay))

    def cancel(self, name: Name) -> None:
        """Stops a timer if it runs."""
        running = self._running.pop(name, None)
        if running is not None:
            running.handle.cancel()

    def cancel_all(self) -> None:
        """Stops every timer."""
        for name in list(self._running):
            self.cancel(name)

    def _call(self, name: Name, delay: float) -> TimerHandle:
        return self._call_later(max(delay, 0.0), lambda: self._due(name))

    def _due(self, name: Name) -> None:
        running = self._running.get(name)
        if running is None:
            return
        left = running.deadline - self._clock.monotonic()
        if left > 0:
            running.due = running.deadline
            running.handle = self._call(name, left)
            return
        del self._running[name]
        self._fired(name)
