"""A tap of the simulated network that knows requests from answers: each request of a client can be
lost, doubled or failed, and its answer held back.

As on a real connection, what follows a held answer on its connection waits behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from onceflow.testing.connection import SimConnection, TappedWrite
from onceflow.testing.faults import Deliver, Gate, Hold, Redeliver, Side, TapAction
from onceflow.testing.loop import SimLoop
from onceflow.wire.api import ApiKey

_SIZE: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhi")


class Request(NamedTuple):
    """One that a client has sent; `number` counts those that were asked about."""

    host: str
    key: ApiKey
    number: int


class Late(NamedTuple):
    """The answer comes so much later."""

    seconds: float


class Doubled(NamedTuple):
    """It arrives, and a copy of it later."""

    seconds: float


class Failed(NamedTuple):
    """The connection breaks: before it arrives, or before its answer does."""

    arrives: bool


Fate = Late | Doubled | Failed | None
Judge = Callable[[Request], Fate]


class RequestTap:
    """Asks `judge` about each request of hosts whose name begins with `prefix`."""

    def __init__(self, loop: SimLoop, judge: Judge, *, prefix: str = "consumer") -> None:
        self._loop = loop
        self._judge = judge
        self._prefix = prefix
        self._partial: dict[tuple[int, Side], bytes] = {}
        self._late: dict[tuple[int, int], float] = {}
        self._cut: set[int] = set()
        self.seen: list[Request] = []

    def __call__(self, write: TappedWrite) -> list[TapAction]:
        connection, side = write.connection, write.direction
        host = connection.addresses[Side.CLIENT].host
        if not host.startswith(self._prefix):
            return [Deliver(write.data)]
        if connection.number in self._cut:
            return []
        work = self._asked if side is Side.CLIENT else self._answered
        return [
            action
            for frame in self._frames(connection, side, write.data)
            for action in work(connection, host, frame)
        ]

    def _frames(self, connection: SimConnection, side: Side, data: bytes) -> list[bytes]:
        """Whole ones; the beginning of another is kept until the rest of it is written."""
        data = self._partial.pop((connection.number, side), b"") + data
        found = []
        while len(data) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(data)[0]
            if len(data) < end:
                break
            found.append(data[:end])
            data = data[end:]
        self._partial[connection.number, side] = data
        return found

    def _asked(self, connection: SimConnection, host: str, frame: bytes) -> list[TapAction]:
        key, _, correlation_id = _REQUEST.unpack_from(frame, _SIZE.size)
        request = Request(host, ApiKey(key), len(self.seen))
        self.seen.append(request)
        fate = self._judge(request)
        if isinstance(fate, Late):
            self._late[connection.number, correlation_id] = fate.seconds
        elif isinstance(fate, Doubled):
            return [Deliver(frame), Redeliver(frame, after_s=fate.seconds)]
        elif isinstance(fate, Failed):
            if fate.arrives:
                connection.lose_responses()
            else:
                self._cut.add(connection.number)
                self._loop.call_later(0.001, connection.reset)
                return []
        return [Deliver(frame)]

    def _answered(self, connection: SimConnection, host: str, frame: bytes) -> list[TapAction]:
        (correlation_id,) = _SIZE.unpack_from(frame, _SIZE.size)
        seconds = self._late.pop((connection.number, correlation_id), None)
        if seconds is None:
            return [Deliver(frame)]
        gate = Gate()
        self._loop.call_later(seconds, gate.open)
        return [Hold(frame, gate)]


def once(key: ApiKey, fate: Fate, *, host: str | None = None, after: int = 0) -> Judge:
    """That fate for one request of its kind, behind `after` others of it."""
    left = [after + 1]

    def judge(request: Request) -> Fate:
        if request.key is not key or (host is not None and request.host != host):
            return None
        left[0] -= 1
        return fate if left[0] == 0 else None

    return judge
