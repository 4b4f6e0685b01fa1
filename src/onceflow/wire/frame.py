"""Bytes as they come in, cut into frames: a 32-bit length, then that many bytes.

Made for `asyncio.BufferedProtocol`, without any socket: bytes are received into one scratch buffer
that all connections share, and a frame that is whole in it is handed on where it lies, without a
copy. A frame that is not gets memory of its own, which grows with what has really come, so that
nobody can reserve memory by announcing it. A frame is the receiver's until its callback returns.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.errors import FrameTooLarge
from onceflow.wire.primitives import INT32

PREFIX = 4
SCRATCH_BYTES = 256 << 10
_FIRST_ROOM = 1 << 20

_LARGEST_SPARE = 2 << 20
_MOST_SPARE = 4

OnFrame = Callable[[memoryview], bool]
"""Takes a frame; False means that no further one can be taken now."""


class Scratch:
    """Memory that all connections of one thread share."""

    __slots__ = ("spare", "view")

    def __init__(self, size: int = SCRATCH_BYTES) -> None:
        self.view = memoryview(bytearray(size))
        self.spare: list[bytearray] = []
        """Of frames that are done with."""


class FrameReader:
    """Frames of one connection. `scratch` may be shared by all that run on one thread."""

    __slots__ = (
        "_filled",
        "_frame",
        "_held",
        "_max_bytes",
        "_needed",
        "_on_frame",
        "_scratch",
        "_spare",
        "is_large",
    )

    def __init__(self, scratch: Scratch, max_bytes: int, on_frame: OnFrame) -> None:
        self._scratch = scratch.view
        self._spare = scratch.spare
        self._max_bytes = max_bytes
        self._on_frame = on_frame
        self._held = b""  # bytes that have come and are not part of a frame in the making
        self._frame: bytearray | None = None
        self._filled = 0
        self._needed = 0
        self.is_large = False
        """Whether a frame is in the making for which the scratch buffer would be too small."""

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing of a frame has come yet."""
        return self._frame is None and not self._held

    @property
    def buffered_bytes(self) -> int:
        return len(self._held) + (len(self._frame) if self._frame is not None else 0)

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be received; `received` must follow before anything else."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled : self._needed]
        return self._scratch[len(self._held) :] if self._held else self._scratch

    def received(self, size: int) -> bool:
        """Bytes have come. False when the receiver of frames wants no more: call `resume` later.
        Raises `FrameTooLarge` for a length that is not allowed."""
        if self._frame is not None:
            return self._fill(size)
        if self._held:
            held, self._held = self._held, b""
            self._scratch[: len(held)] = held
            size += len(held)
        return self._cut(self._scratch, size)

    def resume(self) -> bool:
        """Goes on with what had come when no more frames were wanted."""
        held, self._held = self._held, b""
        return self._cut(memoryview(bytearray(held)), len(held)) if held else True

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
            self._held = bytes(data[at:end])
        return True

    def _begin(self, length: int, part: memoryview) -> None:
        self._needed = length
        self._filled = len(part)
        room = min(length, max(_FIRST_ROOM, 2 * len(part)))
        # Memory that is used again need not be cleared and mapped anew for every frame.
        frame = self._spare.pop() if self._spare else None
        self._frame = frame if frame is not None and len(frame) >= room else bytearray(room)
        self._frame[: len(part)] = part
        self.is_large = len(self._frame) > SCRATCH_BYTES

    def _fill(self, size: int) -> bool:
        frame = self._frame
        self._filled += size
        if frame is None or self._filled < self._needed:
            if frame is not None and self._filled == len(frame):
                # Not resized in place: whoever received into it may still hold a view of it.
                self._frame = bytearray(min(self._needed, 2 * len(frame)))
                self._frame[: len(frame)] = frame
                self.is_large = True
            return True
        self._frame = None
        self.is_large = False
        wants_more = self._on_frame(memoryview(frame)[: self._needed])
        if len(frame) <= _LARGEST_SPARE and len(self._spare) < _MOST_SPARE:
            self._spare.append(frame)
        return wants_more

    def _refusal(self, length: int, start: bytes) -> str:
        if start[:4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
            return "this is HTTP, not the Kafka protocol"
        if start[:2] == b"\x16\x03":
            return "this is TLS, and the listener speaks plain text"
        return f"a frame of {length} bytes is announced; allowed is 1 to {self._max_bytes}"
