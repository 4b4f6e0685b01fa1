"""The memory that all connections share: for large requests that have arrived in part, and for
answers that clients do not read.

A large request needs a place: as many bytes of the shared memory as the whole request will have. So
a request with a place can always finish. Without room it waits, and the broker does not read from
its connection: the rest stays with the sender. A request larger than all the shared memory gets its
place when no other has one. Half of the memory is for requests of the usual size, so that these
never wait for the largest.

Free places go by turns to the request that has waited longest and to the newest one. So none waits
for ever, and an early crowd does not hold up all later requests.

Places are for clients that send. While requests wait, the broker looks at the holders of places. A
holder that would not finish in `seconds` at its pace during some looks in a row loses its
connection, the slowest first, until there is room for all that wait; the more wait, the fewer
looks. It counts looks, not seconds, because a loop that was busy for seconds has not read what
clients sent meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Receiver(Protocol):
    """A connection with a large answer that has not left."""

    def close(self, reason: str) -> None:
        """Ends the connection."""
        ...


class AnswerMemory:
    """For answers that clients do not take; belongs to one loop.

    One connection holds little more than one large answer, because nothing more is read from it
    until that has left. Many connections, each with one, are too much all the same. Then the client
    that was the first not to take its answer has to go: it had the most time.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._held_bytes = 0
        self._held: dict[Receiver, int] = {}

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def hold(self, receiver: Receiver, size: int) -> None:
        """An answer cannot leave now; others may have to go for it."""
        self._held[receiver] = self._held.get(receiver, 0) + size
        self._held_bytes += size
        while self._held_bytes > self._total and len(self._held) > 1:
            first = next(iter(self._held))
            unsent = self._held[first]
            self.release(first)
            first.close(f"it does not take its answers ({unsent} bytes), and others wait for room")

    def release(self, receiver: Receiver) -> None:
        """All of them have left, or never will; one that held none may be released, too."""
        self._held_bytes -= self._held.pop(receiver, 0)


LOOK_SECONDS = 0.25
_PATIENCE = 4
_LESS_PATIENCE = 2
"""Looks at a slow sender: before it has to go, and where more memory is wanted than there is."""
_USUAL_BYTES = 5 << 18
"""A batch as large as a topic takes unless it is configured otherwise, and what is around it."""


class RequestSender(Protocol):
    """A connection on which a large request comes in."""

    @property
    def received_bytes(self) -> int:
        """What has come of the request."""
        ...

    def go_on(self) -> None:
        """There is room for the rest now."""
        ...

    def close(self, reason: str) -> None:
        """Ends the connection."""
        ...


class _Request:
    """What one sender has a place for, or wants one for."""

    __slots__ = ("arrived", "received", "sender", "size", "slow_looks")

    def __init__(self, sender: RequestSender, size: int, now: float) -> None:
        self.sender = sender
        self.size = size
        self.arrived = now
        self.received = 0
        """Bytes received when it got its place, or at the last look."""
        self.slow_looks = 0

    def look(self, seconds: float) -> int:
        """How many looks in a row it has been slow."""
        received = self.sender.received_bytes
        has_come, self.received = received - self.received, received
        is_slow = has_come * seconds < self.size * LOOK_SECONDS
        self.slow_looks = self.slow_looks + 1 if is_slow else 0
        return self.slow_looks


class _Places:
    """Memory that requests of one kind share."""

    __slots__ = ("_holders", "_is_newest_next", "_total", "_used", "_waiting", "_wanted")

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._holders: dict[RequestSender, _Request] = {}
        self._wanted = 0
        self._waiting: OrderedDict[RequestSender, _Request] = OrderedDict()
        self._is_newest_next = True

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, request: _Request) -> bool:
        if not self._waiting and self._has_room(request):
            self._hold(request)
            return True
        self._waiting[request.sender] = request
        self._wanted += request.size
        return False

    def leave(self, sender: RequestSender) -> None:
        if (request := self._holders.pop(sender, None)) is not None:
            self._used -= request.size
        elif self._waiting and (request := self._waiting.pop(sender, None)) is not None:
            self._wanted -= request.size
        while self._waiting:
            request = self._waiting[
                next((reversed if self._is_newest_next else iter)(self._waiting))
            ]
            if not self._has_room(request):
                break
            self._is_newest_next = not self._is_newest_next
            del self._waiting[request.sender]
            self._wanted -= request.size
            self._hold(request)
            request.sender.go_on()

    def look(self, now: float, seconds: float) -> list[tuple[RequestSender, str]]:
        patience = _PATIENCE if self._wanted <= self._total else _LESS_PATIENCE
        slow = [each for each in self._holders.values() if each.look(seconds) >= patience]
        slow.sort(key=lambda request: -request.slow_looks)
        gone = []
        lacking = self._wanted - (self._total - self._used)
        for each in slow:
            if lacking <= 0 or not self._waiting:
                break
            lacking -= each.size
            reason = f"{each.received} of {each.size} bytes of a request, and others wait for room"
            gone.append((each.sender, reason))
        for each in self._waiting.values():
            if now - each.arrived <= seconds:
                break  # and so are all that came later
            reason = f"no room for its request of {each.size} bytes in {seconds:.0f} s"
            gone.append((each.sender, reason))
        return gone

    def _has_room(self, request: _Request) -> bool:
        return self._used + request.size <= self._total or not self._holders

    def _hold(self, request: _Request) -> None:
        request.received = request.sender.received_bytes
        self._holders[request.sender] = request
        self._used += request.size


class RequestMemory:
    """Belongs to one loop. `on_crowded` is called when the first has to wait; `look` is to be
    called every `LOOK_SECONDS` from then on, until none waits."""

    def __init__(self, total: int, seconds: float, on_crowded: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_crowded = on_crowded
        self._usual = _Places(total // 2)
        self._largest = _Places(total - total // 2)

    @property
    def is_crowded(self) -> bool:
        """Whether a request waits."""
        return self._usual.waiting + self._largest.waiting > 0

    def ask(self, sender: RequestSender, size: int, now: float) -> bool:
        """Takes a place, or waits for one: then `go_on` follows. `leave` gives up either."""
        places = self._usual if size <= _USUAL_BYTES else self._largest
        if places.ask(_Request(sender, size, now)):
            return True
        if self._usual.waiting + self._largest.waiting == 1:
            self._on_crowded()
        return False

    def leave(self, sender: RequestSender) -> None:
        """The request is complete, or never will be; a connection without a place may leave too."""
        self._usual.leave(sender)
        self._largest.leave(sender)

    def look(self, now: float) -> list[tuple[RequestSender, str]]:
        """The connections to close, and why. They keep their places until they `leave`."""
        return self._usual.look(now, self._seconds) + self._largest.look(now, self._seconds)
