"""Frames out of a stream of bytes: however it was cut, held or grown; and what is refused."""

from __future__ import annotations

import struct
import sys
import tracemalloc

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.errors import FrameTooLarge
from onceflow.wire.frame import SCRATCH_BYTES, SHARE_BYTES, FrameReader, Scratch
from tests.doses import examples

MOST = 4 << 20


class Taker:
    """Takes frames; says no after those whose numbers are in `stops`."""

    def __init__(self, stops: frozenset[int] = frozenset(), scratch: int = 4096) -> None:
        self.frames: list[bytes] = []
        self.stops = stops
        self.reader = FrameReader(Scratch(scratch), MOST, self.take)
        self.is_paused = False

    def take(self, frame: memoryview) -> bool:
        assert not self.is_paused, "a frame was handed over though none was wanted"
        self.frames.append(bytes(frame))
        self.is_paused = len(self.frames) in self.stops
        return not self.is_paused

    def feed(self, data: bytes) -> None:
        """As a transport does: as much as the buffer takes, and nothing while paused."""
        while data:
            self.resume()
            room = self.reader.get_buffer()
            size = min(len(room), len(data))
            assert size, "a buffer without room"
            room[:size] = data[:size]
            data = data[size:]
            assert self.reader.received(size) is not self.is_paused

    def resume(self) -> None:
        while self.is_paused:
            self.is_paused = False
            assert self.reader.resume() is not self.is_paused


def framed(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(each)) + each for each in frames)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({min(each, len(data)) for each in at})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


FRAMES = st.lists(
    st.binary(min_size=1, max_size=40) | st.integers(1, 12_000).map(lambda size: b"x" * size),
    max_size=8,
)


@settings(deadline=None, max_examples=examples(300))
@given(
    frames=FRAMES,
    at=st.lists(st.integers(0, 30_000), max_size=10),
    stops=st.frozensets(st.integers(1, 8)),
    scratch=st.integers(5, 5000),
)
def test_any_cut_of_a_stream_gives_the_same_frames(
    frames: list[bytes], at: list[int], stops: frozenset[int], scratch: int
) -> None:
    taker = Taker(stops, scratch)
    for piece in cut(framed(frames), at):
        taker.feed(piece)
    taker.resume()
    assert taker.frames == frames
    assert taker.reader.is_between_frames
    assert taker.reader.buffered_bytes == 0


@settings(deadline=None)
@given(frames=FRAMES.filter(bool), at=st.integers(0, 100_000))
def test_a_part_of_a_frame_is_seen_as_one(frames: list[bytes], at: int) -> None:
    taker = Taker()
    stream = framed(frames)
    end = at % len(stream)
    taker.feed(stream[:end])
    ends = [len(framed(frames[:number])) for number in range(len(frames) + 1)]
    assert taker.reader.is_between_frames == (end in ends)
    taker.feed(stream[end:])
    assert taker.frames == frames


def test_one_byte_at_a_time() -> None:
    taker = Taker()
    for byte in framed([b"one", b"t" * 300, b"three"]):
        taker.feed(bytes([byte]))
    assert taker.frames == [b"one", b"t" * 300, b"three"]


def test_scratch_is_shared_and_what_one_holds_is_its_own() -> None:
    scratch = Scratch(64)
    first, second = Taker(), Taker()
    for taker in (first, second):
        taker.reader = FrameReader(scratch, MOST, taker.take)
    for number in range(len(framed([b"first"]))):
        first.feed(framed([b"first"])[number : number + 1])
        second.feed(framed([b"other"])[number : number + 1])
    assert (first.frames, second.frames) == ([b"first"], [b"other"])


def test_frames_in_the_scratch_buffer_are_not_copied() -> None:
    scratch = Scratch(1000)
    seen: list[memoryview] = []

    def take(frame: memoryview) -> bool:
        seen.append(frame)
        return True

    reader = FrameReader(scratch, MOST, take)
    data = framed([b"one", b"two"])
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    assert [each.obj for each in seen] == [scratch.view.obj, scratch.view.obj]
    scratch.view[4:7] = b"ONE"
    assert bytes(seen[0]) == b"ONE"


@pytest.mark.parametrize("length", [0, -1, -(2**31), MOST + 1, 2**31 - 1])
def test_lengths_that_are_not_allowed_are_refused_before_anything_is_kept(length: int) -> None:
    taker = Taker()
    with pytest.raises(FrameTooLarge, match=rf"{length} bytes .* allowed is 1 to {MOST}"):
        taker.feed(struct.pack(">i", length))
    assert not taker.frames


def test_the_largest_frame_is_allowed() -> None:
    taker = Taker()
    taker.feed(framed([bytes(MOST)]))
    assert [len(each) for each in taker.frames] == [MOST]


