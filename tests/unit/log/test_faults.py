"""What the store does when the disk is damaged, fails or is full."""

from __future__ import annotations

import pytest

from onceflow.errors import DiskFull, LogCorrupt, StoreFailed
from onceflow.log.checkpoint import PATH
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import Access
from onceflow.testing.disk import Op, SimDisk, Sync, SyncWrite, Tree, Write
from tests.unit.log.simulated_store import (
    RAND,
    append,
    log_id,
    new_batch,
    offsets,
    open_store,
    small_segments,
    store_with_log,
)


def flipped(tree: Tree, path: str, position: int, bit: int = 0) -> SimDisk:
    """The same disk with one bit of one file turned over."""
    disk = SimDisk(tree)
    file = disk.open(path, Access.WRITE)
    byte = file.pread(position, 1)
    file.pwrite(position, bytes([byte[0] ^ (1 << bit)]))
    return disk


def crashed_store() -> tuple[SimDisk, PartitionLog]:
    """Three durable groups in the journal, two batches below the checkpoint; no stop."""
    disk, store, log = store_with_log()
    append(store, log, new_batch(1))
    append(store, log, new_batch(2))
    store.request_checkpoint()
    for records in (3, 4, 5):
        append(store, log, new_batch(records))
    return SimDisk(disk.tree), log


def test_a_damaged_group_before_a_whole_one_is_refused_with_file_and_position() -> None:
    disk, _ = crashed_store()
    # The checkpoint covered groups 1 to 3, so 4, 5 and 6 are in blocks 0, 1 and 2 again.
    for position in (20, 100, 4096 + 60):
        damaged = flipped(disk.tree, "journal/00000000.journal", position)
        before = damaged.tree.copy()
        with pytest.raises(LogCorrupt, match=r"journal group \d .*0000\.journal at byte \d+"):
            open_store(damaged)
        assert damaged.tree.files.keys() >= before.files.keys()
        assert all(damaged.tree.files[node] == data for node, data in before.files.items())


def test_a_damaged_last_group_is_taken_for_the_torn_one_that_nobody_was_told_of() -> None:
    disk, log = crashed_store()
    store = open_store(flipped(disk.tree, "journal/00000000.journal", 2 * 4096 + 60))
    assert offsets(store.logs[log.log_id]) == [0, 1, 3, 6]


def test_damage_below_the_checkpoint_is_refused_with_file_and_position() -> None:
    disk, log = crashed_store()
    path = log.active.path("log")
    for position in range(161 + 161):
        if 12 <= position % 161 < 16:
            continue  # the leader epoch lies outside the batch's CRC, and no reader of it exists
        with pytest.raises(LogCorrupt, match=r"0\.log is damaged at byte|ends at"):
            open_store(flipped(disk.tree, path, position))


def test_damage_above_the_checkpoint_is_repaired_from_the_journal() -> None:
    disk, log = crashed_store()
    path = log.active.path("log")
    size = disk.open(path, Access.READ).size()
    for position in range(2 * 161, size, 13):
        store = open_store(flipped(disk.tree, path, position))
        assert offsets(store.logs[log.log_id]) == [0, 1, 3, 6, 10]


def test_a_shortened_or_missing_file_is_refused() -> None:
    disk, log = crashed_store()
    shortened = SimDisk(disk.tree)
    shortened.open(log.active.path("log"), Access.WRITE).truncate(300)
    with pytest.raises(LogCorrupt, match="has 300 bytes, but 322 were durable"):
        open_store(shortened)
    disk.unlink(log.active.path("log"))
    with pytest.raises(LogCorrupt, match="is missing, but 322 were durable"):
        open_store(disk)


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("damage", ["missing", "shorter", "longer"])
def test_a_sealed_segment_must_be_there_whole(stopped: bool, damage: str) -> None:
    disk, store, log = store_with_log(small_segments())
    for _ in range(20):
        append(store, log, new_batch())
    store.request_checkpoint()
    if stopped:
        store.close()
    disk = SimDisk(disk.tree)
    path = log.segments[1].path("log")
    file = disk.open(path, Access.WRITE)
    if damage == "missing":
        disk.unlink(path)
    else:
        file.truncate(file.size() + (1 if damage == "longer" else -1))
    with pytest.raises(LogCorrupt, match=f"{path} (is missing|has 96[57] bytes), but 966 were"):
        open_store(disk, small_segments())


def test_a_file_that_is_not_ours_is_left_alone() -> None:
    disk, log = crashed_store()
    for name in ("notes.txt", "00000000000000000000.producers", "7.log"):
        disk.open(f"{log.directory}/{name}", Access.CREATE)
    open_store(disk)
    assert disk.exists(f"{log.directory}/notes.txt")
    assert disk.exists(f"{log.directory}/7.log")


