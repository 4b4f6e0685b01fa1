"""What a power cut may leave of a simulated disk, and what it may not."""

from __future__ import annotations

import itertools

from onceflow.runtime.disk import BLOCK_SIZE, Access
from onceflow.testing.crash import SECTOR, Image, crash_images, forget_settled
from onceflow.testing.disk import SimDisk


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {
        entry.name: disk.open(entry.name, Access.READ).pread(0, 1 << 20)
        for entry in disk.entries(".")
        if not entry.is_dir
    }


def images(disk: SimDisk, subsets: int = 20) -> list[Image]:
    return list(crash_images(disk, seed=1, subsets=subsets))


def at(found: list[Image], boundary: int, kind: str) -> dict[str, bytes]:
    (image,) = (each for each in found if (each.boundary, each.kind) == (boundary, kind))
    return contents(image.disk)


def test_synced_bytes_survive_and_unsynced_ones_may_not() -> None:
    disk = SimDisk()
    file = disk.open("a", Access.CREATE)  # op 0
    disk.sync_dir(".")  # 1
    file.pwrite(0, b"one")  # 2
    file.sync()  # 3
    file.pwrite(3, b"two")  # 4
    found = images(disk)
    assert at(found, 0, "nothing unsynced") == {}
    assert at(found, 3, "nothing unsynced") == {"a": b""}
    assert at(found, 3, "all unsynced") == {"a": b"one"}
    assert at(found, 4, "nothing unsynced") == {"a": b"one"}
    assert at(found, 5, "nothing unsynced") == {"a": b"one"}
    assert at(found, 5, "all unsynced") == {"a": b"onetwo"}
    assert all(contents(each.disk)["a"].startswith(b"one") for each in found if each.boundary >= 4)


def test_a_file_whose_name_was_not_synced_is_absent_though_its_bytes_were() -> None:
    disk = SimDisk()
    file = disk.open("a", Access.CREATE)
    file.pwrite(0, b"bytes")
    file.sync()
    found = images(disk)
    assert at(found, 3, "nothing unsynced") == {}
    assert at(found, 3, "all unsynced") == {"a": b"bytes"}


def test_a_rename_is_there_or_not_and_never_half() -> None:
    disk = SimDisk()
    for name, data in (("old", b"1"), ("new", b"2")):
        file = disk.open(name, Access.CREATE)
        file.pwrite(0, data)
        file.sync()
    disk.sync_dir(".")
    disk.rename("new", "old")
    outcomes = [contents(each.disk) for each in images(disk) if each.boundary == len(disk.ops)]
    assert {"old": b"1", "new": b"2"} in outcomes
    assert {"old": b"2"} in outcomes
    assert all(each in ({"old": b"1", "new": b"2"}, {"old": b"2"}) for each in outcomes)


def test_each_single_write_is_missing_once() -> None:
    disk = SimDisk()
    file = disk.open("a", Access.CREATE)
    disk.sync_dir(".")
    for number in range(4):
        file.pwrite(number, bytes([65 + number]))
    found = [each for each in images(disk, 0) if each.boundary == 6 and "but op" in each.kind]
    assert [contents(each.disk)["a"] for each in found] == [b"\0BCD", b"A\0CD", b"AB\0D", b"ABC"]


def test_writes_are_torn_and_reordered_by_sectors() -> None:
    disk = SimDisk()
    file = disk.open("a", Access.CREATE)
    file.pwrite(0, bytes(8 * SECTOR))
    file.sync()
    disk.sync_dir(".")
    file.pwrite(100, b"x" * 6 * SECTOR)
    found = [contents(each.disk)["a"] for each in images(disk, 200) if each.boundary == 5]
    edges = [0, 100, *range(SECTOR, 100 + 6 * SECTOR, SECTOR), 100 + 6 * SECTOR, 8 * SECTOR]
    shapes = set()
    for data in found:
        pieces = [set(data[start:end]) for start, end in itertools.pairwise(edges)]
        assert all(len(piece) == 1 for piece in pieces)  # never torn inside a sector
        shapes.add(tuple(piece == {ord("x")} for piece in pieces))
    assert any(later and not earlier for shape in shapes for earlier, later in [shape[2:4]])
    assert len(shapes) > 20


def test_a_durable_write_can_be_torn_only_while_it_is_under_way() -> None:
    disk = SimDisk()
    file = disk.open("a", Access.CREATE)
    file.pwrite(0, bytes(BLOCK_SIZE))
    file.sync()
    disk.sync_dir(".")
    file.pwrite_durable(0, b"x" * BLOCK_SIZE)
    found = images(disk)
    assert len({contents(each.disk)["a"] for each in found if each.boundary == 5}) > 3
    assert {contents(each.disk)["a"] for each in found if each.boundary == 6} == {b"x" * BLOCK_SIZE}


def test_the_same_seed_gives_the_same_images() -> None:
    disk = SimDisk()
    file = disk.open("a", Access.CREATE)
    for number in range(5):
        file.pwrite(number * 700, b"y" * 900)
    first = [(each.boundary, each.kind, contents(each.disk)) for each in images(disk)]
    assert first == [(each.boundary, each.kind, contents(each.disk)) for each in images(disk)]


def test_what_is_settled_can_be_forgotten_and_the_images_are_the_same() -> None:
    def worked(*, forgets: bool) -> SimDisk:
        disk = SimDisk()
        for number in range(6):
            file = disk.open(f"file-{number}", Access.CREATE)
            file.pwrite(0, b"%d" % number * 600)
            if number % 2:
                file.sync()
            if number in (1, 4):
                disk.sync_dir(".")
            if number == 3:
                disk.unlink("file-1")
                disk.rename("file-2", "renamed")
            if forgets:
                forget_settled(disk)
        return disk

    whole, forgetful = worked(forgets=False), worked(forgets=True)
    assert len(forgetful.ops) < len(whole.ops)
    last = [
        [(each.kind, contents(each.disk)) for each in images(disk) if each.boundary == end]
        for disk, end in ((whole, len(whole.ops)), (forgetful, len(forgetful.ops)))
    ]
    unsynced = [kind for kind, _ in last[0] if not kind.startswith("subset")]
    for kind in unsynced:
        assert dict(last[0])[kind] == dict(last[1])[kind], kind
    assert contents(whole) == contents(forgetful)


def test_a_file_that_is_open_keeps_its_bytes_without_a_name() -> None:
    disk = SimDisk()
    kept, gone = (disk.open(name, Access.CREATE) for name in ("kept", "gone"))
    for file in (kept, gone):
        file.pwrite(0, b"bytes")
        disk.unlink(file.path)
    disk.sync_dir(".")
    gone.close()
    forget_settled(disk)
    assert kept.pread(0, 5) == b"bytes"
    assert len(disk.tree.files) == 1
