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


class RealClock:
    """The operating system's clocks."""

    __slots__ = ()

    # Without a function of ours around them: they are asked for every record.
    wall_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
