"""The 61-byte header of a record batch, its CRC, and the two kinds of batch there are.

A `NewBatch` has no offset yet: `NewBatch.parse` checks one from a client as far as that is possible
without knowing the topic, and one that was written here is sound by construction. A `StoredBatch`
has its place in a log; `StoredBatch.parse` verifies its CRC, the constructor nothing. Assigning an
offset patches the very bytes the client sent: base offset and leader epoch lie outside the
checksum, so nothing is copied and nothing is summed again.

Layout (big-endian): base_offset i64, batch_length i32 (bytes after itself), leader_epoch i32, magic
i8, crc u32 (CRC-32C from attributes to the end), attributes i16, last_offset_delta i32,
base_timestamp i64, max_timestamp i64, producer_id i64, producer_epoch i16, base_sequence i32,
record_count i32, records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from onceflow.checksum import crc32c
from onceflow.errors import (
    BatchChecksumMismatch,
    BatchesFollow,
    BatchMalformed,
    BatchTruncated,
    TimestampTypeRefused,
)

# Sequence numbers of idempotent producers run from 0 to 2^31 - 1, then from 0 again. The two
# functions here are the only places that know where the numbers wrap.

NO_SEQUENCE = -1
"""The first sequence of a batch without an idempotent producer."""

_MODULUS = 2**31


def next_sequence(sequence: int, record_count: int) -> int:
    """The sequence `record_count` records after `sequence`."""
    return (sequence + record_count) % _MODULUS


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of a batch's last record; `NO_SEQUENCE` stays what it is."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (base_sequence + last_offset_delta) % _MODULUS


Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_SIZE = 61
"""Bytes before the records section."""
LENGTH_PREFIX = 12
"""Base offset and batch length: the bytes that batch_length does not count."""
MAGIC = 2
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_LEADER_EPOCH = -1
MAX_OFFSET = 2**63 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_KNOWN_ATTRIBUTES = 0x7F
_NOT_FROM_CLIENTS = CONTROL_BIT | DELETE_HORIZON_BIT | LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT
_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCHECKED = struct.Struct(">qiibI")
"""The header up to the CRC."""
_CHECKED = struct.Struct(">hiqqqhii")
"""The header behind the CRC, which covers it."""
_PLACE = struct.Struct(">qii")
"""The fields that `assign` writes: base offset, batch length (as it is) and leader epoch."""
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_LENGTH_AT = 8
_MAGIC_AT = 16
_CRC_AT = 17
_CHECKED_FROM = 21
_MAX_TIMESTAMP_AT = 35


class Codec(IntEnum):
    """The compression of the records section (attribute bits 0-2)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Who set the timestamps (attribute bit 3)."""

    CREATE = 0
    LOG_APPEND = 1


_LAST_CODEC = int(max(Codec))
_made = tuple.__new__  # a named tuple without its own constructor, which is Python and slow


class BatchHeader(NamedTuple):
    """The fields of a batch's header as they stand in its bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_PREFIX + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & LOG_APPEND_TIME_BIT) >> 3)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether compaction put the time a tombstone may go into base_timestamp."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_sequence(self) -> int:
        return last_sequence(self.base_sequence, self.last_offset_delta)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; sound in itself, but neither size nor CRC is checked."""
    available = len(buffer) - position
    if position < 0 or available < HEADER_SIZE:
        raise BatchTruncated(
            f"a batch header takes {HEADER_SIZE} bytes, {available} are left at byte {position}"
        )
    header = _made(BatchHeader, _HEADER.unpack_from(buffer, position))
    base_offset, length, _, magic, _, attributes, last_offset_delta, _, _, _, _, _, count = header
    # One test for the common case; what exactly is wrong is found out only when something is.
    if (
        magic != MAGIC
        or length < HEADER_SIZE - LENGTH_PREFIX
        or attributes & ~_KNOWN_ATTRIBUTES
        or attributes & CODEC_MASK > _LAST_CODEC
        or not 0 <= count <= last_offset_delta + 1
        or not 0 <= last_offset_delta <= MAX_OFFSET - base_offset
        or base_offset < 0
    ):
        raise BatchMalformed(f"{_header_fault(header)} in the batch at byte {position}")
    return header


def _header_fault(header: BatchHeader) -> str:
    if header.magic != MAGIC:
        return f"magic {header.magic} (only {MAGIC} is served)"
    if header.batch_length < HEADER_SIZE - LENGTH_PREFIX:
        return f"batch_length {header.batch_length} is less than the header's own bytes"
    if header.attributes & ~_KNOWN_ATTRIBUTES:
        return f"reserved attribute bits are set ({header.attributes & 0xFFFF:#06x})"
    if header.attributes & CODEC_MASK > _LAST_CODEC:
        return f"unknown compression codec {header.attributes & CODEC_MASK}"
    if header.last_offset_delta < 0:
        return f"negative last_offset_delta {header.last_offset_delta}"
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return (
            f"record_count {header.record_count} does not fit "
            f"last_offset_delta {header.last_offset_delta}"
        )
    return f"base_offset {header.base_offset} is out of range"


def verify_crc(view: memoryview, header: BatchHeader, position: int = 0) -> None:
    """Raise unless the batch at `position` has the checksum its header states."""
    end = position + LENGTH_PREFIX + header.batch_length
    actual = crc32c(view[position + _CHECKED_FROM : end])
    if actual != header.crc:
        raise BatchChecksumMismatch(
            f"the batch at offset {header.base_offset} says CRC-32C {header.crc:#010x}, "
            f"its bytes give {actual:#010x}"
        )


class StoredBatch(NamedTuple):
    """A batch with its place in a log. `buffer` is exactly the batch's bytes."""

    header: BatchHeader
    buffer: memoryview

    @classmethod
    def parse(cls, buffer: Buffer, *, expected_base_offset: int | None = None) -> StoredBatch:
        """The one whole batch in `buffer`, its CRC verified, its offset too when one is given."""
        view = memoryview(buffer)
        header = read_header(view)
        _check_exact_size(view, header)
        verify_crc(view, header)
        if expected_base_offset is not None:
            _check_base_offset(header, expected_base_offset)
        return cls(header, view)


