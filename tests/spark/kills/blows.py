"""Faults, one after the other: each waits for its point, and the next one for a batch that was
committed after it. A batch is not tried for ever, and many faults at once would end any query."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tests.spark.kills.fate import Act, Arrival, Doom, FateServer
from tests.spark.kills.faults import ENDS_DRIVER, Fault
from tests.spark.sink.hooks import DRIVER_POINTS, TASK_POINTS

_COMMITTED = DRIVER_POINTS[-1]


class Blow(NamedTuple):
    """A fault at a point."""

    fault: Fault
    point: str

    def __str__(self) -> str:
        return f"{self.fault.value}, {self.point}"


class Blows:
    """Those of one query. Used by many threads."""

    def __init__(
        self,
        fate: FateServer,
        blows: list[Blow],
        act_of: Callable[[Fault], Act],
        rand: random.Random,
        tell: Callable[[Blow], None] = lambda blow: None,
    ) -> None:
        self._fate, self._act_of, self._rand, self._tell = fate, act_of, rand, tell
        self._left = deque(blows)
        self._is_armed = False
        self._is_due = True
        self._driver = ""
        self._lock = threading.RLock()
        self.struck: list[Blow] = []

    @property
    def are_over(self) -> bool:
        with self._lock:
            return not self._left

    @property
    def end_drivers(self) -> bool:
        """Whether one of those to come does."""
        with self._lock:
            return any(each.fault in ENDS_DRIVER for each in self._left)

    def new_driver(self, name: str) -> None:
        """From now on faults are for this one; from its first point on, the next may come."""
        with self._lock:
            self._driver = name
            self._is_due, self._is_armed = True, False
            self._fate.disarm()

    def arrives(self, arrival: Arrival) -> None:
        """To be told of all arrivals."""
        with self._lock:
            if arrival.driver != self._driver:
                return
            if arrival.point == _COMMITTED:
                self._is_due = True
            if self._is_due and not self._is_armed and self._left:
                self._arm(self._left[0])

    def _arm(self, blow: Blow) -> None:
        act = self._act_of(blow.fault)
        self._is_armed = True

        def strike(arrival: Arrival) -> str:
            with self._lock:
                self._left.popleft()
                self._is_armed = self._is_due = False
                self.struck.append(blow)
            self._tell(blow)
            return act(arrival)

        is_of_tasks = blow.point in TASK_POINTS
        spared = self._rand.randrange(6 if is_of_tasks else 2)
        self._fate.arm(Doom(blow.point, spared, strike, self._driver))
