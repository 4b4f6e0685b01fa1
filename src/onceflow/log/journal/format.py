"""The journal's bytes: entries inside groups, groups inside files.

A group is the unit that is durable whole or not at all. It starts at a multiple of 4096 bytes with
a 48-byte header, and its CRC-32C covers the rest of the header and the entries. What ties groups
into one total order: `incarnation` (one opening of the store: bytes left by an earlier one never
match), `sequence` (grows by one), `previous_crc`, and its own file and position, so that a block
which landed in the wrong place is not taken for the right one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from uuid import UUID

from onceflow.checksum import crc32c
from onceflow.errors import LogCorrupt
from onceflow.log.config import LogLayout
from onceflow.types import LogId

MAGIC = 0x4F464A31  # "OFJ1"
HEADER_SIZE = 48
BLOCK_SIZE = 4096

_HEADER = struct.Struct(">IIQQIQIII")  # magic crc incarnation sequence file position previous n len
_CHECKED_FROM = 8
_ENTRY = struct.Struct(">IBq20s")  # payload length, kind, offset, log key
ENTRY_OVERHEAD = _ENTRY.size
_LAYOUT = struct.Struct(">qqqq")


class EntryKind(IntEnum):
    """What an entry does to a partition log."""

    APPEND = 1
    """The payload is a batch; the offset is its base offset."""
    CREATE = 2
    """The payload is the topic's name."""
    DELETE = 3
    LOG_START = 4
    """The offset is the new log start offset."""
    LAYOUT = 5
    """The payload says where the log is cut into files from here on; see `write_layout`."""


_KINDS = frozenset(map(int, EntryKind))

RawEntry: TypeAlias = tuple[int, bytes, int, int, int]
"""Kind, log key, offset, and where in the group the payload starts and ends: read by the million,
so without an object of their own."""


class JournalEntry(NamedTuple):
    """One step of the total order."""

    kind: EntryKind
    log_id: LogId
    offset: int
    payload: memoryview


class GroupHeader(NamedTuple):
    """The first 48 bytes of a group."""

    crc: int
    incarnation: int
    sequence: int
    file: int
    position: int
    previous_crc: int
    entry_count: int
    payload_length: int


def padded(length: int) -> int:
    """The bytes that a group of header and entries takes in the file."""
    return -(-length // BLOCK_SIZE) * BLOCK_SIZE


def write_entry(
    buffer: memoryview, at: int, kind: EntryKind, key: bytes, offset: int, payload: memoryview
) -> int:
    """Puts an entry at `at`; returns where the next one goes. `key` is `log_key` of the log."""
    _ENTRY.pack_into(buffer, at, len(payload), kind, offset, key)
    start = at + ENTRY_OVERHEAD
    end = start + len(payload)
    buffer[start:end] = payload
    return end


def write_layout(layout: LogLayout) -> memoryview:
    """The payload of a LAYOUT."""
    return memoryview(_LAYOUT.pack(*layout))


def read_layout(payload: memoryview) -> LogLayout:
    """The layout that `write_layout` wrote."""
    return LogLayout(*_LAYOUT.unpack(payload))


def log_key(log_id: LogId) -> bytes:
    """The log's name in an entry."""
    return log_id.topic_id.bytes + log_id.partition.to_bytes(4, "big")


def seal_group(
    buffer: memoryview,
    *,
    incarnation: int,
    sequence: int,
    file: int,
    position: int,
    previous_crc: int,
    entry_count: int,
) -> int:
    """Writes the header before the entries that fill the rest of `buffer`; returns the CRC."""
    rest = (incarnation, sequence, file, position, previous_crc, entry_count)
    _HEADER.pack_into(buffer, 0, MAGIC, 0, *rest, len(buffer) - HEADER_SIZE)
    crc = crc32c(buffer[_CHECKED_FROM:])
    _HEADER.pack_into(buffer, 0, MAGIC, crc, *rest, len(buffer) - HEADER_SIZE)
    return crc


def read_group_header(block: bytes | memoryview) -> GroupHeader | None:
    """The header at the start of `block`, or None when there is none."""
    if len(block) < HEADER_SIZE:
        return None
    magic, *fields = _HEADER.unpack_from(block, 0)
    return GroupHeader(*fields) if magic == MAGIC else None


def group_is_whole(group: bytes | memoryview, header: GroupHeader) -> bool:
    """Whether `group` holds all that its header says, with the CRC that it says."""
    length = HEADER_SIZE + header.payload_length
    view = memoryview(group)
    return len(view) >= length and crc32c(view[_CHECKED_FROM:length]) == header.crc


@lru_cache(4096)
def key_log_id(key: bytes) -> LogId:
    """The log that `log_key` gave this name; cached: a replay meets the same few all the time."""
    return LogId(UUID(bytes=key[:16]), int.from_bytes(key[16:], "big"))


def read_entries(group: memoryview, header: GroupHeader, where: str) -> Iterator[RawEntry]:
    """The entries of a whole group."""
    at = HEADER_SIZE
    end = HEADER_SIZE + header.payload_length
    for _ in range(header.entry_count):
        if end - at < ENTRY_OVERHEAD:
            raise LogCorrupt(f"{where}: an entry starts past the end of its group")
        length, kind, offset, key = _ENTRY.unpack_from(group, at)
        start = at + ENTRY_OVERHEAD
        at = start + length
        if at > end or kind not in _KINDS:
            raise LogCorrupt(f"{where}: entry of kind {kind} and length {length} makes no sense")
        yield kind, key, offset, start, at
    if at != end:
        raise LogCorrupt(f"{where}: {end - at} bytes after the last entry")