class NewBatch(NamedTuple):
    """A batch without an offset. `buffer` is exactly its bytes, writable if it is to be assigned.

    Assigning changes the bytes under this object too: use the `StoredBatch` from then on.
    """

    header: BatchHeader
    buffer: memoryview

    @classmethod
    def parse(cls, buffer: Buffer) -> NewBatch:
        """The one batch a client sent, checked as far as that needs no topic configuration."""
        view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
        header = read_header(view)
        base_offset, length, _, _, crc, attributes, delta, _, _, producer, _, sequence, n = header
        if len(view) != LENGTH_PREFIX + length:
            _check_exact_size(view, header)
        if crc32c(view[_CHECKED_FROM:]) != crc:
            verify_crc(view, header)
        # One test for the common case, as in `read_header`.
        if (
            base_offset != 0
            or n != delta + 1
            or attributes & _NOT_FROM_CLIENTS
            or (producer >= 0) != (sequence >= 0)
        ):
            _check_from_client(header)
        return _made(cls, (header, view))

    def assign(self, base_offset: int, leader_epoch: int) -> StoredBatch:
        """Give the batch its place, in its own bytes; the CRC does not cover what changes."""
        header, buffer = self
        length = header[1]
        _PLACE.pack_into(buffer, 0, base_offset, length, leader_epoch)
        # `_replace` by hand, at a third of its price: this is done for every append.
        placed = _made(BatchHeader, (base_offset, length, leader_epoch, *header[3:]))
        return _made(StoredBatch, (placed, buffer))

    def assign_log_append_time(
        self, base_offset: int, leader_epoch: int, timestamp_ms: int
    ) -> StoredBatch:
        """As `assign`, with the broker's time for all records; this is under the CRC."""
        attributes = self.header.attributes | LOG_APPEND_TIME_BIT
        return self._restamped(attributes, timestamp_ms).assign(base_offset, leader_epoch)

    def with_max_timestamp(self, timestamp_ms: int) -> NewBatch:
        """The batch with the largest timestamp that its records really have."""
        return self._restamped(self.header.attributes, timestamp_ms)

    def _restamped(self, attributes: int, max_timestamp: int) -> NewBatch:
        _ATTRIBUTES.pack_into(self.buffer, _CHECKED_FROM, attributes)
        _OFFSET.pack_into(self.buffer, _MAX_TIMESTAMP_AT, max_timestamp)
        crc = crc32c(self.buffer[_CHECKED_FROM:])
        _CRC.pack_into(self.buffer, _CRC_AT, crc)
        header = self.header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)
        return NewBatch(header, self.buffer)


