"""Sends bytes and spans of files on a connection, in order, without blocking.

`send` only queues; the bytes leave at the end of the loop's current turn, so that answers which
become ready together leave in one call; `send_now` does not wait for others. Spans of real files go
by sendfile and are never copied into this process. When the peer stops reading, `is_blocked` is
set, and the sender should stop until `on_room`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from onceflow.runtime.disk import File, RealFile

_MOST_BUFFERS = 256
_MOST_SPAN = 8 << 20
_LEFT = (7, 8)
"""The kernel's numbers for a closed connection (CLOSE) and one whose peer has closed its side
(CLOSE_WAIT)."""


class FileSpan(Protocol):
    """A part of a file."""

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...

    def read(self) -> bytes: ...


Part: TypeAlias = bytes | memoryview | FileSpan
BUFFERS = (bytes, memoryview)
"""A tuple, because `bytes | memoryview` would be put together anew for every part."""


class Outbox(Protocol):
    """Belongs to one connection and one thread."""

    @property
    def is_blocked(self) -> bool:
        """Whether the peer has stopped reading."""
        ...

    @property
    def has_peer_left(self) -> bool:
        """Whether the peer has closed its side, as far as that can be seen without reading."""
        ...

    def send(self, parts: Iterable[Part]) -> None:
        """Queues parts behind those that wait already."""
        ...

    def send_now(self, parts: Iterable[Part]) -> None:
        """As `send`, without waiting for the turn's end."""
        ...

    def flush(self) -> None:
        """Sends the queue now, without waiting for the turn's end, as far as the peer takes it."""
        ...

    def writing_paused(self) -> None:
        """The transport's `pause_writing`, passed on."""
        ...

    def writing_resumed(self) -> None:
        """The transport's `resume_writing`, passed on."""
        ...

    def close(self) -> None:
        """Sends nothing more and drops the queue."""
        ...


class TransportOutbox:
    """Sends through an asyncio transport: for simulated networks and encrypted ones."""

    __slots__ = ("_on_room", "_transport", "is_blocked")

    def __init__(self, transport: asyncio.Transport, on_room: Callable[[], None]) -> None:
        self._transport = transport
        self._on_room = on_room
        self.is_blocked = False

    @property
    def has_peer_left(self) -> bool:
        return False  # a transport shows that only to its reader

    def send(self, parts: Iterable[Part]) -> None:
        self._transport.writelines(
            [each if isinstance(each, BUFFERS) else each.read() for each in parts]
        )

    send_now = send

    def flush(self) -> None:
        pass  # nothing waits here

    def writing_paused(self) -> None:
        self.is_blocked = True

    def writing_resumed(self) -> None:
        self.is_blocked = False
        self._on_room()

    def close(self) -> None:
        pass


class SocketOutbox:
    """Sends on a socket of its own: a duplicate of the transport's, which then only receives."""

    __slots__ = (
        "_fd",
        "_is_due",
        "_loop",
        "_on_room",
        "_queue",
        "_sock",
        "_transport",
        "is_blocked",
    )

    def __init__(
        self, transport: asyncio.Transport, sock: socket.socket, on_room: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._sock = sock
        self._fd = sock.fileno()
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Part] = deque()
        self._is_due = False
        self.is_blocked = False

    @property
    def has_peer_left(self) -> bool:
        if self._fd < 0:
            return True
        (state,) = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state in _LEFT

    def send(self, parts: Iterable[Part]) -> None:
        self._queue.extend(parts)
        if not self._is_due and not self.is_blocked:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def send_now(self, parts: Iterable[Part]) -> None:
        self._queue.extend(parts)
        if not self._is_due and not self.is_blocked:
            self._flush()

    def flush(self) -> None:
        if self._queue and not self.is_blocked:
            self._flush()

    def _flush(self) -> None:
        self._is_due = False
        if self._fd < 0:
            return
        try:
            self._send_all()
        except BlockingIOError:
            if not self.is_blocked:
                self.is_blocked = True
                self._loop.add_writer(self._fd, self._flush)
            return
        except OSError:  # the peer is gone: the transport notifies the protocol
            self._queue.clear()
            self._transport.abort()
            return
        if self.is_blocked:
            self.is_blocked = False
            self._loop.remove_writer(self._fd)
            self._on_room()

    def _send_all(self) -> None:
        queue = self._queue
        while queue:
            first = queue[0]
            if not isinstance(first, BUFFERS):
                self._send_span(first)
            elif len(queue) == 1:  # one answer, as most often: without what gathering costs
                self._sent(first, self._sock.send(first))
            else:
                self._send_buffers()

    def _send_buffers(self) -> None:
        queue = self._queue
        buffers: list[bytes | memoryview] = []
        flags = 0
        for each in queue:
            if len(buffers) == _MOST_BUFFERS:
                break
            if not isinstance(each, BUFFERS):
                flags = socket.MSG_MORE  # the span that follows belongs to the same packet
                break
            buffers.append(each)
        sent = self._sock.sendmsg(buffers, (), flags)
        for each in buffers:
            if not self._sent(each, sent):
                return
            sent -= len(each)

    def _sent(self, first: bytes | memoryview, sent: int) -> bool:
        """Takes the sent bytes of the first buffer off the queue; returns whether all were sent."""
        if sent < len(first):
            self._queue[0] = memoryview(first)[sent:]
            return False
        self._queue.popleft()
        return True

    def _send_span(self, span: FileSpan) -> None:
        file = span.file
        if not isinstance(file, RealFile):
            self._queue[0] = span.read()
            return
        sent = os.sendfile(self._fd, file.fileno(), span.position, min(span.length, _MOST_SPAN))
        if sent == span.length:
            self._queue.popleft()
        elif sent == 0:
            # The head has promised more bytes: only the end of the connection keeps the peer from
            # taking the next answer for the rest of this one.
            raise OSError(f"{file.path} ends before what was to be sent of it")
        else:
            self._queue[0] = _Rest(file, span.position + sent, span.length - sent)

    def writing_paused(self) -> None:
        pass  # the transport never writes

    def writing_resumed(self) -> None:
        pass

    def close(self) -> None:
        if self._fd >= 0:
            # Before the socket is closed: its number may at once be another connection's, which the
            # loop would then watch and `_flush` would write to.
            if self.is_blocked:
                self._loop.remove_writer(self._fd)
            self._fd = -1
            self._sock.close()
            self._queue.clear()


class _Rest:
    """The unsent rest of a span."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def read(self) -> bytes:
        return self.file.pread(self.position, self.length)


def outbox_for(transport: asyncio.Transport, on_room: Callable[[], None]) -> Outbox:
    """By sendfile where there is a plain socket under the transport."""
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("sslcontext") is not None:
        return TransportOutbox(transport, on_room)
    try:
        own = socket.socket(fileno=os.dup(sock.fileno()))
    except OSError:  # out of descriptors: this client is served all the same, if not as fast
        return TransportOutbox(transport, on_room)
    own.setblocking(False)
    return SocketOutbox(transport, own, on_room)
