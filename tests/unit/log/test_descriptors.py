"""Few descriptors: they do not bound the number of logs, and to run out of them is no failure."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onceflow.errors import DiskFailed, OutOfDescriptors
from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.quarantine import FailedJob
from onceflow.log.segments.open_files import OpenFiles
from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import Access
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import crash_images
from onceflow.testing.disk import Link, Op, Rename, SimDisk, Sync, SyncDir, Write
from tests.unit.log.compaction.keyed_log import compact, keyed, opened, records
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

FEW = 16
"""Open files that the store may have for segments."""
BESIDE = 8
"""For all else: the lock, the journal, what a checkpoint writes."""


def few(**settings: object) -> StoreConfig:
    return StoreConfig(reserve_bytes=0, open_files=FEW, **settings)  # type: ignore[arg-type]


def many(store: LogStore, count: int) -> list[PartitionLog]:
    ids = [log_id(7, partition) for partition in range(count)]
    store.create("many", ids)
    return [store.logs[each] for each in ids]


def exhausted(disk: SimDisk) -> None:
    """As if connections, or another process, had taken all that are left."""
    disk.most_open = 0


def test_a_log_that_nobody_writes_to_holds_no_descriptor() -> None:
    disk, store, _ = store_with_log()
    before = disk.opened.total()
    many(store, 1100)
    assert disk.opened.total() == before
    store.request_checkpoint()
    assert disk.opened.total() == before


@pytest.mark.parametrize("durability", Durability)
def test_more_logs_are_written_to_and_read_than_there_are_descriptors(
    durability: Durability,
) -> None:
    disk = SimDisk()
    disk.most_open = FEW + BESIDE
    store = open_store(disk, few(durability=durability))
    logs = many(store, 100)
    for _ in range(3):
        for log in logs:
            assert append(store, log, new_batch()).done
    assert all(offsets(log) == [0, 1, 2] for log in logs)
    store.close()
    again = open_store(disk, few(durability=durability))
    assert all(offsets(again.logs[log.log_id]) == [0, 1, 2] for log in logs)


def test_a_file_that_is_not_synced_is_not_closed() -> None:
    """Whoever opens it again may miss a write error."""
    disk = SimDisk()
    background = SimBackground(random.Random(1))
    store = LogStore.open(disk, background, RAND, few())
    logs = many(store, 3 * FEW)
    synced: set[int] = set()
    disk.watch = lambda op: synced.add(op.node) if isinstance(op, Sync) else None
    written = logs[: FEW // 2]
    for log in written:
        append(store, log, new_batch())
    with pytest.raises(OutOfDescriptors, match=r"wait for a checkpoint.*ulimit -n"):
        append(store, logs[FEW // 2], new_batch())
    assert not synced
    for log in written:
        node = disk.open(log.active.path("log"), Access.READ)._node
        assert disk.opened[node] >= 1
    assert logs[FEW // 2].end_offset == 0
    # The checkpoint that was asked for lets the rest go on.
    background.wait(lambda: all(log.high_watermark == 1 for log in written))
    store.close()
    assert store.failure is None
    assert len(synced) >= len(written)


def test_a_file_that_is_dirty_again_while_it_is_synced_stays_open() -> None:
    files = OpenFiles(SimDisk(), 8)

    class Segment:
        holds_file = True

        def let_go(self) -> None:
            self.holds_file = False

    segments = [Segment() for _ in range(4)]
    for segment in segments:
        files.dirtied(segment)
    files.dirtied(segments[0])  # appended to while a checkpoint syncs what was there before
    files.synced(segments)
    files._disk.open("a", Access.CREATE)
    files.open_to_append(Segment(), "a", Access.WRITE)
    assert [segment.holds_file for segment in segments] == [True, False, True, True]


def test_readers_keep_the_files_that_they_hold_and_leave_the_rest_to_others() -> None:
    config = StoreConfig(log=LogConfig(segment_bytes=200), reserve_bytes=0, open_files=FEW)
    _, store, log = store_with_log(config)
    for _ in range(40):
        append(store, log, new_batch())
    store.request_checkpoint()
    held = [log.read(offset, 1) for offset in range(FEW // 2)]
    with pytest.raises(OutOfDescriptors, match=r"are being read.*ulimit -n"):
        log.read(20, 1)
    assert append(store, log, new_batch()).done, "appends have a share of their own"
    assert all(span.read() for span in held)
    held.clear()
    assert log.read(20, 1).read()


def test_a_segment_that_cannot_be_rolled_refuses_its_append_without_a_trace() -> None:
    disk, store, log = store_with_log(small_segments())
    for _ in range(6):
        append(store, log, new_batch())
    exhausted(disk)
    for _ in range(3):
        with pytest.raises(OutOfDescriptors):
            append(store, log, new_batch())
    assert (log.end_offset, log.high_watermark, len(log.segments)) == (6, 6, 1)
    assert store.failure is None
    disk.most_open = None
    append(store, log, new_batch())
    assert offsets(open_store(SimDisk(disk.tree)).logs[log.log_id]) == list(range(7))


def test_a_topic_that_cannot_be_made_leaves_nothing_behind() -> None:
    disk, store, log = store_with_log()
    made: list[str] = []

    def stop_at_the_third(op: Op) -> None:
        if isinstance(op, Link) and op.name.endswith(".log"):
            made.append(op.name)
            if len(made) == 3:
                exhausted(disk)

    disk.watch = stop_at_the_third
    with pytest.raises(OutOfDescriptors):
        many(store, 5)
    assert list(store.logs) == [log.log_id]
    assert store.failure is None
    disk.most_open = None
    assert not [entry.name for entry in disk.entries(".") if entry.name.startswith("many")]


@pytest.mark.parametrize("durability", Durability)
def test_a_checkpoint_that_finds_no_descriptor_is_made_up_for(durability: Durability) -> None:
    config = StoreConfig(durability=durability, log=LogConfig(segment_bytes=500), reserve_bytes=0)
    disk, store, log = store_with_log(config)
    gone = many(store, 2)
    for _ in range(10):
        append(store, log, new_batch())
    before = disk.opened.total()
    store.delete(gone[:1])
    exhausted(disk)
    ticket = store.delete(gone[1:])
    store.request_checkpoint()
    assert store.failure is None
    assert disk.exists(gone[1].directory)
    assert ticket.done is (durability is Durability.FSYNC)  # without a journal it is not durable
    disk.most_open = None
    store.look_again()
    assert ticket.done
    assert not any(disk.exists(log.directory) for log in gone)
    assert disk.opened.total() <= before
    again = open_store(SimDisk(disk.tree), config)
    assert offsets(again.logs[log.log_id]) == list(range(10))


def test_files_that_cannot_be_removed_now_are_removed_later() -> None:
    disk, store, _ = store_with_log()
    (gone,) = many(store, 1)

    def stop_at_the_checkpoint(op: Op) -> None:
        before = disk.ops[-2]
        if isinstance(op, SyncDir) and isinstance(before, Rename) and before.new == "checkpoint":
            exhausted(disk)

    disk.watch = stop_at_the_checkpoint
    store.delete([gone])
    assert disk.exists(gone.directory)
    assert store.failure is None
    disk.most_open = None
    store.look_again()
    assert not disk.exists(gone.directory)


@pytest.mark.parametrize("at", ["its file", "its name"])
def test_a_journal_that_cannot_grow_goes_on_and_leaves_no_files(at: str) -> None:
    config = StoreConfig(
        journal=JournalConfig(first_file_bytes=8192, largest_file_bytes=1 << 16, files=4),
        reserve_bytes=0,
    )
    disk, store, log = store_with_log(config)
    tried: list[Op] = []

    def is_refused(op: Op) -> bool:
        if at == "its file":
            return isinstance(op, Link) and op.name.startswith("0000")
        before = disk.ops[-1]
        return (
            isinstance(op, SyncDir)
            and isinstance(before, Rename)
            and before.new.endswith(".journal")
        )

    def refuse(op: Op) -> bool:
        if is_refused(op):
            tried.append(op)
            raise OutOfDescriptors("simulated")
        return False

    disk.fail = refuse
    for number in range(40):
        assert append(store, log, new_batch(size=900)).done
        assert log.high_watermark == number + 1
    assert tried
    assert store.failure is None
    assert [entry.name for entry in disk.entries("journal")] == ["00000000.journal"]


@pytest.mark.parametrize("error", [DiskFailed("simulated"), ZeroDivisionError("simulated")])
@pytest.mark.parametrize("at", ["its zeros", "their sync", "its name", "the sync of its name"])
def test_a_journal_whose_growth_fails_goes_on_and_tries_again_ever_more_rarely(
    error: Exception, at: str
) -> None:
    config = StoreConfig(
        journal=JournalConfig(first_file_bytes=8192, largest_file_bytes=1 << 16, files=4),
        reserve_bytes=0,
    )
    told: list[FailedJob] = []
    disk = SimDisk()
    store = LogStore.open(disk, Inline(), RAND, config, on_failed_job=told.append)
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    disk.fail = fail_growth(at, error)
    for number in range(100):
        assert append(store, log, new_batch(size=900)).done
        assert log.high_watermark == number + 1
    assert store.failure is None
    assert [entry.name for entry in disk.entries("journal")] == ["00000000.journal"]
    assert {(each.job, each.error) for each in told} == {("growth", error)}
    assert 2 < len(told) < 9, "of 100 groups"
    disk.fail = lambda _: False
    for _ in range(100):
        assert append(store, log, new_batch(size=900)).done
    assert len(disk.entries("journal")) > 1
    assert offsets(open_store(SimDisk(disk.tree)).logs[log_id(1)]) == list(range(200))


def fail_growth(at: str, error: Exception) -> Callable[[Op], bool]:
    """Lets every new file of the journal fail at one of the steps in which it is made."""
    nodes: set[int] = set()
    is_named = False

    def is_here(op: Op) -> bool:
        nonlocal is_named
        if isinstance(op, Link) and op.name.startswith("0000") and "unfinished" in op.name:
            nodes.add(op.node)
        was_named, is_named = is_named, isinstance(op, Rename) and op.new.endswith(".journal")
        return {
            "its zeros": isinstance(op, Write) and op.node in nodes,
            "their sync": isinstance(op, Sync) and op.node in nodes,
            "its name": is_named,
            "the sync of its name": was_named and isinstance(op, SyncDir),
        }[at]

    def fail(op: Op) -> bool:
        if is_here(op):
            raise error
        return False

    return fail


def test_a_start_after_a_crash_needs_no_more_descriptors() -> None:
    disk = SimDisk()
    store = open_store(disk, StoreConfig(reserve_bytes=0))
    logs = many(store, 100)
    for log in logs:
        append(store, log, new_batch())
    crashed = SimDisk(disk.tree)
    crashed.most_open = FEW + BESIDE
    again = open_store(crashed, few())
    assert all(offsets(again.logs[log.log_id]) == [0] for log in logs)
    for image in crash_images(crashed, seed=1, subsets=0, first=len(crashed.ops)):
        found = open_store(image.disk, few())
        assert all(offsets(found.logs[log.log_id]) == [0] for log in logs)


def test_without_a_journal_what_a_start_takes_over_is_synced_before_a_checkpoint_says_so() -> None:
    """A killed process leaves what it wrote in the page cache. The start that finds it must sync
    it, or a power cut takes what the checkpoint promises, and no later start goes on."""
    config = StoreConfig(
        durability=Durability.OS, log=LogConfig(segment_bytes=1000), reserve_bytes=0
    )
    disk, store, log = store_with_log(config)
    for _ in range(10):
        append(store, log, new_batch())
    disk.unlock("lock")  # killed: the files are as they are, and nothing of them is synced
    again = open_store(disk, config)
    assert offsets(again.logs[log.log_id]) == list(range(10))
    for image in crash_images(disk, seed=1, subsets=2, first=len(disk.ops)):
        found = open_store(image.disk, config)
        assert offsets(found.logs[log.log_id]) == list(range(10)), image.kind


def test_a_log_of_more_segments_than_descriptors_is_compacted() -> None:
    disk, store, log = opened()
    for number in range(60):
        append(store, log, keyed([(b"k%d" % (number % 5), b"%d" % number)]))
    store.request_checkpoint()
    assert len(log.segments) > 30
    disk.most_open = disk.opened.total() + BESIDE
    compact(store)
    assert len(records(log)) < 12
    assert store.failure is None


def test_a_compaction_that_finds_no_descriptor_is_done_another_time() -> None:
    disk, store, log = opened()
    for number in range(20):
        append(store, log, keyed([(b"k", b"%d" % number)]))
    store.request_checkpoint()
    exhausted(disk)
    store.compact(NOW_MS + 1000)
    assert store.failure is None
    disk.most_open = None
    compact(store)
    assert len(records(log)) < 5
    store.close()
    assert open_store(disk).report.clean


def test_names_that_cannot_be_synced_after_a_compaction_are_synced_later() -> None:
    disk, store, log = opened()
    for number in range(20):
        append(store, log, keyed([(b"k", b"v"), (b"%d" % number, b"v")]))
    store.request_checkpoint()

    def stop_at_the_renaming(op: Op) -> None:
        if isinstance(op, Rename) and op.old.endswith(".cleaned"):
            exhausted(disk)

    disk.watch = stop_at_the_renaming
    store.compact(NOW_MS + 1000)
    assert (log.compaction.is_busy, store.failure) == (True, None)
    disk.most_open = None
    disk.watch = lambda _: None
    compact(store)
    assert (log.compaction.is_busy, store.failure) == (False, None)


def test_a_deleted_log_gives_its_room_back_though_it_was_read_and_written_to() -> None:
    disk, store, log = store_with_log(small_segments())
    for _ in range(50):
        append(store, log, new_batch())
    assert len(offsets(log)) == 50  # all segments have been read
    disk.capacity = 10 << 20
    before = disk.free_bytes()
    store.delete([log])
    assert disk.free_bytes() > before + 45 * 161


def test_a_store_that_is_closed_keeps_no_file_open_for_late_readers() -> None:
    disk, store, log = store_with_log()
    gone = many(store, 1)[0]
    for each in (log, gone):
        append(store, each, new_batch())
    store.delete([gone])
    store.close()
    assert disk.opened.total() == 0
    assert offsets(log) == [0]  # a client's request that came last
    assert disk.opened.total() == 0
