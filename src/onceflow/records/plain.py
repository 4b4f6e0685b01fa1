"""A few records in plain Python: for internal topics, where loading compiled code costs more.

Bulk work is for `columns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    buffer = bytearray(HEADER_SIZE)
    for number, record in enumerate(records):
        body = bytearray((0, 0))  # attributes, timestamp delta
        body += _varint(number)
        for each in record:
            body += _varint(-1) if each is None else _varint(len(each)) + each
        body += _varint(0)  # headers
        buffer += _varint(len(body))
        buffer += body
    return seal(
        buffer,
        attributes=Codec.NONE | (TRANSACTIONAL_BIT if transactional else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )


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


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
