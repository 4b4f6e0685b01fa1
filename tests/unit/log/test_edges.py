"""Edges at which a log store could go wrong, one by one."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from onceflow.errors import (
    DiskFailed,
    DiskFull,
    InvalidSetting,
    LogCorrupt,
    StoreBusy,
    StoreClosed,
    UnknownLog,
)
from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.format import HEADER_SIZE, seal_group
from onceflow.log.journal.journal import Ticket
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segments.record_rows import SoundRecords
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import Codec, StoredBatch, iter_stored
from onceflow.records.columns import encode
from onceflow.records.control import marker
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import Access
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import crash_images
from onceflow.testing.disk import Link, Op, SimDisk, Sync
from tests.unit.log.simulated_store import (
    NOW_MS,
    RAND,
    append,
    full_for_checkpoints,
    log_id,
    new_batch,
    offsets,
    open_store,
    small_segments,
    store_with_log,
)

ONE_FILE = JournalConfig(
    first_file_bytes=8192, largest_file_bytes=8192, files=1, gathered_bytes=1000
)


def after_power_cut(disk: SimDisk) -> SimDisk:
    """What is left when nothing that was not synced survives."""
    images = crash_images(disk, seed=1, subsets=0, first=len(disk.ops))
    return next(image.disk for image in images if image.kind == "nothing unsynced")


def test_a_reader_that_waits_below_the_high_watermark_skips_nothing() -> None:
    _, store, log = store_with_log()
    for _ in range(10):
        append(store, log, new_batch())
    assert log.read(5, 1000, until=5).length == 0
    append(store, log, new_batch())
    assert next(iter_stored(log.read(5, 1000).read())).header.base_offset == 5


def test_each_group_is_written_once_while_the_journal_grows() -> None:
    config = StoreConfig(
        journal=JournalConfig(first_file_bytes=8192, largest_file_bytes=1 << 16), reserve_bytes=0
    )
    disk, store, log = store_with_log(config)
    for number in range(100):
        append(store, log, new_batch(size=1500))
        assert offsets(open_store(SimDisk(disk.tree)).logs[log.log_id]) == list(range(number + 1))


def test_the_journal_goes_on_in_one_file_when_it_may_not_grow() -> None:
    disk, store, log = store_with_log(StoreConfig(journal=ONE_FILE, reserve_bytes=0))
    for number in range(30):
        assert append(store, log, new_batch(size=900)).done
        assert log.high_watermark == number + 1
    assert [entry.size for entry in disk.entries("journal")] == [8192]
    store.close()


def test_what_waits_goes_on_when_there_is_room_again() -> None:
    disk, store, log = store_with_log(StoreConfig(journal=ONE_FILE, reserve_bytes=0))
    disk.fail = full_for_checkpoints
    tickets: list[Ticket] = []
    while len(tickets) < 50 and not store_is_busy(store, log, tickets):
        pass
    assert [ticket.done for ticket in tickets[-2:]] == [False, False]
    assert store_is_busy(store, log, tickets)
    disk.fail = lambda _: False
    assert store_is_busy(store, log, tickets)  # refused once more, but it sets things going
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert append(store, log, new_batch()).done


def store_is_busy(store: LogStore, log: PartitionLog, tickets: list[Ticket]) -> bool:
    try:
        tickets.append(append(store, log, new_batch()))
    except StoreBusy:
        return True
    return False


@pytest.mark.parametrize("durability", Durability)
def test_a_checkpoint_that_found_no_room_is_made_up_for(durability: Durability) -> None:
    config = StoreConfig(
        durability=durability,
        log=LogConfig(segment_bytes=500),
        reserve_bytes=0,
    )
    disk, store, log = store_with_log(config)
    for _ in range(10):
        append(store, log, new_batch())
    disk.fail = full_for_checkpoints
    with pytest.raises(DiskFull):
        store.truncate(log, 5)
    assert offsets(log) == list(range(10))
    disk.fail = lambda _: False
    store.request_checkpoint()
    assert offsets(open_store(after_power_cut(disk), config).logs[log.log_id]) == list(range(10))


def test_a_failed_sync_in_a_checkpoint_that_someone_waits_for_stops_the_store() -> None:
    disk, store, log = store_with_log()
    append(store, log, new_batch())
    disk.fail = lambda op: isinstance(op, Sync)
    with pytest.raises(DiskFailed):
        store.truncate(log, 0)
    assert store.failure is not None
    assert offsets(open_store(after_power_cut(disk)).logs[log.log_id]) == [0]


def test_a_deleted_log_takes_no_changes() -> None:
    disk, store, log = store_with_log()
    store.delete([log])
    for change in (
        lambda: append(store, log, new_batch()),
        lambda: store.delete_records(log, 0),
        lambda: store.truncate(log, 0),
        lambda: store.delete([log]),
    ):
        with pytest.raises(UnknownLog, match="was deleted"):
            change()
    assert not open_store(SimDisk(disk.tree)).logs


def test_a_closed_store_takes_no_changes_and_closing_twice_is_harmless() -> None:
    disk, store, log = store_with_log()
    store.close()
    again = open_store(disk)
    with pytest.raises(StoreClosed):
        append(store, log, new_batch())
    append(again, again.logs[log.log_id], new_batch())
    store.close()
    assert offsets(open_store(SimDisk(disk.tree)).logs[log.log_id]) == [0]


def test_closing_waits_for_what_is_under_way_even_after_a_failure() -> None:
    disk = SimDisk()
    background = SimBackground(random.Random(3))
    store = LogStore.open(disk, background, RAND, StoreConfig(reserve_bytes=0))
    created = store.create("orders", [log_id(1)])
    background.wait(lambda: created.done)
    store.request_checkpoint()
    store._fail(DiskFailed("simulated"))
    store.close()
    changes = len(disk.ops)
    background.close()
    assert len(disk.ops) == changes


def test_a_record_that_looks_like_a_group_fools_nobody() -> None:
    disk, store, log = store_with_log()
    forged = bytearray(HEADER_SIZE)
    seal_group(
        memoryview(forged),
        incarnation=1,
        sequence=1 << 40,
        file=0,
        position=8192,
        previous_crc=0,
        entry_count=0,
    )
    batch = new_batch(size=8000)
    start = 4096 - HEADER_SIZE - 33  # where a block begins inside the group that holds the batch
    batch.buffer[start : start + len(forged)] = forged
    append(store, log, batch)
    assert open_store(SimDisk(disk.tree)).logs[log.log_id].end_offset == 1


def test_a_journal_that_is_gone_or_cut_short_is_refused() -> None:
    disk, store, log = store_with_log()
    append(store, log, new_batch())
    shortened = SimDisk(disk.tree)
    shortened.open("journal/00000000.journal", Access.WRITE).truncate(8192)
    with pytest.raises(LogCorrupt, match="has 8192 bytes, but it had 1048576"):
        open_store(shortened)
    gone = SimDisk(disk.tree)
    gone.unlink("journal/00000000.journal")
    with pytest.raises(LogCorrupt, match="is missing"):
        open_store(gone)


def timed(log: PartitionLog, store: LogStore, *times: int, codec: Codec = Codec.NONE) -> None:
    columns = pa.record_batch(
        {
            "value": pa.array([b"x"] * len(times), pa.binary()),
            "timestamp": pa.array(list(times), pa.timestamp("ms", "UTC")),
        }
    )
    append(store, log, encode(columns, codec=codec))


def test_searches_by_time_see_durable_records_only() -> None:
    disk = SimDisk()
    background = SimBackground(random.Random(1))
    store = LogStore.open(disk, background, RAND, StoreConfig(reserve_bytes=0))
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    timed(log, store, 100, 300)
    timed(log, store, 200)
    background.wait(lambda: log.high_watermark == 3)
    timed(log, store, 900)
    assert log.max_timestamp() == (1, 300)
    assert log.offset_for_time(500) is None
    store.delete_records(log, 2)
    assert log.max_timestamp() == (2, 200)
    background.wait(lambda: log.high_watermark == 4)
    assert log.max_timestamp() == (3, 900)


@pytest.mark.parametrize("codec", list(Codec))
def test_searches_by_time_look_inside_a_batch(codec: Codec) -> None:
    _, store, log = store_with_log()
    timed(log, store, 100, 500, 300, 500, 200, codec=codec)
    timed(log, store, 400, 450, codec=codec)
    timed(log, store, 600, codec=codec)
    found = {time: log.offset_for_time(time) for time in (0, 100, 101, 500, 501, 600, 601)}
    assert found == {
        0: (0, 100),
        100: (0, 100),
        101: (1, 500),
        500: (1, 500),
        501: (7, 600),
        600: (7, 600),
        601: None,
    }
    store.delete_records(log, 2)
    assert log.offset_for_time(101) == (2, 300)
    assert log.offset_for_time(301) == (3, 500)
    store.delete_records(log, 4)
    assert log.offset_for_time(250) == (5, 400)


def test_a_search_by_time_reads_no_batch_that_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store, log = store_with_log()
    timed(log, store, 900, 10)
    for _ in range(50):
        timed(log, store, 20)
    timed(log, store, 900)
    store.delete_records(log, 1)
    read: list[int] = []
    add = SoundRecords.add

    def counted(self: SoundRecords, batch: StoredBatch) -> None:
        read.append(batch.header.base_offset)
        add(self, batch)

    monkeypatch.setattr(SoundRecords, "add", counted)
    assert log.offset_for_time(800) == (52, 900)
    assert read == [0, 52]


def test_the_latest_record_may_be_a_marker() -> None:
    _, store, log = store_with_log()
    timed(log, store, 100, 200)
    append(store, log, marker(7, 0, commit=True, coordinator_epoch=0, timestamp_ms=900))
    assert log.max_timestamp() == (2, 900)
    assert log.offset_for_time(201) == (2, 900)


def test_retention_needs_no_index_and_is_not_fooled_by_a_short_one() -> None:
    config = small_segments(retention_ms=1000, index_interval_bytes=0)
    disk, store, log = store_with_log(config)
    for number in range(12):
        append(store, log, new_batch(timestamp=NOW_MS + number * 100))
    store.close()
    path = log.segments[0].path("timeindex")
    file = disk.open(path, Access.WRITE)
    file.truncate(file.size() - 24)
    store = open_store(disk, config)
    store.enforce_retention(NOW_MS + 1500)
    log = store.logs[log.log_id]
    assert log.start_offset == 0  # the last record of the first segment is just young enough
    assert log.segments[0]._indexes is None
    store.enforce_retention(NOW_MS + 1501)
    assert log.start_offset == 6


def test_indexes_of_sealed_segments_are_not_kept_in_memory() -> None:
    _, store, log = store_with_log(small_segments())
    for _ in range(30):
        append(store, log, new_batch())
    store.request_checkpoint()
    assert all(segment._indexes is None for segment in log.segments[:-1])
    assert offsets(log) == list(range(30))


def test_the_leftovers_of_a_deleted_log_are_removed_at_a_clean_start() -> None:
    disk, store, log = store_with_log()
    store.close()
    disk.mkdir("old-0.AAAAAAAAAAAAAAAAAAAAAg.deleted")
    disk.open("old-0.AAAAAAAAAAAAAAAAAAAAAg.deleted/00000000000000000000.log", Access.CREATE)
    disk.mkdir("lost+found")
    again = open_store(disk)
    assert again.report.clean
    names = [entry.name for entry in disk.entries(".") if entry.is_dir]
    assert names == ["journal", "lost+found", log.directory]


def test_a_topic_may_have_more_partitions_than_fit_the_journal_s_first_memory() -> None:
    disk = SimDisk()
    background = SimBackground(random.Random(1))  # all of it gathers in one group
    store = LogStore.open(disk, background, RAND, StoreConfig(reserve_bytes=0))
    ids = [log_id(1, partition) for partition in range(1000)]
    ticket = store.create("t" * 249, ids)
    background.wait(lambda: ticket.done)
    assert list(open_store(SimDisk(disk.tree)).logs) == ids


def test_without_a_journal_a_creation_waits_for_room_and_so_does_what_is_appended() -> None:
    config = StoreConfig(durability=Durability.OS, reserve_bytes=0)
    disk, store, log = store_with_log(config)
    disk.fail = full_for_checkpoints
    created = store.create("more", [log_id(5)])
    more = store.logs[log_id(5)]
    appended = append(store, more, new_batch())
    assert append(store, log, new_batch()).done
    tickets = [created, appended, store.flush()]
    assert [ticket.done for ticket in tickets] == [False] * 3
    assert more.high_watermark == 0
    disk.fail = lambda _: False
    store.look_again()
    assert [ticket.done for ticket in tickets] == [True] * 3
    assert more.high_watermark == 1
    assert append(store, more, new_batch()).done
    assert list(open_store(after_power_cut(disk), config).logs) == [log.log_id, log_id(5)]


def test_an_empty_segment_that_a_killed_run_began_outlives_a_power_cut() -> None:
    """Its name was in the page cache alone, and the start after the kill had nothing to sync."""
    config = StoreConfig(durability=Durability.OS, reserve_bytes=0)
    disk, background = SimDisk(), SimBackground(random.Random(1))
    store = LogStore.open(disk, background, RAND, config)
    created = store.create("orders", [log_id(1)])
    background.wait(lambda: created.done)
    log = store.logs[log_id(1)]
    append(store, log, new_batch(3))
    store.request_checkpoint()
    while background.step():
        pass
    store.delete_records(log, 3)  # nothing is stepped any more: no checkpoint comes to its end
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    disk.unlock("lock")  # as by kill -9
    open_store(disk, config)
    survived = open_store(after_power_cut(disk), config)
    assert survived.logs[log_id(1)].end_offset == 3
    assert append(survived, survived.logs[log_id(1)], new_batch()).done


def test_old_records_go_even_when_there_is_no_room_for_a_new_segment() -> None:
    disk, store, log = store_with_log(small_segments(retention_ms=1000))
    append(store, log, new_batch(3))

    def full_for_segments(op: Op) -> bool:
        if isinstance(op, Link) and op.name.endswith(".log"):
            raise DiskFull("simulated")
        return False

    disk.fail = full_for_segments
    store.enforce_retention(NOW_MS + 10_000)
    assert (log.start_offset, log.end_offset) == (3, 3)
    disk.fail = lambda _: False
    append(store, log, new_batch(timestamp=NOW_MS + 10_000))
    assert offsets(open_store(SimDisk(disk.tree)).logs[log.log_id]) == [3]


def test_a_failed_creation_leaves_nothing_behind() -> None:
    disk, store, log = store_with_log()
    names: list[str] = []

    def full_for_the_second_log(op: Op) -> bool:
        if isinstance(op, Link) and op.name.endswith(".log"):
            names.append(op.name)
            if len(names) == 2:
                raise DiskFull("simulated")
        return False

    disk.fail = full_for_the_second_log
    with pytest.raises(DiskFull):
        store.create("more", [log_id(5), log_id(6)])
    disk.fail = lambda _: False
    assert list(store.logs) == [log.log_id]
    assert not [entry.name for entry in disk.entries(".") if entry.name.startswith("more")]
    assert store.create("more", [log_id(5), log_id(6)]).done


@pytest.mark.parametrize(
    ("setting", "value"), [("segment_bytes", 2**31), ("retention_ms", -2), ("segment_ms", 0)]
)
def test_a_setting_outside_its_range_is_named(setting: str, value: int) -> None:
    wrong: Any = {setting: value}
    with pytest.raises(InvalidSetting, match=f"{setting} is {value}; allowed is"):
        LogConfig(**wrong)


def test_all_who_wait_are_told_even_when_one_of_them_fails() -> None:
    _, store, log = store_with_log(disk=SimDisk())
    background = SimBackground(random.Random(1))
    store = LogStore.open(SimDisk(), background, RAND, StoreConfig(reserve_bytes=0))
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    told: list[str] = []

    def fails(_: Exception | None) -> None:
        raise ZeroDivisionError

    append(store, log, new_batch()).add_done_callback(fails)
    append(store, log, new_batch()).add_done_callback(lambda _: told.append("second"))
    with pytest.raises(ZeroDivisionError):
        background.wait(lambda: bool(told))
    assert told == ["second"]
    ticket = append(store, log, new_batch())
    background.wait(lambda: ticket.done)


def test_inline_runs_what_is_asked_for_in_order() -> None:
    inline = Inline()
    seen: list[int] = []

    def outer() -> None:
        inline.soon(lambda: seen.append(2))
        seen.append(1)

    inline.soon(outer)
    assert seen == [1, 2]
