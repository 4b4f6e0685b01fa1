"""The door to storage: `Disk` and `File`, and their real implementation.

Paths are relative to the disk's root and use "/". What each call promises:

- `File.pwrite` puts the bytes into the page cache: visible at once, durable only after `sync`.
- `File.pwrite_durable` returns when the bytes are on stable storage; the journal lives on it.
- `rename`, `unlink`, `mkdir` and the creation of a file are durable after `sync_dir` of the parent.
- Running out of room raises `DiskFull`, out of descriptors `OutOfDescriptors`, any other failure
  `DiskFailed`. After a failed `sync` or `pwrite_durable` the content of the disk is unknown, so the
  caller must stop and never retry: the kernel may have dropped the dirty pages, and a second sync
  would succeed without them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Protocol

from onceflow.errors import DiskError, DiskFailed, DiskFull, OutOfDescriptors, PathInUse

BLOCK_SIZE = 4096
"""Unit of `pwrite_durable`: position and size are multiples of it, memory is aligned to it."""

Bytes = bytes | bytearray | memoryview | mmap.mmap


class Access(Enum):
    """How a file is opened."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    """Write, and make the file when it is not there."""
    DIRECT = "direct"
    """For `pwrite_durable`: past the page cache where the file system allows it."""


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    is_dir: bool
    size: int


class File(Protocol):
    """An open file. It is closed when the last reference to it goes."""

    @property
    def path(self) -> str: ...

    def pread(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pwrite(self, position: int, data: Bytes) -> None:
        """Writes all of `data`, or raises; after `DiskFull` a part of it may be in the file."""

    def pwrite_durable(self, position: int, data: Bytes) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory tree that no other process writes to."""

    def open(self, path: str, access: Access) -> File: ...

    def entries(self, path: str) -> list[DirectoryEntry]:
        """The names in a directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def mkdir(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int: ...

    def lock(self, path: str) -> File:
        """Takes the lock file `path` for as long as the returned file lives."""


def named_disk_error(error: OSError, what: str, path: str) -> DiskError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        # Raised by opening, before anything was done: also where that was to sync a directory.
        return OutOfDescriptors(
            f"{what} of {path!r} failed: {error.strerror}; raise the limit of open files "
            "(ulimit -n) or close connections"
        )
    full = error.errno in (errno.ENOSPC, errno.EDQUOT) and what != "sync"
    kind = DiskFull if full else DiskFailed  # after a failed sync more room does not help
    return kind(f"{what} of {path!r} failed: {error.strerror}")


def _entry(found: os.DirEntry[str]) -> DirectoryEntry | None:
    """None where the name has gone since it was listed: several threads remove and rename files."""
    try:
        return DirectoryEntry(found.name, found.is_dir(), found.stat().st_size)
    except FileNotFoundError:
        return None


@contextmanager
def _named_errors(what: str, path: str) -> Iterator[None]:
    """For all calls but reads and writes, which are too frequent for a context manager."""
    try:
        yield
    except OSError as error:
        raise named_disk_error(error, what, path) from error


def _check_directory(root: Path) -> None:
    """Raises `DiskFailed` when this, or where it is to be, is something else."""
    there = next((each for each in (root, *root.parents) if each.exists()), None)
    if there is not None and not there.is_dir():
        raise DiskFailed(f"{there} is not a directory; choose another data directory")


class DurableWrite:
    """A job for a `Background`: one `pwrite_durable`. A `Background` that knows a better way than a
    thread may use its fields."""

    __slots__ = ("_is_done", "data", "file", "position", "took_ms")

    def __init__(self, file: File, position: int, data: memoryview) -> None:
        self.file = file
        self.position = position
        self.data = data
        self.took_ms = 0.0
        """Until its thread went on: in a busy program that may wait for the interpreter, too."""
        self._is_done = False

    @property
    def is_direct(self) -> bool:
        """Whether it bypasses the page cache, and so does not sync other writes there."""
        return isinstance(self.file, RealFile) and self.file.is_direct

    def __iter__(self) -> DurableWrite:
        return self

    def __next__(self) -> None:
        if self._is_done:
            raise StopIteration
        began = perf_counter()
        self.file.pwrite_durable(self.position, self.data)
        self.took_ms = (perf_counter() - began) * 1000
        self._is_done = True


class RealFile:
    """A file descriptor. `direct` says whether writes pass the page cache by."""

    __slots__ = ("__weakref__", "_direct", "_fd", "_path")

    def __init__(self, path: str, fd: int, *, direct: bool) -> None:
        self._path = path
        self._fd = fd
        self._direct = direct

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return self._fd

    @property
    def is_direct(self) -> bool:
        """Whether writes go past the page cache and are durable when they end."""
        return self._direct

    def pread(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size and (data := os.pread(self._fd, size - got, position + got)):
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        except OSError as error:
            raise named_disk_error(error, "read", self._path) from error

    def pwrite(self, position: int, data: Bytes) -> None:
        try:
            written = os.pwrite(self._fd, data, position)
            if written == len(data):
                return
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(self._fd, view[written:], position + written)
        except OSError as error:
            raise named_disk_error(error, "write", self._path) from error

    def pwrite_durable(self, position: int, data: Bytes) -> None:
        self.pwrite(position, data)
        if not self._direct:
            self.sync()

    def truncate(self, size: int) -> None:
        with _named_errors("truncation", self._path):
            os.ftruncate(self._fd, size)

    def size(self) -> int:
        with _named_errors("stat", self._path):
            return os.fstat(self._fd).st_size

    def sync(self) -> None:
        with _named_errors("sync", self._path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()


_FLAGS = {
    Access.READ: os.O_RDONLY,
    Access.WRITE: os.O_RDWR,
    Access.CREATE: os.O_RDWR | os.O_CREAT,
    Access.DIRECT: os.O_RDWR,
}


class RealDisk:
    """A directory of the machine. Directories are made 0700 and files 0600."""

    def __init__(self, root: Path) -> None:
        self._root = root
        _check_directory(root)
        if not root.exists():
            with _named_errors("creation", str(root)):
                root.mkdir(mode=0o700, parents=True)
            self.sync_dir("..")

    def _path(self, path: str) -> Path:
        return self._root / path

    def open(self, path: str, access: Access) -> RealFile:
        flags = _FLAGS[access] | os.O_CLOEXEC
        if access is Access.DIRECT:
            try:
                fd = os.open(self._path(path), flags | os.O_DIRECT | os.O_DSYNC)
                return RealFile(path, fd, direct=True)
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: this file system has no direct I/O
                    raise named_disk_error(error, "open", path) from error
        # Not direct, then, also when DIRECT was asked for: `pwrite_durable` has to sync.
        with _named_errors("open", path):
            return RealFile(path, os.open(self._path(path), flags, 0o600), direct=False)

    def entries(self, path: str) -> list[DirectoryEntry]:
        with _named_errors("listing", path), os.scandir(self._path(path)) as found:
            return sorted(entry for each in found if (entry := _entry(each)) is not None)

    def exists(self, path: str) -> bool:
        return self._path(path).exists()

    def mkdir(self, path: str) -> None:
        with _named_errors("creation", path):
            self._path(path).mkdir(mode=0o700)

    def rename(self, old: str, new: str) -> None:
        with _named_errors("rename", old):
            self._path(old).rename(self._path(new))

    def unlink(self, path: str) -> None:
        with _named_errors("removal", path):
            self._path(path).unlink()

    def rmdir(self, path: str) -> None:
        with _named_errors("removal", path):
            self._path(path).rmdir()

    def sync_dir(self, path: str) -> None:
        with _named_errors("sync", path):
            fd = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def free_bytes(self) -> int:
        with _named_errors("stat", "."):
            facts = os.statvfs(self._root)
            return facts.f_bavail * facts.f_frsize

    def total_bytes(self) -> int:
        with _named_errors("stat", "."):
            facts = os.statvfs(self._root)
            return facts.f_blocks * facts.f_frsize

    def lock(self, path: str) -> RealFile:
        file = self.open(path, Access.CREATE)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PathInUse(
                f"{self._path(path).parent} is in use by another process; "
                "stop that one first or choose another data directory"
            ) from error
        return file
