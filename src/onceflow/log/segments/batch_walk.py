"""The batches of a file, one after the other, every one checked: the fast way through a log.

A start after a crash walks over millions of batches, so the common case is one loop over plain
numbers, without an object for each batch. It accepts only what `read_header` and `verify_crc`
accept; a batch that fails its checks goes to these two, which raise the error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

from onceflow.checksum import crc32c
from onceflow.errors import BatchMalformed, BatchTruncated
from onceflow.records import (
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    MAX_OFFSET,
    BatchHeader,
    Buffer,
    Codec,
    read_header,
    verify_crc,
)
from onceflow.runtime import File

Facts: TypeAlias = tuple[int, int, int, int]
"""Of a batch: its bytes, base offset, last offset and largest timestamp."""

_FIELDS = struct.Struct(">qi4xbIhi8xq14xi")
"""Base offset, length, magic, CRC, attributes, last offset delta, max timestamp, record count."""
_CHECKED_FROM = 21
_SOUND_ATTRIBUTES = frozenset(bits for bits in range(0x80) if bits & CODEC_MASK <= max(Codec))
_READ_BYTES = 512 << 10  # stays in the cache between the read and the checksum


def facts_of(header: BatchHeader) -> Facts:
    base = header.base_offset
    return LENGTH_PREFIX + header[1], base, base + header.last_offset_delta, header.max_timestamp


def read_facts(batch: Buffer) -> Facts:
    """The facts of the one batch in `batch`; checks its header but not its CRC."""
    size = len(batch)
    if size >= HEADER_SIZE:
        base, length, magic, _, attributes, delta, max_timestamp, count = _FIELDS.unpack_from(batch)
        if (
            magic == MAGIC
            and length == size - LENGTH_PREFIX
            and attributes in _SOUND_ATTRIBUTES
            and 0 <= count <= delta + 1
            and 0 <= delta <= MAX_OFFSET - base
            and base >= 0
        ):
            return size, base, base + delta, max_timestamp
    raise BatchMalformed(f"a batch of {read_header(batch).size} bytes in {size} bytes")


class BatchWalk:
    """Iterate to get the facts of all batches between two positions of a file; raises a
    `RecordError` at the first that is not sound or goes back behind `next_offset`.

    `position` and `next_offset` are exact once the iteration has come to its end or to an error.
    """

    __slots__ = ("_check_crc", "_end", "_file", "next_offset", "position")

    def __init__(
        self, file: File, start: int, end: int, next_offset: int, *, check_crc: bool
    ) -> None:
        self._file = file
        self._end = end
        self._check_crc = check_crc
        self.position = start
        self.next_offset = next_offset

    def __iter__(self) -> Iterator[Facts]:
        while self.position < self._end:
            size = min(_READ_BYTES, self._end - self.position)
            window = memoryview(self._file.pread(self.position, size))
            before = self.position
            yield from self._common(window)
            if self.position == before:
                yield self._one()

    def _common(self, window: memoryview) -> Iterator[Facts]:
        """The batches at the start of `window` that are whole in it and sound."""
        unpack, check_crc = _FIELDS.unpack_from, self._check_crc
        lowest = self.next_offset
        at, last_start = 0, len(window) - HEADER_SIZE
        while at <= last_start:
            base, length, magic, crc, attributes, delta, max_timestamp, count = unpack(window, at)
            after = at + LENGTH_PREFIX + length
            if (
                magic != MAGIC
                or length < HEADER_SIZE - LENGTH_PREFIX
                or after > len(window)
                or attributes not in _SOUND_ATTRIBUTES
                or not 0 <= count <= delta + 1
                or not 0 <= delta <= MAX_OFFSET - base
                or base < lowest
                or (check_crc and crc32c(window[at + _CHECKED_FROM : after]) != crc)
            ):
                break
            last = base + delta
            yield after - at, base, last, max_timestamp
            lowest = last + 1
            at = after
        self.position += at
        self.next_offset = lowest

    def _one(self) -> Facts:
        """The next batch, read by itself: it is large, or something is wrong with it."""
        left = self._end - self.position
        header = read_header(self._file.pread(self.position, min(HEADER_SIZE, left)))
        if header.size > left:
            raise BatchTruncated(f"the batch takes {header.size} bytes, {left} are left")
        if self._check_crc:
            verify_crc(memoryview(self._file.pread(self.position, header.size)), header)
        if header.base_offset < self.next_offset:
            raise BatchMalformed(f"base offset {header.base_offset}, {self.next_offset} is next")
        self.position += header.size
        self.next_offset = header.next_offset
        return facts_of(header)
