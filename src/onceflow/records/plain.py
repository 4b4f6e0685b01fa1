"""A few records in plain Python: for internal topics and small batches of a producer, where loading
or calling compiled code costs more.

Bulk work is for `columns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from onceflow.records.batch import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    Codec,
    NewBatch,
    StoredBatch,
    seal,
)
from onceflow.records.compression import decompress
from onceflow.records.scalar import parse_record
from onceflow.records.sequence import NO_SEQUENCE


class PlainRecord(NamedTuple):
    """A record without headers."""

    key: bytes | None
    value: bytes | None


def write_records(
    records: Sequence[PlainRecord],
    timestamp_ms: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> NewBatch:
    """One uncompressed batch, all of one time."""
    count = len(records)
    return seal(
        write_section(
            [record.key for record in records],
            [record.value for record in records],
            [timestamp_ms] * count,
        ),
        attributes=Codec.NONE | (TRANSACTIONAL_BIT if transactional else 0),
        last_offset_delta=count - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )


def write_section(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
    headers: Mapping[int, bytes] = MappingProxyType({}),
) -> bytearray:
    """Room for a batch's header, then the records; times count from the first one's.

    `headers` has what `write_headers` made, by the number of the record.
    """
    base_timestamp = timestamps[0] if timestamps else 0
    varint, last = _VARINTS, base_timestamp
    fronts = _FRONTS[0]
    parts = [_ROOM]
    for number, (key, value, timestamp) in enumerate(zip(keys, values, timestamps, strict=True)):
        if timestamp != last:  # most records come in the same millisecond as the one before
            last, fronts = timestamp, _FRONTS[timestamp - base_timestamp]
        front = fronts[number]
        name = _NULL if key is None else varint[len(key)] + key
        if value is None:
            length, value = _NULL, b""
        else:
            length = varint[len(value)]
        tail = headers.get(number, _NO_HEADERS) if headers else _NO_HEADERS
        size = len(front) + len(name) + len(length) + len(value) + len(tail)
        parts += (varint[size], front, name, length, value, tail)
    return bytearray().join(parts)


def write_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The headers of one record: how many, then each."""
    parts = [_VARINTS[len(headers)]]
    for key, value in headers:
        name = key.encode()
        parts += (_VARINTS[len(name)], name)
        parts += (_NULL,) if value is None else (_VARINTS[len(value)], value)
    return b"".join(parts)


def read_records(batch: StoredBatch) -> Iterator[PlainRecord]:
    """Keys and values of a batch, in order."""
    for _, record in read_placed(batch):
        yield record


def read_placed(batch: StoredBatch) -> Iterator[tuple[int, PlainRecord]]:
    """The records of a batch, each with its offset: compaction leaves gaps between them."""
    header = batch.header
    section = memoryview(batch.buffer)[HEADER_SIZE:]
    if header.codec is not Codec.NONE:
        section = memoryview(decompress(header.codec, section))
    at = 0
    for _ in range(header.record_count):
        record = parse_record(section, at)
        at = record.end
        yield header.base_offset + record.offset_delta, PlainRecord(record.key, record.value)


class _Varints(dict[int, bytes]):
    """Zigzag varints; the short ones are kept, because the same few come again in every batch."""

    def __missing__(self, value: int) -> bytes:
        raw = (value << 1) ^ (value >> 63)
        rest = raw
        out = bytearray()
        while rest >= 0x80:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
        encoded = bytes(out)
        if raw < _KEPT:
            self[value] = encoded
        return encoded


class _Fronts(dict[int, bytes]):
    """What stands in front of the key of a record with a given time, by its number in the batch:
    attributes, time and number."""

    def __init__(self, timestamp_delta: int) -> None:
        self._start = b"\0" + _VARINTS[timestamp_delta]

    def __missing__(self, number: int) -> bytes:
        front = self._start + _VARINTS[number]
        if number < _KEPT_NUMBERS:
            self[number] = front
        return front


class _FrontsByTime(dict[int, _Fronts]):
    """Those of the first few milliseconds of a batch are kept: nearly all records come in them."""

    def __missing__(self, timestamp_delta: int) -> _Fronts:
        fronts = _Fronts(timestamp_delta)
        if 0 <= timestamp_delta < _KEPT_MILLISECONDS:
            self[timestamp_delta] = fronts
        return fronts


_KEPT = 1 << 14
_KEPT_NUMBERS = 1024
_KEPT_MILLISECONDS = 16
_VARINTS = _Varints()
_FRONTS = _FrontsByTime()
_NULL = b"\x01"
_NO_HEADERS = b"\0"
_ROOM = bytes(HEADER_SIZE)
