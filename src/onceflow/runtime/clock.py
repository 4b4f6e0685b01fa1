"""The door to time: wall time for timestamps, monotonic time for waits.

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
        """The same in nanoseconds: for callers that ask more than once a millisecond."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        ...


_SAME_LEAD_MS: Final = 60_000


class SteadyClock:
    """A clock for stamps whose age matters days later, perhaps in another run: whatever the wall
    clock does during a run, nothing seems older than it is.

    The steady time is the wall time of the start plus the monotonic time since then. A stamp is
    never behind it, so a wall clock that goes back makes no old stamps. Ages are measured by it, so
    a wall clock that jumps ahead makes nothing older. Stamps made after such a jump are ahead of
    the steady time, by a lead; they age by the steady time plus the smallest lead that fits them,
    so that the next jump makes them no older either. A stamp that no lead explains is from an
    earlier run, before a clock that was behind was put right: then the wall clock counts.
    At a start a jump looks the same as the time for which the broker was down.
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
        """Notes a new lead; differences below `_SAME_LEAD_MS` are only drift of the clocks."""
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
    """A scheduled call that can be cancelled."""

    def cancel(self) -> object: ...
