"""Checkpoints, stops and starts that meet trouble half way: nothing is trusted that was not
written, nobody waits for ever, and what is not needed stops nothing."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from onceflow.errors import DiskFailed, OnceflowError, OutOfDescriptors
from onceflow.log import partition_log
from onceflow.log.checkpoint import Durability
from onceflow.log.checkpointer import Checkpointer
from onceflow.log.config import LogConfig
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.background import Inline, JobLane
from onceflow.runtime.disk import Disk
from onceflow.testing.background import SimBackground
from onceflow.testing.disk import Link, SimDisk, Unlink
from tests.unit.log.simulated_store import (
    NOW_MS,
    RAND,
    Held,
    append,
    log_id,
    new_batch,
    offsets,
    open_store,
    small_segments,
    store_with_log,
)

DAY_MS = 86_400_000
UNSYNCED = StoreConfig(durability=Durability.OS, reserve_bytes=0)


def copy_of(disk: SimDisk) -> SimDisk:
    """What a killed process leaves."""
    return SimDisk(disk.tree.copy())


def open_nodes(disk: SimDisk) -> int:
    return sum(disk.opened.values())


def test_a_stop_waits_for_logs_that_were_just_made() -> None:
    disk, background = SimDisk(), SimBackground(RAND)
    store = LogStore.open(disk, background, RAND, UNSYNCED)
    store.create("orders", [log_id(1)])
    ticket = append(store, store.logs[log_id(1)], new_batch(3))
    store.close()
    assert ticket.done
    assert ticket.error is None
    assert open_store(disk, UNSYNCED).logs[log_id(1)].high_watermark == 3


@pytest.mark.parametrize("error", [OutOfDescriptors("simulated"), DiskFailed("simulated")])
def test_an_index_that_a_stop_could_not_write_is_not_taken_from_an_earlier_one(
    error: OnceflowError, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_segments(segment_bytes=4000, segment_ms=1 << 50, retention_ms=7 * DAY_MS)
    disk, store, log = store_with_log(config)
    append(store, log, new_batch(timestamp=NOW_MS - 8 * DAY_MS))
    store.close()
    store = open_store(disk, config)
    append(store, store.logs[log_id(1)], new_batch(timestamp=NOW_MS))

    def refused(disk: Disk, path: str, data: bytes) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(partition_log, "write_whole", refused)
        store.close()
    store = open_store(disk, config)
    log = store.logs[log_id(1)]
    assert log.active.max_timestamp == NOW_MS
    store.enforce_retention(NOW_MS + 1000)
    assert offsets(log) == [0, 1]


def test_indexes_stay_in_memory_until_they_are_written() -> None:
    """Else the next checkpoint reads them anew, and finds no descriptor in the midst of taking over
    what has to be synced."""
    disk, background = SimDisk(), Held()
    config = replace(small_segments(), open_files=16)
    store = LogStore.open(disk, background, RAND, config)
    store.create("orders", [log_id(1), log_id(2)])
    log, other = store.logs[log_id(1)], store.logs[log_id(2)]
    for _ in range(100):
        append(store, other, new_batch())
        store.request_checkpoint()
    background.held = {JobLane.BULK}
    for _ in range(14):
        append(store, log, new_batch())
    store.request_checkpoint()
    assert len(offsets(log)) == 14
    assert len(offsets(other)) == 100  # the files of the first log are closed for these
    disk.most_open = 0
    background.let_go()  # the checkpoint finds no descriptor, and is due again
    background.held = {JobLane.JOURNAL}
    tickets = [append(store, log, new_batch()) for _ in range(2)]
    background.let_go()
    disk.most_open, background.held = None, set()
    background.let_go()
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert log.high_watermark == 16


def test_a_checkpoint_that_loses_count_of_what_to_sync_stops_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, store, log = store_with_log()

    def lost(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Checkpointer, "_collect", lost)
    ticket = append(store, log, new_batch())
    store.request_checkpoint()
    assert ticket.error is None
    assert isinstance(store.failure, MemoryError)


def test_logs_that_replay_deletes_hold_no_descriptor() -> None:
    disk, background = SimDisk(), Held()
    store = LogStore.open(disk, background, RAND, StoreConfig(reserve_bytes=0))
    background.held = {JobLane.BULK}
    store.create("gone", [log_id(1, number) for number in range(20)])
    store.create("kept", [log_id(2)])
    logs = [store.logs[log_id(1, number)] for number in range(20)]
    for log in logs:
        append(store, log, new_batch())
    store.delete(logs)
    left = copy_of(disk)
    store = open_store(left, StoreConfig(reserve_bytes=0, open_files=8))
    named = {node for names in left.tree.names.values() for node in names.values()}
    assert all(node in named for node, times in left.opened.items() if times)
    store.create("new", [log_id(3, number) for number in range(4)])
    for number in range(4):
        append(store, store.logs[log_id(3, number)], new_batch())


def test_a_start_syncs_what_it_found_with_few_descriptors() -> None:
    config = replace(small_segments(), durability=Durability.OS)
    disk, store, log = store_with_log(config)
    for _ in range(200):
        append(store, log, new_batch())
    assert len(log.segments) > 30
    again = open_store(copy_of(disk), replace(config, open_files=16))
    assert again.logs[log_id(1)].high_watermark == 200


def test_a_journal_file_that_cannot_be_removed_stops_nothing() -> None:
    journal = JournalConfig(first_file_bytes=1 << 16, largest_file_bytes=1 << 20)
    failed: list[object] = []
    disk = SimDisk()
    config = StoreConfig(reserve_bytes=0, journal=journal)
    store = LogStore.open(disk, Inline(), RAND, config, on_failed_job=failed.append)
    store.create("orders", [log_id(1)])
    disk.fail = lambda op: isinstance(op, Unlink) and op.name.endswith(".journal")
    for _ in range(400):
        append(store, store.logs[log_id(1)], new_batch(size=3000))
    assert store.failure is None
    assert failed
    disk.fail = lambda _: False
    store.close()
    assert open_store(disk, config).logs[log_id(1)].high_watermark == 400


def test_an_index_that_failed_keeps_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    config = StoreConfig(
        log=LogConfig(segment_bytes=500, index_interval_bytes=100), reserve_bytes=0, open_files=400
    )
    disk = SimDisk()
    store = open_store(disk, config)
    store.create("orders", [log_id(1, number) for number in range(20)])

    def refused(disk: Disk, path: str, data: bytes) -> None:
        raise OutOfDescriptors("simulated")

    monkeypatch.setattr(partition_log, "write_whole", refused)
    gc.collect()
    gc.disable()
    try:
        for log in store.logs.values():
            for _ in range(9):
                append(store, log, new_batch())
        store.request_checkpoint()
        assert open_nodes(disk) < 30
    finally:
        gc.enable()


def test_room_for_the_next_checkpoint_is_not_needed() -> None:
    disk, store, log = store_with_log()
    append(store, log, new_batch())
    disk.fail = lambda op: isinstance(op, Link) and op.name == "checkpoint.unfinished"
    store.request_checkpoint()
    assert store.failure is None
