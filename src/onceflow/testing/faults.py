"""What can go wrong on the simulated network: seeded chances, a test's orders, and taps.

`NetFaults` is a value: chances drawn from the seed. `NetConditions` is what holds right now:
those chances, the partitions and the slow links. A tap sees each write and answers with what
becomes of it: a list of `Deliver`, `Hold` and `Redeliver`; an empty list drops it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from onceflow.runtime import Rand
from onceflow.testing.loop import SimulationError


class Side(Enum):
    """An end of a connection; as the direction of a write, the end that wrote."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Side:
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class NetFaults:
    """Seeded misfortune; the default is a healthy network that merely takes its time.

    `reset_chance`, `half_close_chance` and `lose_response_chance` are drawn for each write (the
    last for writes of the server), `dribble_chance` and `refuse_chance` for each connection,
    `split_chance` for each chunk.
    """

    delay_s: tuple[float, float] = (0.0001, 0.002)
    window_bytes: int = 65_536
    split_chance: float = 0.0
    dribble_chance: float = 0.0
    refuse_chance: float = 0.0
    reset_chance: float = 0.0
    half_close_chance: float = 0.0
    lose_response_chance: float = 0.0

    def __post_init__(self) -> None:
        low, high = self.delay_s
        if not 0.0 <= low <= high:
            raise SimulationError(f"delay_s must be ordered and not negative: {self.delay_s}")
        if self.window_bytes < 1:
            raise SimulationError(f"window_bytes must be at least 1: {self.window_bytes}")


class NetConditions:
    """The state of the network at this moment; links ask it before every move."""

    __slots__ = ("_bytes_per_second", "_partitions", "_rand", "faults")

    def __init__(self, rand: Rand, faults: NetFaults) -> None:
        self._rand = rand
        self.faults = faults
        self._partitions: set[frozenset[str]] = set()
        self._bytes_per_second: dict[frozenset[str], float] = {}

    def happens(self, chance: float) -> bool:
        return chance > 0.0 and self._rand.uniform(0.0, 1.0) < chance

    def delay(self) -> float:
        return self._rand.uniform(*self.faults.delay_s)

    def chunk_size(self, available: int) -> int:
        """How many of the available bytes travel together."""
        if available > 1 and self.happens(self.faults.split_chance):
            return 1 + self._rand.randrange(available - 1)
        return available

    def partition(self, a: str, b: str) -> None:
        self._partitions.add(frozenset((a, b)))

    def join(self, a: str, b: str) -> None:
        self._partitions.discard(frozenset((a, b)))

    def is_partitioned(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self._partitions

    def slow_down(self, a: str, b: str, bytes_per_second: float) -> None:
        self._bytes_per_second[frozenset((a, b))] = bytes_per_second

    def bytes_per_second(self, a: str, b: str) -> float:
        return self._bytes_per_second.get(frozenset((a, b)), math.inf)

    def heal(self) -> None:
        """A healthy network: no chances, no partitions, no slow links."""
        self.faults = NetFaults()
        self._partitions.clear()
        self._bytes_per_second.clear()


class Gate:
    """Holds back the writes that a tap puts behind it, until a test opens it."""

    __slots__ = ("_is_open", "_on_open")

    def __init__(self) -> None:
        self._is_open = False
        self._on_open: list[Callable[[], object]] = []

    @property
    def is_open(self) -> bool:
        return self._is_open

    def when_open(self, callback: Callable[[], object]) -> None:
        self._on_open.append(callback)

    def open(self) -> None:
        self._is_open = True
        callbacks, self._on_open = self._on_open, []
        for callback in callbacks:
            callback()


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send these bytes where the write was going."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Hold:
    """Send these bytes once the gate is open; what follows on the connection waits behind."""

    data: bytes
    gate: Gate


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Send these bytes of a client to the same listener, later and on a connection of their own.

    The answer goes nowhere. With `Deliver` this is a duplicated request, alone a late one.
    """

    data: bytes
    after_s: float


TapAction: TypeAlias = Deliver | Hold | Redeliver
