"""The segment files below a path, and a walk through one of them that survives damage.

Files are only ever read, so this may be done while a broker writes to them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onceflow.errors import OnceflowError, RecordError
from onceflow.log import segment_base
from onceflow.records import HEADER_SIZE, LENGTH_PREFIX, MAGIC, StoredBatch, read_header, verify_crc

READ_BYTES: Final = 1 << 20
_MOST_OFFSETS: Final = 2**31 - 1
_OFFSET_SIZE: Final = 8
_LENGTH: Final = slice(8, 12)
_MAGIC_AT: Final = 16


class NoSegments(OnceflowError):
    """There is nothing to read at a path."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A `.log` file; its name says which offset is the first that it may hold."""

    path: Path
    base_offset: int
    is_last: bool
    """Of its partition, so it may be in the middle of being written."""


def find_segments(path: Path) -> list[SegmentFile]:
    """Those of a segment file, of a partition's directory, or of a broker's data directory."""
    if not path.exists():
        raise NoSegments(f"{path} does not exist")
    if path.is_file():
        found = _segments([path])
    else:
        found = _segments(path.iterdir())
        for directory in sorted(each for each in path.iterdir() if each.is_dir()):
            found += _segments(directory.iterdir())
    if not found:
        raise NoSegments(
            f"{path} holds no segments; give a file such as 00000000000000000000.log, the "
            "directory of a partition, or the data directory of a broker"
        )
    return found


def _segments(paths: Iterator[Path] | list[Path]) -> list[SegmentFile]:
    """The segments among the files of one directory, in the order of their offsets."""
    files = [
        (base, path)
        for path in paths
        if path.suffix == ".log" and (base := segment_base(path.name)) is not None
    ]
    files.sort()
    return [SegmentFile(path, base, path == files[-1][1]) for base, path in files]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a walk ended before the end of its file."""

    position: int
    reason: str
    is_damage: bool
    """False for the unfinished end of a partition's last segment, which is no loss."""


class SegmentWalk:
    """Iterate to get each batch with its position; `problem` then says what stopped the walk."""

    def __init__(self, segment: SegmentFile) -> None:
        self._segment = segment
        self._lowest = segment.base_offset
        self._position = 0
        self.problem: Problem | None = None

    def __iter__(self) -> Iterator[tuple[int, StoredBatch]]:
        with self._segment.path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            wanted = READ_BYTES
            while self._position < size and self.problem is None:
                window = os.pread(file.fileno(), min(wanted, size - self._position), self._position)
                before = self._position
                yield from self._batches(memoryview(window))
                wanted = READ_BYTES
                if self._position == before and self.problem is None:
                    wanted = self._larger(window, size - before)

    def _batches(self, window: memoryview) -> Iterator[tuple[int, StoredBatch]]:
        """The whole batches at the start of the window."""
        at = 0
        try:
            while len(window) - at >= HEADER_SIZE:
                header = read_header(window, at)
                end = at + header.size
                if end > len(window):
                    return
                verify_crc(window, header, at)
                if not self._may_follow(header.base_offset):
                    self._stop(f"base offset {header.base_offset} where {self._lowest} is due")
                    return
                yield self._position, StoredBatch(header, window[at:end])
                self._lowest = header.next_offset
                self._position += header.size
                at = end
        except RecordError as error:
            if any(window[at:]):
                self._stop(str(error))
            else:
                self._end("only zeros follow: space that was never written")

    def _larger(self, window: bytes, left: int) -> int:
        """How many bytes to read for a batch that is larger than the window."""
        if len(window) >= HEADER_SIZE:
            size = read_header(window).size
            if len(window) < size <= left:
                return size
        if any(window) and not self._is_beginning(window):
            self._stop(f"the last {left} bytes are neither a batch nor the beginning of one")
        else:
            self._end(f"the last {left} bytes are the beginning of a batch")
        return 0

    def _may_follow(self, base_offset: int) -> bool:
        """Offsets may be left out, but a segment's indexes have room for so many only."""
        return self._lowest <= base_offset <= self._segment.base_offset + _MOST_OFFSETS

    def _is_beginning(self, window: bytes) -> bool:
        """Whether what is there of a batch is as it would be while it is being written: not with
        another sound batch behind its start, nor with all of its own data, which only a wrong
        length would hide."""
        if len(window) >= _MAGIC_AT + 1 and window[_MAGIC_AT] != MAGIC:
            return False
        if len(window) >= _OFFSET_SIZE and not self._may_follow(_whole(window[:_OFFSET_SIZE])):
            return False
        if len(window) < HEADER_SIZE:
            return True
        whole = bytearray(window)
        whole[_LENGTH] = (len(window) - LENGTH_PREFIX).to_bytes(_LENGTH.stop - _LENGTH.start, "big")
        return not _is_sound(whole, 0) and not any(
            _is_sound(window, at) for at in _places_of_batches(window)
        )

    def _stop(self, reason: str) -> None:
        self.problem = Problem(self._position, reason, is_damage=True)

    def _end(self, reason: str) -> None:
        self.problem = Problem(self._position, reason, is_damage=not self._segment.is_last)


def _whole(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _places_of_batches(window: bytes) -> Iterator[int]:
    """Where, behind the start, batches might begin."""
    at = window.find(MAGIC, _MAGIC_AT + 1)
    while at >= 0:
        yield at - _MAGIC_AT
        at = window.find(MAGIC, at + 1)


def _is_sound(window: bytes | bytearray, at: int) -> bool:
    """Whether a batch lies there, whole and with the right checksum."""
    view = memoryview(window)[at:]
    try:
        if len(view) < HEADER_SIZE:
            return False
        header = read_header(view)
        if header.size > len(view):
            return False
        verify_crc(view, header, 0)
    except RecordError:
        return False
    return True
