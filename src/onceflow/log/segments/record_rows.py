"""The records of some batches, as far as compaction has to know them: checked and located by
compiled loops, without loading Arrow."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_char
from itertools import accumulate
from typing import NamedTuple

from onceflow.errors import BatchMalformed
from onceflow.log.segments import record_kernel as retain_kernel
from onceflow.records import (
    CODEC_MASK,
    HEADER_SIZE,
    StoredBatch,
    Total,
    decompress,
    explain,
    kernels,
)

_FACTS = 4
_SMALLEST_RECORD = 7
_PORTION_BYTES = 4 << 20


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


class SoundRecords:
    """The records of some batches, decompressed and checked, and the table kernels read them by,
    which is good as long as this object."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.size = 0
        """Decompressed."""
        self._table = array("q")
        # The table has bare addresses: without these references the memory is freed, and a kernel
        # reads what comes to lie there.
        self._held: list[bytearray] = []

    def add(self, batch: StoredBatch) -> None:
        """Raises a `RecordError` when it cannot be decompressed."""
        whole, section = bytearray(batch.buffer), None
        start, size = address(whole) + HEADER_SIZE, len(whole) - HEADER_SIZE
        if batch.header.attributes & CODEC_MASK:
            section = section_of(batch)
            start, size = address(section), len(section)
            self._held.append(section)
        self._held.append(whole)
        self._table.extend((address(whole), start, size))
        self.batches.append(batch)
        self.size += size
        _check_count(batch, size)

    @property
    def table(self) -> int:
        return self._table.buffer_info()[0]

    def check(self) -> array[int]:
        """The totals of all batches, by `Total`. Raises a `RecordError` when a record is not sound.
        Call it before any other kernel reads the table: those check nothing."""
        totals = array("q", bytes(8 * len(Total)))
        if not kernels.walk(self.table, len(self.batches), totals.buffer_info()[0]):
            bad = self.batches[totals[Total.BAD_BATCH]]
            position, record = totals[Total.BAD_POSITION], totals[Total.BAD_RECORD]
            raise explain(memoryview(section_of(bad)), position, record, bad.header.base_offset)
        return totals


def read_rows(batches: Sequence[StoredBatch]) -> Rows:
    """Raises a `RecordError` when any record is not sound."""
    records = SoundRecords()
    for batch in batches:
        records.add(batch)
    return _rows_of(records)


def read_portions(batches: Sequence[StoredBatch]) -> Iterator[tuple[list[StoredBatch], Rows]]:
    """As `read_rows`, of some batches at a time, in order: a few kilobytes of them can hold
    gigabytes of records."""
    records = SoundRecords()
    for batch in batches:
        records.add(batch)
        # Counted decompressed: the size of the batches on the disk bounds nothing.
        if records.size >= _PORTION_BYTES:
            yield records.batches, _rows_of(records)
            records = SoundRecords()
    if records.batches:
        yield records.batches, _rows_of(records)


def _rows_of(records: SoundRecords) -> Rows:
    totals = records.check()
    count = sum(batch.header.record_count for batch in records.batches)
    facts = array("q", bytes(8 * _FACTS * count))
    keys = bytearray(totals[Total.KEY_BYTES])
    retain_kernel.locate(records.table, len(records.batches), facts.buffer_info()[0], address(keys))
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
