"""A deleted log gives its room and its descriptors back, whoever still knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.log.checkpoint import Durability, read_checkpoint
from onceflow.log.config import LogConfig
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import iter_stored
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import RealDisk
from onceflow.testing.crash import crash_images
from onceflow.testing.disk import Op, SimDisk, SyncDir, Unlink
from tests.unit.log.simulated_store import (
    RAND,
    append,
    log_id,
    new_batch,
    offsets,
    open_store,
    store_with_log,
)


def open_below(directory: Path) -> list[str]:
    """The files in a directory that this process holds open, gone ones too."""
    targets = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if is_open(each)]
    return [each for each in targets if each.startswith(str(directory)) and ".log" in each]


def is_open(descriptor: Path) -> bool:
    return descriptor.is_symlink()  # that of the listing itself is gone


@pytest.mark.parametrize("segments", [1, 4])
def test_no_file_of_a_deleted_log_stays_open(tmp_path: Path, segments: int) -> None:
    config = StoreConfig(log=LogConfig(segment_bytes=500))
    store = LogStore.open(RealDisk(tmp_path), Inline(), RAND, config)
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]  # as a broker's partition keeps it, and is kept by others
    for _ in range(3 * segments):
        append(store, log, new_batch())
    assert len(log.segments) == segments
    for segment in log.segments:
        assert segment.file.pread(0, 10)
    reader = log.read(0, 1000)
    store.delete([log])
    store.request_checkpoint()
    assert not list(tmp_path.glob("orders*"))
    assert [batch.header.base_offset for batch in iter_stored(reader.read())][:1] == [0]
    assert len(open_below(tmp_path)) == 1  # that of the reader
    del reader
    assert open_below(tmp_path) == []
    store.close()


# --- whenever the power goes ----------------------------------------------------------------------


def directories(disk: SimDisk) -> set[str]:
    return {entry.name for entry in disk.entries(".") if entry.is_dir} - {"journal"}


@pytest.mark.parametrize("durability", Durability)
def test_a_deletion_that_a_power_cut_interrupts_is_finished_by_the_next_start(
    durability: Durability,
) -> None:
    config = StoreConfig(durability=durability, reserve_bytes=0)
    disk, store, kept = store_with_log(config)
    store.create("gone", [log_id(2, partition) for partition in range(3)])
    for log in store.logs.values():
        append(store, log, new_batch())
    store.request_checkpoint()
    began = len(disk.ops)
    assert store.delete([log for log in store.logs.values() if log is not kept]).done
    append(store, kept, new_batch())
    store.request_checkpoint()
    assert directories(disk) == {kept.directory}
    for image in crash_images(disk, seed=1, subsets=4, first=began):
        again = open_store(image.disk, config)
        assert again.report.strays == (), (image.boundary, image.kind)
        assert directories(image.disk) == {log.directory for log in again.logs.values()}


def test_what_is_not_durably_removed_is_named_by_each_checkpoint() -> None:
    disk, store, kept = store_with_log()
    store.create("gone", [log_id(2)])
    gone = store.logs[log_id(2)]
    append(store, gone, new_batch())
    removing = False

    def no_removal(op: Op) -> bool:
        nonlocal removing
        removing = removing or isinstance(op, Unlink)
        return isinstance(op, Unlink) or (removing and isinstance(op, SyncDir))

    disk.fail = no_removal
    store.delete([gone])
    disk.fail = lambda _: False
    assert named_gone(disk) == (gone.directory,)
    append(store, kept, new_batch())
    store.look_again()  # it is left out of one round
    store.request_checkpoint()
    assert named_gone(disk) == (gone.directory,)
    assert not disk.exists(gone.directory)  # that was the next attempt
    append(store, kept, new_batch())
    store.request_checkpoint()
    assert named_gone(disk) == ()
    again = open_store(SimDisk(disk.tree))
    assert offsets(again.logs[log_id(1)]) == [0, 1]


def test_after_a_failed_sync_what_was_removed_is_named_until_the_next_start() -> None:
    disk, store, kept = store_with_log()
    store.create("gone", [log_id(2)])
    gone = store.logs[log_id(2)]
    failed = False

    def no_sync_of_the_removal(op: Op) -> bool:
        nonlocal failed
        is_it = isinstance(op, SyncDir) and not disk.exists(gone.directory)
        failed, is_it = failed or is_it, is_it and not failed
        return is_it

    disk.fail = no_sync_of_the_removal
    store.delete([gone])
    assert failed
    assert store.failure is None
    append(store, kept, new_batch())
    store.request_checkpoint()
    assert named_gone(disk) == (gone.directory,)
    store.close()
    open_store(disk)
    assert named_gone(disk) == ()


def named_gone(disk: SimDisk) -> tuple[str, ...]:
    checkpoint = read_checkpoint(disk)
    assert checkpoint is not None
    return checkpoint.gone