def test_every_flipped_byte_of_the_checkpoint_is_noticed() -> None:
    disk, _ = crashed_store()
    for position in range(disk.open(PATH, Access.READ).size() - 1):
        with pytest.raises(LogCorrupt, match="checkpoint is not a checkpoint"):
            open_store(flipped(disk.tree, PATH, position, bit=1))


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_a_damaged_index_is_built_anew(suffix: str) -> None:
    disk, store, log = store_with_log(small_segments())
    for number in range(12):
        append(store, log, new_batch(1, timestamp=1000 + number))
    store.close()
    path = log.segments[0].path(suffix)
    size = disk.open(path, Access.READ).size()
    assert size >= 24
    for position in range(size):
        for bit in (0, 3, 7):
            store = open_store(flipped(disk.tree, path, position, bit), small_segments())
            assert offsets(store.logs[log.log_id])[::-1] == list(range(12))[::-1]
            for offset in range(11, -1, -1):
                assert store.logs[log.log_id].read(offset, 1).length == 161


def test_an_unknown_directory_is_moved_aside_not_deleted() -> None:
    name = "payments-0.AAAAAAAAAAAAAAAAAAAAAQ"
    disk, _ = crashed_store()
    for aside in (f"{name}.stray", f"{name}.stray.1", f"{name}.stray.2"):
        disk.mkdir(name)
        disk.open(f"{name}/00000000000000000000.log", Access.CREATE)
        store = open_store(disk)
        assert store.report.strays == (aside,)
        store.close()
    assert all(disk.exists(f"{name}.stray{each}") for each in ("", ".1", ".2"))


@pytest.mark.parametrize("kind", [Write, SyncWrite])
def test_a_failed_journal_write_stops_the_store_for_good(kind: type[Op]) -> None:
    disk = SimDisk()
    failures: list[Exception] = []
    store = LogStore.open(disk, Inline(), RAND, StoreConfig(reserve_bytes=0), failures.append)
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    append(store, log, new_batch())
    acknowledged = offsets(log)
    journal = disk.open("journal/00000000.journal", Access.READ)
    disk.fail = lambda op: (
        isinstance(op, kind) and (kind is SyncWrite or getattr(op, "node", None) == journal._node)
    )
    ticket = append(store, log, new_batch())
    assert isinstance(ticket.error, StoreFailed)
    assert len(failures) == 1
    assert log.high_watermark == 1
    disk.fail = lambda _: False  # the disk is well again, but nobody knows what is on it
    attempts = len(disk.ops)
    with pytest.raises(StoreFailed, match="Restart it"):
        append(store, log, new_batch())
    store.close()
    assert len(disk.ops) == attempts  # no write, no sync was tried again
    assert offsets(open_store(disk).logs[log_id(1)])[:1] == acknowledged


def test_a_failed_sync_of_a_segment_stops_the_store_and_loses_nothing() -> None:
    disk, store, log = store_with_log()
    append(store, log, new_batch())
    disk.fail = lambda op: isinstance(op, Sync)
    store.request_checkpoint()
    assert store.failure is not None
    with pytest.raises(StoreFailed):
        append(store, log, new_batch())
    assert offsets(open_store(SimDisk(disk.tree)).logs[log_id(1)]) == [0]


def fill(store: LogStore, log: PartitionLog, size: int) -> int:
    """Appends until the disk is full; the number of batches that were taken."""
    for count in range(10_000):
        try:
            ticket = append(store, log, new_batch(size=size))
        except DiskFull:
            return count
        assert ticket.done
    raise AssertionError("the disk never fills")


@pytest.mark.parametrize("reserve", [0, 5000])
@pytest.mark.parametrize("size", [100, 777, 3000])
def test_a_full_disk_refuses_keeps_serving_and_heals(reserve: int, size: int) -> None:
    config = StoreConfig(
        journal=JournalConfig(first_file_bytes=8192, largest_file_bytes=8192, files=2),
        reserve_bytes=reserve,
    )
    disk = SimDisk(capacity=60_000)
    disk, store, log = store_with_log(config, disk)
    count = fill(store, log, size)
    assert count > 3
    assert offsets(log) == list(range(count))
    assert log.active.size == disk.open(log.active.path("log"), Access.READ).size()
    assert disk.free_bytes() >= reserve // 2  # a checkpoint may use it
    survived = open_store(SimDisk(disk.tree)).logs[log.log_id]
    assert offsets(survived) == list(range(count))
    disk.capacity = 200_000
    more = fill(store, log, size)
    assert more > count
    assert offsets(log) == list(range(count + more))
    assert store.failure is None
    disk.capacity = None
    store.close()
    assert open_store(disk).report.clean
