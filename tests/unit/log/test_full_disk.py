"""A disk that others fill between two looks at it: what is refused leaves no trace at all.

The store looks at the room on the disk now and then, not at every append. So a write may find less
than was thought, and a part of it may be in the file when it fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onceflow.errors import DiskFull, StoreBusy, StoreFailed, UnknownLog
from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.journal import Ticket
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segments.segment import Segment
from onceflow.log.store import LogStore, StoreConfig
from onceflow.log.urgency import Purpose
from onceflow.runtime.disk import Access
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import crash_images
from onceflow.testing.disk import SimDisk, Sync
from tests.unit.log.planting import plant
from tests.unit.log.simulated_store import (
    RAND,
    append,
    full_for_checkpoints,
    log_id,
    new_batch,
    offsets,
    open_store,
    store_with_log,
    used,
)

SEGMENT = 1000
BATCH = 161


def crowded(durability: Durability, batches: int) -> tuple[SimDisk, LogStore, PartitionLog]:
    """A store that thinks there is plenty of room, and a log of so many batches."""
    config = StoreConfig(
        durability=durability, log=LogConfig(segment_bytes=SEGMENT), reserve_bytes=0
    )
    disk, store, log = store_with_log(config)
    store.create("others", [log_id(2)])
    append(store, store.logs[log_id(2)], new_batch())  # now it has looked
    for _ in range(batches):
        append(store, log, new_batch())
    return disk, store, log


def refused(disk: SimDisk, store: LogStore, log: PartitionLog, room: int) -> None:
    """An append that finds room for a part of itself."""
    disk.capacity = used(disk) + room
    with pytest.raises(DiskFull):
        append(store, log, new_batch())
    disk.capacity = None


def size_on_disk(disk: SimDisk, segment: Segment) -> int:
    return disk.open(segment.path("log"), Access.READ).size()


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("batches", [0, 3, 6])  # in an empty, a begun and a full segment
@pytest.mark.parametrize("room", [0, 1, 60, BATCH - 1])
def test_a_batch_that_finds_room_for_a_part_of_itself_leaves_none(
    durability: Durability, batches: int, room: int
) -> None:
    disk, store, log = crowded(durability, batches)
    refused(disk, store, log, room)
    assert log.end_offset == log.high_watermark == batches
    assert [size_on_disk(disk, each) for each in log.segments] == [s.size for s in log.segments]
    log.roll()
    store.request_checkpoint()  # it says how long the file is that was written in vain
    for _ in range(3):
        append(store, log, new_batch())
    killed = open_store(SimDisk(disk.tree)).logs[log_id(1)]
    assert offsets(killed) == list(range(batches + 3))
    store.close()
    stopped = open_store(SimDisk(disk.tree))
    assert stopped.report.clean
    assert offsets(stopped.logs[log.log_id]) == list(range(batches + 3))


def test_a_part_that_is_left_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Segment, "append", "file.truncate(position)", "pass")
    with pytest.raises(AssertionError):
        test_a_batch_that_finds_room_for_a_part_of_itself_leaves_none(Durability.FSYNC, 3, 60)


@pytest.mark.parametrize("batches", [0, 3])
def test_a_power_cut_after_a_clean_stop_brings_no_part_back(batches: int) -> None:
    """The part may have reached the disk, and that it was cut off again may not have."""
    disk, store, log = crowded(Durability.FSYNC, batches)
    store.request_checkpoint()  # nothing of the log waits to be synced
    refused(disk, store, log, 60)
    store.close()
    for image in crash_images(disk, seed=1, subsets=4, first=len(disk.ops)):
        again = open_store(image.disk)
        assert again.report.clean
        assert offsets(again.logs[log_id(1)]) == list(range(batches)), image.kind


CHANGES: dict[str, Callable[[LogStore, PartitionLog], Ticket]] = {
    "metadata": lambda store, log: store.append(
        log, new_batch().assign(log.end_offset, 0), purpose=Purpose.METADATA
    ),
    "log start": lambda store, log: store.delete_records(log, 2),
    "deletion": lambda store, log: store.delete([log]),
}


def seen(store: LogStore) -> list[int] | None:
    """What there is of the log, if it is there."""
    log = store.logs.get(log_id(1))
    return None if log is None else offsets(log)


@pytest.mark.parametrize("change", CHANGES)
def test_without_a_journal_a_change_that_was_made_is_not_refused_but_waits_for_room(
    change: str,
) -> None:
    """Only a checkpoint makes it durable, and there is no room for one. To say that it was refused
    would be wrong: the change is there, for all to see, and a restart finds it."""
    disk, store, log = crowded(Durability.OS, 3)
    disk.fail = full_for_checkpoints
    ticket = CHANGES[change](store, log)
    expected = {"metadata": [0, 1, 2, 3], "log start": [2], "deletion": None}[change]
    assert seen(store) == expected
    store.flush()  # as the broker does now and then
    assert (ticket.done, ticket.error) == (False, None)
    disk.fail = lambda _: False
    store.flush()
    assert (ticket.done, ticket.error) == (True, None)
    config = StoreConfig(durability=Durability.OS, reserve_bytes=0)
    images = crash_images(disk, seed=1, subsets=0, first=len(disk.ops))
    assert all(seen(open_store(image.disk, config)) == expected for image in images)


def test_who_waits_for_room_for_a_checkpoint_learns_when_the_disk_fails() -> None:
    disk, store, log = crowded(Durability.OS, 3)
    disk.fail = full_for_checkpoints
    tickets = [CHANGES[change](store, log) for change in ("metadata", "log start")]
    disk.fail = lambda op: isinstance(op, Sync)
    store.request_checkpoint()
    assert store.failure is not None
    assert [type(ticket.error) for ticket in tickets] == [StoreFailed, StoreFailed]


def test_what_makes_room_is_taken_however_much_waits_for_the_journal() -> None:
    """Half of a deletion would be worse than none, and neither adds to what waits."""
    background = SimBackground(random.Random(2))
    config = StoreConfig(
        log=LogConfig(segment_bytes=200, retention_bytes=0),
        journal=JournalConfig(gathered_bytes=1100),
        reserve_bytes=0,
    )
    store = LogStore.open(SimDisk(), background, RAND, config)
    created = store.create("orders", [log_id(number) for number in range(1, 6)])
    background.wait(lambda: created.done)
    *gone, kept = store.logs.values()
    tickets = [append(store, kept, new_batch(size=239)) for _ in range(3)]
    with pytest.raises(StoreBusy):
        append(store, kept, new_batch(size=239))
    tickets.append(store.delete(gone))
    assert list(store.logs) == [kept.log_id]
    background.wait(lambda: all(ticket.done for ticket in tickets))
    tickets = [append(store, kept, new_batch(size=239)) for _ in range(3)]
    tickets.append(store.delete_records(kept, 1))
    store.enforce_retention(0)
    assert kept.start_offset == 3
    background.wait(lambda: all(ticket.done for ticket in tickets))
    assert kept.durable_start == 3


def test_a_deletion_that_names_a_log_that_is_gone_deletes_none() -> None:
    _, store, log = store_with_log()
    store.create("more", [log_id(2)])
    more = store.logs[log_id(2)]
    store.delete([log])
    with pytest.raises(UnknownLog, match="was deleted"):
        store.delete([more, log])
    assert list(store.logs) == [more.log_id]
