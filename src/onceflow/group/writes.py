"""Which writes are on their way, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count


class Writes:
    """Numbers the writes of each partition; lets somebody wait for all that have begun."""

    __slots__ = ("_begun", "_numbers", "_waiters")

    def __init__(self) -> None:
        self._numbers = count()
        self._begun: dict[int, int] = {}
        """The partition of each write that is on its way."""
        self._waiters: list[tuple[set[int], Callable[[], None]]] = []

    def begin(self, partition: int) -> int:
        """The number of a write that begins now."""
        write = next(self._numbers)
        self._begun[write] = partition
        return write

    def end(self, write: int) -> None:
        """A write is durable, or has failed."""
        del self._begun[write]
        ready = []
        for waiter in list(self._waiters):
            missing, callback = waiter
            missing.discard(write)
            if not missing:
                self._waiters.remove(waiter)
                ready.append(callback)
        for callback in ready:
            callback()

    def when_settled(self, partitions: Iterable[int], callback: Callable[[], None]) -> None:
        """Calls back when every write to these partitions that has begun is over; maybe at once."""
        wanted = set(partitions)
        missing = {write for write, partition in self._begun.items() if partition in wanted}
        if missing:
            self._waiters.append((missing, callback))
        else:
            callback()
