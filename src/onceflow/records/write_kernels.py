"""Columns to records sections: the compiled loops behind `columns.encode`.

`source` holds addresses and numbers in the order of `layout.Source`; the buffers are Arrow's,
already moved to where a slice begins.
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.records.raw_memory import (
    as_i64,
    copy_wide,
    helper,
    kernel,
    leading_zeros,
    load_i32,
    load_i64,
    load_u8,
    rare,
    store_i16,
    store_i64,
    store_u8,
)

_Binary: TypeAlias = tuple[int, int, int, int, int]

_HEADER_SIZE = 61
_LARGEST = (1 << 31) - 1
_SHORT = 0x4000
# The most bytes of a record's length, attributes, deltas, two lengths and header count; and of a
# header's two lengths.
_LONGEST_FIELDS = 5 + 1 + 10 + 5 + 5 + 5 + 5
_LONGEST_HEADER_FIELDS = 5 + 5


# The numbers of `layout.Source`, as plain names: what a kernel refers to is compiled into it.
_KEY, _VALUE, _HEADER_KEY, _HEADER_VALUE = 0, 5, 10, 15
_TIMESTAMPS, _LIST_OFFSETS, _LIST_VALIDITY, _LIST_FIRST_BIT = 20, 21, 22, 23


@helper
def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@helper
def _varint_size(value: int) -> int:
    """Bytes of a varint: one for every seven bits there are, and one for none."""
    bits = 64 - int(leading_zeros(_zigzag(value) | 1))
    return (9 * bits + 64) >> 6


@helper
def _short_size(raw: int) -> int:
    return 1 if raw < 0x80 else 2


@helper
def _put_short(position: int, raw: int) -> int:
    """A varint below `_SHORT`, zigzag already in it."""
    if raw < 0x80:
        store_u8(position, raw)
        return position + 1
    store_i16(position, (raw & 0x7F) | 0x80 | ((raw << 1) & 0x7F00))
    return position + 2


@helper
def _put_varint(position: int, value: int) -> int:
    raw = _zigzag(value)
    while raw & ~0x7F:
        store_u8(position, (raw & 0x7F) | 0x80)
        # The shift must not drag the sign along: bit 63 is data here.
        raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
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
def _start(column: _Binary, row: int) -> int:
    """Where a binary value is."""
    return column[1] + int(load_i32(column[0] + 4 * row))


@helper
def _sized(length: int) -> int:
    """Bytes that a length and what it counts take."""
    return _varint_size(length) + max(length, 0)


@rare
def _header_range(source: int, row: int) -> tuple[int, int]:
    """The first header of a row and the one behind its last."""
    offsets = load_i64(source + 8 * _LIST_OFFSETS)
    if offsets == 0:
        return 0, 0
    offsets += 4 * row
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
        copy_wide(position, _start(column, row), length, column[2])
        position += length
    return position


@rare
def _put_record(
    position: int, end: int, source: int, row: int, delta: int, timestamp_delta: int
) -> int:
    """Where the record of `row` ends; nothing is written when that is behind `end`."""
    keys, values = _column(source, _KEY), _column(source, _VALUE)
    body = 1 + _varint_size(timestamp_delta) + _varint_size(delta)
    body += _sized(_length(keys, row)) + _sized(_length(values, row)) + _headers_size(source, row)
    after = position + _varint_size(body) + body
    if after > end:
        return after
    position = _put_varint(position, body)
    store_u8(position, 0)
    position = _put_varint(position + 1, timestamp_delta)
    position = _put_varint(position, delta)
    position = _put_binary(position, keys, row)
    position = _put_binary(position, values, row)
    _put_headers(position, source, row)
    return after


@rare
def _put_short_records(
    source: int, first: int, row: int, rows: int, position: int, end: int, latest: int
) -> tuple[int, int, int]:
    """Write rows as long as they are what nearly all are: short fields, no headers, room for it.

    This is a loop of its own, without a call for other records: that call costs a nanosecond a
    record even when it is not made. Returned are the row that follows, where the records end, the
    latest timestamp.
    """
    keys, values = _column(source, _KEY), _column(source, _VALUE)
    timestamps = load_i64(source + 8 * _TIMESTAMPS)
    base_timestamp = load_i64(timestamps + 8 * first)
    while row < rows:
        stamp = load_i64(timestamps + 8 * row)
        key_length, value_length = _length(keys, row), _length(values, row)
        timestamp, offset = _zigzag(as_i64(stamp - base_timestamp)), 2 * (row - first)
        key, value = _zigzag(key_length), _zigzag(value_length)
        # With a margin for all other fields this covers the length of the record too.
        if not 0 <= timestamp | offset | (key + value + 64) < _SHORT:
            break
        key_length, value_length = max(key_length, 0), max(value_length, 0)
        body = 2 + _short_size(timestamp) + _short_size(offset)
        body += _short_size(key) + _short_size(value) + key_length + value_length
        after = position + _short_size(2 * body) + body
        if after > end:
            break
        key_at, value_at = _start(keys, row), _start(values, row)
        position = _put_short(position, 2 * body)
        store_u8(position, 0)
        position = _put_short(position + 1, timestamp)
        position = _put_short(position, offset)
        position = _put_short(position, key)
        copy_wide(position, key_at, key_length, keys[2])
        position = _put_short(position + key_length, value)
        copy_wide(position, value_at, value_length, values[2])
        store_u8(after - 1, 0)
        position = after
        latest = max(latest, stamp)
        row += 1
    return row, position, latest


@helper
def _put_batch(source: int, first: int, rows: int, position: int, end: int) -> tuple[int, int, int]:
    """Write rows up to `end`: the row that follows them, where they end, their latest timestamp."""
    timestamps = load_i64(source + 8 * _TIMESTAMPS)
    headers = load_i64(source + 8 * _LIST_OFFSETS) != 0
    base_timestamp = latest = load_i64(timestamps + 8 * first)
    row = first
    while row < rows:
        if not headers:
            row, position, latest = _put_short_records(
                source, first, row, rows, position, end, latest
            )
            if row == rows:
                break
        timestamp = load_i64(timestamps + 8 * row)
        timestamp_delta = as_i64(timestamp - base_timestamp)
        after = _put_record(position, end, source, row, row - first, timestamp_delta)
        if after > end:
            break
        position = after
        latest = max(latest, timestamp)
        row += 1
    return row, position, latest


@helper
def _span(source: int, column: int, first: int, last: int) -> int:
    """Bytes of data between two rows of a binary column."""
    offsets = load_i64(source + 8 * column)
    return int(load_i32(offsets + 4 * last)) - int(load_i32(offsets + 4 * first))


@kernel("int64(int64, int64)")
def most_bytes(source: int, rows: int) -> int:
    """What the records of all rows take at most, found without looking at each."""
    size = _LONGEST_FIELDS * rows + _span(source, _KEY, 0, rows) + _span(source, _VALUE, 0, rows)
    lists = load_i64(source + 8 * _LIST_OFFSETS)
    if lists != 0:
        first, last = int(load_i32(lists)), int(load_i32(lists + 4 * rows))
        size += _LONGEST_HEADER_FIELDS * (last - first)
        size += _span(source, _HEADER_KEY, first, last) + _span(source, _HEADER_VALUE, first, last)
    return size


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def write(
    source: int, rows: int, max_batch_bytes: int, target: int, size: int, table: int, batches: int
) -> int:
    """Write all rows in batches, one behind the other; the number of batches, or -1 - row.

    Before the records of each batch 61 bytes are left for its header. A record larger than
    `max_batch_bytes` gets a batch of its own; one that no length field can hold is refused, and so
    is whatever exceeds the `size` of `target` (which has `SPILL` bytes more) or the `batches` there
    is room for in `table`, laid out as `layout.Written`. Copies may spill over what follows, which
    is written later; so batch headers must be written after this.
    """
    timestamps = load_i64(source + 8 * _TIMESTAMPS)
    target_end = target + size
    row = 0
    for batch in range(batches):
        first, records = row, target + _HEADER_SIZE
        end = min(target + max_batch_bytes, target_end)
        row, position, latest = _put_batch(source, first, rows, records, end)
        if row == first:
            end = min(target + _LARGEST, target_end)
            row, position, latest = _put_batch(source, first, first + 1, records, end)
        if row == first:
            return -1 - row
        entry = table + 32 * batch
        store_i64(entry, row - first)
        store_i64(entry + 8, position - target)
        store_i64(entry + 16, load_i64(timestamps + 8 * first))
        store_i64(entry + 24, latest)
        target = position
        if row == rows:
            return batch + 1
    return -1 - row