def seal(
    buffer: bytearray | memoryview,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> NewBatch:
    """Make a batch of `buffer`: 61 bytes of room for the header, then the records section."""
    view = memoryview(buffer)
    batch_length = len(view) - LENGTH_PREFIX
    _CHECKED.pack_into(
        view,
        _CHECKED_FROM,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    crc = crc32c(view[_CHECKED_FROM:])
    _UNCHECKED.pack_into(view, 0, 0, batch_length, NO_LEADER_EPOCH, MAGIC, crc)
    header = BatchHeader(
        0,
        batch_length,
        NO_LEADER_EPOCH,
        MAGIC,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    return NewBatch(header, view)


def iter_stored(
    buffer: Buffer, *, expected_base_offset: int | None = None
) -> Iterator[StoredBatch]:
    """The consecutive batches of a fetched or logged range, each verified.

    The first batch starts at `expected_base_offset` when that is given; offsets then only grow
    (compaction leaves gaps). A partial batch at the end ends the range: fetch answers are cut at
    a size, not at a batch.
    """
    view = memoryview(buffer)
    size = len(view)
    position = 0
    lowest = 0
    while size - position >= HEADER_SIZE:
        header = read_header(view, position)
        end = position + header.size
        if end > size:
            return
        verify_crc(view, header, position)
        if expected_base_offset is not None:
            _check_base_offset(header, expected_base_offset)
            expected_base_offset = None
        if header.base_offset < lowest:
            raise BatchMalformed(
                f"base_offset {header.base_offset} at byte {position} goes back behind {lowest}"
            )
        lowest = header.next_offset
        yield StoredBatch(header, view[position:end])
        position = end
    _check_partial_header(view, position)


def _check_partial_header(view: memoryview, position: int) -> None:
    """Raise if the bytes at `position`, fewer than a header, cannot start a batch."""
    available = len(view) - position
    if available > _MAGIC_AT and view[position + _MAGIC_AT] != MAGIC:
        raise BatchMalformed(f"magic {view[position + _MAGIC_AT]} in the batch at byte {position}")
    if available >= LENGTH_PREFIX:
        (length,) = _LENGTH.unpack_from(view, position + _LENGTH_AT)
        if length < HEADER_SIZE - LENGTH_PREFIX:
            raise BatchMalformed(f"batch_length {length} in the batch at byte {position}")


def _check_base_offset(header: BatchHeader, expected: int) -> None:
    if header.base_offset != expected:
        raise BatchMalformed(f"base_offset {header.base_offset} where {expected} was expected")


def _check_exact_size(view: memoryview, header: BatchHeader) -> None:
    if len(view) < header.size:
        raise BatchTruncated(f"the batch takes {header.size} bytes, {len(view)} are there")
    if len(view) > header.size:
        raise BatchesFollow(
            f"{len(view) - header.size} bytes follow the batch of {header.size} bytes; "
            "exactly one batch is expected"
        )


def _check_from_client(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise BatchMalformed(f"base_offset {header.base_offset} in a new batch; it must be 0")
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        raise BatchMalformed(
            f"record_count {header.record_count} with last_offset_delta "
            f"{header.last_offset_delta}: a new batch has no gaps and is not empty"
        )
    if header.attributes & CONTROL_BIT:
        raise BatchMalformed("clients may not write control batches")
    if header.attributes & DELETE_HORIZON_BIT:
        raise BatchMalformed("clients may not set a delete horizon")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise BatchMalformed(
            f"producer {header.producer_id} sent base_sequence {header.base_sequence}"
        )
    if header.attributes & TRANSACTIONAL_BIT and header.producer_id < 0:
        raise BatchMalformed("a transactional batch needs a producer id")
    if header.attributes & LOG_APPEND_TIME_BIT:
        raise TimestampTypeRefused("only the broker may mark timestamps as log-append time")
