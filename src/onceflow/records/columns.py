"""Record batches to Arrow columns and back.

`decode` makes one `RecordBatch` of many stored batches, `decode_portion` of as many as do not grow
too large together; `encode` and `encode_all` make batches of columns (`validate` only checks). Null
and empty stay apart in keys, values and header values. Nothing is allocated on the
word of a header before it is held against the bytes there are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from onceflow.errors import BatchMalformed, ColumnsMalformed, ColumnsTooLarge, RecordError
from onceflow.records.arrow import HEADER, HEADERS, RECORD_SCHEMA, TIMESTAMP, record_source
from onceflow.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Buffer,
    Codec,
    NewBatch,
    StoredBatch,
    next_sequence,
    seal,
)
from onceflow.records.compression import DECOMPRESSED_LIMIT, compress, decompress
from onceflow.records.layout import SPILL, Total, WrittenTotal
from onceflow.records.scalar import explain
from onceflow.records.validate import SMALLEST_RECORD, read_kernels
from onceflow.runtime import loading

__all__ = [
    "RECORD_SCHEMA",
    "Portion",
    "decode",
    "decode_portion",
    "encode",
    "encode_all",
]

_LARGEST_COLUMN = 2**31 - 1
_LARGEST_BATCH = 2**31 - 1


@cache
def _write_kernels() -> Any:
    with loading:
        from onceflow.records import write_kernels

    return write_kernels


def decode(batches: Sequence[StoredBatch], *, limit: int = DECOMPRESSED_LIMIT) -> pa.RecordBatch:
    """The records of all batches but control batches; `limit` is for each batch, decompressed."""
    sections = _Sections(limit)
    for batch in batches:
        if not batch.header.attributes & CONTROL_BIT:
            sections.add(batch)
    return _columns(sections)


class Portion(NamedTuple):
    """The records of the first `batches` of some batches, of `size` bytes decompressed."""

    rows: pa.RecordBatch
    batches: int
    size: int


def decode_portion(
    batches: Sequence[StoredBatch], most: int, *, limit: int = DECOMPRESSED_LIMIT
) -> Portion:
    """As `decode`, of the first batches only, one at least: until they have `most` bytes when
    decompressed, or the next one cannot be read. Raises only when the first one cannot."""
    sections = _Sections(limit)
    used = 0
    try:
        for batch in batches:
            if not batch.header.attributes & CONTROL_BIT:
                sections.add(batch)
            used += 1
            if sections.size >= most:
                break
    except RecordError:
        if not used:
            raise
    try:
        return Portion(_columns(sections), used, sections.size)
    except RecordError:
        if used == 1:
            raise
    # One batch is damaged: return the ones before it now, and raise the error next time.
    return decode_portion(batches[: used // 2], most, limit=limit)


def _columns(sections: _Sections) -> pa.RecordBatch:
    rows, size = sections.records, sections.size
    fixed = _FixedColumns(rows)
    keys, values = _data_buffer(size), _data_buffer(size)
    totals = _integers(len(Total))
    columns = array("q", fixed.addresses(keys.address, values.address))
    if not read_kernels().fill(*sections.table(), _address(columns), _address(totals)):
        sections.refuse(totals)
    keys.resize(totals[Total.KEY_BYTES], shrink_to_fit=True)
    values.resize(totals[Total.VALUE_BYTES], shrink_to_fit=True)
    null_keys, null_values = totals[Total.NULL_KEYS], totals[Total.NULL_VALUES]
    arrays = [
        _binary(rows, fixed.key_validity, fixed.key_offsets, keys, null_keys),
        _binary(rows, fixed.value_validity, fixed.value_offsets, values, null_values),
        _header_column(rows, sections, fixed.header_counts, totals),
        pa.Array.from_buffers(TIMESTAMP, rows, [None, fixed.timestamps], 0),
        pa.Array.from_buffers(pa.int64(), rows, [None, fixed.offsets], 0),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


class _Sections:
    """The records sections of some batches, decompressed, and the table kernels read them by."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries = array("q")
        self._batches: list[NewBatch | StoredBatch] = []
        self._sections: list[Any] = []
        self.records = 0
        self.size = 0

    def add(self, batch: NewBatch | StoredBatch) -> None:
        header = batch.header
        count = header.record_count
        buffer = pa.py_buffer(batch.buffer)
        address = buffer.address
        start, size = address + HEADER_SIZE, buffer.size - HEADER_SIZE
        if header.attributes & CODEC_MASK and count:
            section = decompress(header.codec, batch.buffer[HEADER_SIZE:], self._limit)
            buffer = pa.py_buffer(section)
            start, size = buffer.address, buffer.size
        # Columns are allocated by the count: a header that lies must not size them.
        if count * SMALLEST_RECORD > size:
            raise BatchMalformed(
                f"the batch at offset {header.base_offset} promises {count} records in {size} bytes"
            )
        if self.size + size > _LARGEST_COLUMN:
            raise ColumnsTooLarge("2 GiB of records at once; decode fewer batches at a time")
        self.size += size
        # The table has bare addresses: `_batches` keeps the memory of the headers, `_sections` that
        # of the records, until the kernels are done.
        self._batches.append(batch)
        self._sections.append(buffer)
        self._entries.extend((address, start, size))
        self.records += count

    def table(self) -> tuple[int, int]:
        """Where the table is, good as long as this object, and how many rows it has."""
        return _address(self._entries), len(self._batches)

    def refuse(self, totals: array[int]) -> NoReturn:
        """Raise the error that a kernel noted in `totals`."""
        index = totals[Total.BAD_BATCH]
        header = self._batches[index].header
        section = memoryview(self._sections[index]).cast("B")
        if not header.attributes & CODEC_MASK:
            section = section[HEADER_SIZE:]
        position, record = totals[Total.BAD_POSITION], totals[Total.BAD_RECORD]
        raise explain(section, position, record, header.base_offset)


