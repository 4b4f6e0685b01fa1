"""Connections that a task leaves open in its process for the next one.

They belong to the process that opened them. Keys hold its pid: a forked worker that used its
parent's sockets would mix its requests into the parent's.
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
        """One for this task alone: another task that still has one under the same key keeps it. A
        connection that fails inside is closed, not kept."""
        mine = os.getpid(), key
        connection = self._idle.pop(mine, None) or self._make(key)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if (other := self._idle.pop(mine, None)) is not None:  # of a task that was faster
            other.close()
        self._idle[mine] = connection
        while len(self._idle) > _MOST:
            self._close_oldest()

    def close(self) -> None:
        """Closes all that no task uses now; the next task opens its own."""
        while self._idle:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._idle.pop(next(iter(self._idle))).close()
