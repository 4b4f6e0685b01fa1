"""When a file of the journal may be used again, or removed: never one group too early.

Each test holds the background's jobs of some lanes back, so that the checkpoint becomes durable at
the very moment that matters.
"""

from __future__ import annotations

import pytest

from onceflow.errors import LogCorrupt
from onceflow.log.journal_ring import JournalConfig, Ring
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.background import Lane
from onceflow.runtime.sim_disk import SimDisk
from tests.unit.log_helpers import RAND, Held, append, log_id, new_batch, offsets, open_store
from tests.unit.planting import plant

BLOCK = 4096


def held_store(files: int = 4) -> tuple[SimDisk, Held, LogStore, PartitionLog]:
    """A journal of files with room for two small groups; group 1, the creation, is in the first.

    Checkpoints wait until they are let go.
    """
    disk, background = SimDisk(), Held()
    config = StoreConfig(
        journal=JournalConfig(
            first_file_bytes=2 * BLOCK, largest_file_bytes=2 * BLOCK, files=files
        ),
        reserve_bytes=0,
    )
    store = LogStore.open(disk, background, RAND, config)
    background.held = {Lane.BULK}
    store.create("orders", [log_id(1)])
    return disk, background, store, store.logs[log_id(1)]


def survivors(disk: SimDisk) -> list[int]:
    """What a process that starts now on the same disk finds in the log."""
    return offsets(open_store(SimDisk(disk.tree)).logs[log_id(1)])


def files_in_turn(disk: SimDisk, store: LogStore, log: PartitionLog, groups: int) -> list[int]:
    """Appends, one group each; the numbers of the journal's files that they went into."""
    numbers: list[int] = []
    for _ in range(groups):
        assert append(store, log, new_batch()).done
        assert store._journal is not None
        numbers.append(store._journal._ring.current.number)
        assert survivors(disk) == offsets(log) == list(range(log.end_offset))
    return numbers


def test_a_file_with_the_first_group_behind_the_checkpoint_is_not_used_again() -> None:
    disk, background, store, log = held_store()
    store.request_checkpoint()  # of group 1: a recovery will begin with group 2
    assert files_in_turn(disk, store, log, 2) == [0, 1]  # group 2 is the last in the first file
    background.let_go()  # the checkpoint is durable now
    assert files_in_turn(disk, store, log, 4) == [1, 2, 2, 3]
    background.let_go()  # the one that was asked for at the first turn
    assert files_in_turn(disk, store, log, 2) == [3, 0]


def test_one_group_too_early_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch,
        Ring,
        "release",
        "in self._full if each.last_sequence < before_sequence",
        "in self._full if each.last_sequence <= before_sequence",
    )
    with pytest.raises(LogCorrupt, match="journal group 2 is missing"):
        test_a_file_with_the_first_group_behind_the_checkpoint_is_not_used_again()
