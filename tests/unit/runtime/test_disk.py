"""One suite for the real disk and its simulated twin, and what only the real one can show."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceflow.errors import DiskFailed, DiskFull, PathInUse
from onceflow.runtime.disk import BLOCK_SIZE, Access, Disk, RealDisk
from onceflow.testing.disk import SimDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "data") if request.param == "real" else SimDisk()


def test_bytes_come_back_as_they_were_written(disk: Disk) -> None:
    file = disk.open("a", Access.CREATE)
    file.pwrite(0, b"hello world")
    file.pwrite(6, bytearray(b"there"))
    file.pwrite(20, memoryview(b"end"))
    assert disk.open("a", Access.READ).pread(0, 100) == b"hello there" + bytes(9) + b"end"
    assert file.pread(6, 5) == b"there"
    assert file.pread(23, 5) == b""
    file.truncate(5)
    assert (file.size(), file.pread(0, 100)) == (5, b"hello")
    file.truncate(7)
    assert file.pread(0, 100) == b"hello\0\0"


def test_a_durable_write_needs_no_sync(disk: Disk) -> None:
    disk.open("journal", Access.CREATE).pwrite(0, bytes(4 * BLOCK_SIZE))
    file = disk.open("journal", Access.DIRECT)
    page = mmap.mmap(-1, BLOCK_SIZE)  # aligned, as direct writes want it
    page[:5] = b"group"
    file.pwrite_durable(2 * BLOCK_SIZE, memoryview(page))
    assert disk.open("journal", Access.READ).pread(2 * BLOCK_SIZE, 5) == b"group"


def test_names_are_made_moved_listed_and_removed(disk: Disk) -> None:
    disk.mkdir("b-0")
    disk.open("b-0/2.log", Access.CREATE).pwrite(0, b"123")
    disk.open("b-0/1.log", Access.CREATE)
    disk.mkdir("a-0")
    disk.sync_dir("b-0")
    disk.sync_dir(".")
    assert [(each.name, each.is_dir) for each in disk.entries(".")] == [
        ("a-0", True),
        ("b-0", True),
    ]
    assert [(each.name, each.size) for each in disk.entries("b-0")] == [("1.log", 0), ("2.log", 3)]
    disk.rename("b-0", "c-0")
    assert not disk.exists("b-0")
    assert not disk.exists("b-0/1.log")
    disk.unlink("c-0/1.log")
    with pytest.raises(DiskFailed):
        disk.rmdir("c-0")
    disk.unlink("c-0/2.log")
    disk.rmdir("c-0")
    assert [each.name for each in disk.entries(".")] == ["a-0"]


def test_a_name_that_goes_while_it_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    for name in ("kept", "renamed"):
        disk.open(name, Access.CREATE).close()
    scandir = os.scandir

    @contextmanager
    def overtaken(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as found:
            entries = list(found)
        (tmp_path / "renamed").unlink()
        yield entries

    monkeypatch.setattr(os, "scandir", overtaken)
    assert [each.name for each in disk.entries(".")] == ["kept"]


def test_an_open_file_outlives_its_name(disk: Disk) -> None:
    file = disk.open("a", Access.CREATE)
    file.pwrite(0, b"still here")
    disk.unlink("a")
    assert file.pread(0, 100) == b"still here"
    assert not disk.exists("a")


def test_a_missing_file_or_directory_is_named(disk: Disk) -> None:
    with pytest.raises(DiskFailed, match="nowhere"):
        disk.open("nowhere", Access.READ)
    with pytest.raises(DiskFailed, match="nowhere"):
        disk.entries("nowhere")


def test_a_lock_has_one_holder(disk: Disk) -> None:
    held = disk.lock("lock")
    with pytest.raises(PathInUse):
        disk.lock("lock")
    held.close()
    disk.lock("lock")


def test_what_is_on_disk_is_for_the_owner_only(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "data")
    disk.mkdir("a-0")
    disk.open("a-0/0.log", Access.CREATE)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data/a-0").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data/a-0/0.log").stat().st_mode & 0o777 == 0o600


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    before = open_files()
    files = [disk.open("a", Access.CREATE) for _ in range(10)]
    assert open_files() == before + 10
    files.clear()
    assert open_files() == before


def test_no_room_and_other_errors_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk(tmp_path).open("a", Access.CREATE)

    def refuse(number: int) -> None:
        def call(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "pwrite", call)
        monkeypatch.setattr(os, "fdatasync", call)

    refuse(28)  # ENOSPC
    with pytest.raises(DiskFull, match="write of 'a' failed: No space left"):
        file.pwrite(0, b"x")
    with pytest.raises(DiskFailed):  # a sync that failed for want of room may have lost data
        file.sync()
    refuse(5)  # EIO
    with pytest.raises(DiskFailed, match="Input/output error"):
        file.pwrite(0, b"x")


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk(tmp_path).open("a", Access.CREATE)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, memoryview(data)[:3], at))
    file.pwrite(0, b"0123456789")
    assert file.pread(0, 100) == b"0123456789"


def test_the_simulated_disk_is_full_when_its_capacity_is_used() -> None:
    disk = SimDisk(capacity=100)
    file = disk.open("a", Access.CREATE)
    file.pwrite(0, bytes(90))
    with pytest.raises(DiskFull):
        file.pwrite(90, bytes(20))
    assert file.size() == 100  # like a real one: what fitted was written
    file.pwrite(0, bytes(100))
    assert disk.free_bytes() == 0
