"""The compiled loop of a search by time; over records that `kernels.walk` found sound before."""

from __future__ import annotations

from onceflow.log.segments.record_kernel import read_varint
from onceflow.records import (
    as_i64,
    kernel,
    load_big_i16,
    load_big_i32,
    load_big_i64,
    load_i64,
    store_i64,
)

_ATTRIBUTES_AT = 21
_BASE_TIMESTAMP_AT = 27
_MAX_TIMESTAMP_AT = 35
_RECORD_COUNT_AT = 57
_LOG_APPEND_TIME = 8


@kernel("void(int64, int64, int64, int64)")
def find_time(table: int, timestamp: int, start: int, found: int) -> None:
    """Write to `found` offset and timestamp of a record of the one batch in `table`, which is that
    of `kernels`: of the records from offset `start` on the first one that is not older than
    `timestamp`, or the first of the latest ones where all are older. Nothing where there is none.
    """
    header, position = load_i64(table), load_i64(table + 8)
    base_offset = load_big_i64(header)
    base_timestamp = load_big_i64(header + _BASE_TIMESTAMP_AT)
    stamp = load_big_i64(header + _MAX_TIMESTAMP_AT)
    stamped = load_big_i16(header + _ATTRIBUTES_AT) & _LOG_APPEND_TIME != 0
    latest = 0
    is_found = False
    for _ in range(int(load_big_i32(header + _RECORD_COUNT_AT))):
        size, body = read_varint(position)
        timestamp_delta, at = read_varint(body + 1)
        offset_delta, _ = read_varint(at)
        time = stamp if stamped else as_i64(base_timestamp + timestamp_delta)
        if base_offset + offset_delta >= start and (not is_found or time > latest):
            is_found, latest = True, time
            store_i64(found, base_offset + offset_delta)
            store_i64(found + 8, time)
            if time >= timestamp:
                return
        position = body + size
