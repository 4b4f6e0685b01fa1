"""What the store promises while nothing goes wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from onceflow.checksum import crc32c
from onceflow.errors import (
    LogCorrupt,
    LogExists,
    NewerFormat,
    OffsetOutsideLog,
    PathInUse,
    StoreBusy,
)
from onceflow.log.checkpoint import PATH, Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.journal import Ticket
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.store import LogStore, StoreConfig
from onceflow.log.urgency import Purpose
from onceflow.records.batch import iter_stored
from onceflow.records.columns import encode
from onceflow.runtime.background import Background, Inline, Threads
from onceflow.runtime.disk import Access, RealDisk
from onceflow.testing.background import SimBackground
from onceflow.testing.disk import SimDisk, SyncWrite
from tests.unit.log.simulated_store import (
    NOW_MS,
    RAND,
    append,
    log_id,
    new_batch,
    offsets,
    open_store,
    small_segments,
    store_with_log,
)


def test_an_append_is_readable_at_its_offset() -> None:
    _, store, log = store_with_log()
    assert append(store, log, new_batch(3)).done
    assert append(store, log, new_batch(2)).done
    assert (log.start_offset, log.high_watermark, log.end_offset) == (0, 5, 5)
    for offset in (3, 4):
        (batch,) = iter_stored(log.read(offset, 1000).read())
        assert (batch.header.base_offset, batch.header.record_count) == (3, 2)
    assert log.read(5, 1000).length == 0


@pytest.mark.parametrize("offset", [-1, 6])
def test_an_offset_outside_the_log_is_refused_by_name(offset: int) -> None:
    _, store, log = store_with_log()
    append(store, log, new_batch(5))
    with pytest.raises(OffsetOutsideLog, match=r"orders-0 is outside 0\.\.5"):
        log.read(offset, 100)


def test_a_read_gives_whole_batches_of_about_the_size_asked_for() -> None:
    _, store, log = store_with_log(small_segments(segment_bytes=100_000))
    for _ in range(50):
        append(store, log, new_batch(1, size=139))  # 200 bytes each
    data = log.read(10, 1500).read()
    assert 800 <= len(data) <= 1500
    assert next(batch.header.base_offset for batch in iter_stored(data)) == 10
    assert sum(batch.header.size for batch in iter_stored(data)) == len(data)
    assert log.read(10, 1).length == 200
    assert [
        each.header.base_offset for each in iter_stored(log.read(10, 10**6, until=13).read())
    ] == [
        10,
        11,
        12,
    ]


def test_nothing_is_shown_before_it_is_durable_and_one_write_serves_all_who_wait() -> None:
    disk = SimDisk()
    background = SimBackground(random.Random(1))  # one that does no write at once
    store = LogStore.open(disk, background, RAND, StoreConfig(reserve_bytes=0))
    created = store.create("orders", [log_id(1), log_id(2)])
    background.wait(lambda: created.done)
    one, two = store.logs[log_id(1)], store.logs[log_id(2)]
    before = sum(isinstance(op, SyncWrite) for op in disk.ops)
    first = append(store, one, new_batch())
    background.wait(lambda: isinstance(disk.ops[-1], SyncWrite))  # written, but nobody knows yet
    others = [append(store, log, new_batch()) for log in (one, two, one)]
    assert not first.done
    assert (one.high_watermark, one.end_offset) == (0, 3)
    assert one.read(0, 1000).length == 0
    background.wait(lambda: first.done)
    assert (one.high_watermark, two.high_watermark) == (1, 0)
    background.wait(lambda: all(ticket.done for ticket in others))
    assert (one.high_watermark, two.high_watermark) == (3, 1)
    assert sum(isinstance(op, SyncWrite) for op in disk.ops) - before == 2


def test_segments_roll_by_size_and_by_age() -> None:
    _, store, log = store_with_log(small_segments(segment_ms=1000))
    for number in range(4):
        append(store, log, new_batch(size=339))  # 400 bytes: two to a segment
        assert len(log.segments) == 1 + number // 2
    for age, segments in ((1000, 2), (1001, 3), (2001, 3), (2002, 4)):
        append(store, log, new_batch(size=9, timestamp=NOW_MS + age))
        assert len(log.segments) == segments
    assert offsets(log) == list(range(8))


def test_a_search_by_time_finds_the_first_record_not_older() -> None:
    _, store, log = store_with_log(small_segments())
    for number in range(20):
        times = [NOW_MS + number * 100 + step for step in (0, 50, 20)]
        columns = pa.record_batch(
            {
                "value": pa.array([b"x" * 60] * 3, pa.binary()),
                "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
            }
        )
        append(store, log, encode(columns))
    assert len(log.segments) > 3
    assert log.offset_for_time(0) == (0, NOW_MS)
    assert log.offset_for_time(NOW_MS + 700) == (21, NOW_MS + 700)
    assert log.offset_for_time(NOW_MS + 730) == (22, NOW_MS + 750)
    assert log.offset_for_time(NOW_MS + 1951) is None
    assert log.max_timestamp() == (58, NOW_MS + 1950)
    store.delete_records(log, 23)
    assert log.offset_for_time(NOW_MS + 700) == (23, NOW_MS + 720)


def test_retention_by_time_and_by_size_moves_the_start_and_frees_the_files() -> None:
    disk, store, log = store_with_log(small_segments(retention_ms=5000, retention_bytes=-1))
    for number in range(10):
        append(store, log, new_batch(size=339, timestamp=NOW_MS + number * 1000))
    store.enforce_retention(NOW_MS + 9000)
    assert log.start_offset == 4  # 0 to 3 are older than 5 s; whole segments go
    assert offsets(log) == [4, 5, 6, 7, 8, 9]
    log.config = LogConfig(segment_bytes=1000, retention_ms=-1, retention_bytes=800)
    store.enforce_retention(NOW_MS)
    assert log.start_offset == 8
    names = {entry.name[:20] for entry in disk.entries(log.directory)}
    assert names == {f"{8:020}"}


def test_a_log_whose_records_all_expire_goes_on_at_its_end() -> None:
    disk, store, log = store_with_log(small_segments(retention_ms=1000))
    append(store, log, new_batch(3))
    store.enforce_retention(NOW_MS + 10_000)
    assert (log.start_offset, log.end_offset, log.size) == (3, 3, 0)
    append(store, log, new_batch(2, timestamp=NOW_MS + 10_000))
    store.close()
    log = open_store(disk).logs[log_id(1)]
    assert (log.start_offset, log.end_offset, offsets(log)) == (3, 5, [3])


def test_delete_records_hides_them_at_once_and_for_good() -> None:
    disk, store, log = store_with_log(small_segments())
    for _ in range(6):
        append(store, log, new_batch(2, size=339))
    assert store.delete_records(log, 7).done
    with pytest.raises(OffsetOutsideLog):
        log.read(6, 100)
    (batch,) = iter_stored(log.read(7, 1).read())
    assert batch.header.base_offset == 6  # the batch that holds offset 7
    with pytest.raises(OffsetOutsideLog, match="high watermark is 12"):
        store.delete_records(log, 13)
    store.close()
    assert open_store(disk).logs[log_id(1)].start_offset == 7


def test_truncation_cuts_between_batches_and_the_log_goes_on_there() -> None:
    disk, store, log = store_with_log(small_segments())
    for _ in range(6):
        append(store, log, new_batch(2, size=339))
    with pytest.raises(OffsetOutsideLog, match="inside a batch"):
        store.truncate(log, 5)
    store.truncate(log, 4)
    assert (log.high_watermark, log.end_offset) == (4, 4)
    append(store, log, new_batch(5, size=20))
    store.close()
    log = open_store(disk).logs[log_id(1)]
    assert offsets(log) == [0, 2, 4]
    assert log.end_offset == 9


def test_a_deleted_log_is_gone_and_its_name_is_free() -> None:
    disk, store, log = store_with_log()
    append(store, log, new_batch())
    assert store.delete([log]).done
    store.create("orders", [log_id(2)])
    store.request_checkpoint()
    assert [entry.name for entry in disk.entries(".") if entry.name.startswith("orders")] == [
        store.logs[log_id(2)].directory
    ]
    store.close()
    assert list(open_store(disk).logs) == [log_id(2)]


def test_partitions_are_created_all_or_none() -> None:
    _, store, log = store_with_log()
    with pytest.raises(LogExists):
        store.create("orders", [log_id(9), log.log_id])
    assert list(store.logs) == [log.log_id]


def test_two_processes_cannot_open_one_directory(tmp_path: Path) -> None:
    store = LogStore.open(RealDisk(tmp_path), Inline(), RAND, StoreConfig())
    with pytest.raises(PathInUse, match="in use by another process"):
        LogStore.open(RealDisk(tmp_path), Inline(), RAND, StoreConfig())
    store.close()
    LogStore.open(RealDisk(tmp_path), Inline(), RAND, StoreConfig()).close()


def test_a_directory_of_a_newer_version_is_refused() -> None:
    disk, store, _ = store_with_log()
    store.close()
    file = disk.open(PATH, Access.WRITE)
    file.truncate(0)
    file.pwrite(0, b"onceflow-checkpoint 9 %08x\n{}\n" % crc32c(b"9{}"))
    with pytest.raises(NewerFormat, match="format 9, this version of Onceflow knows up to 3"):
        open_store(disk)


def test_logs_without_a_checkpoint_are_refused_not_forgotten() -> None:
    disk, store, _ = store_with_log()
    store.close()
    disk.unlink(PATH)
    with pytest.raises(LogCorrupt, match="no file 'checkpoint'"):
        open_store(disk)


@pytest.mark.parametrize("first", Durability)
@pytest.mark.parametrize("second", Durability)
def test_the_durability_can_be_changed_between_two_starts(
    first: Durability, second: Durability
) -> None:
    disk = SimDisk()
    store = LogStore.open(disk, Inline(), RAND, StoreConfig(durability=first, reserve_bytes=0))
    store.create("orders", [log_id(1)])
    append(store, store.logs[log_id(1)], new_batch(3))
    # No stop: the second start has to recover what the first one left.
    disk = SimDisk(disk.tree)
    store = LogStore.open(disk, Inline(), RAND, StoreConfig(durability=second, reserve_bytes=0))
    assert offsets(store.logs[log_id(1)]) == [0]
    assert disk.exists("journal") == (second is Durability.FSYNC)
    assert append(store, store.logs[log_id(1)], new_batch(3)).done


def test_too_much_waiting_is_refused_without_a_trace() -> None:
    config = StoreConfig(journal=JournalConfig(gathered_bytes=1100), reserve_bytes=0)
    background = SimBackground(random.Random(2))
    store = LogStore.open(SimDisk(), background, RAND, config)
    ticket = store.create("orders", [log_id(1)])
    background.wait(lambda: ticket.done)
    log = store.logs[log_id(1)]
    taken = [append(store, log, new_batch(size=239)) for _ in range(3)]
    with pytest.raises(StoreBusy):
        append(store, log, new_batch(size=239))
    assert log.end_offset == 3
    background.wait(lambda: all(each.done for each in taken))
    assert log.high_watermark == 3
    append(store, log, new_batch(size=239))


def test_what_nobody_waits_for_does_not_keep_others_out() -> None:
    """Lazy entries alone can fill the group that gathers: whoever is refused makes them go."""
    config = StoreConfig(journal=JournalConfig(gathered_bytes=1100), reserve_bytes=0)
    background = SimBackground(random.Random(2))
    store = LogStore.open(SimDisk(), background, RAND, config)
    ticket = store.create("orders", [log_id(1)])
    background.wait(lambda: ticket.done)
    log = store.logs[log_id(1)]
    for _ in range(3):
        lazy = new_batch(size=239).assign(log.end_offset, 0)
        store.append(log, lazy, purpose=Purpose.TRANSACTION_GROWS)
    with pytest.raises(StoreBusy):
        append(store, log, new_batch(size=239))
    background.wait(lambda: log.high_watermark == 3)
    append(store, log, new_batch(size=239))


def wait_for(background: Background, ticket: Ticket) -> None:
    background.wait(lambda: ticket.done)


def test_the_journal_starts_small_grows_with_use_and_reuses_its_files(tmp_path: Path) -> None:
    background = Threads()
    config = StoreConfig(
        journal=JournalConfig(first_file_bytes=1 << 16, largest_file_bytes=1 << 19, files=2)
    )
    store = LogStore.open(RealDisk(tmp_path), background, RAND, config)
    sizes = [[path.stat().st_size for path in (tmp_path / "journal").iterdir()]]
    assert sizes == [[1 << 16]]
    created = store.create("orders", [log_id(1)])
    background.wait(lambda: created.done)
    log = store.logs[log_id(1)]
    for _ in range(300):
        wait_for(background, append(store, log, new_batch(size=20_000)))
    store.close()
    background.close()
    files = sorted(path.stat().st_size for path in (tmp_path / "journal").iterdir())
    assert files[-1] == 1 << 19  # 6 MB went through at most 2 files of 512 KB and a smaller one
    assert sum(files) <= 3 << 19
    assert (tmp_path / "journal").stat().st_mode & 0o077 == 0


def test_a_clean_start_has_nothing_to_recover_and_an_unclean_one_says_what_it_did() -> None:
    disk, store, log = store_with_log()
    append(store, log, new_batch(3, size=200))
    crashed = SimDisk(disk.tree)
    store.close()
    assert open_store(disk).report.clean
    report = open_store(crashed).report
    assert not report.clean
    assert (report.groups, report.entries) == (2, 2)
    assert report.replayed_bytes == 261 + len("orders")
