"""Rewrites one batch for compaction.

Offsets never change: a batch keeps its base offset, its last offset delta and its sequence numbers
however many of its records go, so that offsets between them have no record and a producer's
sequence can still be read off its last batch. As Kafka does, the time at which tombstones may go
(the delete horizon) takes the place of the base timestamp, marked by attribute bit 6; records'
timestamps stay what they were because their deltas move by as much.
"""

from __future__ import annotations

from onceflow.log.segments import address, record_kernel as retain_kernel, section_of
from onceflow.records import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    StoredBatch,
    compress,
    seal,
)

_LONGEST_DELTA = 10
_NO_TIMESTAMP = -1


def with_records(
    batch: StoredBatch, keep: bytearray, *, max_timestamp: int, delete_horizon: int | None
) -> StoredBatch:
    """The batch with only the records whose byte in `keep` is 1; at least one is. A new delete
    horizon is set unless that is None. The records are known to be sound."""
    header = batch.header
    base_timestamp = header.base_timestamp if delete_horizon is None else delete_horizon
    marked = 0 if delete_horizon is None else DELETE_HORIZON_BIT
    shift = _wrapped(header.base_timestamp - base_timestamp)
    section = compress(header.codec, _kept(section_of(batch), keep, shift))
    stamped = header.attributes & LOG_APPEND_TIME_BIT
    sealed = seal(
        bytearray(b"".join((bytes(HEADER_SIZE), section))),
        attributes=header.attributes | marked,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if stamped else max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=sum(keep),
    )
    return sealed.assign(header.base_offset, header.leader_epoch)


def _wrapped(number: int) -> int:
    """As 64 bits hold it. Deltas are modulo 2^64, for us as for Kafka's readers: so base and delta
    give the same timestamp again, also where the two lie further apart than 64 bits can say."""
    return (number + 2**63) % 2**64 - 2**63


def _kept(section: bytearray, keep: bytearray, shift: int) -> memoryview:
    # The kernel writes without a check of bounds: less room than the worst case, where every delta
    # grows to ten bytes, corrupts memory.
    target = bytearray(len(section) + _LONGEST_DELTA * len(keep))
    size = retain_kernel.retain(address(section), len(keep), address(keep), shift, address(target))
    return memoryview(target)[:size]


def without_records(batch: StoredBatch) -> StoredBatch:
    """Only the header: it holds the place of the producer's sequence."""
    header = batch.header
    sealed = seal(
        bytearray(HEADER_SIZE),
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=_NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=0,
    )
    return sealed.assign(header.base_offset, header.leader_epoch)
