"""The simulated Clock: virtual time from the loop, plus a wall clock that a test can jump.

A wall jump moves `wall_ms` alone. `monotonic` and every timer follow the loop's virtual time.
"""

from __future__ import annotations

import asyncio

from onceflow.runtime import Clock

# A fixed moment (2023-11-14T22:13:20Z), so that timestamps are equal in every run of a seed.
WALL_START_MS = 1_700_000_000_000


class SimClock(Clock):
    """Reads the virtual time of one simulated loop."""

    __slots__ = ("_loop", "_wall_offset_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wall_offset_ms = WALL_START_MS

    def wall_ms(self) -> int:
        return self._wall_offset_ms + int(self._loop.time() * 1000)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def monotonic(self) -> float:
        return self._loop.time()

    def jump_wall(self, by_ms: int) -> None:
        """Step the wall clock, forwards or backwards, as an administrator or NTP would."""
        self._wall_offset_ms += by_ms
