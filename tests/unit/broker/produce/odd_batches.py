"""Batches as a client sends them that means no good, or does not know better."""

from __future__ import annotations

import pyarrow as pa

from onceflow.records.batch import (
    HEADER_SIZE,
    Codec,
    seal,
)
from onceflow.records.columns import encode
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    made,
)
from tests.unit.broker.txn.transactional_requests import Who

MB = 1 << 20


def bomb(
    size: int = 2 * MB, *, codec: Codec = Codec.ZSTD, who: Who | None = None, sequence: int = 0
) -> bytes:
    """One record of so many bytes, in few."""
    rows = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([bytes(size)], pa.binary())})
    who = who or Who(None, -1, -1)
    made = encode(
        rows,
        codec=codec,
        now_ms=NOW_MS,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=sequence if who.producer_id >= 0 else -1,
    )
    return bytes(made.buffer)


VALUES = [b"a" * 50, b"b" * 50, None]


def with_section(section: bytes, codec: Codec) -> bytes:
    """The batch of `VALUES` with its records as they were compressed elsewhere."""
    header = made(*VALUES).header
    sealed = seal(
        bytearray(bytes(HEADER_SIZE) + section),
        attributes=codec,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )
    return bytes(sealed.buffer)
