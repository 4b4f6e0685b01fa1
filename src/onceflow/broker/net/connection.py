"""One client's connection: requests in, answers out, in the order in which the requests came.

A request is handled as soon as it is read, also while answers of earlier ones are still awaited;
their answers wait their turn. What one client can make us hold is bounded: a frame has a largest
size, and reading stops while too many of its requests are unanswered, while those and the answers
whose turn has not come are too large, or while it does not take its answers. Bytes that are not the
protocol end the connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from onceflow.broker.net.memory import AnswerMemory, RequestMemory
from onceflow.broker.requests import (
    NO_ANSWER,
    AnswerPromise,
    Hangup,
    OrderedPromise,
    RequestContext,
    shortened,
)
from onceflow.broker.router import API_KEYS, Route, route
from onceflow.errors import FrameTooLarge, InvariantViolated, WireError
from onceflow.runtime import BUFFERS, Outbox, Part, outbox_for
from onceflow.wire import PREFIX, ApiKey, FrameReader, RequestHeader, Scratch, read_request_header

if TYPE_CHECKING:
    from onceflow.broker.node import Node

MOST_UNANSWERED = 64
MOST_IN_A_TURN = 64
"""One read can bring thousands of small requests: others are not to wait for all of them. A KiB of
answers counts as a request, for it is seen at the turn's end whether the client takes them. So does
what is decompressed and compressed on the loop: a small request can stand for much of it."""
MOST_HELD_BYTES = 512 << 10
"""The most bytes of waiting requests and of answers whose turn has not come, but for one more."""
LARGE_ANSWER_BYTES = 64 << 10
_PRODUCE = int(ApiKey.PRODUCE)

_PIECE = 1 << 10
"""So much of a request counts as one of these, unless it is records or asks for some: names and
numbers are looked at one by one."""

_ANSWER_START = struct.Struct(">ii")
"""The size of what follows, and the correlation id."""
_ASKED = struct.Struct(">i")
"""API and version of a request, taken for one number."""
_CORRELATION_ID_END = 8
_LONGEST_USUAL = 512
"""Headers that are longer, which a client may make as long as a frame, are not kept."""
_MOST_CACHED = 16
"""Kinds of requests that a client sends again and again."""

_log = logging.getLogger(__name__)


class _CachedHeader(NamedTuple):
    """How the requests of a client begin that ask for the same: all of the last one's header but
    its correlation id. A client says the same of itself in every request, so it is read once and
    then compared."""

    start: struct.Struct
    said: bytes
    way: Route
    client: RequestContext
    body_at: int

    @classmethod
    def of(
        cls, frame: memoryview, way: Route, client: RequestContext, body_at: int
    ) -> _CachedHeader:
        start = struct.Struct(f">{_ASKED.size}xi{body_at - _CORRELATION_ID_END}s")
        _, said = start.unpack_from(frame)
        return cls(start, said, way, client, body_at)


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("correlation_id", "held_bytes", "parts", "promise", "way")

    def __init__(self, correlation_id: int, way: Route) -> None:
        self.correlation_id = correlation_id
        self.way = way
        self.parts: list[Part] | None = None
        self.promise: AnswerPromise[object] | None = None
        self.held_bytes = 0
        """The bytes of the waiting request, or of the answer whose turn has not come."""


@dataclass(frozen=True, slots=True)
class ConnectionSurroundings:
    """What all connections of a server have in common."""

    node: Node
    scratch: Scratch
    memory: RequestMemory
    answers: AnswerMemory
    is_under_backpressure: Callable[[], bool]
    on_made: Callable[[AcceptedConnection], None]
    on_lost: Callable[[AcceptedConnection], None]


class AcceptedConnection(asyncio.BufferedProtocol):
    """Made by the server for each client; belongs to the loop."""

    def __init__(self, surroundings: ConnectionSurroundings) -> None:
        self._node = node = surroundings.node
        self._checks = node.checks
        self._memory = surroundings.memory
        self._answers = surroundings.answers
        self._is_under_backpressure = surroundings.is_under_backpressure
        self._on_made = surroundings.on_made
        self._on_lost = surroundings.on_lost
        self._frames = FrameReader(
            surroundings.scratch,
            node.config.request_max_bytes,
            self._on_frame,
            self._ask_for_room,
        )
        self._slots: deque[_Slot] = deque()
        self._held_bytes = 0
        self._has_large_answers = False
        self._outbox: Outbox | None = None
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._is_resuming = False
        self._waits_for_effect = False
        """The last request has not taken effect, and the next must not overtake it."""
        self._taken = 0
        self._was_large = False
        self._has_room = True
        self._cached_headers: dict[int, _CachedHeader] = {}
        self.peer = "?"
        self.last_heard = 0.0
        self.last_whole = 0.0
        """When the last request was whole, or the next began; moves on while nothing is read."""
        self._stopped_at = 0.0

    # --- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's do not derive from asyncio's
        self._transport = stream
        self._outbox = outbox_for(stream, self._has_sent)
        address = transport.get_extra_info("peername")
        self._host = str(address[0]) if address else "?"
        self.peer = f"{self._host}:{address[1]}" if address else "?"
        self.last_heard = self.last_whole = self._node.clock.monotonic()
        self._on_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        # Timers and cycles may still refer to this connection. They must keep no more than a few
        # objects alive: a large buffer must not wait for the garbage collector.
        self._frames.close()
        if self._outbox is not None:
            self._outbox.close()
        self._transport = self._outbox = None
        slots, self._slots = self._slots, deque()
        for slot in slots:
            promise, slot.promise = slot.promise, None
            if promise is not None:
                promise.abandon()
        self._memory.leave(self)
        self._answers.release(self)
        self._on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, size: int) -> None:
        self.last_heard = self._node.clock.monotonic()
        if self._frames.is_between_frames:
            self.last_whole = self.last_heard
        self._feed(size)

    def pause_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.writing_paused()

    def resume_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.writing_resumed()

    # --- requests -----------------------------------------------------------------------------

    def _feed(self, size: int) -> None:
        """Takes the frames in what has come; size 0 goes on with what had come before."""
        self._taken = 0
        frames = self._frames
        try:
            wants_more = frames.received(size) if size else frames.resume()
        except (FrameTooLarge, WireError) as error:
            self.close(f"{error}")
        except Hangup as reason:
            self.close(str(reason))
        except Exception:
            # A defect of ours must cost one connection at most.
            _log.exception("internal error while serving %s; connection closed", self.peer)
            self.abort()
        else:
            is_large = frames.large_bytes > 0
            if not wants_more:
                self._stop_reading()
                if self._may_read():  # it was only this turn's end
                    self._look_again()
            elif is_large and not self._may_read():
                self._stop_reading()
            if self._was_large and not is_large:
                self._memory.leave(self)
            self._was_large = is_large
            if self._outbox is not None:
                # Before the loop may block in a write of the journal, which is due in this turn.
                self._outbox.flush()

    def _on_frame(self, frame: memoryview) -> bool:
        if self._transport is None:
            return True
        self.last_whole = self.last_heard
        size = len(frame)
        cached = (
            self._cached_headers.get(_ASKED.unpack_from(frame)[0]) if size >= _ASKED.size else None
        )
        if cached is not None and size >= cached.body_at:
            correlation_id, said = cached.start.unpack_from(frame)
            if said == cached.said:
                self._serve(cached, correlation_id, frame)
            else:
                self._serve_uncached(frame)
        else:
            self._serve_uncached(frame)
        self._taken += 1
        if self._checks.pieces:
            self._taken += self._checks.take_pieces()
        if size >= _PIECE and _ASKED.unpack_from(frame)[0] >> 16 > ApiKey.FETCH:
            self._taken += size // _PIECE
        return self._taken < MOST_IN_A_TURN and self._may_read()

    def _serve_uncached(self, frame: memoryview) -> None:
        header = read_request_header(frame)
        way = route(header.api_key, header.version)
        if way is None:
            self._refuse_version(header)
            return
        client = RequestContext(header.version, header.client_id, self._host)
        cached = _CachedHeader.of(frame, way, client, header.body_at)
        if header.body_at <= _LONGEST_USUAL:
            if len(self._cached_headers) >= _MOST_CACHED:
                self._cached_headers.clear()
            self._cached_headers[_ASKED.unpack_from(frame)[0]] = cached
        self._serve(cached, header.correlation_id, frame)

    def _serve(self, cached: _CachedHeader, correlation_id: int, frame: memoryview) -> None:
        way = cached.way
        self._node.served[way.api_key] += 1
        answer = way.handle(self._node, cached.client, way.read(frame, cached.body_at))
        if answer is NO_ANSWER:
            return
        slot = _Slot(correlation_id, way)
        self._slots.append(slot)
        if isinstance(answer, AnswerPromise):
            slot.promise = answer
            if isinstance(answer, OrderedPromise) and not answer.has_taken_effect:
                # Read no further: the next request would take effect first, and of two batches the
                # second would be refused as out of order.
                self._waits_for_effect = True
                answer.on_effect(self._took_effect)
                self._hold(slot, len(frame))
            elif way.api_key != _PRODUCE:  # of which nothing is kept that is not in the log
                self._hold(slot, len(frame))
            answer.then(partial(self._answer_later, slot))
        else:
            self._answer(slot, answer)

    def _answer_later(self, slot: _Slot, value: object) -> None:
        self.last_heard = self._node.clock.monotonic()  # it was silent because it waited for us
        try:
            if isinstance(value, Hangup):
                self.close(str(value))
            else:
                self._answer(slot, value)
        except Exception:
            # The code that resolved the promise has other clients to answer.
            _log.exception("internal error while answering %s; connection closed", self.peer)
            self.abort()

    def _refuse_version(self, header: RequestHeader) -> None:
        key = API_KEYS.get(header.api_key)
        if key is not ApiKey.API_VERSIONS:
            what = f"API {header.api_key}"
            if key is not None:  # and not "if key": Produce is number 0
                what = f"version {header.version} of {key.name}"
            raise Hangup(f"{what} is not served (client id {header.client_id!r})")
        # Every client can read version 0, and learns from it what to ask for.
        way = route(key, 0)
        if way is None:
            raise InvariantViolated("version-0-of-api-versions-is-served")
        from onceflow.broker.handlers.api_versions import unsupported  # `route` has loaded it

        slot = _Slot(header.correlation_id, way)
        self._slots.append(slot)
        self._answer(slot, unsupported())

    # --- answers ------------------------------------------------------------------------------

    def _answer(self, slot: _Slot, value: object) -> None:
        outbox = self._outbox
        if outbox is None:
            return  # the client is gone
        if value is NO_ANSWER:
            slot.parts, size = [], 0
        else:
            slot.parts, size = _framed(slot.correlation_id, slot.way, value)
        was_awaited = slot.promise is not None
        slot.promise = None  # which knows the slot
        slots = self._slots
        # Kafka's clients expect the answers of a connection in the order of their requests.
        if slots[0] is not slot:
            self._hold(slot, size)  # its turn has not come
            if size > LARGE_ANSWER_BYTES:
                self._hold_large(size)
            return
        self._taken += size >> 10
        while slots and (ready := slots[0].parts) is not None:
            self._held_bytes -= slots.popleft().held_bytes
            if slots or not was_awaited:
                outbox.send(ready)
            else:
                outbox.send_now(ready)  # awaited, and there is nothing to gather it with
        if size > LARGE_ANSWER_BYTES or self._has_large_answers:
            self._send_large(outbox, size)
        if not self._is_reading:
            self._look_again()

    def _hold(self, slot: _Slot, size: int) -> None:
        self._held_bytes += size - slot.held_bytes
        slot.held_bytes = size

    def _hold_large(self, size: int) -> None:
        self._has_large_answers = True
        self._answers.hold(self, size)

    def _send_large(self, outbox: Outbox, size: int) -> None:
        outbox.flush()
        if not outbox.is_blocked:
            self._release_large()
        elif size > LARGE_ANSWER_BYTES:
            self._hold_large(size)

    def _release_large(self) -> None:
        """What was sent has left."""
        if self._has_large_answers and all(each.parts is None for each in self._slots):
            self._has_large_answers = False
            self._answers.release(self)

    def _has_sent(self) -> None:
        self._release_large()
        self._look_again()

    # --- back pressure ------------------------------------------------------------------------

    def _may_read(self) -> bool:
        return (
            not self._waits_for_effect
            and len(self._slots) < MOST_UNANSWERED
            and self._held_bytes < MOST_HELD_BYTES
            and self._outbox is not None
            and not self._outbox.is_blocked
            and self._has_room
            and not self._is_under_backpressure()
        )

    def _ask_for_room(self, size: int) -> bool:
        self._has_room = self._memory.ask(self, size, self.last_heard)
        return self._has_room

    def go_on(self) -> None:
        """There is room for the rest of a large request."""
        self._has_room = True
        self._look_again()

    def _stop_reading(self) -> None:
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._stopped_at = self._node.clock.monotonic()
            self._transport.pause_reading()

    def _took_effect(self) -> None:
        self._waits_for_effect = False
        self._look_again()

    def look_again(self) -> None:
        """There may be room again: goes on reading if it had stopped."""
        if not self._is_reading:
            self._look_again()

    def _look_again(self) -> None:
        # Not here and now: this may be called from the midst of another frame of this client.
        if not self._is_reading and not self._is_resuming and self._transport is not None:
            self._is_resuming = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        if self._transport is None or not self._may_read():
            return
        self._is_reading = True
        self.last_heard = self._node.clock.monotonic()  # its silence was our doing
        self.last_whole += self.last_heard - self._stopped_at
        self._feed(0)
        if self._is_reading and self._transport is not None:
            self._transport.resume_reading()

    # --- the end ------------------------------------------------------------------------------

    def seconds_in_frame(self, now: float) -> float:
        """How long the rest of a request that has come in part was read for, and did not come."""
        if self._frames.is_between_frames:
            return 0.0
        return (now if self._is_reading else self._stopped_at) - self.last_whole

    @property
    def buffered_bytes(self) -> int:
        """Memory that requests of this client take which have not come in whole."""
        return self._frames.buffered_bytes

    @property
    def received_bytes(self) -> int:
        """What has come of a large request."""
        return self._frames.received_bytes

    @property
    def is_abandoned(self) -> bool:
        """Whether the client is gone, unnoticed because the broker does not read from it."""
        return not self._is_reading and self._outbox is not None and self._outbox.has_peer_left

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for an answer."""
        return bool(self._slots)

    def close(self, reason: str) -> None:
        """Ends the connection because of what the client did, and says so."""
        if self._transport is not None:
            _log.warning("closed the connection of %s: %s", self.peer, shortened(reason))
            self.abort()

    def abort(self) -> None:
        """Ends the connection now; answers that wait are dropped."""
        if self._transport is not None:
            self._transport.abort()


def _framed(correlation_id: int, way: Route, value: object) -> tuple[list[Part], int]:
    """An answer as it is sent: its size, its header and its body; and what of it is in memory."""
    tags = way.tags
    parts = list(way.write(value))
    size = _ANSWER_START.size - PREFIX + len(tags)
    in_files = 0
    for each in parts:
        if isinstance(each, BUFFERS):
            size += len(each)
        else:
            in_files += each.length
    start = _ANSWER_START.pack(size + in_files, correlation_id) + tags
    first = parts[0]
    if isinstance(first, bytes):
        parts[0] = start + first
    else:
        parts.insert(0, start)
    return parts, size
