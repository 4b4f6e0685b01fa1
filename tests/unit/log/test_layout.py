"""Where a log is cut into files is the same before and after a crash, though recovery comes before
anybody could say how the log is configured."""

from __future__ import annotations

import random

import pytest

from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.testing.background import SimBackground
from onceflow.testing.disk import SimDisk
from tests.unit.log.simulated_store import NOW_MS, RAND, append, log_id, new_batch, open_store

DEFAULT = StoreConfig(reserve_bytes=0)
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)
SHORT = LogConfig(segment_ms=50)


def cut(log: PartitionLog) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.size) for segment in log.segments]


def filled(store: LogStore, log: PartitionLog, count: int = 20) -> None:
    for _ in range(count):
        append(store, log, new_batch(timestamp=NOW_MS + 10 * log.end_offset))


def crashed(disk: SimDisk, settings: StoreConfig = DEFAULT) -> LogStore:
    return open_store(SimDisk(disk.tree), settings)


def test_a_replay_cuts_a_log_as_it_was_cut() -> None:
    disk = SimDisk()
    store = open_store(disk, DEFAULT)
    store.create("orders", [log_id(1), log_id(2), log_id(3)])
    logs = [store.logs[log_id(number)] for number in (1, 2, 3)]
    store.configure(logs[0], SMALL)
    store.configure(logs[1], SHORT)
    for log in logs:
        filled(store, log)
    assert [len(log.segments) for log in logs] == [4, 4, 1]
    again = crashed(disk)
    assert not again.report.clean
    assert [cut(again.logs[log.log_id]) for log in logs] == [cut(log) for log in logs]

    store.request_checkpoint()  # what comes behind it is cut by what it says
    for log in logs:
        filled(store, log)
    again = crashed(disk)
    assert again.report.entries == 60
    assert [cut(again.logs[log.log_id]) for log in logs] == [cut(log) for log in logs]
    store.close()
    store = open_store(disk, DEFAULT)  # and so it is by a store that has not been told anew
    filled(store, store.logs[log_id(1)])
    again = crashed(disk)
    assert max(size for _, size in cut(again.logs[log_id(1)])) <= 1000


def test_a_config_that_changes_on_the_way_changes_the_cut_there() -> None:
    disk = SimDisk()
    store = open_store(disk, DEFAULT)
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    for config in (LogConfig(), SMALL, LogConfig(segment_bytes=500), LogConfig(), SMALL):
        store.configure(log, config)
        filled(store, log)
        assert cut(crashed(disk).logs[log_id(1)]) == cut(log)


def test_a_log_that_is_told_the_same_again_writes_nothing() -> None:
    disk = SimDisk()
    store = open_store(disk, DEFAULT)
    store.create("orders", [log_id(1), log_id(2)])
    store.configure(store.logs[log_id(1)], SMALL)
    store.configure(store.logs[log_id(2)], LogConfig(retention_ms=5))
    filled(store, store.logs[log_id(1)])
    store.close()
    store = open_store(disk, DEFAULT)
    before = store.waiting_bytes
    store.configure(store.logs[log_id(1)], SMALL)
    store.configure(store.logs[log_id(2)], LogConfig(retention_ms=7))
    assert store.waiting_bytes == before
    assert store.logs[log_id(2)].config.retention_ms == 7


def test_a_log_without_a_layout_of_its_own_follows_the_default() -> None:
    disk = SimDisk()
    store = open_store(disk, DEFAULT)
    store.create("orders", [log_id(1)])
    store.configure(store.logs[log_id(1)], LogConfig(retention_ms=5))
    filled(store, store.logs[log_id(1)])
    again = crashed(disk, StoreConfig(log=SMALL, reserve_bytes=0))
    assert len(again.logs[log_id(1)].segments) == 4


def test_without_a_journal_the_files_are_taken_as_they_are() -> None:
    settings = StoreConfig(durability=Durability.OS, reserve_bytes=0)
    disk = SimDisk()
    store = open_store(disk, settings)
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    store.configure(log, SMALL)
    filled(store, log)
    assert cut(crashed(disk, settings).logs[log_id(1)]) == cut(log)


@pytest.mark.parametrize("seed", range(6))
def test_checkpoints_at_any_time_and_a_journal_that_starts_anew_change_nothing(seed: int) -> None:
    rand, background = random.Random(seed), SimBackground(random.Random(seed))
    journal = JournalConfig(first_file_bytes=8192, largest_file_bytes=16384, files=2)
    settings = StoreConfig(journal=journal, reserve_bytes=0)
    disk = SimDisk()
    store = LogStore.open(disk, background, RAND, settings)
    created = store.create("orders", [log_id(1)])
    background.wait(lambda: created.done)
    log = store.logs[log_id(1)]
    for step in range(200):
        if step % 40 == 10:
            store.configure(log, LogConfig(segment_bytes=rand.choice((400, 1000, 3000))))
        append(store, log, new_batch())
        if rand.random() < 0.05:
            store.request_checkpoint()
        for _ in range(rand.choice((0, 1, 5, 20))):
            background.step()
    background.close()
    assert cut(crashed(disk, settings).logs[log_id(1)]) == cut(log)
