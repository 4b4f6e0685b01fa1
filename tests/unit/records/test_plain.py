"""A few records in plain Python: what is written is read back, with its place."""

from __future__ import annotations

from itertools import accumulate

import pyarrow as pa
import pytest

from onceflow.records.batch import NO_SEQUENCE, NewBatch, StoredBatch, seal
from onceflow.records.columns import decode
from onceflow.records.plain import (
    PlainRecord,
    read_placed,
    read_records,
    write_records,
    write_section,
)

RECORDS = [PlainRecord(b"a", b"1"), PlainRecord(b"b", None), PlainRecord(None, b"")]


def stored(batch: NewBatch, offset: int) -> StoredBatch:
    """As it comes back from a log: the CRC has been checked."""
    return StoredBatch.parse(batch.assign(offset, 3).buffer, expected_base_offset=offset)


def test_records_of_nobody() -> None:
    batch = stored(write_records(RECORDS, 5000), 40)
    header = batch.header
    assert list(read_records(batch)) == RECORDS
    assert (header.producer_id, header.producer_epoch) == (-1, -1)
    assert header.base_sequence == NO_SEQUENCE
    assert header.attributes == 0
    assert (header.base_timestamp, header.max_timestamp) == (5000, 5000)


def test_records_of_a_transaction() -> None:
    batch = write_records(
        RECORDS, 5000, producer_id=2**40, producer_epoch=9, base_sequence=0, transactional=True
    )
    NewBatch.parse(bytes(batch.buffer))  # sound as if a client had sent it
    header = stored(batch, 40).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 9, 0)
    assert header.last_sequence == 2
    assert header.is_transactional
    assert not header.is_control


@pytest.mark.parametrize("transactional", [False, True])
def test_the_compiled_reader_reads_the_same(transactional: bool) -> None:
    new = write_records(RECORDS, 5000, transactional=transactional)
    columns = decode([stored(new, 40)])
    assert columns["key"].to_pylist() == [each.key for each in RECORDS]
    assert columns["value"].to_pylist() == [each.value for each in RECORDS]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193])
@pytest.mark.parametrize("has_null", [False, True])
def test_values_alone_are_read_with_their_numbers_and_times(count: int, has_null: bool) -> None:
    """Numbers, lengths and times become a byte longer at some places, each by itself."""
    values: list[bytes | None] = [bytes(number % 131) for number in range(count)]
    if has_null:
        values[count // 2] = None
    changes = {0: 5000, 1: 5001, 63: 5063, 64: 5064, 70: 4991, 8192: 10**9}
    times = [(first, time) for first, time in changes.items() if first < count]
    batch = seal(
        write_section(values, times),
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=5000,
        max_timestamp=max(time for _, time in times),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )
    rows = decode([stored(batch, 40)])
    assert rows.column("value").to_pylist() == values
    assert rows.column("offset").to_pylist() == list(range(40, 40 + count))
    latest = accumulate(range(count), lambda last, number: changes.get(number, last), initial=0)
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == list(latest)[1:]


def test_each_record_has_its_offset() -> None:
    batch = stored(write_records(RECORDS, 5000), 40)
    assert list(read_placed(batch)) == list(enumerate(RECORDS, 40))


def test_records_that_compaction_has_left_keep_their_offsets() -> None:
    whole = stored(write_records(RECORDS, 5000), 40)
    section = bytes(whole.buffer[61:])
    first = section[0] // 2 + 1  # its length, zigzag, and the byte that says so
    header = whole.header._replace(record_count=2)
    left = StoredBatch(header, memoryview(bytes(whole.buffer[:61]) + section[first:]))
    assert list(read_placed(left)) == [(41, RECORDS[1]), (42, RECORDS[2])]
