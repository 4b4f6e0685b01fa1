"""Columns to records sections: the compiled loops behind `columns.encode`.

`source` holds addresses and numbers in the order of `layout.Source`; the buffers are Arrow's,
already moved to where a slice begins. `table` has one row per batch, filled by `measure` and read
by `write`, in the order of `layout.Plan`.
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.records.raw_memory import (
    copy_wide,
    helper,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    rare,
    store_i32,
    store_i64,
    store_u8,
)

_Binary: TypeAlias = tuple[int, int, int, int, int]

_HEADER_SIZE = 61
_LARGEST = (1 << 31) - 1


# The numbers of `layout.Source`, as plain names: what a kernel refers to is compiled into it.
_KEY, _VALUE, _HEADER_KEY, _HEADER_VALUE = 0, 5, 10, 15
_TIMESTAMPS, _LIST_OFFSETS, _LIST_VALIDITY, _LIST_FIRST_BIT = 20, 21, 22, 23


@helper
def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@helper
def _varint_size(value: int) -> int:
    raw = _zigzag(value)
    if 0 <= raw < 0x80:
        return 1
    if 0 <= raw < 0x4000:
        return 2
    size = 1
    raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
    while raw > 0:
        size += 1
        raw >>= 7
    return size


@helper
def _put_varint(position: int, value: int) -> int:
    raw = _zigzag(value)
    if 0 <= raw < 0x80:
        store_u8(position, raw)
        return position + 1
    if 0 <= raw < 0x4000:
        store_u8(position, (raw & 0x7F) | 0x80)
        store_u8(position + 1, raw >> 7)
        return position + 2
    store_u8(position, (raw & 0x7F) | 0x80)
    position += 1
    raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
    while raw >= 0x80:
        store_u8(position, (raw & 0x7F) | 0x80)
        raw >>= 7
        position += 1
    store_u8(position, raw)
    return position + 1


@helper
def _is_null(validity: int, first_bit: int, row: int) -> bool:
    if validity == 0:
        return False
    bit = first_bit + row
    return (int(load_u8(validity + (bit >> 3))) >> (bit & 7)) & 1 == 0


@helper
def _column(source: int, first: int) -> _Binary:
    """The five entries of a binary column, read once: stores in a loop would make it read again."""
    entry = source + 8 * first
    return (
        load_i64(entry),
        load_i64(entry + 8),
        load_i64(entry + 16),
        load_i64(entry + 24),
        load_i64(entry + 32),
    )


@helper
def _length(column: _Binary, row: int) -> int:
    """Bytes of a binary value, or -1 for null."""
    if _is_null(column[3], column[4], row):
        return -1
    offsets = column[0] + 4 * row
    return int(load_i32(offsets + 4)) - int(load_i32(offsets))


@helper
def _sized(length: int) -> int:
    """Bytes that a length and what it counts take."""
    return _varint_size(length) + max(length, 0)


@rare
def _header_range(source: int, row: int) -> tuple[int, int]:
    offsets = load_i64(source + 8 * _LIST_OFFSETS) + 4 * row
    validity = load_i64(source + 8 * _LIST_VALIDITY)
    if _is_null(validity, load_i64(source + 8 * _LIST_FIRST_BIT), row):
        return 0, 0
    return int(load_i32(offsets)), int(load_i32(offsets + 4))


@rare
def _headers_size(source: int, row: int) -> int:
    """Bytes of the header count and all headers of a row."""
    first, last = _header_range(source, row)
    keys, values = _column(source, _HEADER_KEY), _column(source, _HEADER_VALUE)
    size = _varint_size(last - first)
    for header in range(first, last):
        size += _sized(_length(keys, header)) + _sized(_length(values, header))
    return size


@rare
def _put_headers(position: int, source: int, row: int) -> int:
    first, last = _header_range(source, row)
    keys, values = _column(source, _HEADER_KEY), _column(source, _HEADER_VALUE)
    position = _put_varint(position, last - first)
    for header in range(first, last):
        position = _put_binary(position, keys, header)
        position = _put_binary(position, values, header)
    return position


@helper
def _put_binary(position: int, column: _Binary, row: int) -> int:
    length = _length(column, row)
    position = _put_varint(position, length)
    if length > 0:
        start = int(load_i32(column[0] + 4 * row))
        copy_wide(position, column[1] + start, length, column[2])
        position += length
    return position


@kernel("int64(int64, int64, int64, int64, int64)")
def measure(source: int, rows: int, max_batch_bytes: int, sizes: int, table: int) -> int:
    """Split `rows` into batches and size each record; the number of batches, or -1 - row.

    A record larger than `max_batch_bytes` gets a batch of its own; one that no length field can
    hold is refused. `sizes` is the address of an int32 for each row.
    """
    keys, values = _column(source, _KEY), _column(source, _VALUE)
    timestamps = load_i64(source + 8 * _TIMESTAMPS)
    has_headers = load_i64(source + 8 * _LIST_OFFSETS) != 0
    batch = -1
    used = max_batch_bytes
    position = 0
    base_timestamp = 0
    latest = 0
    first_row = 0
    for row in range(rows):
        timestamp = load_i64(timestamps + 8 * row)
        fixed = 1 + _sized(_length(keys, row)) + _sized(_length(values, row))
        fixed += _headers_size(source, row) if has_headers else 1
        body = fixed + _varint_size(timestamp - base_timestamp) + _varint_size(row - first_row)
        size = _varint_size(body) + body
        if batch < 0 or used + size > max_batch_bytes:
            if batch >= 0:
                store_i64(table + 48 * batch + 8 * 1, row - first_row)
                store_i64(table + 48 * batch + 8 * 3, used)
                store_i64(table + 48 * batch + 8 * 5, latest)
                position += used
            batch += 1
            first_row = row
            base_timestamp = timestamp
            latest = timestamp
            body = fixed + 2
            size = _varint_size(body) + body
            used = _HEADER_SIZE
            store_i64(table + 48 * batch + 8 * 0, row)
            store_i64(table + 48 * batch + 8 * 2, position)
            store_i64(table + 48 * batch + 8 * 4, timestamp)
        if used + size > _LARGEST:
            return -1 - row
        used += size
        latest = max(latest, timestamp)
        store_i32(sizes + 4 * row, body)
    if batch >= 0:
        store_i64(table + 48 * batch + 8 * 1, rows - first_row)
        store_i64(table + 48 * batch + 8 * 3, used)
        store_i64(table + 48 * batch + 8 * 5, latest)
    return batch + 1


@kernel("void(int64, int64, int64, int64, int64)")
def write(source: int, sizes: int, table: int, batches: int, target: int) -> None:
    """Write the records of every batch that `measure` planned, leaving room for its header.

    `target` has the bytes `measure` added up and `WIDE` more. Copies may spill over what follows,
    which is written later; so batch headers must be written after this.
    """
    keys, values = _column(source, _KEY), _column(source, _VALUE)
    timestamps = load_i64(source + 8 * _TIMESTAMPS)
    has_headers = load_i64(source + 8 * _LIST_OFFSETS) != 0
    for batch in range(batches):
        first_row = load_i64(table + 48 * batch + 8 * 0)
        base_timestamp = load_i64(table + 48 * batch + 8 * 4)
        position = target + load_i64(table + 48 * batch + 8 * 2) + _HEADER_SIZE
        for row in range(first_row, first_row + load_i64(table + 48 * batch + 8 * 1)):
            position = _put_varint(position, int(load_i32(sizes + 4 * row)))
            store_u8(position, 0)
            timestamp = load_i64(timestamps + 8 * row)
            position = _put_varint(position + 1, timestamp - base_timestamp)
            position = _put_varint(position, row - first_row)
            position = _put_binary(position, keys, row)
            position = _put_binary(position, values, row)
            if has_headers:
                position = _put_headers(position, source, row)
            else:
                store_u8(position, 0)
                position += 1