class _FixedColumns:
    """All buffers whose size follows from the number of records."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.key_offsets = pa.allocate_buffer(4 * (rows + 1))
        self.key_validity = _validity(rows)
        self.value_offsets = pa.allocate_buffer(4 * (rows + 1))
        self.value_validity = _validity(rows)
        self.timestamps = pa.allocate_buffer(8 * rows)
        self.offsets = pa.allocate_buffer(8 * rows)
        self.header_counts = pa.allocate_buffer(4 * (rows + 1))

    def addresses(self, keys: int, values: int) -> tuple[int, ...]:
        """In the order of `layout.Column`, with those of the data of keys and values."""
        return (
            self.key_offsets.address,
            keys,
            self.key_validity.address,
            self.value_offsets.address,
            values,
            self.value_validity.address,
            self.timestamps.address,
            self.offsets.address,
            self.header_counts.address,
            self.rows,
        )


def _integers(count: int) -> array[int]:
    return array("q", bytes(8 * count))


def _address(integers: array[int]) -> int:
    """Where the numbers are, for as long as the caller holds on to the array."""
    return integers.buffer_info()[0]


def _data_buffer(size: int) -> Any:
    """Room for `size` bytes and the `SPILL` bytes that a wide copy may write behind them."""
    return pa.allocate_buffer(size + SPILL, None, resizable=True)


def _validity(rows: int) -> Any:
    """A bit for each row, all set."""
    return pa.py_buffer(bytearray(b"\xff" * ((rows + 7) // 8)))


def _binary(rows: int, validity: Any, offsets: Any, data: Any, nulls: int) -> Any:
    return pa.Array.from_buffers(
        pa.binary(), rows, [validity if nulls else None, offsets, data], nulls
    )


def _header_column(rows: int, sections: _Sections, counts: Any, totals: array[int]) -> Any:
    headers, nulls = totals[Total.HEADERS], totals[Total.NULL_HEADER_VALUES]
    if not headers:
        return pa.Array.from_buffers(HEADERS, rows, [None, counts], 0, children=[_NO_HEADERS])
    key_offsets = pa.allocate_buffer(4 * (headers + 1))
    value_offsets = pa.allocate_buffer(4 * (headers + 1))
    keys = _data_buffer(totals[Total.HEADER_KEY_BYTES])
    values = _data_buffer(totals[Total.HEADER_VALUE_BYTES])
    validity = _validity(headers)
    buffers = (key_offsets, keys, value_offsets, values, validity)
    columns = array("q", [buffer.address for buffer in buffers])
    again = _integers(len(Total))
    read_kernels().fill_headers(*sections.table(), _address(columns), _address(again))
    key = pa.Array.from_buffers(pa.string(), headers, [None, key_offsets, keys], 0)
    value = _binary(headers, validity, value_offsets, values, nulls)
    items = pa.Array.from_buffers(HEADER, headers, [None], 0, children=[key, value])
    return pa.Array.from_buffers(HEADERS, rows, [None, counts], 0, children=[items])


_NO_HEADERS: Any = pa.array([], type=HEADER)


def encode(
    columns: pa.RecordBatch | pa.Table,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    now_ms: int | None = None,
) -> NewBatch:
    """All rows as one batch. `now_ms` stands in for timestamps that are not there."""
    batches = encode_all(
        columns,
        max_batch_bytes=_LARGEST_BATCH,
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        now_ms=now_ms,
    )
    if not batches:
        raise ColumnsMalformed("there are no rows, and a new batch may not be empty")
    if len(batches) > 1:
        raise ColumnsTooLarge("the rows exceed the 2 GiB of one batch; use encode_all")
    return batches[0]


def encode_all(
    columns: pa.RecordBatch | pa.Table,
    *,
    max_batch_bytes: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    now_ms: int | None = None,
) -> list[NewBatch]:
    """All rows in order, in batches of at most `max_batch_bytes` before compression.

    A single record that is larger gets a batch of its own: whether that is too large is for the
    topic to say. Sequences run on from batch to batch when there is a first one.
    """
    target, written = _write_batches(columns, max_batch_bytes, now_ms)
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0)
    batches = []
    position = 0
    for rows, size, base_timestamp, max_timestamp in written:
        room = target[position : position + size]
        position += size
        batches.append(
            seal(
                room if codec is Codec.NONE else _compressed(codec, level, room),
                attributes=attributes,
                last_offset_delta=rows - 1,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=rows,
            )
        )
        if base_sequence != NO_SEQUENCE:
            base_sequence = next_sequence(base_sequence, rows)
    return batches


def _write_batches(
    columns: pa.RecordBatch | pa.Table, max_batch_bytes: int, now_ms: int | None
) -> tuple[memoryview, list[tuple[int, ...]]]:
    """All batches behind each other, headers still blank, and for each a row of `WrittenTotal`."""
    if not columns.num_rows:
        return memoryview(b""), []
    source = record_source(columns, now_ms)
    entries = array("q", source.entries)
    limit = min(max_batch_bytes, _LARGEST_BATCH)
    most: int = _write_kernels().most_bytes(_address(entries), source.rows)
    # A batch and the first record of the next one exceed the limit together; so that is how many
    # there can be, unless every record has its own.
    batches = min(source.rows, 2 * most // max(limit - HEADER_SIZE, 1) + 1)
    size = most + HEADER_SIZE * batches
    target = pa.allocate_buffer(size + SPILL)
    table = _integers(len(WrittenTotal) * batches)
    count: int = _write_kernels().write(
        _address(entries), source.rows, limit, target.address, size, _address(table), batches
    )
    if count < 0:
        raise ColumnsTooLarge(
            f"row {-1 - count} exceeds the 2 GiB of one batch, or the offsets of its column lie"
        )
    numbers = iter(table[: count * len(WrittenTotal)])
    return memoryview(target).cast("B"), list(zip(*[numbers] * len(WrittenTotal), strict=True))


def _compressed(codec: Codec, level: int | None, room: memoryview) -> bytearray:
    section: Buffer = compress(codec, room[HEADER_SIZE:], level)
    return bytearray(b"".join((bytes(HEADER_SIZE), section)))
