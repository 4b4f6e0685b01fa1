"""Records sections to columns: the compiled loops behind `columns.decode`.

All arguments are addresses of int64 arrays, or numbers: numba counts references to arrays it is
handed, which costs more than parsing a record. `table` has one row for each of `batches`: address
of the batch's header (61 readable bytes), address of its records section, length of that section.
Each read of a section is checked against the section's end, or against the end of a record that was
itself checked; a record is taken as a whole or not at all. Where a record is wrong the kernel notes
in `totals` which one; `scalar.explain` finds out what is wrong with it.

A failed read yields the position `_FAILED`, which lies beyond every end, so that all later reads of
the same record fail too and one comparison at the record's end catches everything.
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.records.raw_memory import (
    as_i64,
    copy_wide,
    helper,
    kernel,
    load_big_i16,
    load_big_i32,
    load_big_i64,
    load_i64,
    load_u8,
    prefetch,
    rare,
    store_i32,
    store_i64,
    store_u8,
)

_Record: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]

_FAILED = 1 << 62
_ROOM = 32
_AHEAD = 1024
_LAST_OFFSET_DELTA_AT = 23
_BASE_TIMESTAMP_AT = 27
_MAX_TIMESTAMP_AT = 35
_ATTRIBUTES_AT = 21
_RECORD_COUNT_AT = 57
_LOG_APPEND_TIME = 8
_NEVER = -(1 << 63)


# The numbers of `layout.Total`, as plain names: what a kernel refers to is compiled into it.
_KEY_BYTES, _VALUE_BYTES, _HEADERS, _HEADER_KEY_BYTES, _HEADER_VALUE_BYTES = range(5)
_NULL_KEYS, _NULL_VALUES, _NULL_HEADER_VALUES, _MAX_TIMESTAMP = range(5, 9)
_BAD_BATCH, _BAD_RECORD, _BAD_POSITION = range(9, 12)
_TIMESTAMPS, _OFFSETS, _HEADER_COUNTS, _ROWS = range(6, 10)  # of `layout.Column`


@helper
def _add(totals: int, index: int, amount: int) -> None:
    store_i64(totals + 8 * index, load_i64(totals + 8 * index) + amount)


@helper
def _row(table: int, batch: int) -> tuple[int, int, int]:
    """Header, records section and its end."""
    entry = table + 24 * batch
    section = load_i64(entry + 8)
    return load_i64(entry), section, section + load_i64(entry + 16)


@rare
def _long_varint(position: int, end: int, longest: int) -> tuple[int, int]:
    """A zigzag varint of any length up to `longest` bytes (5: 32 bits, 10: 64 bits)."""
    raw = 0
    for index in range(longest):
        if position >= end:
            return 0, _FAILED
        byte = int(load_u8(position))
        position += 1
        if index == longest - 1 and byte > (15 if longest == 5 else 1):
            return 0, _FAILED
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            # The shift must not drag the sign along: bit 63 is data here.
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position
    return 0, _FAILED


@helper
def _varint(position: int, end: int, longest: int) -> tuple[int, int]:
    """A zigzag varint; one and two bytes, nearly all there are, without a loop."""
    if position < end:
        first = int(load_u8(position))
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), position + 1
        if position + 1 < end:
            second = int(load_u8(position + 1))
            if second < 0x80:
                raw = (first & 0x7F) | (second << 7)
                return (raw >> 1) ^ -(raw & 1), position + 2
    return _long_varint(position, end, longest)


@rare
def _is_utf8(position: int, end: int) -> bool:
    """Whether the bytes are well-formed UTF-8 (no surrogates, nothing overlong)."""
    while position < end:
        lead = int(load_u8(position))
        position += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            low = 0xA0 if lead == 0xE0 else 0x80
            high = 0x9F if lead == 0xED else 0xBF
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            low = 0x90 if lead == 0xF0 else 0x80
            high = 0x8F if lead == 0xF4 else 0xBF
        else:
            return False
        if position + more > end:
            return False
        for _ in range(more):
            byte = int(load_u8(position))
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
            position += 1
    return True


@rare
def _headers(position: int, end: int, count: int, totals: int) -> int:
    """The position behind `count` headers, adding up what they hold."""
    # Two bytes are the least a header takes: a count that lies must not become a long loop.
    if count < 0 or count > end - position:
        return _FAILED
    for _ in range(count):
        key_size, key = _varint(position, end, 5)
        value_size, value = _varint(key + max(key_size, 0), end, 5)
        if key_size < 0 or value_size < -1 or value > end or value + value_size > end:
            return _FAILED
        if not _is_utf8(key, key + key_size):
            return _FAILED
        _add(totals, _HEADER_KEY_BYTES, key_size)
        if value_size < 0:
            _add(totals, _NULL_HEADER_VALUES, 1)
            value_size = 0
        _add(totals, _HEADER_VALUE_BYTES, value_size)
        position = value + value_size
    _add(totals, _HEADERS, count)
    return position


@rare
def _record(position: int, section_end: int, totals: int) -> _Record:
    """One whole record: where its parts are, and where the next one starts or `_FAILED`."""
    size, position = _varint(position, section_end, 5)
    end = position + size
    if position >= section_end or size < 0 or end > section_end or load_u8(position) != 0:
        return _FAILED, 0, 0, 0, 0, 0, 0, 0, 0
    timestamp_delta, position = _varint(position + 1, end, 10)
    offset_delta, position = _varint(position, end, 5)
    key_size, key = _varint(position, end, 5)
    value_size, value = _varint(key + max(key_size, 0), end, 5)
    headers, position = _varint(value + max(value_size, 0), end, 5)
    headers_at = position
    if headers != 0 and position <= end:
        position = _headers(position, end, headers, totals)
    if key_size < -1 or value_size < -1 or position != end:
        return _FAILED, 0, 0, 0, 0, 0, 0, 0, 0
    return end, timestamp_delta, offset_delta, key, key_size, value, value_size, headers, headers_at


@helper
def _short(position: int) -> tuple[int, int]:
    """A varint of one or two bytes, zigzag still in it; -1, which is odd, when it is longer."""
    first = int(load_u8(position))
    if first < 0x80:
        return first, position + 1
    second = int(load_u8(position + 1))
    if second < 0x80:
        return first + (second << 7) - 0x80, position + 2
    return -1, position


@helper
def _next_record(position: int, section_end: int, totals: int) -> _Record:
    """`_record`, with a shorter way for the records that nearly all are.

    Those are not at the very end of the section and have short fields and no headers. Whatever does
    not fit, right or wrong, is left to `_record`. Up to the key a record takes at most 26 bytes,
    which `_ROOM` covers; behind the key, reads are held against the record's end.
    """
    prefetch(position + _AHEAD)
    prefetch(position + _AHEAD + 64)
    if position + _ROOM <= section_end:
        size, start = _short(position)
        end = start + (size >> 1)
        if size & 1 == 0 and end <= section_end and load_u8(start) == 0:
            timestamp_delta, at = _short(start + 1)
            offset_delta, at = _short(at)
            key_size, key = _short(at)
            # Odd is negative, and of those only -1, which is 1 here, is a length: null.
            value_at = key + (key_size >> 1)
            sound = timestamp_delta >= 0 and offset_delta & 1 == 0 and value_at + 2 <= end
            if sound and (key_size & 1 == 0 or key_size == 1):
                value_size, value = _short(value_at)
                last = value + (value_size >> 1)
                sound = (value_size & 1 == 0 or value_size == 1) and last + 1 == end
                if sound and load_u8(last) == 0:
                    return (
                        end,
                        (timestamp_delta >> 1) ^ -(timestamp_delta & 1),
                        offset_delta >> 1,
                        key,
                        (key_size >> 1) - (key_size & 1),
                        value,
                        (value_size >> 1) - (value_size & 1),
                        0,
                        0,
                    )
    return _record(position, section_end, totals)


@rare
def _refuse(totals: int, batch: int, record: int, position: int) -> bool:
    store_i64(totals + 8 * _BAD_BATCH, batch)
    store_i64(totals + 8 * _BAD_RECORD, record)
    store_i64(totals + 8 * _BAD_POSITION, position)
    return False


@helper
def _note_sizes(
    totals: int, key_bytes: int, value_bytes: int, null_keys: int, null_values: int
) -> None:
    store_i64(totals + 8 * _KEY_BYTES, key_bytes)
    store_i64(totals + 8 * _VALUE_BYTES, value_bytes)
    store_i64(totals + 8 * _NULL_KEYS, null_keys)
    store_i64(totals + 8 * _NULL_VALUES, null_values)


@kernel("boolean(int64, int64, int64)")
def walk(table: int, batches: int, totals: int) -> bool:
    """Check every record of every batch and add up what they hold."""
    latest = _NEVER
    key_bytes = value_bytes = null_keys = null_values = 0
    for batch in range(batches):
        header, section, section_end = _row(table, batch)
        base_timestamp = load_big_i64(header + _BASE_TIMESTAMP_AT)
        last_offset_delta = int(load_big_i32(header + _LAST_OFFSET_DELTA_AT))
        previous = -1
        position = section
        for record in range(int(load_big_i32(header + _RECORD_COUNT_AT))):
            after, timestamp_delta, offset_delta, _, key_size, _, value_size, _, _ = _next_record(
                position, section_end, totals
            )
            if after == _FAILED or not previous < offset_delta <= last_offset_delta:
                return _refuse(totals, batch, record, position - section)
            position, previous = after, offset_delta
            latest = max(latest, as_i64(base_timestamp + timestamp_delta))
            key_bytes += max(key_size, 0)
            value_bytes += max(value_size, 0)
            null_keys += key_size < 0
            null_values += value_size < 0
        if position != section_end:
            return _refuse(totals, batch, -1, position - section)
    _note_sizes(totals, key_bytes, value_bytes, null_keys, null_values)
    store_i64(totals + 8 * _MAX_TIMESTAMP, latest)
    return True


@rare
def _clear_bit(bitmap: int, index: int) -> None:
    byte = int(load_u8(bitmap + (index >> 3)))
    store_u8(bitmap + (index >> 3), byte & ~(1 << (index & 7)))


@helper
def _target(columns: int) -> tuple[int, int, int]:
    """Offsets, data and validity of a binary column, read once: stores would make it read again."""
    return load_i64(columns), load_i64(columns + 8), load_i64(columns + 16)


@helper
def _put(
    row: int, source: int, size: int, source_end: int, target: tuple[int, int, int], used: int
) -> int:
    """Append one value to a binary column and return how many bytes its data has now."""
    offsets, data, validity = target
    if size > 0:
        copy_wide(data + used, source, size, source_end)
        used += size
    elif size < 0:
        _clear_bit(validity, row)
    store_i32(offsets + 4 * row + 4, used)
    return used


@kernel("boolean(int64, int64, int64, int64)")
def fill(table: int, batches: int, columns: int, totals: int) -> bool:
    """Check every record and write all columns but the headers, in one pass.

    `columns` holds addresses in the order of `layout.Column`. Fixed-width buffers have room for all
    the records the headers promise; data buffers have as many bytes as all sections together, and
    `SPILL` more; validity bits are all set.
    """
    keys, values = _target(columns), _target(columns + 24)
    timestamps = load_i64(columns + 8 * _TIMESTAMPS)
    offsets = load_i64(columns + 8 * _OFFSETS)
    header_counts = load_i64(columns + 8 * _HEADER_COUNTS)
    for starts in (keys[0], values[0], header_counts):
        store_i32(starts, 0)
    row = key_bytes = value_bytes = null_keys = null_values = 0
    for batch in range(batches):
        header, section, section_end = _row(table, batch)
        base_offset = load_big_i64(header)
        base_timestamp = load_big_i64(header + _BASE_TIMESTAMP_AT)
        stamp = load_big_i64(header + _MAX_TIMESTAMP_AT)
        stamped = load_big_i16(header + _ATTRIBUTES_AT) & _LOG_APPEND_TIME != 0
        last_offset_delta = int(load_big_i32(header + _LAST_OFFSET_DELTA_AT))
        count = int(load_big_i32(header + _RECORD_COUNT_AT))
        previous = -1
        position = section
        # The count was read from the same bytes when the batch was parsed; trusting that they have
        # not changed since would be trusting them with our memory.
        if row + count > load_i64(columns + 8 * _ROWS):
            return _refuse(totals, batch, -1, 0)
        for record in range(count):
            after, timestamp_delta, offset_delta, key, key_size, value, value_size, _, _ = (
                _next_record(position, section_end, totals)
            )
            if after == _FAILED or not previous < offset_delta <= last_offset_delta:
                return _refuse(totals, batch, record, position - section)
            position, previous = after, offset_delta
            # From here on every part of the record is known to lie inside the section.
            key_bytes = _put(row, key, key_size, section_end, keys, key_bytes)
            value_bytes = _put(row, value, value_size, section_end, values, value_bytes)
            null_keys += key_size < 0
            null_values += value_size < 0
            store_i64(timestamps + 8 * row, stamp if stamped else base_timestamp + timestamp_delta)
            store_i64(offsets + 8 * row, base_offset + offset_delta)
            row += 1
            store_i32(header_counts + 4 * row, load_i64(totals + 8 * _HEADERS))
        if position != section_end:
            return _refuse(totals, batch, -1, position - section)
    _note_sizes(totals, key_bytes, value_bytes, null_keys, null_values)
    return True


@kernel("void(int64, int64, int64, int64)")
def fill_headers(table: int, batches: int, columns: int, totals: int) -> None:
    """Write the header columns of sections that `fill` found sound (`layout.HeaderColumn`)."""
    key_offsets, key_data = load_i64(columns + 8 * 0), load_i64(columns + 8 * 1)
    value_offsets, value_data, value_validity = (
        load_i64(columns + 8 * 2),
        load_i64(columns + 8 * 3),
        load_i64(columns + 8 * 4),
    )
    row = 0
    key_bytes = 0
    value_bytes = 0
    store_i32(key_offsets, 0)
    store_i32(value_offsets, 0)
    for batch in range(batches):
        header, section, section_end = _row(table, batch)
        after = section
        for _ in range(int(load_big_i32(header + _RECORD_COUNT_AT))):
            after, _, _, _, _, _, _, count, position = _record(after, section_end, totals)
            for _ in range(count):
                key_size, key = _varint(position, after, 5)
                value_size, value = _varint(key + key_size, after, 5)
                copy_wide(key_data + key_bytes, key, key_size, section_end)
                key_bytes += key_size
                if value_size < 0:
                    _clear_bit(value_validity, row)
                    value_size = 0
                copy_wide(value_data + value_bytes, value, value_size, section_end)
                value_bytes += value_size
                position = value + value_size
                row += 1
                store_i32(key_offsets + 4 * row, key_bytes)
                store_i32(value_offsets + 4 * row, value_bytes)
