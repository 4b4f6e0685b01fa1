"""Transaction markers: the control batches that only a broker writes.

A marker is a batch of one record: its key says commit or abort, its value which coordinator epoch
decided so. It takes one offset, which no consumer ever sees.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from onceflow.errors import BatchMalformed, RecordMalformed
from onceflow.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Codec,
    NewBatch,
    StoredBatch,
    seal,
)
from onceflow.records.scalar import parse_record

_VERSION = 0
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
# length 16 bytes, attributes 0, timestamp delta 0, offset delta 0, key length 4; lengths zigzag
_BEFORE_KEY = bytes((32, 0, 0, 0, 8))
_BEFORE_VALUE = bytes((12,))
_NO_HEADERS = bytes((0,))


class MarkerType(IntEnum):
    """The outcome of the transaction."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of one producer's transaction in one partition."""

    producer_id: int
    producer_epoch: int
    type: MarkerType
    coordinator_epoch: int
    timestamp_ms: int


def marker(
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> NewBatch:
    """The batch that ends a transaction; not from a client, so `NewBatch.parse` would refuse it."""
    kind = MarkerType.COMMIT if commit else MarkerType.ABORT
    record = (
        _BEFORE_KEY
        + _KEY.pack(_VERSION, kind)
        + _BEFORE_VALUE
        + _VALUE.pack(_VERSION, coordinator_epoch)
        + _NO_HEADERS
    )
    return seal(
        bytearray(HEADER_SIZE) + record,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )


def parse_marker(batch: StoredBatch) -> Marker | None:
    """The marker in a control batch, or None for a control type that is not ours to know.

    Higher versions of key and value are read as far as version 0 goes.
    """
    header = batch.header
    if not header.is_control or header.record_count != 1 or header.codec is not Codec.NONE:
        raise BatchMalformed(
            f"the batch at offset {header.base_offset} is not one uncompressed control record"
        )
    key, value = _key_and_value(batch)
    if key is None or len(key) < _KEY.size:
        raise RecordMalformed(f"the control record at offset {header.base_offset} has no type")
    _, kind = _KEY.unpack_from(key)
    if kind not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise RecordMalformed(f"the marker at offset {header.base_offset} has no value")
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return Marker(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        type=MarkerType(kind),
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=header.max_timestamp,
    )


def _key_and_value(batch: StoredBatch) -> tuple[bytes | None, bytes | None]:
    fields = parse_record(batch.buffer[HEADER_SIZE:], 0)
    if fields.end != len(batch.buffer) - HEADER_SIZE:
        raise RecordMalformed(
            f"bytes follow the control record at offset {batch.header.base_offset}"
        )
    return fields.key, fields.value
