"""Producer snapshots: a table as bytes, checked as a whole.

A snapshot only shortens the fold over the log, so every defect has one answer: `SnapshotInvalid`,
and the fold starts earlier. Only a snapshot, and no log, says how long a producer has been silent;
without one its silence begins at the start.

Layout (big-endian): CRC-32C of all that follows u32, version u16, offset i64, number of producers
u32, number of aborted transactions u32; each producer: id i64, epoch i16, coordinator epoch i32,
last timestamp i64, start of the open transaction i64 (-1: none), milliseconds of silence i64 (not
in version 1), number of batches u8, each batch: first sequence i32, last offset delta i32, first
offset i64, timestamp i64; each aborted transaction: producer id, first offset, last offset, last
stable offset, all i64.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce

from onceflow.checksum import crc32c
from onceflow.errors import OnceflowError
from onceflow.producers.aborted import ENTRY_SIZE, AbortedTransactions
from onceflow.producers.state import AWAKE, ProducerMemory, WrittenBatch
from onceflow.records import last_sequence
from onceflow.wire import MAX_IN_FLIGHT

_VERSION = 2
_WITHOUT_SILENCE = 1
_CRC = struct.Struct(">I")
_HEAD = struct.Struct(">HqII")
_PRODUCER = struct.Struct(">qhiqqqB")
_PRODUCER_1 = struct.Struct(">qhiqqB")
_WRITTEN = struct.Struct(">iiqq")
_NOTHING_OPEN = -1


class SnapshotInvalid(OnceflowError):
    """Bytes that are not a sound snapshot of this offset; build the table from the log instead."""


def encode_producer(producer_id: int, producer: ProducerMemory, now_ms: int) -> bytes:
    """One producer of a snapshot, at `now_ms` of the table's clock."""
    start, window = producer.transaction_start, producer.window
    head = _PRODUCER.pack(
        producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        producer.last_timestamp,
        _NOTHING_OPEN if start is None else start,
        max(now_ms - producer.silent_since, 0),
        len(window),
    )
    return head + b"".join(
        [
            _WRITTEN.pack(sequence, last - first, first, timestamp)
            for sequence, _, first, last, timestamp in window
        ]
    )


def encode(offset: int, count: int, producers: Sequence[bytes], aborted: bytes) -> bytes:
    """The whole snapshot, of `count` encoded producers and the aborted transactions."""
    head = _HEAD.pack(_VERSION, offset, count, len(aborted) // ENTRY_SIZE)
    body = [head, *producers, aborted]
    # Part by part, and joined once: this may be many megabytes, and the loop waits for the GIL.
    return b"".join([_CRC.pack(reduce(lambda crc, part: crc32c(part, crc), body, 0)), *body])


def decode(
    data: bytes, expected_offset: int
) -> tuple[list[tuple[int, ProducerMemory]], AbortedTransactions]:
    """The producers and the aborted transactions. The new table's clock starts at 0, so the silence
    of a producer begins at a time below that."""
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
    if version not in (_WITHOUT_SILENCE, _VERSION):
        raise SnapshotInvalid(f"a producer snapshot of version {version}, not {_VERSION}")
    # A sound snapshot of another offset would count batches twice, or leave some out.
    if offset != expected_offset:
        raise SnapshotInvalid(f"a producer snapshot as of offset {offset}, not {expected_offset}")
    try:
        entries, position = _read_producers(view, _CRC.size + _HEAD.size, producers, version)
    except struct.error as error:
        raise SnapshotInvalid(f"the producer snapshot ends too early: {error}") from error
    if len(view) - position != aborted * ENTRY_SIZE:
        raise SnapshotInvalid(
            f"{len(view) - position} bytes for {aborted} aborted transactions in the snapshot"
        )
    return entries, AbortedTransactions.from_bytes(view[position:])


def _read_producers(
    view: memoryview, position: int, count: int, version: int
) -> tuple[list[tuple[int, ProducerMemory]], int]:
    entries: list[tuple[int, ProducerMemory]] = []
    for _ in range(count):
        if version == _WITHOUT_SILENCE:
            *fields, batches = _PRODUCER_1.unpack_from(view, position)
            position += _PRODUCER_1.size
            silent_since = AWAKE
        else:
            *fields, silent_ms, batches = _PRODUCER.unpack_from(view, position)
            position += _PRODUCER.size
            silent_since = -silent_ms
        producer_id, epoch, coordinator_epoch, timestamp, start = fields
        window: list[WrittenBatch] = []
        for _ in range(batches):
            sequence, delta, first, written_at = _WRITTEN.unpack_from(view, position)
            position += _WRITTEN.size
            last = last_sequence(sequence, delta)
            window.append(WrittenBatch(sequence, last, first, first + delta, written_at))
        del window[:-MAX_IN_FLIGHT]
        opened = None if start == _NOTHING_OPEN else start
        producer = ProducerMemory(epoch, timestamp, coordinator_epoch, opened, window, silent_since)
        entries.append((producer_id, producer))
    return entries, position
