"""Compaction: what stays of a log, what goes, and that nobody who reads meanwhile notices."""

from __future__ import annotations

import pytest

from onceflow.log.config import NO_LIMIT_MS
from onceflow.records.batch import Codec, TimestampType, iter_stored
from onceflow.records.control import marker
from onceflow.records.validate import validate_records
from onceflow.testing.disk import SimDisk
from tests.unit.log.compaction.keyed_log import (
    DAY_MS,
    batches_of,
    compact,
    config,
    keyed,
    opened,
    records,
    seal_active,
    timestamps,
)
from tests.unit.log.producer_companion import ProducerModel, followed_append
from tests.unit.log.simulated_store import NOW_MS, append, open_store


def test_of_each_key_the_latest_record_stays_with_its_offset() -> None:
    disk, store, log = opened()
    for number in range(12):
        append(store, log, keyed([(b"k%d" % (number % 3), b"v%d" % number)] * 2))
    seal_active(store, log)
    before = log.size
    compact(store)
    assert records(log) == [
        (19, b"k0", b"v9"),
        (21, b"k1", b"v10"),
        (23, b"k2", b"v11"),
        (24, b"end", b"x" * 200),
    ]
    assert log.size < before
    assert log.compaction.cleaned_to == 24
    assert not [entry.name for entry in disk.entries(log.directory) if "cleaned" in entry.name]
    store.close()
    again = open_store(disk, config()).logs[log.log_id]
    assert records(again) == records(log)
    assert again.compaction.cleaned_to == 24


def test_a_read_in_a_gap_goes_on_with_the_next_batch_there_is() -> None:
    _, store, log = opened()
    for number in range(10):
        append(store, log, keyed([(b"same", b"%d" % number)]))
    seal_active(store, log)
    compact(store)
    for offset in range(10):
        first = next(iter_stored(log.read(offset, 1).read()))
        assert first.header.base_offset == 9
    assert log.read(3, 1000, until=7).length == 0
    assert next(iter_stored(log.read(10, 1).read())).header.base_offset == 10
    assert log.offset_for_time(NOW_MS) == (9, NOW_MS)
    assert log.max_timestamp() == (9, NOW_MS)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_loses_some_records_keeps_all_else(codec: Codec) -> None:
    _, store, log = opened()
    rows = [(b"a", b"1"), (b"b", b"2" * 300), (None, b"no key"), (b"c", b"")]
    append(store, log, keyed(rows, codec=codec, producer_id=5, sequence=70))
    original = batches_of(log)[0].header
    append(store, log, keyed([(b"a", b"new")]))
    seal_active(store, log)
    compact(store)
    batch = batches_of(log)[0]
    header = batch.header
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 3, 2)
    assert (header.producer_id, header.base_sequence, header.last_sequence) == (5, 70, 73)
    assert header.codec is codec
    assert header._replace(batch_length=0, crc=0, record_count=4) == original._replace(
        batch_length=0, crc=0
    )
    validate_records(batch)
    assert timestamps(batch) == [NOW_MS + 1, NOW_MS + 3]
    assert records(log)[:2] == [(1, b"b", b"2" * 300), (3, b"c", b"")]


def test_a_tombstone_stays_until_its_time_and_then_goes() -> None:
    _, store, log = opened(config(delete_retention_ms=DAY_MS, min_cleanable_dirty_ratio=0))
    append(store, log, keyed([(b"a", b"1"), (b"b", b"2")]))
    append(store, log, keyed([(b"a", None), (b"c", b"3")]))
    seal_active(store, log)
    first_pass = NOW_MS + 5000
    compact(store, first_pass)
    assert records(log)[:3] == [(1, b"b", b"2"), (2, b"a", None), (3, b"c", b"3")]
    batch = batches_of(log)[1]
    assert batch.header.has_delete_horizon
    assert batch.header.base_timestamp == first_pass + DAY_MS
    assert batch.header.max_timestamp == NOW_MS + 1
    validate_records(batch)
    assert timestamps(batch) == [NOW_MS, NOW_MS + 1]

    seal_active(store, log)  # something dirty
    compact(store, first_pass + DAY_MS - 1)
    assert (2, b"a", None) in records(log)
    assert batches_of(log)[1].header.base_timestamp == first_pass + DAY_MS
    seal_active(store, log)
    compact(store, first_pass + DAY_MS)
    assert [record[:2] for record in records(log)[:2]] == [(1, b"b"), (3, b"c")]


@pytest.mark.parametrize("timestamp", [NOW_MS, NOW_MS - 1000 * DAY_MS, -1])
def test_the_last_batch_of_a_producer_stays_as_a_header_while_it_is_remembered(
    timestamp: int,
) -> None:
    """Whatever its timestamp, which its client has chosen."""
    _, store, log = opened(config(min_cleanable_dirty_ratio=0, segment_ms=NO_LIMIT_MS))
    model = ProducerModel(log)
    log.companion = model
    for number in range(4):
        batch = keyed([(b"k", b"v")] * 3, producer_id=7, sequence=3 * number, timestamp=timestamp)
        followed_append(store, log, batch)
    followed_append(store, log, keyed([(b"k", b"last")]))
    followed_append(store, log, keyed([(b"end", b"x" * 200)]))
    compact(store)
    kept = batches_of(log)
    empty = kept[0].header
    assert (empty.base_offset, empty.record_count, empty.producer_id) == (9, 0, 7)
    assert (empty.base_sequence, empty.last_sequence, empty.size) == (9, 11, 61)
    assert [batch.header.base_offset for batch in kept] == [9, 12, 13]
    assert log.max_timestamp() is not None  # a batch without records does not hide the others
    followed_append(store, log, keyed([(b"end", b"x" * 200)]))
    compact(store, NOW_MS + 2000 * DAY_MS)
    assert batches_of(log)[0].header.base_offset == 9
    model.forgets = True
    followed_append(store, log, keyed([(b"end", b"x" * 200)]))
    compact(store, NOW_MS + 2000 * DAY_MS)
    assert all(batch.header.producer_id < 0 for batch in batches_of(log))


