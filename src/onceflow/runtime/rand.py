"""The door to randomness: ids, jitter and shuffles."""

from __future__ import annotations

import os
import random
from collections.abc import MutableSequence
from typing import Any, Protocol
from uuid import UUID


class Rand(Protocol):
    """The source of random values."""

    def uuid4(self) -> UUID:
        """A random (version 4) UUID."""
        ...

    def randbytes(self, n: int) -> bytes:
        """`n` random bytes."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float between `low` and `high`."""
        ...

    def randrange(self, stop: int) -> int:
        """An int in `0 <= x < stop`."""
        ...

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Reorder `items` in place."""
        ...


class RealRand:
    """The operating system's randomness; nothing here can be predicted or repeated."""

    __slots__ = ("_random",)

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uuid4(self) -> UUID:
        return UUID(bytes=os.urandom(16), version=4)

    def randbytes(self, n: int) -> bytes:
        return os.urandom(n)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def shuffle(self, items: MutableSequence[Any]) -> None:
        self._random.shuffle(items)
