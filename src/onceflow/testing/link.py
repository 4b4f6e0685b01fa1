"""One direction of one simulated connection: bytes in flight, always in order.

Order is a matter of construction: what is sent goes to the tail of one queue, and every arrival
that comes due takes the head. Delays, partitions and the loop's drawn order of callbacks
decide when something arrives, never what comes next. A window bounds the bytes that are sent
and not yet read; the rest stays with the sender, which is how a slow reader is felt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context
from enum import Enum
from typing import TypeAlias

from onceflow.testing.faults import NetConditions
from onceflow.testing.loop import SimLoop


class Mark(Enum):
    """What travels besides bytes."""

    END = "end"
    RESET = "reset"


Item: TypeAlias = bytes | Mark


class SimLink:
    """Carries items from `source` to `target`; `receive` gets each one when it arrives."""

    __slots__ = (
        "_conditions",
        "_dead",
        "_due",
        "_ended",
        "_held",
        "_in_flight",
        "_line_free",
        "_loop",
        "_name",
        "_source",
        "_target",
        "_unread",
        "context",
        "dribble",
        "on_room",
        "receive",
    )

    def __init__(
        self, loop: SimLoop, conditions: NetConditions, *, name: str, source: str, target: str
    ) -> None:
        self._loop = loop
        self._conditions = conditions
        self._name = name
        self._source = source
        self._target = target
        # Arrivals run in the receiver's context: the context variables of the writer, on another
        # host, are none of its business.
        self.context = Context()
        self._in_flight: deque[Item] = deque()
        self._unread = 0
        self._due = 0.0
        self._line_free = 0.0
        self._held = 0
        self._ended = False
        self._dead = False
        self.dribble = False
        self.receive: Callable[[Item], None]
        self.on_room: Callable[[], None]

    def send(self, data: memoryview) -> int:
        """Send a first part of `data`; returns its size, 0 when the window has no room."""
        if self._ended or self._dead:
            self._loop.note(f"{self._name} void", bytes(data))
            return len(data)
        room = self._conditions.faults.window_bytes - self._unread
        if room <= 0:
            return 0
        available = min(room, len(data))
        size = 1 if self.dribble else self._conditions.chunk_size(available)
        self._unread += size
        self._launch(bytes(data[:size]), size)
        return size

    def send_mark(self, mark: Mark) -> None:
        """Send an end or a reset behind what is in flight; after an end no bytes pass."""
        if self._dead or (self._ended and mark is Mark.END):
            return
        self._ended = True
        self._launch(mark, 0)

    def consumed(self, size: int) -> None:
        """The reader took `size` bytes: there is room for as many."""
        self._unread -= size
        self.on_room()

    def cut(self) -> None:
        """Lose everything in flight and everything to come."""
        self._dead = True
        self._in_flight.clear()

    def resume(self) -> None:
        """Let what a partition held go on, if the partition is gone."""
        if self._conditions.is_partitioned(self._source, self._target):
            return
        held, self._held = self._held, 0
        for _ in range(held):
            self._schedule_arrival(0)

    def _launch(self, item: Item, size: int) -> None:
        self._in_flight.append(item)
        self._schedule_arrival(size)

    def _schedule_arrival(self, size: int) -> None:
        rate = self._conditions.bytes_per_second(self._source, self._target)
        self._line_free = max(self._line_free, self._loop.time()) + size / rate
        self._due = max(self._due, self._line_free + self._conditions.delay())
        self._loop.call_at(self._due, self._arrive, context=self.context)

    def _arrive(self) -> None:
        if self._dead:
            return
        if self._conditions.is_partitioned(self._source, self._target):
            self._held += 1
            self._loop.note(f"{self._name} held")
            return
        item = self._in_flight.popleft()
        if isinstance(item, Mark):
            self._loop.note(f"{self._name} arrives {item.value}")
        else:
            self._loop.note(f"{self._name} arrives", item)
        self.receive(item)
