"""The bytes of one connection: requests go out one behind the other, answers come back in order.

When it fails, every request in flight fails with the same named error, and so does every later one.
Each request has a deadline; the first that passes ends the stream, because its answer may never
come and all others queue behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

from onceflow.client.errors import (
    AnswerMalformed,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
)
from onceflow.client.events import CONNECTIONS, Recurring
from onceflow.client.net.address import BrokerAddress
from onceflow.errors import FrameTooLarge, MessageMalformed
from onceflow.runtime import Outbox, outbox_for
from onceflow.wire import INT32, FrameReader, Scratch, skip_tags

LARGEST_ANSWER: Final = 256 << 20
"""Less than any four letters of ASCII or the start of a TLS alert, taken for a length."""
_LARGEST_CORRELATION_ID: Final = 2**31 - 1
_WORTH_JOINING: Final = 64 << 10
"""Bytes up to which one write of a copy is cheaper than one of several parts."""
_MOST_SPARE: Final = 2
_MOST_LENT: Final = 4
"""The number of large answers whose memory is watched for reuse."""

Buffer: TypeAlias = bytes | memoryview


class RequestHead(NamedTuple):
    """The bytes in front of a request's body, around the correlation id."""

    name: str
    before: bytes
    """The numbers of API and version."""
    after: bytes
    """The client's name, and the tagged fields if there are any."""
    answer_has_tags: bool


OnAnswer: TypeAlias = Callable[[memoryview | ClientError], None]
"""Gets the body of the answer, or the error; must not raise."""


class _Taker(Protocol):
    """The receiver of an answer; a future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: memoryview, /) -> None: ...

    def set_exception(self, exception: ClientError, /) -> None: ...


class _Told:
    """A receiver that is called at once, and not in the loop's next turn as with a future."""

    __slots__ = ("set_exception", "set_result")

    def __init__(self, on_answer: OnAnswer) -> None:
        self.set_result: OnAnswer = on_answer
        self.set_exception: OnAnswer = on_answer

    def done(self) -> bool:
        return False


class _Waiter(NamedTuple):
    correlation_id: int
    answer: _Taker
    deadline: float
    limit_s: float
    head: RequestHead


