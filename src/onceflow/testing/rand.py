"""Randomness that a seed decides."""

from __future__ import annotations

import hashlib
import random
from collections.abc import MutableSequence
from typing import Any
from uuid import UUID


class SimRand:
    """Equal seeds and names give equal draws.

    `fork` gives an independent stream by name, so a new consumer of randomness does not move the
    draws of the others.
    """

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
