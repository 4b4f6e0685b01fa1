"""A log that is to be compacted again while the checkpoint still speaks of the last time."""

from __future__ import annotations

from onceflow.log.checkpoint import read_checkpoint
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore
from onceflow.runtime.background import JobLane
from onceflow.testing.disk import SimDisk
from tests.unit.log.compaction.keyed_log import config, keyed, records, seal_active
from tests.unit.log.simulated_store import NOW_MS, RAND, Held, append, log_id, open_store

SETTINGS = config(min_cleanable_dirty_ratio=0)


def dirtied(store: LogStore, log: PartitionLog, mark: bytes) -> None:
    """Some batches: of each one record has a key of all, one a key that comes every time again, and
    one a key that never does. So of each batch something is left, and a little less every time."""
    for number in range(4):
        keys = (b"all", b"%d" % number, b"%d%s" % (number, mark))
        append(store, log, keyed([(key, b"1") for key in keys]))
    seal_active(store, log)


def swapped(disk: SimDisk) -> tuple[int, ...]:
    """Of which compacted files the checkpoint says that their names may not be the last."""
    checkpoint = read_checkpoint(disk)
    assert checkpoint is not None
    return checkpoint.logs[0].swapped


def test_no_compaction_starts_while_a_recovery_would_take_its_files_for_those_of_the_last() -> None:
    disk, background = SimDisk(), Held()
    store = LogStore.open(disk, background, RAND, SETTINGS)
    store.create("state", [log_id(1)])
    log = store.logs[log_id(1)]
    dirtied(store, log, b"x")
    store.request_checkpoint()
    background.held = {JobLane.BULK, JobLane.COMPACT}
    store.compact(NOW_MS + 1000)
    dirtied(store, log, b"y")
    background.let_go()  # it has compacted what was there when it began
    background.let_go()  # the checkpoint that names the new files, and all of the log
    background.let_go()  # the old ones go; the checkpoint that forgets them waits
    assert swapped(disk)
    expected = records(log)
    store.compact(NOW_MS + 2000)
    background.held.remove(JobLane.COMPACT)
    background.let_go(JobLane.COMPACT)
    killed = open_store(SimDisk(disk.tree), SETTINGS)
    assert records(killed.logs[log.log_id]) == expected
    background.held.clear()
    background.let_go()
    store.request_checkpoint()
    assert not swapped(disk)
    store.compact(NOW_MS + 3000)
    latest = [2, 5, 8, 11, 12, 14, 15, 17, 18, 20, 21, 22, 23, 24, 25]
    assert [offset for offset, _, _ in records(log)] == latest
    assert not [each.name for each in disk.entries(log.directory) if "cleaned" in each.name]
    store.close()
    again = open_store(disk, SETTINGS)
    assert again.report.clean
    assert records(again.logs[log.log_id]) == records(log)
