"""What a task leaves in its process for the next ones: connections that are open.

They belong to the process that opened them: one that is forked off leaves them alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

_MOST: Final = 4


class Closable(Protocol):
    """Ends when it is closed."""

    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Closable)


class ConnectionCache(Generic[K, T]):
    """By what they are made of, each for one task at a time."""

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._idle: dict[tuple[int, K], T] = {}

    @contextmanager
    def lease(self, key: K) -> Iterator[T]:
        """For the caller alone, also when somebody before has not given back theirs. With what
        something failed is not kept."""
        mine = os.getpid(), key
        found = self._idle.pop(mine, None) or self._make(key)
        try:
            yield found
        except BaseException:
            found.close()
            raise
        if (other := self._idle.pop(mine, None)) is not None:  # of somebody who was faster
            other.close()
        self._idle[mine] = found
        while len(self._idle) > _MOST:
            self._close_oldest()

    def close(self) -> None:
        """Ends all that nobody uses now; whoever comes next opens others."""
        while self._idle:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._idle.pop(next(iter(self._idle))).close()
