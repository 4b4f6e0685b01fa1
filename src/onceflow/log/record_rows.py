"""The records of some batches, as far as compaction has to know them: checked and located by compiled
loops, without loading Arrow."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_char
from itertools import chain, repeat

from onceflow.errors import BatchMalformed
from onceflow.log.retain_kernel import locate
from onceflow.records.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    Codec,
    StoredBatch,
)
from onceflow.records.compression import decompress
from onceflow.records.kernels import walk
from onceflow.records.layout import Total
from onceflow.records.scalar import explain

_FACTS = 5
_SMALLEST_RECORD = 7


class BatchRecords:
    """The records of one batch by column; `section` is decompressed."""

    __slots__ = ("dead", "header", "keys", "offsets", "section", "timestamps")

    def __init__(self, header: BatchHeader, section: bytearray, facts: array[int]) -> None:
        self.header = header
        self.section = section
        starts, key_sizes, value_sizes = facts[0::_FACTS], facts[1::_FACTS], facts[2::_FACTS]
        base, stamp = header.base_timestamp, header.max_timestamp
        is_stamped = header.attributes & LOG_APPEND_TIME_BIT
        deltas = repeat(stamp - base, len(starts)) if is_stamped else facts[3::_FACTS]
        data = bytes(section)
        self.keys: list[bytes | None] = [
            data[start : start + size] if size >= 0 else None
            for start, size in zip(starts, key_sizes, strict=True)
        ]
        self.dead: list[bool] = [size < 0 for size in value_sizes]
        self.timestamps: list[int] = [base + delta for delta in deltas]
        self.offsets: list[int] = [header.base_offset + delta for delta in facts[4::_FACTS]]


def address(buffer: bytearray) -> int:
    """Where the bytes are, for as long as the caller holds on to them."""
    return addressof(c_char.from_buffer(buffer)) if buffer else 0


def read_records(batches: Sequence[StoredBatch]) -> Iterator[BatchRecords]:
    """The records of each batch, in order; raises a `RecordError` before the first when any of
    them is not sound."""
    headers = [bytearray(batch.buffer[:HEADER_SIZE]) for batch in batches]
    sections = [_section(batch) for batch in batches]
    entries = (
        (address(header), address(section), len(section))
        for header, section in zip(headers, sections, strict=True)
    )
    table = array("q", chain.from_iterable(entries))
    totals = array("q", bytes(8 * len(Total)))
    if not walk(table.buffer_info()[0], len(batches), totals.buffer_info()[0]):
        bad = totals[Total.BAD_BATCH]
        position, record = totals[Total.BAD_POSITION], totals[Total.BAD_RECORD]
        raise explain(memoryview(sections[bad]), position, record, batches[bad].header.base_offset)
    count = sum(batch.header.record_count for batch in batches)
    facts = array("q", bytes(8 * _FACTS * count))
    locate(table.buffer_info()[0], len(batches), facts.buffer_info()[0])
    at = 0
    for batch, section in zip(batches, sections, strict=True):
        stop = at + _FACTS * batch.header.record_count
        yield BatchRecords(batch.header, section, facts[at:stop])
        at = stop


def _section(batch: StoredBatch) -> bytearray:
    header = batch.header
    packed = batch.buffer[HEADER_SIZE:]
    is_packed = header.record_count and header.codec is not Codec.NONE
    section = bytearray(decompress(header.codec, packed) if is_packed else packed)
    if header.record_count * _SMALLEST_RECORD > len(section):
        raise BatchMalformed(
            f"the batch at offset {header.base_offset} promises {header.record_count} records "
            f"in {len(section)} bytes"
        )
    return section
