"""Producer snapshots: a table as bytes, checked as a whole.

A snapshot only shortens the fold over the log, so there is one answer to anything that is wrong
with it: `SnapshotInvalid`, and the fold starts earlier.

Layout (big-endian): CRC-32C of all that follows u32, version u16, offset i64, number of producers
u32, number of aborted transactions u32; each producer: id i64, epoch i16, coordinator epoch i32,
last timestamp i64, start of the open transaction i64 (-1: none), number of batches u8, each batch:
first sequence i32, last offset delta i32, first offset i64, timestamp i64; each aborted
transaction: producer id, first offset, last offset, last stable offset, all i64.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterable

from onceflow.checksum import crc32c
from onceflow.errors import OnceflowError
from onceflow.producers.aborted import Aborted
from onceflow.producers.state import WINDOW, Producer, Written
from onceflow.records.sequence import last_sequence

_VERSION = 1
_CRC = struct.Struct(">I")
_HEAD = struct.Struct(">HqII")
_PRODUCER = struct.Struct(">qhiqqB")
_WRITTEN = struct.Struct(">iiqq")
_ABORTED = struct.Struct(">qqqq")
_NOTHING_OPEN = -1


class SnapshotInvalid(OnceflowError):
    """Bytes that are not a sound snapshot of this offset; build the table from the log instead."""


def encode(
    offset: int, producers: Collection[tuple[int, Producer]], aborted: Collection[Aborted]
) -> bytes:
    parts = [_HEAD.pack(_VERSION, offset, len(producers), len(aborted))]
    for producer_id, producer in producers:
        start, window = producer.transaction_start, producer.window
        parts.append(
            _PRODUCER.pack(
                producer_id,
                producer.epoch,
                producer.coordinator_epoch,
                producer.last_timestamp,
                _NOTHING_OPEN if start is None else start,
                len(window),
            )
        )
        for sequence, _, first, last, timestamp in window:
            parts.append(_WRITTEN.pack(sequence, last - first, first, timestamp))
    parts += [_ABORTED.pack(*entry) for entry in aborted]
    body = b"".join(parts)
    return _CRC.pack(crc32c(body)) + body


def decode(
    data: bytes, expected_offset: int
) -> tuple[list[tuple[int, Producer]], Iterable[Aborted]]:
    """The producers and the aborted transactions."""
    view = memoryview(data)
    if len(view) < _CRC.size + _HEAD.size:
        raise SnapshotInvalid(f"{len(view)} bytes are too few for a producer snapshot")
    (crc,) = _CRC.unpack_from(view)
    actual = crc32c(view[_CRC.size :])
    if crc != actual:
        raise SnapshotInvalid(
            f"the producer snapshot says CRC-32C {crc:#010x}, its bytes give {actual:#010x}"
        )
    version, offset, producers, aborted = _HEAD.unpack_from(view, _CRC.size)
    if version != _VERSION:
        raise SnapshotInvalid(f"a producer snapshot of version {version}, not {_VERSION}")
    if offset != expected_offset:
        raise SnapshotInvalid(f"a producer snapshot as of offset {offset}, not {expected_offset}")
    try:
        entries, position = _read_producers(view, _CRC.size + _HEAD.size, producers)
    except struct.error as error:
        raise SnapshotInvalid(f"the producer snapshot ends too early: {error}") from error
    if len(view) - position != aborted * _ABORTED.size:
        raise SnapshotInvalid(
            f"{len(view) - position} bytes for {aborted} aborted transactions in the snapshot"
        )
    return entries, map(Aborted._make, _ABORTED.iter_unpack(view[position:]))


def _read_producers(
    view: memoryview, position: int, count: int
) -> tuple[list[tuple[int, Producer]], int]:
    entries: list[tuple[int, Producer]] = []
    for _ in range(count):
        fields = _PRODUCER.unpack_from(view, position)
        producer_id, epoch, coordinator_epoch, timestamp, start, batches = fields
        position += _PRODUCER.size
        window: deque[Written] = deque(maxlen=WINDOW)
        for _ in range(batches):
            sequence, delta, first, written_at = _WRITTEN.unpack_from(view, position)
            position += _WRITTEN.size
            last = last_sequence(sequence, delta)
            window.append(Written(sequence, last, first, first + delta, written_at))
        opened = None if start == _NOTHING_OPEN else start
        entries.append((producer_id, Producer(epoch, timestamp, coordinator_epoch, opened, window)))
    return entries, position
