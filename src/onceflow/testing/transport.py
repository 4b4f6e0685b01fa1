"""The simulated transport: `asyncio.Transport`'s contract over two links.

It behaves as a TCP socket under asyncio does: callbacks of the protocol come from the loop,
never from inside a call to the transport, except `pause_writing`, which `write` calls itself;
`close` flushes and then ends; `abort` forgets what was not sent; closing with unread input, or
receiving after closing, resets the peer; an exception of the protocol ends the connection.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any

from onceflow.testing.faults import Gate
from onceflow.testing.link import Item, Mark, SimLink
from onceflow.testing.loop import SimLoop

READ_SIZE = 256 * 1024
HIGH_WATER = 64 * 1024


def connection_reset(name: str) -> ConnectionResetError:
    """What a peer's reset looks like to the local side."""
    return ConnectionResetError(errno.ECONNRESET, f"connection reset by peer: {name}")


class SimTransport(asyncio.Transport):
    """One end of a simulated connection."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        name: str,
        sequence: int,
        outgoing: SimLink,
        incoming: SimLink,
        admit: Callable[[bytes], list[bytes | Gate]],
        on_lost: Callable[[], None],
        extra: dict[str, Any],
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._name = name
        self._sequence = sequence
        self._out = outgoing
        self._in = incoming
        self._admit = admit
        self._on_lost = on_lost
        self._protocol: asyncio.BaseProtocol | None = None
        self._context = Context()
        self._started = False
        self._closing = False
        self._lost = False
        self._error: Exception | None = None
        self._end_written = False
        self._end_arrived = False
        self._end_reported = False
        self._reading_paused = False
        self._inbox = bytearray()
        self._outbox: deque[memoryview | Gate] = deque()
        self._outbox_size = 0
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._writing_paused = False
        incoming.receive = self._receive
        outgoing.on_room = self._on_room

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closing" if self._closing else "open"
        return f"<SimTransport {self._name} {state}>"

    def __hash__(self) -> int:
        # By order of creation: sets of transports are then walked alike in every run.
        return self._sequence

    def __eq__(self, other: object) -> bool:
        return self is other

    # --- what the network does with it ----------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended on this side."""
        return self._lost

    def start(
        self, protocol: asyncio.BaseProtocol, started: asyncio.Future[None] | None = None
    ) -> None:
        """Introduce the protocol; `started` tells when that is done, or why it is not."""
        if self._lost:
            if started is not None and not started.done():
                started.set_exception(connection_reset(self._name))
            return
        self._protocol = protocol
        # As a real loop does, call the protocol in the context in which it was connected.
        self._context = self._in.context = copy_context()
        self._started = True
        protocol.connection_made(self)
        if started is not None and not started.done():
            started.set_result(None)
        self._soon(self._read_ready)

    def reset(self) -> None:
        """End by a reset from outside: the protocol hears of it, the peer does not."""
        self._end(connection_reset(self._name), farewell=False)

    def die(self) -> None:
        """End as the socket of a killed process: the peer hears of it, the protocol does not."""
        self._protocol = None
        self._context = Context()  # what is left to do is the network's business, not the dead's
        self._end(None, farewell=True)

    def pump(self) -> None:
        """Send what the window takes and no gate holds."""
        while self._outbox:
            head = self._outbox[0]
            if isinstance(head, Gate):
                if not head.is_open:
                    break
                self._outbox.popleft()
                continue
            sent = self._out.send(head)
            if sent == 0:
                break
            self._outbox_size -= sent
            if sent == len(head):
                self._outbox.popleft()
            else:
                self._outbox[0] = head[sent:]
        self._maybe_resume_writing()
        if not self._outbox and not self._lost:
            self._after_flush()

    # --- writing --------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._end_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or len(data) == 0:
            return
        copy = bytes(data)
        self._loop.note(f"{self._name} write", copy)
        for piece in self._admit(copy):
            if isinstance(piece, Gate):
                piece.when_open(lambda: self._soon(self.pump))
                self._outbox.append(piece)
            else:
                self._outbox.append(memoryview(piece))
                self._outbox_size += len(piece)
        self.pump()
        if self._outbox_size > self._high and not self._writing_paused:
            self._writing_paused = True
            if self._protocol is not None:
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._end_written:
            return
        self._end_written = True
        self.pump()

    def get_write_buffer_size(self) -> int:
        return self._outbox_size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low

    def _on_room(self) -> None:
        # By way of the loop: this is called from inside the reader's callback.
        if self._outbox:
            self._soon(self.pump)

    def _maybe_resume_writing(self) -> None:
        if self._writing_paused and self._outbox_size <= self._low:
            self._writing_paused = False
            if self._protocol is not None:
                self._protocol.resume_writing()

    def _after_flush(self) -> None:
        if self._closing:
            self._end(None, farewell=True)
        elif self._end_written:
            self._out.send_mark(Mark.END)

    # --- reading --------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return not self._closing and not self._reading_paused

    def pause_reading(self) -> None:
        if self.is_reading():
            self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self._soon(self._read_ready)

    def _receive(self, item: Item) -> None:
        if item is Mark.RESET:
            self.reset()
        elif item is Mark.END:
            self._end_arrived = True
            self._read_ready()
        elif isinstance(item, bytes):
            if self._lost:
                # As a kernel does for bytes to a closed socket.
                self._out.send_mark(Mark.RESET)
            else:
                self._inbox += item
                self._read_ready()

    def _read_ready(self) -> None:
        """One turn of reading, as after one readiness event of a socket."""
        if not self._started or not self.is_reading():
            return
        if self._inbox:
            self._guarded(self._feed)
            if self._inbox or self._end_arrived:
                self._soon(self._read_ready)
        elif self._end_arrived and not self._end_reported:
            self._end_reported = True
            self._guarded(self._report_end)

    def _feed(self) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = memoryview(self._protocol.get_buffer(-1)).cast("B")
            size = min(len(buffer), len(self._inbox))
            if size == 0:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:size] = self._inbox[:size]
            del self._inbox[:size]
            self._in.consumed(size)
            self._protocol.buffer_updated(size)
        elif isinstance(self._protocol, asyncio.Protocol):
            data = bytes(self._inbox[:READ_SIZE])
            del self._inbox[:READ_SIZE]
            self._in.consumed(len(data))
            self._protocol.data_received(data)

    def _report_end(self) -> None:
        if not isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            return
        if not self._protocol.eof_received():
            self.close()

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": f"protocol of {self._name} failed", "exception": error}
            )
            self._end(error, farewell=True)

    # --- ending ---------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.pump()

    def abort(self) -> None:
        self._end(None, farewell=True)

    def _end(self, error: Exception | None, *, farewell: bool) -> None:
        if self._lost:
            return
        self._closing = True
        self._lost = True
        self._outbox.clear()
        self._outbox_size = 0
        if farewell:
            # A kernel answers unread input with a reset instead of a clean end.
            self._out.send_mark(Mark.RESET if self._inbox else Mark.END)
        self._inbox.clear()
        self._error = error
        self._soon(self._report_lost)

    def _report_lost(self) -> None:
        kind = "none" if self._error is None else type(self._error).__name__
        self._loop.note(f"{self._name} lost {kind}")
        protocol, self._protocol = self._protocol, None
        self._on_lost()
        if protocol is not None:
            protocol.connection_lost(self._error)

    # --- the rest of the contract ---------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        if self._protocol is None:
            raise RuntimeError(f"{self._name} has no protocol: not connected or already lost")
        return self._protocol

    def _soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback, context=self._context)
