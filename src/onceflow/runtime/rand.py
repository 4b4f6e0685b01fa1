"""The door to randomness: ids, jitter and shuffles.

`RealRand` draws from the operating system. `SimRand` draws from a seed, and `fork` gives an
independent stream by name: a new consumer of randomness does not move the draws of the others.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import MutableSequence
from typing import Any, Protocol
from uuid import UUID


class Rand(Protocol):
    """What the core draws."""

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


class SimRand:
    """Randomness that a seed decides; equal seeds and names give equal draws."""

    __slots__ = ("_path", "_random", "_seed")

    def __init__(self, seed: int, path: tuple[str, ...] = ()) -> None:
        self._seed = seed
        self._path = path
        # Hashed rather than added up, so that neighbouring seeds and names share nothing.
        digest = hashlib.blake2b(repr((seed, path)).encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "big"))

    def fork(self, name: str) -> SimRand:
        """The stream called `name` below this one; independent of what was drawn so far."""
        return SimRand(self._seed, (*self._path, name))

    def uuid4(self) -> UUID:
        return UUID(bytes=self._random.randbytes(16), version=4)

    def randbytes(self, n: int) -> bytes:
        return self._random.randbytes(n)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def shuffle(self, items: MutableSequence[Any]) -> None:
        self._random.shuffle(items)
