"""What a reader sees of a range: cases by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from onceflow.client.consumer.isolation import NO_EPOCH, PartitionFilter
from onceflow.records.batch import CONTROL_BIT, HEADER_SIZE, TRANSACTIONAL_BIT, StoredBatch, seal
from onceflow.records.control import marker
from onceflow.records.plain import PlainRecord, write_records


def data(
    offset: int, producer_id: int, count: int = 1, *, transactional: bool = True
) -> StoredBatch:
    records = [PlainRecord(None, b"v")] * count
    batch = write_records(
        records,
        0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )
    return batch.assign(offset, 3)


def end(offset: int, producer_id: int, *, commit: bool) -> StoredBatch:
    made = marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp_ms=0)
    return made.assign(offset, 3)


def seen(reader: PartitionFilter, batches: Iterable[StoredBatch]) -> list[int]:
    return [batch.header.base_offset for batch in reader.visible(batches)]


def test_a_producer_that_aborts_and_then_commits_is_hidden_only_in_between() -> None:
    log = [data(0, 7), end(1, 7, commit=False), data(2, 7), end(3, 7, commit=True)]
    reader = PartitionFilter(0, read_committed=True)
    reader.begin([(7, 0)])
    assert seen(reader, log) == [2]
    assert reader.position == 4
    open_to_all = PartitionFilter(0, read_committed=False)
    assert seen(open_to_all, log) == [0, 2]
    assert open_to_all.position == 4


def test_what_does_not_belong_to_a_transaction_is_seen_whoever_wrote_it() -> None:
    reader = PartitionFilter(0, read_committed=True)
    reader.begin([(7, 0)])
    assert seen(reader, [data(0, 7), data(1, 7, transactional=False)]) == [1]


def test_a_new_range_forgets_what_was_hidden_in_the_one_before() -> None:
    # The end of the aborted transaction was compacted away: the broker names it no more.
    reader = PartitionFilter(0, read_committed=True)
    reader.begin([(7, 0)])
    assert seen(reader, [data(0, 7)]) == []
    reader.begin([])
    assert seen(reader, [data(5, 7)]) == [5]


def test_the_position_never_goes_back_and_the_first_batch_may_begin_before_it() -> None:
    reader = PartitionFilter(5, read_committed=True)
    reader.begin([])
    assert seen(reader, [data(0, 7, 2), data(4, 7, 4)]) == [4]
    assert (reader.position, reader.leader_epoch) == (8, 3)
    reader.seek(2)
    assert (reader.position, reader.leader_epoch) == (2, NO_EPOCH)
    assert seen(reader, [data(2, 7)]) == [2]


def test_control_records_of_other_kinds_are_passed_over() -> None:
    key = struct.pack(">hh", 0, 5)
    record = bytes((22, 0, 0, 0, 8)) + key + bytes((2, 1, 0))
    unknown = seal(
        bytearray(HEADER_SIZE) + record,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=-1,
        record_count=1,
    ).assign(1, 0)
    reader = PartitionFilter(0, read_committed=True)
    reader.begin([(7, 0)])
    assert seen(reader, [data(0, 7), unknown, data(2, 7)]) == []
    assert reader.position == 3


def test_a_batch_that_compaction_emptied_moves_the_position() -> None:
    header = data(0, 7).header._replace(record_count=0, last_offset_delta=9)
    reader = PartitionFilter(0, read_committed=True)
    assert seen(reader, [StoredBatch(header, memoryview(b""))]) == []
    assert reader.position == 10
