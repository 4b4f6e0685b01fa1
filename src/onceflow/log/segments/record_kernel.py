"""The compiled loops of compaction: what each record is about, and some records copied.

Offset deltas stay, because a batch keeps its base offset; timestamp deltas are moved by a constant
when the base timestamp changes. Sections are ones that `kernels.walk` found sound just before:
nothing is checked again here.
"""

from __future__ import annotations

from onceflow.records import (
    as_i64,
    copy_exact,
    helper,
    kernel,
    load_big_i16,
    load_big_i32,
    load_big_i64,
    load_i64,
    load_u8,
    store_i64,
    store_u8,
)

_ATTRIBUTES_AT = 21
_BASE_TIMESTAMP_AT = 27
_MAX_TIMESTAMP_AT = 35
_RECORD_COUNT_AT = 57
_LOG_APPEND_TIME = 8


@helper
def read_varint(position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    raw = 0
    shift = 0
    byte = 0x80
    while byte >= 0x80:
        byte = int(load_u8(position))
        raw |= (byte & 0x7F) << shift
        shift += 7
        position += 1
    # The shift must not drag the sign along: bit 63 is data here.
    return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position


@helper
def _put_varint(position: int, value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    while raw & ~0x7F:
        store_u8(position, (raw & 0x7F) | 0x80)
        raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
        position += 1
    store_u8(position, raw)
    return position + 1


@helper
def _varint_size(value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw & ~0x7F:
        raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
        size += 1
    return size


@kernel("void(int64, int64, int64, int64)")
def locate(table: int, batches: int, facts: int, keys: int) -> None:
    """Of each record of each batch four numbers: the size of the key and of the value (-1 is null),
    timestamp and offset; and all keys, one behind the other. `table` is that of `kernels`."""
    for batch in range(batches):
        header, position = load_i64(table + 24 * batch), load_i64(table + 24 * batch + 8)
        base_offset = load_big_i64(header)
        base_timestamp = load_big_i64(header + _BASE_TIMESTAMP_AT)
        stamp = load_big_i64(header + _MAX_TIMESTAMP_AT)
        stamped = load_big_i16(header + _ATTRIBUTES_AT) & _LOG_APPEND_TIME != 0
        for _ in range(int(load_big_i32(header + _RECORD_COUNT_AT))):
            size, body = read_varint(position)
            timestamp_delta, at = read_varint(body + 1)
            offset_delta, at = read_varint(at)
            key_size, key = read_varint(at)
            value_size, _ = read_varint(key + max(key_size, 0))
            if key_size > 0:
                copy_exact(keys, key, key_size)
                keys += key_size
            store_i64(facts, key_size)
            store_i64(facts + 8, value_size)
            store_i64(facts + 16, stamp if stamped else base_timestamp + timestamp_delta)
            store_i64(facts + 24, base_offset + offset_delta)
            facts += 32
            position = body + size


@kernel("int64(int64, int64, int64, int64, int64)")
def retain(section: int, records: int, keep: int, shift: int, target: int) -> int:
    """Write the records whose byte in `keep` is not 0, their timestamp deltas grown by `shift`;
    the number of bytes written. `target` has room for 10 bytes more for each record."""
    start = target
    position = section
    for record in range(records):
        size, body = read_varint(position)
        end = body + size
        if load_u8(keep + record) != 0:
            delta, rest = read_varint(body + 1)  # behind the attributes
            moved = as_i64(delta + shift)
            target = _put_varint(target, 1 + _varint_size(moved) + end - rest)
            store_u8(target, load_u8(body))
            target = _put_varint(target + 1, moved)
            copy_exact(target, rest, end - rest)
            target += end - rest
        position = end
    return target - start
