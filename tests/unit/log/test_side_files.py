"""Files beside the segments: written when all is durable, trusted no further than the checkpoint,
gone with what they belong to, and never a reason not to start."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from onceflow.errors import DiskFull
from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.control import marker
from onceflow.runtime.disk import Access
from onceflow.testing.background import SimBackground
from onceflow.testing.disk import Link, Op, SimDisk
from tests.unit.log.compaction.keyed_log import batches_of, keyed
from tests.unit.log.producer_companion import (
    ModelSnapshot,
    ProducerModel,
    followed_append,
    restored,
)
from tests.unit.log.simulated_store import NOW_MS, RAND, log_id, open_store


def settings(durability: Durability = Durability.FSYNC, **log: Any) -> StoreConfig:
    """Every batch goes into a segment of its own."""
    return StoreConfig(
        durability=durability, log=LogConfig(**{"segment_bytes": 100, **log}), reserve_bytes=0
    )


def opened(config: StoreConfig | None = None) -> tuple[SimDisk, LogStore, PartitionLog]:
    disk = SimDisk()
    store = open_store(disk, config or settings())
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    log.companion = ProducerModel(log)
    return disk, store, log


def send(store: LogStore, log: PartitionLog, count: int, *, transactional: bool = False) -> None:
    for _ in range(count):
        batch = keyed(
            [(b"k", b"v" * 50)],
            producer_id=4,
            sequence=log.end_offset,
            transactional=transactional,
        )
        followed_append(store, log, batch)


def abort(store: LogStore, log: PartitionLog) -> None:
    batch = marker(4, 0, commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS)
    followed_append(store, log, batch)


def names(disk: SimDisk, log: PartitionLog, suffix: str) -> list[int]:
    """The offsets in the names of files."""
    return [
        int(entry.name.partition(".")[0])
        for entry in disk.entries(log.directory)
        if entry.name.endswith(suffix)
    ]


@pytest.mark.parametrize("durability", Durability)
def test_a_sealed_segment_gets_its_files_with_the_next_checkpoint(durability: Durability) -> None:
    disk, store, log = opened(settings(durability))
    send(store, log, 2, transactional=True)
    abort(store, log)
    send(store, log, 1)
    assert len(log.segments) == 4
    assert not names(disk, log, ".producers")
    store.request_checkpoint()
    assert names(disk, log, ".producers") == [2, 3]
    assert names(disk, log, ".txnindex") == [2]
    index = disk.open(log.segments[2].path("txnindex"), Access.READ).pread(0, 100)
    assert index == struct.pack(">hqqqq", 0, 4, 0, 2, 3)
    assert [offset for offset, _ in log.snapshots()] == [3, 2]
    recovered = open_store(SimDisk(disk.tree), settings(durability)).logs[log.log_id]
    loaded = [ProducerModel.load(recovered, data) for _, data in recovered.snapshots()]
    assert [each.state() for each in loaded] == [
        ({4: (0, 1)}, {}, [(4, 0, 2)]),
        ({4: (0, 1)}, {4: 0}, []),
    ]
    assert restored(recovered).state() == restored(log).state()


def test_the_newest_two_snapshots_are_kept() -> None:
    disk, store, log = opened()
    for end in range(2, 8):
        send(store, log, 1)
        store.request_checkpoint()
        assert names(disk, log, ".producers") == [each for each in (end - 3, end - 2) if each > 0]
    store.close()
    assert names(disk, log, ".producers") == [5, 6]
    assert not names(disk, log, ".txnindex")


def test_what_waits_for_a_checkpoint_stays_small() -> None:
    disk, store, log = opened()
    send(store, log, 9, transactional=True)
    abort(store, log)
    send(store, log, 3)
    (index,) = (each for each in log.side_files._waiting if each.aborted_index)
    assert index.snapshot is None
    assert sum(each.snapshot is not None for each in log.side_files._waiting) == 2
    store.request_checkpoint()
    assert names(disk, log, ".producers") == [11, 12]
    assert names(disk, log, ".txnindex") == [9]


def test_a_clean_stop_keeps_the_state_of_the_active_segment_too() -> None:
    disk, store, log = opened(settings(segment_bytes=10_000))
    send(store, log, 3, transactional=True)
    abort(store, log)
    store.close()
    assert names(disk, log, ".producers") == [4]
    assert names(disk, log, ".txnindex") == [0]
    store = open_store(disk, settings(segment_bytes=10_000))
    log = store.logs[log_id(1)]
    assert restored(log).state() == ({4: (0, 2)}, {}, [(4, 0, 3)])
    before = len(disk.ops)
    store.close()  # nothing is new: nothing is written
    assert not [op for op in disk.ops[before:] if isinstance(op, Link) and "producers" in op.name]
    store = open_store(disk, settings(segment_bytes=10_000))
    log = store.logs[log_id(1)]
    restored(log)
    send(store, log, 1)
    store.close()
    assert names(disk, log, ".producers") == [4, 5]


def test_the_index_of_a_clean_stop_goes_when_its_entries_have_gone() -> None:
    disk, store, log = opened(settings(segment_bytes=10_000))
    send(store, log, 1, transactional=True)
    abort(store, log)
    store.close()
    store = open_store(disk, settings(segment_bytes=10_000))
    log = store.logs[log_id(1)]
    restored(log).all_aborted.clear()
    send(store, log, 1)
    store.close()
    assert not names(disk, log, ".txnindex")


def test_nothing_is_written_of_what_is_not_durable() -> None:
    disk, background = SimDisk(), SimBackground(random.Random(1))
    store = LogStore.open(disk, background, RAND, settings())
    created = store.create("orders", [log_id(1)])
    background.wait(lambda: created.done)
    log = store.logs[log_id(1)]
    log.companion = ProducerModel(log)
    send(store, log, 1)
    background.wait(lambda: log.high_watermark == 1)
    send(store, log, 3)
    assert [each.end for each in log.side_files.collect(log.high_watermark)] == [1]
    assert [each.end for each in log.side_files._waiting] == [2, 3]
    store.close()
    background.close()


@pytest.mark.parametrize("durability", Durability)
def test_a_snapshot_behind_the_checkpoint_is_not_trusted(durability: Durability) -> None:
    disk, store, log = opened(settings(durability))
    send(store, log, 3)
    store.request_checkpoint()
    send(store, log, 2)
    assert names(disk, log, ".producers") == [1, 2]
    for offset in (3, 4, 5):
        disk.open(f"{log.directory}/{offset:020}.producers", Access.CREATE)
    disk.open(f"{log.directory}/{4:020}.txnindex", Access.CREATE)
    disk.open(f"{log.directory}/{9:020}.producers.unfinished", Access.CREATE)
    disk.sync_dir(log.directory)
    crashed = SimDisk(disk.tree)
    again = open_store(crashed, settings(durability)).logs[log.log_id]
    assert again.end_offset == 5
    assert names(crashed, again, ".producers") == [2, 3]  # the checkpoint ends at 3
    assert not names(crashed, again, ".txnindex")
    assert not names(crashed, again, ".unfinished")
    assert [offset for offset, _ in again.snapshots()] == [3, 2]


def test_a_missing_snapshot_is_left_out() -> None:
    disk, store, log = opened()
    send(store, log, 4)
    store.close()
    assert names(disk, log, ".producers") == [3, 4]
    disk.unlink(f"{log.directory}/{4:020}.producers")
    again = open_store(disk, settings()).logs[log.log_id]
    assert [offset for offset, _ in again.snapshots()] == [3]
    disk.unlink(f"{log.directory}/{3:020}.producers")
    assert list(again.snapshots()) == []
    assert restored(again).state() == ({4: (0, 3)}, {}, [])


def test_a_truncation_takes_what_is_behind_it() -> None:
    disk, store, log = opened()
    send(store, log, 1)
    send(store, log, 3, transactional=True)
    abort(store, log)
    send(store, log, 2)
    store.truncate(log, 5)
    assert names(disk, log, ".producers") == [5]
    assert names(disk, log, ".txnindex") == [4]
    store.truncate(log, 4)
    assert names(disk, log, ".producers") == []
    assert names(disk, log, ".txnindex") == []
    assert restored(log).state() == ({4: (0, 3)}, {4: 1}, [])
    send(store, log, 1)
    store.close()
    assert names(disk, log, ".producers") == [5]


def test_the_index_of_a_segment_that_is_cut_goes() -> None:
    disk, store, log = opened(settings(segment_bytes=10_000))
    send(store, log, 2, transactional=True)
    abort(store, log)
    store.close()
    assert names(disk, log, ".txnindex") == [0]
    store = open_store(disk, settings(segment_bytes=10_000))
    log = store.logs[log_id(1)]
    store.truncate(log, 2)
    assert names(disk, log, ".txnindex") == []
    assert names(disk, log, ".producers") == []


def test_files_go_with_their_segments_and_their_log() -> None:
    disk, store, log = opened(settings(retention_ms=1000))
    send(store, log, 2, transactional=True)
    abort(store, log)
    send(store, log, 1)
    store.request_checkpoint()
    assert names(disk, log, ".txnindex") == [2]
    store.enforce_retention(NOW_MS + 5000)
    assert log.start_offset == 4
    assert names(disk, log, ".txnindex") == []
    assert [offset for offset, _ in log.snapshots()] == [4]  # nothing below the log start
    store.delete([log])
    store.request_checkpoint()
    assert [entry.name for entry in disk.entries(".") if entry.is_dir] == ["journal"]


def test_no_room_for_them_puts_the_checkpoint_off() -> None:
    disk, store, log = opened()
    send(store, log, 2, transactional=True)
    abort(store, log)
    send(store, log, 1)

    def full(op: Op) -> bool:
        if isinstance(op, Link) and "producers" in op.name:
            raise DiskFull("simulated")
        return False

    disk.fail = full
    store.request_checkpoint()
    assert store.failure is None
    assert not names(disk, log, ".producers")
    assert not list(log.snapshots())
    disk.fail = lambda _: False
    send(store, log, 1)
    store.request_checkpoint()
    assert names(disk, log, ".producers") == [3, 4]
    assert names(disk, log, ".txnindex") == [2]
    assert not names(disk, log, ".unfinished")


def test_without_a_companion_there_are_no_such_files() -> None:
    disk = SimDisk()
    store = open_store(disk, settings())
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]
    for _ in range(3):
        store.append(log, keyed([(b"k", b"v")]).assign(log.end_offset, 0))
    store.close()
    assert len(batches_of(log)) == 3
    assert not names(disk, log, ".producers")


class Unfinishable(ModelSnapshot):
    """Fails whenever somebody asks for the rest."""

    def finish(self) -> None:
        raise KeyError("a producer that is not there")


def test_a_snapshot_that_is_not_finished_waits_and_holds_nothing_up() -> None:
    disk, store, log = opened()
    model = ProducerModel(log, slow=True)
    log.companion = model
    send(store, log, 2)
    store.request_checkpoint()
    assert not names(disk, log, ".producers")
    model.unfinished.pop().finish()
    store.request_checkpoint()
    assert names(disk, log, ".producers") == [1]
    send(store, log, 3)
    assert model.unfinished
    store.close()
    assert names(disk, log, ".producers") == [4, 5], "a clean stop finishes what is left"
    assert restored(open_store(disk, settings()).logs[log_id(1)]).state() == ({4: (0, 4)}, {}, [])


def test_a_snapshot_that_cannot_be_finished_does_not_keep_a_stop_from_being_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.unit.log.producer_companion.ModelSnapshot", Unfinishable)
    disk, store, log = opened()
    log.companion = ProducerModel(log, slow=True)
    send(store, log, 2)
    monkeypatch.undo()
    store.close()
    assert names(disk, log, ".producers") == [2], "that of the stop itself"
    assert sum(store.quarantine.failures.values()) == 1
    store = open_store(disk, settings())
    assert store.report.clean
    assert restored(store.logs[log_id(1)]).state() == ({4: (0, 1)}, {}, [])


def test_what_only_time_has_changed_is_written_anew_in_a_clean_stop() -> None:
    disk, store, log = opened(settings(segment_bytes=10_000))
    send(store, log, 3)
    store.close()
    store = open_store(disk, settings(segment_bytes=10_000))
    log = store.logs[log_id(1)]
    model = restored(log)
    model.producers[4] = (0, 77)  # as if that were something which goes with time
    model.aged = True
    store.close()
    assert names(disk, log, ".producers") == [3]
    again = open_store(disk, settings(segment_bytes=10_000)).logs[log_id(1)]
    assert restored(again).state() == ({4: (0, 77)}, {}, [])
