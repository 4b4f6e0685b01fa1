"""When a file of the journal may be used again, or removed: never one group too early.

Each test holds the background's jobs of some lanes back, so that the checkpoint becomes durable at
the very moment that matters.
"""

from __future__ import annotations

import pytest

from onceflow.errors import LogCorrupt
from onceflow.log.jobs import Jobs
from onceflow.log.journal.ring import JournalConfig, Ring, prepare_file
from onceflow.log.partition_log import PartitionLog
from onceflow.log.quarantine import FailedJob, Quarantine
from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.background import JobLane
from onceflow.runtime.disk import Access
from onceflow.testing.crash import crash_images
from onceflow.testing.disk import SimDisk
from tests.unit.log.planting import plant
from tests.unit.log.simulated_store import (
    RAND,
    Held,
    append,
    log_id,
    new_batch,
    offsets,
    open_store,
    used,
)

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
    background.held = {JobLane.BULK}
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


# --- the ring by itself ---------------------------------------------------------------------------


class RingOf:
    """A ring on a disk, and what it told its owner."""

    def __init__(self, config: JournalConfig, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.background = Held()
        self.told = 0
        self.failed: list[FailedJob] = []
        self.room = True
        self.ring = Ring(
            self.disk,
            Jobs(self.background),
            config,
            lambda _: self.room,
            self._told,
            Quarantine(self.failed.append),
        )
        self.sequence = 0

    def _told(self) -> None:
        self.told += 1

    def put(self, blocks: int = 1) -> tuple[int, int] | None:
        """A group of so many blocks: the number of its file and its first block in it, or None."""
        place = self.ring.place(blocks * BLOCK)
        if place is None:
            return None
        file, position = place
        self.sequence += 1
        file.last_sequence = self.sequence
        return file.number, position // BLOCK

    def cover(self, sequence: int) -> None:
        """A checkpoint of all groups up to this one; a recovery starts in the present file."""
        for path in self.ring.release(sequence + 1, self.ring.current.number):
            self.disk.unlink(path)

    @property
    def files(self) -> dict[str, int]:
        return {entry.name: entry.size // BLOCK for entry in self.disk.entries("journal")}


def sizes(first: int, largest: int, files: int = 3) -> JournalConfig:
    return JournalConfig(
        first_file_bytes=first * BLOCK, largest_file_bytes=largest * BLOCK, files=files
    )


def test_groups_fill_a_file_to_its_last_block_and_go_on_in_the_next() -> None:
    made = RingOf(sizes(4, 4))
    assert [made.put(), made.put(2), made.put()] == [(0, 0), (0, 1), (0, 3)]
    assert [made.put(3), made.put(2)] == [(1, 0), (2, 0)]  # what does not fit leaves a rest
    assert made.told == 2  # two files were made


def test_the_next_file_is_made_when_half_of_the_present_one_is_taken() -> None:
    made = RingOf(sizes(4, 16))
    made.put(2)
    assert made.files == {"00000000.journal": 4}
    made.put()
    assert made.files == {"00000000.journal": 4, "00000001.journal": 8}
    made.put()
    assert made.put(4) == (1, 0)
    assert made.put() == (1, 4)
    assert made.files["00000002.journal"] == 16
    assert made.put(3) == (1, 5)
    assert made.put(9) == (2, 0)
    assert made.files["00000003.journal"] == 16  # as large as they get


def test_only_one_file_is_made_at_a_time_and_no_more_than_the_ring_may_have() -> None:
    made = RingOf(sizes(2, 2, files=2))
    made.background.held = {JobLane.GROW}
    made.put(2)
    assert [made.put(), made.put()] == [None, None]
    made.background.held.clear()
    made.background.let_go()
    assert made.put(2) == (1, 0)
    assert made.put() is None
    assert len(made.files) == 2
    made.cover(1)
    assert made.put(2) == (0, 0)
    assert made.put() is None
    made.cover(3)
    assert made.put(2) == (0, 0)  # again the same one, as nothing in it is needed


def test_a_group_that_is_larger_than_any_file_gets_one_of_its_size() -> None:
    made = RingOf(sizes(2, 4, files=2))
    made.put(1)
    assert made.put(9) is None
    assert made.told == 1
    assert made.files == {"00000000.journal": 2, "00000001.journal": 9}
    assert made.put(9) == (1, 0)


def test_where_there_is_no_room_the_ring_goes_on_with_what_it_has() -> None:
    made = RingOf(sizes(2, 4))
    made.room = False
    made.put(2)
    assert made.put() is None
    made.room = True
    assert made.put() is None  # it is made now
    assert made.put() == (1, 0)


def test_no_room_in_the_middle_of_a_file_that_is_made_gives_it_all_back() -> None:
    made = RingOf(sizes(2, 4))
    for room in (0, 1, BLOCK, 4 * BLOCK - 1):
        made.disk.capacity = used(made.disk) + room
        assert made.put(3) is None
        assert made.files == {"00000000.journal": 2}
        assert made.told == 0  # to be told would mean to try again at once
    made.disk.capacity = None
    assert made.put(3) is None
    assert made.told == 1
    assert made.put(3) == (5, 0)


def test_smaller_files_go_when_larger_ones_have_taken_over_but_not_the_one_to_start_in() -> None:
    made = RingOf(sizes(2, 4, files=2))
    made.put(2)
    assert made.put(4) == (1, 0)
    made.ring.release(2, 0)
    assert made.files == {"00000000.journal": 2, "00000001.journal": 4, "00000002.journal": 4}
    assert made.put(4) == (2, 0)
    assert made.put(2) == (0, 0)  # it is there, so it is used
    made.cover(4)
    assert made.put(4) == (2, 0)
    made.cover(4)
    assert made.files == {"00000001.journal": 4, "00000002.journal": 4}


def test_what_is_released_is_told_and_nothing_else() -> None:
    made = RingOf(sizes(2, 2))
    made.ring.release(1, 0)
    assert made.told == 0  # nothing has been written
    made.put()
    made.put()
    made.put()
    made.told = 0
    made.ring.release(2, 0)  # group 2 is needed, and in the same file as group 1
    assert made.told == 0
    made.ring.release(3, 1)
    assert made.told == 1
    made.ring.release(3, 1)
    assert made.told == 1
    made.cover(3)
    assert made.told == 2
    assert made.put() == (1, 0)


def test_files_of_an_earlier_run_are_used_from_the_largest_on() -> None:
    disk = SimDisk()
    disk.mkdir("journal")
    for number, blocks in ((3, 8), (5, 2), (7, 4)):
        file = disk.open(f"journal/{number:08}.journal", Access.CREATE)
        file.pwrite(0, bytes(blocks * BLOCK + 100))  # what is no whole block is not used
    disk.open("journal/00000009.unfinished", Access.CREATE)
    disk.open("journal/notes.journal", Access.CREATE)
    made = RingOf(sizes(2, 8), disk)
    made.room = False
    assert [made.put(8), made.put(3), made.put(1), made.put(2)] == [(3, 0), (7, 0), (7, 3), (5, 0)]
    made.room = True
    assert [made.put(8), made.put(8)] == [None, (8, 0)]
    assert made.files.keys().isdisjoint({"notes.journal", "00000009.unfinished"})


@pytest.mark.parametrize("size", [2 * BLOCK, (1 << 20) + BLOCK, (2 << 20)])
def test_a_file_has_its_name_only_when_it_is_whole_and_synced(size: int) -> None:
    disk = SimDisk()
    disk.mkdir("journal")
    disk.sync_dir(".")
    for _ in prepare_file(disk, 7, size):
        pass
    for image in crash_images(disk, seed=1, subsets=2, first=2):
        names = {entry.name: entry.size for entry in image.disk.entries("journal")}
        assert names.get("00000007.journal", size) == size
        assert image.boundary < len(disk.ops) or names == {"00000007.journal": size}
    assert not any(disk.open("journal/00000007.journal", Access.READ).pread(0, size))
