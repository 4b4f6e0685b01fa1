"""Every record of a batch, checked against the format and the batch's header: what an append needs.

Apart from `columns` so that a broker that only checks does not load Arrow.
"""

from __future__ import annotations

from array import array
from ctypes import addressof, c_char
from functools import cache
from typing import Any, NamedTuple

from onceflow.errors import BatchMalformed
from onceflow.records.batch import CODEC_MASK, HEADER_SIZE, NewBatch, StoredBatch
from onceflow.records.compression import DECOMPRESSED_LIMIT, Room, check_portable
from onceflow.records.layout import Total
from onceflow.records.scalar import explain
from onceflow.runtime import loading

SMALLEST_RECORD = 7
_TABLE = 3  # of one batch: where it is, where its records are, how many bytes they take
_BLANK = array("q", bytes(8 * (_TABLE + len(Total))))
_HEADERS = _TABLE + Total.HEADERS
_KEY_BYTES, _VALUE_BYTES = _TABLE + Total.KEY_BYTES, _TABLE + Total.VALUE_BYTES
_NULL_KEYS, _NULL_VALUES = _TABLE + Total.NULL_KEYS, _TABLE + Total.NULL_VALUES
_MAX_TIMESTAMP = _TABLE + Total.MAX_TIMESTAMP
_BAD_POSITION, _BAD_RECORD = _TABLE + Total.BAD_POSITION, _TABLE + Total.BAD_RECORD


@cache
def read_kernels() -> Any:
    """Imported when first needed: numba takes a quarter of a second."""
    with loading:
        from onceflow.records import kernels

    return kernels


class RecordsSummary(NamedTuple):
    """The totals of a sound records section."""

    records: int
    key_bytes: int
    value_bytes: int
    headers: int
    null_keys: int
    null_values: int
    max_timestamp: int
    size: int
    """Of the section in bytes, decompressed."""


def validate_records(
    batch: NewBatch | StoredBatch, limit: int = DECOMPRESSED_LIMIT, room: Room | None = None
) -> RecordsSummary:
    """Raises a `RecordError` that names the first thing wrong; `limit` and `room` are for
    decompressing."""
    header, view = batch
    count = header.record_count
    # ctypes gives the address of writable bytes only; others are copied. `held` and `section` must
    # live until `walk` returns: the kernel gets bare addresses.
    held = c_char.from_buffer(view if not view.readonly else bytearray(view))
    address = addressof(held)
    start, size = address + HEADER_SIZE, len(view) - HEADER_SIZE
    section: memoryview | None = None
    if header.attributes & CODEC_MASK and count:
        packed = view[HEADER_SIZE:]
        check_portable(header.codec, packed)
        section = memoryview((room or Room()).decompress(header.codec, packed, limit))
        start, size = (addressof(c_char.from_buffer(section)) if section else 0), len(section)
    if count * SMALLEST_RECORD > size:
        raise BatchMalformed(
            f"the batch at offset {header.base_offset} promises {count} records in {size} bytes"
        )
    numbers = _BLANK[:]
    numbers[0], numbers[1], numbers[2] = address, start, size
    where = numbers.buffer_info()[0]
    if not read_kernels().walk(where, 1, where + 8 * _TABLE):
        found = view[HEADER_SIZE:] if section is None else section
        position, record = numbers[_BAD_POSITION], numbers[_BAD_RECORD]
        raise explain(found, position, record, header.base_offset)
    return RecordsSummary(
        count,
        numbers[_KEY_BYTES],
        numbers[_VALUE_BYTES],
        numbers[_HEADERS],
        numbers[_NULL_KEYS],
        numbers[_NULL_VALUES],
        numbers[_MAX_TIMESTAMP],
        size,
    )