def test_a_refusal_says_what_else_it_looks_like() -> None:
    for start, hint in (
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"POST /topics", "HTTP"),
        (b"HEAD / HTTP/1.0", "HTTP"),
        (bytes.fromhex("16030100c8010000"), "TLS"),
    ):
        with pytest.raises(FrameTooLarge, match=hint):
            Taker().feed(start)


def test_announced_bytes_take_no_memory_before_they_come() -> None:
    """A thousand connections that each announce the largest frame and send a little of it."""
    scratch = Scratch(4096)
    readers = [FrameReader(scratch, 1 << 30, lambda _: True) for _ in range(20)]
    tracemalloc.start()
    try:
        for reader in readers:
            part = struct.pack(">i", 1 << 30) + b"a little"
            reader.get_buffer()[: len(part)] = part
            reader.received(len(part))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 25 << 20
    assert sum(reader.buffered_bytes for reader in readers) <= 20 << 20


def test_memory_grows_with_what_has_come() -> None:
    taker = Taker()
    body = bytes(range(256)) * ((MOST - 5) // 256)
    stream = framed([body])
    for start in range(0, len(stream), 100_000):
        taker.feed(stream[start : start + 100_000])
        assert taker.reader.buffered_bytes <= max(1 << 20, 2 * (start + 100_000))
    assert taker.frames == [body]


# --- room for large frames -----------------------------------------------------------------------


class Guest(Taker):
    """Asks for room for its large frames; gets it when the test says so."""

    def __init__(self, scratch: Scratch | None = None) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.has_room = False
        self.scratch = scratch or Scratch()
        self.reader = FrameReader(self.scratch, MOST, self.take, self._ask)

    def _ask(self, size: int) -> bool:
        self.asked.append(size)
        return self.has_room


def test_room_is_asked_for_once_for_each_large_frame_that_comes_in_part() -> None:
    guest = Guest()
    guest.has_room = True
    frames = [bytes(SHARE_BYTES), bytes(SHARE_BYTES + 1), bytes(1_000_000), b"x"]
    for frame in frames:
        for piece in cut(framed([frame]), [2, 10, 30_000, 200_000, 400_000]):
            guest.feed(piece)
            assert guest.reader.large_bytes in (0, len(frame))
            if guest.reader.large_bytes:
                assert 0 < guest.reader.received_bytes < len(frame)
    assert guest.frames == frames
    assert guest.asked == [SHARE_BYTES + 1, 1_000_000]
    assert (guest.reader.large_bytes, guest.reader.received_bytes) == (0, 0)


def test_a_large_frame_that_is_whole_at_once_needs_no_room() -> None:
    guest = Guest()
    guest.feed(framed([bytes(200_000)]) * 2)
    assert guest.frames == [bytes(200_000)] * 2
    assert guest.asked == [200_000], "of the second one a part came in the first read"


def test_no_more_is_kept_than_has_come_until_there_is_room() -> None:
    body = bytes(range(256)) * 8000
    scratch = Scratch()
    scratch.spare.append(bytearray(2 << 20))
    guest = Guest(scratch)
    stream = framed([body])
    guest.feed(stream[:10_000])
    assert guest.reader.buffered_bytes == 10_000 - 4
    guest.has_room = True
    guest.feed(stream[10_000:])
    assert guest.frames == [body]


def test_spare_memory_goes_to_frames_of_its_size_only() -> None:
    scratch = Scratch()
    for size in (10, SHARE_BYTES, SHARE_BYTES + 1, 300_000):
        scratch.spare.append(bytearray(2 << 20))
        guest = Guest(scratch)
        guest.has_room = True
        guest.feed(struct.pack(">i", size) + b"x")
        assert guest.reader.buffered_bytes == size
    scratch.spare.append(memory := bytearray(2 << 20))
    guest.reader = FrameReader(scratch, MOST, guest.take, guest._ask)
    guest.feed(struct.pack(">i", 1_500_000) + b"x")
    assert guest.reader.get_buffer().obj is memory


def test_one_read_brings_little_while_the_scratch_is_narrow() -> None:
    guest = Guest()
    guest.scratch.narrow()
    assert len(guest.reader.get_buffer()) == SHARE_BYTES
    guest.feed(framed([b"one", bytes(SHARE_BYTES)])[:-1])
    assert guest.frames == [b"one"]
    assert guest.reader.buffered_bytes <= SHARE_BYTES
    guest.scratch.widen()
    guest.feed(b"\x00")
    assert guest.frames == [b"one", bytes(SHARE_BYTES)]
    assert len(guest.reader.get_buffer()) == SCRATCH_BYTES


def test_what_had_come_is_given_up_at_the_end() -> None:
    for part in (b"\x00", framed([bytes(100)])[:50], framed([bytes(3_000_000)])[:1_000_000]):
        taker = Taker()
        taker.feed(part)
        assert taker.reader.buffered_bytes
        taker.reader.close()
        assert taker.reader.buffered_bytes == 0
        assert taker.reader.is_between_frames
        assert sys.getrefcount(taker) == 2, "nobody knows it any more"
