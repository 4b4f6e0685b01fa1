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
    varint = _VARINTS
    parts = [_ROOM]
    for number, (key, value, timestamp) in enumerate(zip(keys, values, timestamps, strict=True)):
        body = b"".join(
            (
                b"\0",  # attributes
                varint[timestamp - base_timestamp],
                varint[number],
                _NULL if key is None else varint[len(key)],
                key or b"",
                _NULL if value is None else varint[len(value)],
                value or b"",
                headers.get(number, b"\0") if headers else b"\0",
            )
        )
        parts += (varint[len(body)], body)
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


_KEPT = 1 << 14
_VARINTS = _Varints()
_NULL = b"\x01"
_ROOM = bytes(HEADER_SIZE)
