"""The door to time: wall time for what is written down, monotonic time for what is waited for.

The wall clock may jump in either direction at any moment; the monotonic clock never goes back.
Nothing that waits, expires or measures may therefore read the wall clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Reads time; waiting is the event loop's business."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, as Kafka writes timestamps."""
        ...

    def wall_ns(self) -> int:
        """The same in nanoseconds: for those who ask more often than every millisecond."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        ...


class SteadyClock:
    """A clock for stamps whose age is asked for days later, perhaps in another run: whatever the
    wall clock does in one run, nothing is taken to be older than it is.

    The wall time of the start and what has passed since then is the steady time. A stamp is never
    behind it, so a wall clock that goes back makes no old stamps; an age is measured by it, so one
    that jumps ahead makes nothing older. A stamp that is ahead of it is either from behind such a
    jump or from a run before a clock that started late was put right: then the wall clock tells.
    At a start nobody can tell a jump from the time for which the broker was down.
    """

    __slots__ = ("_clock", "_started", "_started_ms", "monotonic")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._started_ms = clock.wall_ms()
        self.monotonic = clock.monotonic

    def _steady_ms(self) -> int:
        return self._started_ms + int((self._clock.monotonic() - self._started) * 1000)

    def wall_ms(self) -> int:
        """The time to stamp with."""
        return max(self._clock.wall_ms(), self._steady_ms())

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def age_ms(self, stamp_ms: int) -> int:
        """How long ago something was stamped; negative for a time that is yet to come."""
        wall_ms, steady_ms = self._clock.wall_ms(), self._steady_ms()
        return (wall_ms if stamp_ms > steady_ms else min(wall_ms, steady_ms)) - stamp_ms


class RealClock:
    """The operating system's clocks."""

    __slots__ = ()

    # Without a function of ours around them: they are asked for every record.
    wall_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
