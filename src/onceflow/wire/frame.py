"""Cuts incoming bytes into frames: a 32-bit length, then that many bytes.

Made for `asyncio.BufferedProtocol`, without any socket: all connections receive into one shared
scratch buffer, and a frame that is whole in it is handed on in place, without a copy. A partial
frame gets memory of its own, which grows with the bytes that really arrive, so that a peer cannot
reserve memory by announcing a length. The receiver may use a frame until its callback returns.

A partial frame of more than `SHARE_BYTES` is large: the reader may ask its receiver for room, and
until there is room it keeps no more than the bytes that have arrived.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.errors import FrameTooLarge
from onceflow.wire.primitives import INT32

PREFIX = 4
SCRATCH_BYTES = 256 << 10
SHARE_BYTES = 64 << 10
"""A frame up to this size is received however many other connections there are."""
_FIRST_ROOM = 1 << 20

_LARGEST_SPARE = 2 << 20
_MOST_SPARE = 4

OnFrame = Callable[[memoryview], bool]
"""Takes a frame; False means that no further one can be taken now."""
HasRoom = Callable[[int], bool]
"""Asked once for every large frame, with its size. False means that the rest of it has to wait:
nothing may be received until there is room."""


class Scratch:
    """Memory that all connections of one thread share."""

    __slots__ = ("spare", "view", "window")

    def __init__(self, size: int = SCRATCH_BYTES) -> None:
        self.view = memoryview(bytearray(size))
        self.window = self.view
        """The part of it that one read may fill."""
        self.spare: list[bytearray] = []
        """Memory of finished frames, for reuse."""

    def narrow(self) -> None:
        """Lets one read bring no more than every connection may keep."""
        self.window = self.view[:SHARE_BYTES]

    def widen(self) -> None:
        """Lets one read bring as much as there is room for."""
        self.window = self.view


class FrameReader:
    """Frames of one connection. `scratch` may be shared by all that run on one thread."""

    __slots__ = (
        "_filled",
        "_frame",
        "_has_room",
        "_held",
        "_max_bytes",
        "_needed",
        "_on_frame",
        "_scratch",
        "large_bytes",
    )

    def __init__(
        self, scratch: Scratch, max_bytes: int, on_frame: OnFrame, has_room: HasRoom | None = None
    ) -> None:
        self._scratch = scratch
        self._max_bytes = max_bytes
        self._on_frame = on_frame
        self._has_room = has_room
        self._held = b""  # bytes that have come and are not part of a frame in the making
        self._frame: bytearray | None = None
        self._filled = 0
        self._needed = 0
        self.large_bytes = 0
        """The size of the large frame that is in the making, if one is."""

    @property
    def is_between_frames(self) -> bool:
        """Whether no byte of the next frame has arrived."""
        return self._frame is None and not self._held

    @property
    def buffered_bytes(self) -> int:
        return len(self._held) + (len(self._frame) if self._frame is not None else 0)

    @property
    def received_bytes(self) -> int:
        """The bytes of the large partial frame that have arrived."""
        return self._filled if self.large_bytes else 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be received; `received` must follow before anything else."""
        if self._frame is not None:
            if self._filled == len(self._frame):
                self._grow(self._frame)
            return memoryview(self._frame)[self._filled : self._needed]
        window = self._scratch.window
        return window[len(self._held) :] if self._held else window

    def received(self, size: int) -> bool:
        """Bytes have come. False when the receiver of frames wants no more: call `resume` later.
        Raises `FrameTooLarge` for a length that is not allowed."""
        if self._frame is not None:
            return self._fill(self._frame, size)
        scratch = self._scratch.view
        if self._held:
            held, self._held = self._held, b""
            scratch[: len(held)] = held
            size += len(held)
        return self._cut(scratch, size)

    def resume(self) -> bool:
        """Hands on the frames that arrived while the receiver wanted no more."""
        held, self._held = self._held, b""
        return self._cut(memoryview(bytearray(held)), len(held)) if held else True

    def close(self) -> None:
        """Drops the partial frame and the receiver; nothing is received after this. A partial frame
        dies with its connection: its rest can never come on another one."""
        self._held = b""
        self._frame = None
        self.large_bytes = 0
        self._on_frame = _to_nobody
        self._has_room = None

    def _cut(self, data: memoryview, end: int) -> bool:
        """Hands on the frames in the first `end` bytes; nothing is held when this is called."""
        at = 0
        while end - at >= PREFIX:
            (length,) = INT32.unpack_from(data, at)
            if not 0 < length <= self._max_bytes:
                raise FrameTooLarge(self._refusal(length, bytes(data[at : at + 8])))
            start = at + PREFIX
            if start + length > end:
                self._begin(length, data[start:end])
                return True
            at = start + length
            if not self._on_frame(data[start:at]):
                self._held = bytes(data[at:end])
                return False
        if at < end:
            # A copy: the next read of any connection overwrites the scratch.
            self._held = bytes(data[at:end])
        return True

    def _begin(self, length: int, part: memoryview) -> None:
        self._needed = length
        self._filled = len(part)
        if length <= SHARE_BYTES:
            self._frame = bytearray(length)
        else:
            self.large_bytes = length
            if self._has_room is not None and not self._has_room(length):
                self._frame = bytearray(part)
                return
            self._frame = self._memory(min(length, max(_FIRST_ROOM, 2 * len(part))))
        self._frame[: len(part)] = part

    def _memory(self, size: int) -> bytearray:
        # Memory that is used again need not be cleared and mapped anew for every frame.
        if spare := self._scratch.spare:
            frame = spare.pop()
            # The room was granted for this frame's size: a much larger spare would exceed it.
            most = len(frame) if self._has_room is None else 2 * self._needed
            if size <= len(frame) <= most:
                return frame
        return bytearray(size)

    def _grow(self, frame: bytearray) -> None:
        # Not resized in place: the transport may still hold a view of it.
        self._frame = self._memory(min(self._needed, max(_FIRST_ROOM, 2 * len(frame))))
        self._frame[: len(frame)] = frame

    def _fill(self, frame: bytearray, size: int) -> bool:
        self._filled += size
        if self._filled < self._needed:
            return True
        self._frame = None
        self.large_bytes = 0
        wants_more = self._on_frame(memoryview(frame)[: self._needed])
        spare = self._scratch.spare
        # From here on another frame may arrive in this memory: a receiver that still holds a view
        # would read that frame's bytes.
        if len(frame) <= _LARGEST_SPARE and len(spare) < _MOST_SPARE:
            spare.append(frame)
        return wants_more

    def _refusal(self, length: int, start: bytes) -> str:
        if start[:4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
            return "this is HTTP, not the Kafka protocol"
        if start[:2] == b"\x16\x03":
            return "this is TLS, and the listener speaks plain text"
        return f"a frame of {length} bytes is announced; allowed is 1 to {self._max_bytes}"


def _to_nobody(frame: memoryview) -> bool:
    return False