class Stream(asyncio.BufferedProtocol):
    """Receives frames, and matches them with the requests in flight."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.failure: tuple[type[ClientError], str] | None = None
        self.has_answered = False
        self.hint = ""
        """Advice to add if the broker hangs up before its next answer."""
        self._loop = asyncio.get_running_loop()
        self._outbox: Outbox | None = None
        """Made with the first request, when it is clear whether the connection is encrypted."""
        self._waiters: deque[_Waiter] = deque()
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0
        self._correlation_id = 0
        self._recurring = Recurring()
        self._scratch = Scratch()
        self._frames = FrameReader(self._scratch, LARGEST_ANSWER, self._on_frame)
        self._lent: list[bytearray] = []
        """Memory of large answers that the application may still read."""
        self._has_lent = False

    # --- the transport's side -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asked whether it is one: those of uvloop are no subclass.
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._frames.received(nbytes)
        except FrameTooLarge:
            kind = AnswerMalformed if self.has_answered else NotKafka
            self.fail(kind, f"{self.address} {_what_it_speaks(bytes(self._scratch.view[:4]))}")
        if self._has_lent:
            self._take_back()

    def _take_back(self) -> None:
        """Reuses the memory of large answers that the application no longer reads; fresh memory
        costs more than receiving into it. Memory with a live view must stay out of `spare`: the
        next frame would overwrite an answer that is being read."""
        self._has_lent = False
        spare = self._scratch.spare
        if spare and spare[-1] is self._lent[-1]:
            spare.pop()  # the frame reader has already put it there, but the application reads it
        still_read: list[bytearray] = []
        for each in self._lent:
            (spare if _is_free(each) else still_read).append(each)
        spare.sort(key=len)
        del spare[:-_MOST_SPARE]
        self._lent = still_read[-_MOST_LENT:]

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc is not None else ""
        self.fail(ConnectionLost, f"{self.address} closed the connection{reason}{self.hint}")

    # --- the client's side ----------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return len(self._waiters)

    def ask(
        self, head: RequestHead, body: Sequence[Buffer], limit_s: float
    ) -> asyncio.Future[memoryview]:
        """Sends a request; the future is the body of its answer."""
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        self._ask_for(answer, head, body, limit_s)
        return answer

    def ask_then(
        self, on_answer: OnAnswer, head: RequestHead, body: Sequence[Buffer], limit_s: float
    ) -> None:
        """As `ask`, for a caller that does not wait in a task."""
        self._ask_for(_Told(on_answer), head, body, limit_s)

    def _ask_for(
        self, answer: _Taker, head: RequestHead, body: Sequence[Buffer], limit_s: float
    ) -> None:
        correlation_id = self._send(head, body)
        deadline = self._loop.time() + limit_s
        self._waiters.append(_Waiter(correlation_id, answer, deadline, limit_s, head))
        if self._alarm is None or deadline < self._alarm_at:
            self._set_alarm(deadline)

    def tell(self, head: RequestHead, body: Sequence[Buffer]) -> None:
        """Sends a request that is not answered: a Produce with acks=0."""
        self._send(head, body)

    def _send(self, head: RequestHead, body: Sequence[Buffer]) -> int:
        transport = self.transport
        if transport is None or self.failure is not None:
            raise self.error(was_sent=False)
        self._correlation_id = correlation_id = self._correlation_id % _LARGEST_CORRELATION_ID + 1
        size = len(head.before) + INT32.size + len(head.after) + sum(map(len, body))
        start = b"".join((INT32.pack(size), head.before, INT32.pack(correlation_id), head.after))
        if self._outbox is None:
            # asyncio's own way would copy a large request, and again what the socket cannot take.
            self._outbox = outbox_for(transport, _nobody_waits)
        joins = size <= _WORTH_JOINING
        self._outbox.send_now((b"".join((start, *body)),) if joins else (start, *body))
        return correlation_id

    def error(self, *, was_sent: bool = True) -> ClientError:
        """The reason for the end of this stream, as a new exception."""
        kind, message = self.failure or (ConnectionLost, f"{self.address} is not connected")
        return kind(message) if was_sent else kind(message, outcome="not applied")

    def fail(self, kind: type[ClientError], message: str) -> None:
        """Ends the connection; the first reason is the one that counts."""
        if self.failure is None:
            self.failure = kind, message
            self._tell_end(kind, message)
        if self.transport is not None:
            self.transport.abort()
            self.transport = None
        if self._outbox is not None:
            self._outbox.close()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        while self._waiters:
            answer = self._waiters.popleft().answer
            if not answer.done():
                answer.set_exception(self.error())

    def _tell_end(self, kind: type[ClientError], message: str) -> None:
        """Logs the end; before the first answer, that is left to the caller that connects."""
        if not self.has_answered:
            return
        fields = {"address": str(self.address), "in_flight": len(self._waiters), "reason": message}
        if kind is ConnectionClosed:
            CONNECTIONS.debug("closed", "%(reason)s", **fields)
        elif kind is ConnectionLost and not self._waiters:  # as brokers do with idle ones
            CONNECTIONS.info("lost", "%(reason)s", **fields)
        else:
            CONNECTIONS.warning("lost", "%(reason)s", **fields)

    def throttled(self, request: str, throttle_ms: int) -> None:
        """Logs that the broker has throttled this client."""
        CONNECTIONS.tell(
            self._recurring.level(request, self._loop.time()),
            "throttled",
            "%(address)s throttled %(request)s for %(throttle_ms)d ms: a quota is used up",
            address=str(self.address),
            request=request,
            throttle_ms=throttle_ms,
        )

    def abandon(self, kind: type[ClientError], message: str) -> None:
        """Ends it without touching the socket, which belongs to the parent process."""
        self.failure = kind, message
        self.transport = None
        self._alarm = None
        self._waiters.clear()

    # --- answers and deadlines ------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> bool:
        if self.failure is not None:
            return True
        correlation_id = INT32.unpack_from(frame)[0] if len(frame) >= INT32.size else None
        if not self._waiters or self._waiters[0].correlation_id != correlation_id:
            kind = AnswerMalformed if self.has_answered else NotKafka
            self.fail(kind, f"{self.address} sent an answer to a request that was not made")
            return True
        self.has_answered = True
        self.hint = ""
        waiter = self._waiters.popleft()
        if waiter.answer.done():  # cancelled: its answer is still taken, to keep the order
            return True
        body = self._kept(frame)[INT32.size :]
        if waiter.head.answer_has_tags:
            try:
                body = body[skip_tags(body, 0) :]
            except MessageMalformed as error:
                self._waiters.appendleft(waiter)  # so that `fail` completes it, too
                message = f"{self.address} answers {waiter.head.name} wrongly: {error}"
                self.fail(AnswerMalformed, message)
                return True
        waiter.answer.set_result(body)
        return True

    def _kept(self, frame: memoryview) -> memoryview:
        """The frame for good; one that has memory of its own is not copied."""
        own = frame.obj
        if own is self._scratch.view.obj or not isinstance(own, bytearray):
            return memoryview(bytes(frame))
        self._lent.append(own)
        self._has_lent = True
        return frame.toreadonly()

    def _set_alarm(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._loop.call_at(deadline, self._on_alarm), deadline

    def _on_alarm(self) -> None:
        self._alarm = None
        if not self._waiters:
            return
        first = min(self._waiters, key=lambda each: each.deadline)
        if first.deadline > self._loop.time():
            self._set_alarm(first.deadline)
            return
        self.fail(
            RequestTimedOut,
            f"{self.address} did not answer {first.head.name} within {first.limit_s:g} s",
        )


def _nobody_waits() -> None:
    """`on_room` of the outbox: callers bound the requests in flight themselves."""


def _is_free(memory: bytearray) -> bool:
    """Whether there is no view of it any more: only then can its length be changed."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return False
    return True


def _what_it_speaks(start: bytes) -> str:
    if start == b"HTTP":
        return "speaks HTTP, not the Kafka protocol"
    if start[:2] in (b"\x15\x03", b"\x16\x03"):
        return "speaks TLS; set security.protocol to SSL or SASL_SSL, or use another port"
    return "does not speak the Kafka protocol"
