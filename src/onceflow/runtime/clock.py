"""The door to time: wall time for what is written down, monotonic time for what is waited for.

The wall clock may jump in either direction at any moment; the monotonic clock never goes back.
Nothing that waits, expires or measures may therefore read the wall clock.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from typing import Final, Protocol


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


_SAME_LEAD_MS: Final = 60_000


class SteadyClock:
    """A clock for stamps whose age is asked for days later, perhaps in another run: whatever the
    wall clock does in one run, nothing is taken to be older than it is.

    The wall time of the start and what has passed since then is the steady time. A stamp is never
    behind it, so a wall clock that goes back makes no old stamps; an age is measured by it, so one
    that jumps ahead makes nothing older. Stamps from behind such a jump are ahead of it, by a lead;
    they age by the steady time and the smallest lead that they can have come with, so that the next
    jump makes them no older either. A stamp that no lead explains is from a run before a clock that
    started late was put right: then the wall clock tells.
    At a start nobody can tell a jump from the time for which the broker was down.
    """

    __slots__ = ("_clock", "_leads", "_started", "_started_ms", "monotonic")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._started_ms = clock.wall_ms()
        self._leads = [0]  # with which stamps were given, ascending
        self.monotonic = clock.monotonic

    def _steady_ms(self) -> int:
        return self._started_ms + int((self._clock.monotonic() - self._started) * 1000)

    def wall_ms(self) -> int:
        """The time to stamp with."""
        wall_ms, steady_ms = self._clock.wall_ms(), self._steady_ms()
        if wall_ms <= steady_ms:
            return steady_ms
        self._note_lead(wall_ms - steady_ms)
        return wall_ms

    def _note_lead(self, lead_ms: int) -> None:
        """Two clocks never run quite alike: only what is more than that is another lead."""
        at = bisect_right(self._leads, lead_ms)
        if lead_ms - self._leads[at - 1] > _SAME_LEAD_MS:
            self._leads.insert(at, lead_ms)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def age_ms(self, stamp_ms: int) -> int:
        """How long ago something was stamped; negative for a time that is yet to come."""
        wall_ms, steady_ms = self._clock.wall_ms(), self._steady_ms()
        at = bisect_left(self._leads, stamp_ms - steady_ms - _SAME_LEAD_MS)
        if at < len(self._leads):
            wall_ms = min(wall_ms, steady_ms + self._leads[at])
        return wall_ms - stamp_ms


class RealClock:
    """The operating system's clocks."""

    __slots__ = ()

    # Without a function of ours around them: they are asked for every record.
    wall_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class TimerHandle(Protocol):
    """A call that was asked for and can be called off."""

    def cancel(self) -> object: ...
