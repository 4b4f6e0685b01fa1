"""The records of some batches, as far as compaction has to know them: checked and located by
compiled loops, without loading Arrow."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, c_char
from itertools import accumulate
from typing import NamedTuple

from onceflow.errors import BatchMalformed
from onceflow.log.retain_kernel import locate
from onceflow.records.batch import CODEC_MASK, HEADER_SIZE, StoredBatch
from onceflow.records.compression import decompress
from onceflow.records.kernels import walk
from onceflow.records.layout import Total
from onceflow.records.scalar import explain

_FACTS = 4
_SMALLEST_RECORD = 7


class Rows(NamedTuple):
    """The records of some batches by column, one batch after the other."""

    keys: list[bytes | None]
    is_dead: list[bool]
    """Whether there is no value: a tombstone."""
    timestamps: Sequence[int]
    offsets: Sequence[int]


def address(buffer: bytearray) -> int:
    """Where the bytes are, for as long as the caller holds on to them."""
    return addressof(c_char.from_buffer(buffer)) if buffer else 0


def section_of(batch: StoredBatch) -> bytearray:
    """The records section, decompressed."""
    header, section = batch.header, batch.buffer[HEADER_SIZE:]
    if header.attributes & CODEC_MASK and header.record_count:
        return bytearray(decompress(header.codec, section))
    return bytearray(section)


def read_rows(batches: Sequence[StoredBatch]) -> Rows:
    """Raises a `RecordError` when any record is not sound."""
    table = array("q")
    held: list[bytearray] = []  # what the table points to
    for batch in batches:
        whole, section = bytearray(batch.buffer), None
        start, size = address(whole) + HEADER_SIZE, len(whole) - HEADER_SIZE
        if batch.header.attributes & CODEC_MASK:
            section = section_of(batch)
            start, size = address(section), len(section)
            held.append(section)
        held.append(whole)
        table.extend((address(whole), start, size))
        _check_count(batch, size)
    totals = array("q", bytes(8 * len(Total)))
    if not walk(table.buffer_info()[0], len(batches), totals.buffer_info()[0]):
        bad = batches[totals[Total.BAD_BATCH]]
        position, record = totals[Total.BAD_POSITION], totals[Total.BAD_RECORD]
        raise explain(memoryview(section_of(bad)), position, record, bad.header.base_offset)
    facts = array("q", bytes(8 * _FACTS * sum(batch.header.record_count for batch in batches)))
    keys = bytearray(totals[Total.KEY_BYTES])
    locate(table.buffer_info()[0], len(batches), facts.buffer_info()[0], address(keys))
    return Rows(
        _cut(bytes(keys), facts[0::_FACTS]),
        [size < 0 for size in facts[1::_FACTS]],
        facts[2::_FACTS],
        facts[3::_FACTS],
    )


def _check_count(batch: StoredBatch, size: int) -> None:
    if batch.header.record_count * _SMALLEST_RECORD > size:
        raise BatchMalformed(
            f"the batch at offset {batch.header.base_offset} promises "
            f"{batch.header.record_count} records in {size} bytes"
        )


def _cut(data: bytes, sizes: Sequence[int]) -> list[bytes | None]:
    ends = accumulate(max(size, 0) for size in sizes)
    return [
        data[end - size : end] if size >= 0 else None for size, end in zip(sizes, ends, strict=True)
    ]
