"""A simulated connection: two transports, two links, and the faults that strike both.

A test reaches it through a tap or `SimNet.connections` and may reset it, end one direction, or
lose every answer from here on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from onceflow.testing.faults import (
    Deliver,
    Gate,
    Hold,
    NetConditions,
    Redeliver,
    Side,
    TapAction,
)
from onceflow.testing.link import Mark, SimLink
from onceflow.testing.loop import SimLoop, SimulationError
from onceflow.testing.transport import SimTransport


@dataclass(frozen=True, slots=True)
class Address:
    """A host by name and a port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TappedWrite:
    """One call of `write`, before the network has seen it."""

    connection: SimConnection
    direction: Side
    data: bytes


Tap: TypeAlias = Callable[[TappedWrite], list[TapAction]]


class SimConnection:
    """Both ends of one connection and what the network does to it."""

    def __init__(
        self,
        loop: SimLoop,
        conditions: NetConditions,
        *,
        number: int,
        client: Address,
        server: Address,
        tap: Callable[[], Tap | None],
        redeliver: Callable[[SimConnection, Redeliver], None],
        on_ended: Callable[[SimConnection], None],
    ) -> None:
        self.number = number
        self.addresses = {Side.CLIENT: client, Side.SERVER: server}
        self._loop = loop
        self._conditions = conditions
        self._tap = tap
        self._redeliver = redeliver
        self._on_ended = on_ended
        self._losing_responses = False
        dribble = conditions.happens(conditions.faults.dribble_chance)
        self.links = {side: self._make_link(side, dribble=dribble) for side in Side}
        self.ends = {side: self._make_end(side) for side in Side}

    def __repr__(self) -> str:
        return f"<SimConnection {self.number}>"

    @property
    def client(self) -> SimTransport:
        return self.ends[Side.CLIENT]

    @property
    def server(self) -> SimTransport:
        return self.ends[Side.SERVER]

    # --- faults that a test or a chance calls for -----------------------------------------------

    def reset(self) -> None:
        """Break the connection: what is in flight is gone, both ends see a reset soon."""
        self._loop.note(f"c{self.number} reset")
        for side in Side:
            self.links[side].cut()
            self._loop.call_later(self._conditions.delay(), self.ends[side].reset)

    def half_close(self, side: Side) -> None:
        """End the direction written by `side`: its peer reads an end, its own writes vanish."""
        self._loop.note(f"c{self.number} half-close {side.value}")
        self.links[side].send_mark(Mark.END)

    def lose_responses(self) -> None:
        """Drop what the server writes from here on, and reset after the first such write."""
        self._loop.note(f"c{self.number} lose responses")
        self._losing_responses = True

    def kill(self, side: Side) -> None:
        """The process on this side is gone: its protocol hears nothing more."""
        self._loop.note(f"c{self.number} kill {side.value}")
        self.ends[side].die()

    # --- inside ---------------------------------------------------------------------------------

    def _make_link(self, side: Side, *, dribble: bool) -> SimLink:
        link = SimLink(
            self._loop,
            self._conditions,
            name=f"c{self.number} {side.value}>",
            source=self.addresses[side].host,
            target=self.addresses[side.other].host,
        )
        link.dribble = dribble
        return link

    def _make_end(self, side: Side) -> SimTransport:
        here, there = self.addresses[side], self.addresses[side.other]
        return SimTransport(
            self._loop,
            name=f"c{self.number} {side.value}",
            sequence=2 * self.number + (side is Side.SERVER),
            outgoing=self.links[side],
            incoming=self.links[side.other],
            admit=lambda data: self._admit(side, data),
            on_lost=self._end_lost,
            extra={
                "sockname": (here.host, here.port),
                "peername": (there.host, there.port),
            },
        )

    def _end_lost(self) -> None:
        if self.client.is_lost and self.server.is_lost:
            self._on_ended(self)

    def _admit(self, side: Side, data: bytes) -> list[bytes | Gate]:
        """What really goes out when `side` writes `data`."""
        self._draw_faults(side)
        if side is Side.SERVER and self._losing_responses:
            self._loop.note(f"c{self.number} response lost", data)
            self._loop.call_later(self._conditions.delay(), self.reset)
            return []
        tap = self._tap()
        if tap is None:
            return [data]
        return self._apply(side, tap(TappedWrite(self, side, data)))

    def _draw_faults(self, side: Side) -> None:
        faults = self._conditions.faults
        if self._conditions.happens(faults.reset_chance):
            # A moment later, so that this write may or may not get through.
            self._loop.call_later(self._conditions.delay(), self.reset)
        if self._conditions.happens(faults.half_close_chance):
            self.half_close(side)
        if side is Side.SERVER and self._conditions.happens(faults.lose_response_chance):
            self.lose_responses()

    def _apply(self, side: Side, actions: list[TapAction]) -> list[bytes | Gate]:
        pieces: list[bytes | Gate] = []
        for action in actions:
            self._loop.note(f"c{self.number} tap {type(action).__name__}", action.data)
            match action:
                case Deliver(data):
                    pieces.append(data)
                case Hold(data, gate):
                    pieces += [gate, data]
                case Redeliver():
                    if side is Side.SERVER:
                        raise SimulationError("only what a client wrote can be redelivered")
                    self._redeliver(self, action)
        return pieces