def test_without_a_companion_the_last_batch_of_every_producer_stays() -> None:
    _, store, log = opened(config(min_cleanable_dirty_ratio=0))
    append(store, log, keyed([(b"k", b"v")], producer_id=7, sequence=0, timestamp=1))
    append(store, log, keyed([(b"k", b"last")]))
    seal_active(store, log)
    compact(store)
    assert [batch.header.base_offset for batch in batches_of(log)] == [0, 1, 2]


def test_without_a_companion_compaction_ends_at_the_first_transaction() -> None:
    _, store, log = opened()
    append(store, log, keyed([(b"a", b"1")]))
    append(store, log, keyed([(b"a", b"2")]))
    append(store, log, keyed([(b"a", b"txn")], producer_id=3, sequence=0, transactional=True))
    append(store, log, marker(3, 0, commit=True, coordinator_epoch=0, timestamp_ms=NOW_MS))
    append(store, log, keyed([(b"a", b"3")]))
    append(store, log, keyed([(b"a", b"4")]))
    seal_active(store, log)
    compact(store)
    assert [batch.header.base_offset for batch in batches_of(log)] == [1, 2, 3, 4, 5, 6]
    assert log.compaction.cleaned_to == 2


def test_timestamps_of_the_broker_survive() -> None:
    _, store, log = opened()
    batch = keyed([(b"a", b"1"), (b"b", None)])
    store.append(log, batch.assign_log_append_time(0, 0, NOW_MS + 77))
    append(store, log, keyed([(b"a", b"2")]))
    seal_active(store, log)
    compact(store)
    first = batches_of(log)[0]
    assert first.header.timestamp_type is TimestampType.LOG_APPEND
    assert timestamps(first) == [NOW_MS + 77]


def test_small_segments_are_joined_and_emptied_ones_vanish() -> None:
    disk, store, log = opened(config(segment_bytes=400))
    for number in range(40):
        append(store, log, keyed([(b"k%d" % (number % 2), b"x" * 60)]))
    append(store, log, keyed([(b"end", b"x" * 500)]))
    many = len(log.segments)
    compact(store)
    assert many > 10
    assert len(log.segments) == 3
    names = {entry.name for entry in disk.entries(log.directory)}
    assert {name for name in names if name.endswith(".log")} == {
        f"{segment.base_offset:020}.log" for segment in log.segments
    }
    assert records(log)[:2] == [(38, b"k0", b"x" * 60), (39, b"k1", b"x" * 60)]
    store.truncate(log, 39)  # into the part with gaps
    append(store, log, keyed([(b"more", b"y")]))
    recovered = open_store(SimDisk(disk.tree), config(segment_bytes=400)).logs[log.log_id]
    assert records(recovered) == [(38, b"k0", b"x" * 60), (39, b"more", b"y")]


def test_a_segment_of_which_nothing_is_left_vanishes() -> None:
    disk, store, log = opened(config(delete_retention_ms=0, min_cleanable_dirty_ratio=0))
    for number in range(4):
        append(store, log, keyed([(b"a", None if number == 3 else b"1")]))
    seal_active(store, log)
    compact(store)
    seal_active(store, log)
    compact(store, NOW_MS + 2000)
    assert [record[0] for record in records(log)] == [4, 5]
    assert [segment.base_offset for segment in log.segments] == [4, 5]
    recovered = open_store(SimDisk(disk.tree), config()).logs[log.log_id]
    assert records(recovered) == records(log)
    assert recovered.read(0, 1).read() == log.read(0, 1).read() != b""


def test_an_index_that_is_lost_is_built_anew_from_a_segment_with_gaps() -> None:
    disk, store, log = opened(config(segment_bytes=2000))
    for number in range(60):
        append(store, log, keyed([(b"k%d" % (number % 7), b"v" * 30)]))
    append(store, log, keyed([(b"k6", b"x" * 2000)]))
    append(store, log, keyed([(b"end", b"x" * 2000)]))
    compact(store)
    store.close()
    expected = records(log)
    for suffix in ("index", "timeindex"):
        disk.unlink(log.segments[0].path(suffix))
    again = open_store(disk, config(segment_bytes=2000)).logs[log.log_id]
    assert records(again) == expected


def test_a_reader_keeps_the_file_that_it_has_open() -> None:
    _, store, log = opened()
    for number in range(6):
        append(store, log, keyed([(b"k", b"%d" % number)]))
    seal_active(store, log)
    span = log.read(0, 10_000)
    before = span.read()
    compact(store)
    assert span.read() == before != log.read(0, 10_000).read()
