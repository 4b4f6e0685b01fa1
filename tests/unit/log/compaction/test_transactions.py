"""Compaction and transactions, rule by rule; `tests/property` tries them all together."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore
from onceflow.records.control import MarkerType, marker, parse_marker
from onceflow.records.validate import validate_records
from onceflow.runtime.disk import Access
from onceflow.testing.disk import SimDisk
from tests.unit.log.compaction.keyed_log import (
    DAY_MS,
    batches_of,
    compact,
    config,
    keyed,
    opened as opened_without_companion,
)
from tests.unit.log.producer_companion import (
    ProducerModel,
    Record,
    batches_from,
    followed_append,
    read_committed,
    restored,
)
from tests.unit.log.simulated_store import NOW_MS, log_id, open_store

FIRST = NOW_MS + 5000


def opened(**settings: Any) -> tuple[SimDisk, LogStore, PartitionLog]:
    disk, store, log = opened_without_companion(config(min_cleanable_dirty_ratio=0, **settings))
    log.companion = ProducerModel(log)
    return disk, store, log


def forget_producers(log: PartitionLog) -> None:
    """As if they had expired."""
    assert isinstance(log.companion, ProducerModel)
    log.companion.forgets = True


def put(store: LogStore, log: PartitionLog, key: bytes, value: bytes, **batch: Any) -> None:
    followed_append(store, log, keyed([(key, value)], **batch))


def transact(
    store: LogStore, log: PartitionLog, producer: int, key: bytes, *, sequence: int = 0
) -> None:
    put(store, log, key, b"v", producer_id=producer, sequence=sequence, transactional=True)


def end(store: LogStore, log: PartitionLog, producer: int, *, commit: bool, epoch: int = 0) -> None:
    batch = marker(producer, epoch, commit=commit, coordinator_epoch=3, timestamp_ms=NOW_MS)
    followed_append(store, log, batch)


def seal(store: LogStore, log: PartitionLog) -> None:
    """So that there is something new to compact."""
    put(store, log, b"end", b"x" * 200)


def found(log: PartitionLog) -> list[tuple[int, int]]:
    """Base offsets and record counts."""
    return [(batch.header.base_offset, batch.header.record_count) for batch in batches_of(log)]


def seen(log: PartitionLog) -> list[Record]:
    model = log.companion
    assert isinstance(model, ProducerModel)
    return read_committed(batches_from(log, 0), model.aborted(0, log.end_offset))


def test_aborted_records_go_and_displace_nothing() -> None:
    _, store, log = opened()
    put(store, log, b"a", b"old")
    transact(store, log, 7, b"a")
    transact(store, log, 7, b"a", sequence=1)
    end(store, log, 7, commit=False)
    seal(store, log)
    compact(store)
    # Of the last batch of the producer the header stays, and so does what ends it.
    assert found(log) == [(0, 1), (2, 0), (3, 1), (4, 1)]
    assert batches_of(log)[1].header.last_sequence == 1
    assert [record[1:] for record in seen(log)] == [(b"a", b"old"), (b"end", b"x" * 200)]


def test_committed_records_are_like_others() -> None:
    _, store, log = opened()
    put(store, log, b"a", b"old")
    transact(store, log, 7, b"a")
    transact(store, log, 7, b"b", sequence=1)
    end(store, log, 7, commit=True)
    put(store, log, b"b", b"new")
    seal(store, log)
    compact(store)
    assert found(log) == [(1, 1), (2, 0), (3, 1), (4, 1), (5, 1)]
    assert [record[:2] for record in seen(log)] == [(1, b"a"), (4, b"b"), (5, b"end")]


def test_an_open_transaction_holds_up_what_is_behind_it() -> None:
    _, store, log = opened()
    put(store, log, b"a", b"1")
    put(store, log, b"a", b"2")
    transact(store, log, 7, b"z")
    put(store, log, b"a", b"3")
    put(store, log, b"a", b"4")
    seal(store, log)
    compact(store)
    assert found(log) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert log.compaction.cleaned_to == 2
    end(store, log, 7, commit=True)
    seal(store, log)
    compact(store)
    assert found(log) == [(2, 1), (4, 1), (5, 1), (6, 1), (7, 1)]


def test_a_transaction_may_end_behind_the_part_that_is_compacted() -> None:
    _, store, log = opened(segment_bytes=400)
    put(store, log, b"a", b"old")
    transact(store, log, 7, b"a")
    put(store, log, b"pad", b"x" * 400)
    put(store, log, b"pad", b"x" * 400)
    end(store, log, 7, commit=False)  # in the active segment
    compact(store)
    assert log.compaction.cleaned_to == 4
    assert found(log) == [(0, 1), (1, 0), (3, 1), (4, 1)]
    model = log.companion
    assert isinstance(model, ProducerModel)
    assert model.all_aborted == [(7, 1, 4)]  # its marker is not in that part


def test_a_marker_stays_for_its_time_after_the_last_batch_of_its_transaction() -> None:
    _, store, log = opened()
    transact(store, log, 7, b"a")
    end(store, log, 7, commit=True)
    transact(store, log, 7, b"b", sequence=1)
    end(store, log, 7, commit=True)
    put(store, log, b"a", b"new")
    seal(store, log)
    compact(store, FIRST)
    assert found(log) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert not batches_of(log)[0].header.has_delete_horizon  # its batch was still there
    seal(store, log)
    compact(store, FIRST + 1)
    first = batches_of(log)[0]
    assert first.header.has_delete_horizon
    assert first.header.base_timestamp == FIRST + 1 + DAY_MS
    validate_records(first)
    read = parse_marker(first)
    assert read is not None
    assert (read.type, read.coordinator_epoch, read.timestamp_ms) == (MarkerType.COMMIT, 3, NOW_MS)
    seal(store, log)
    compact(store, FIRST + DAY_MS)
    assert found(log)[0] == (1, 1)
    seal(store, log)
    compact(store, FIRST + 1 + DAY_MS)
    assert [offset for offset, _ in found(log)][:2] == [2, 3]  # and these stay for ever
    assert [record[:2] for record in seen(log)][:2] == [(2, b"b"), (4, b"a")]


def test_the_last_marker_of_a_producer_stays_for_its_epoch() -> None:
    _, store, log = opened(delete_retention_ms=0)
    transact(store, log, 7, b"a")
    end(store, log, 7, commit=False, epoch=1)
    for day in range(4):
        seal(store, log)
        compact(store, FIRST + day * DAY_MS)
    assert found(log)[:2] == [(0, 0), (1, 1)]
    alone = ProducerModel(log).apply_all(batches_of(log))
    assert alone.producers[7] == (1, -1)
    forget_producers(log)
    for day in range(10, 14):
        seal(store, log)
        compact(store, FIRST + day * DAY_MS)
    assert all(batch.header.producer_id < 0 for batch in batches_of(log))


def test_the_index_of_aborted_transactions_goes_with_their_records() -> None:
    disk, store, log = opened(segment_bytes=200)
    transact(store, log, 7, b"a")
    end(store, log, 7, commit=False)
    seal(store, log)
    store.request_checkpoint()
    index = log.segments[0].path("txnindex")
    assert disk.exists(index)
    store.compact(FIRST)
    assert found(log) == [(0, 0), (1, 1), (2, 1)]
    assert not disk.exists(index)
    assert not [entry.name for entry in disk.entries(log.directory) if "cleaned" in entry.name]


def test_what_memory_does_not_reach_keeps_its_aborted_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onceflow.log.compaction.cleaner._KEY_MEMORY", 1)
    monkeypatch.setattr("onceflow.log.compaction.cleaner._READ_BYTES", 100)
    disk, store, log = opened(segment_bytes=2000)
    transact(store, log, 7, b"a")
    end(store, log, 7, commit=False)
    put(store, log, b"b", b"1")
    put(store, log, b"b", b"2")
    transact(store, log, 8, b"c")
    end(store, log, 8, commit=False)
    put(store, log, b"pad", b"x" * 2000)
    put(store, log, b"pad", b"x" * 2000)
    compact(store)
    assert log.compaction.cleaned_to == 3
    assert found(log)[:4] == [(0, 0), (1, 1), (2, 1), (3, 1)]
    index = disk.open(log.segments[0].path("txnindex"), Access.READ)
    assert index.pread(0, 100) == struct.pack(">hqqqq", 0, 8, 4, 5, 6)
    model = log.companion
    assert isinstance(model, ProducerModel)
    assert model.all_aborted == [(8, 4, 5)]
    assert [record[0] for record in seen(log)][:2] == [2, 3]


def test_a_snapshot_older_than_what_is_compacted_is_not_used() -> None:
    """It may tell of a transaction whose marker is gone: that would be open for ever."""
    disk, store, log = opened(delete_retention_ms=0)
    transact(store, log, 7, b"a")
    put(store, log, b"b", b"1")  # a snapshot before this has the transaction open
    store.request_checkpoint()
    old = dict(log.snapshots())[1]
    assert ProducerModel.load(log, old).open == {7: 0}
    end(store, log, 7, commit=True)
    transact(store, log, 7, b"a", sequence=1)
    end(store, log, 7, commit=True)
    for number in range(4):
        seal(store, log)
        compact(store, FIRST + number)
    assert 2 not in [offset for offset, _ in found(log)]
    assert [offset for offset, _ in log.snapshots()] == [log.segments[-1].base_offset]
    store.close()
    for entry in disk.entries(log.directory):
        if entry.name.endswith(".producers"):
            disk.unlink(f"{log.directory}/{entry.name}")
    disk.open(f"{log.directory}/{1:020}.producers", Access.CREATE).pwrite(0, old)
    again = open_store(disk, config()).logs[log_id(1)]
    assert list(again.snapshots()) == []
    assert restored(again).open == {}


def test_a_companion_learns_how_far_the_log_is_compacted() -> None:
    disk, store, log = opened()
    transact(store, log, 7, b"a")
    end(store, log, 7, commit=False)
    seal(store, log)
    compact(store)
    store.close()
    again = open_store(disk, config()).logs[log_id(1)]
    model = ProducerModel(again)
    model.all_aborted = [(7, 0, 1)]  # from an old snapshot
    again.companion = model
    assert model.all_aborted == []
