"""A disk in memory that remembers the order of everything done to it, and can be cut at any point.

`SimDisk` is the twin of `RealDisk`. Each change is one `Op`; `crash` turns the list of ops into
the images that a power cut at any boundary could leave. Faults are set from outside: `capacity`
makes writes raise `DiskFull`, `most_open` makes whatever opens a file raise `OutOfDescriptors`,
`fail` makes chosen ops raise `DiskFailed`, `fail_read` the reads of chosen paths; `watch` sees
every op.

Files and directories are numbered nodes, so that an open file, a rename and an unlink mean what
they mean on a real file system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from onceflow.errors import DiskFailed, DiskFull, OutOfDescriptors, PathInUse
from onceflow.runtime import BLOCK_SIZE, Access, Bytes, DirectoryEntry

ROOT = 0


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put at a position of a file."""

    node: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """The file's length set."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Link:
    """A name added to a directory, or moved to another node."""

    directory: int
    name: str
    node: int
    is_dir: bool


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name taken out of a directory."""

    directory: int
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A name changed: atomic, both names never absent."""

    directory: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Sync:
    """All earlier changes of the file, its length included, are on stable storage."""

    node: int


@dataclass(frozen=True, slots=True)
class SyncWrite:
    """One write, by its place in the list of ops, is on stable storage; others may not be."""

    write: int


@dataclass(frozen=True, slots=True)
class SyncDir:
    """All earlier changes of the directory's names are on stable storage."""

    directory: int


DataOp = Write | Truncate
NameOp = Link | Unlink | Rename
Op = DataOp | NameOp | Sync | SyncWrite | SyncDir


@dataclass(slots=True)
class Tree:
    """What a disk holds: the bytes of each file, the names of each directory."""

    files: dict[int, bytearray] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    next_node: int = 1

    def copy(self) -> Tree:
        return Tree(
            {node: bytearray(data) for node, data in self.files.items()},
            {node: dict(names) for node, names in self.names.items()},
            self.next_node,
        )

    def apply_data(self, op: DataOp) -> None:
        data = self.files.setdefault(op.node, bytearray())
        if isinstance(op, Truncate):
            del data[op.size :]
            data.extend(bytes(op.size - len(data)))
            return
        if len(data) < op.position:
            data.extend(bytes(op.position - len(data)))
        data[op.position : op.position + len(op.data)] = op.data

    def apply_name(self, op: NameOp) -> None:
        names = self.names.setdefault(op.directory, {})  # its own name may be lost
        if isinstance(op, Link):
            names[op.name] = op.node
            if op.is_dir:
                self.names.setdefault(op.node, {})
            else:
                self.files.setdefault(op.node, bytearray())
        elif isinstance(op, Unlink):
            names.pop(op.name, None)
        else:
            names[op.new] = names.pop(op.old)


class SimFile:
    """An open file of a `SimDisk`."""

    __slots__ = ("__weakref__", "_disk", "_is_open", "_node", "_path")

    def __init__(self, disk: SimDisk, path: str, node: int) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._is_open = True
        disk.opened[node] += 1

    @property
    def path(self) -> str:
        return self._path

    @property
    def _data(self) -> bytearray:
        return self._disk.tree.files[self._node]

    def pread(self, position: int, size: int) -> bytes:
        if self._disk.fail_read(self._path):
            raise DiskFailed(f"read of {self._path!r} failed: simulated I/O error")
        return bytes(self._data[position : position + size])

    def pwrite(self, position: int, data: Bytes) -> None:
        data = bytes(data)
        growth = max(0, position + len(data) - len(self._data))
        room = self._disk.free_bytes()
        if growth > room:
            fits = len(data) - (growth - room)  # like a real disk: what fits is written first
            if fits > 0:
                self._disk.record(Write(self._node, position, data[:fits]))
            raise DiskFull(f"write of {self._path!r} failed: the simulated disk is full")
        self._disk.record(Write(self._node, position, data))

    def pwrite_durable(self, position: int, data: Bytes) -> None:
        if position % BLOCK_SIZE or len(data) % BLOCK_SIZE:
            raise DiskFailed(f"unaligned durable write of {self._path!r} at {position}")
        self.pwrite(position, data)
        self._disk.record(SyncWrite(len(self._disk.ops) - 1))

    def truncate(self, size: int) -> None:
        self._disk.record(Truncate(self._node, size))

    def size(self) -> int:
        return len(self._data)

    def sync(self) -> None:
        self._disk.record(Sync(self._node))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._disk.opened[self._node] -= 1

    def __del__(self) -> None:
        SimFile.close(self)


class SimDisk:
    """The twin of `RealDisk`; `base` is what was durable on it before the first op."""

    def __init__(self, base: Tree | None = None, *, capacity: int | None = None) -> None:
        self.base = base.copy() if base is not None else Tree()
        self.tree = self.base.copy()
        self.ops: list[Op] = []
        self.capacity = capacity
        self.most_open: int | None = None
        self.opened: Counter[int] = Counter()
        """How often each file is open."""
        self.fail: Callable[[Op], bool] = lambda _: False
        self.fail_read: Callable[[str], bool] = lambda _: False
        self.watch: Callable[[Op], None] = lambda _: None
        self._locked: set[str] = set()

    def record(self, op: Op) -> None:
        if self.fail(op):
            raise DiskFailed(f"simulated I/O error on {type(op).__name__.lower()}")
        self.ops.append(op)
        self.watch(op)
        if isinstance(op, Write | Truncate):
            self.tree.apply_data(op)
        elif isinstance(op, Link | Unlink | Rename):
            self.tree.apply_name(op)

    def _check_descriptors(self, what: str, path: str) -> None:
        if self.most_open is not None and self.opened.total() >= self.most_open:
            raise OutOfDescriptors(f"{what} of {path!r} failed: simulated: too many open files")

    def _directory(self, path: str) -> int:
        node = ROOT
        for part in path.split("/"):
            if part not in ("", "."):
                found = self.tree.names[node].get(part)
                if found is None or found not in self.tree.names:
                    raise DiskFailed(f"no directory {path!r}")
                node = found
        return node

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _link(self, path: str, *, is_dir: bool) -> int:
        directory, name = self._place(path)
        if name in self.tree.names[directory]:
            raise DiskFailed(f"creation of {path!r} failed: it exists")
        node = self.tree.next_node
        self.tree.next_node += 1
        self.record(Link(directory, name, node, is_dir))
        return node

    def open(self, path: str, access: Access) -> SimFile:
        self._check_descriptors("open", path)
        directory, name = self._place(path)
        node = self.tree.names[directory].get(name)
        if node is None:
            if access is not Access.CREATE:
                raise DiskFailed(f"open of {path!r} failed: no such file")
            node = self._link(path, is_dir=False)
        return SimFile(self, path, node)

    def entries(self, path: str) -> list[DirectoryEntry]:
        self._check_descriptors("listing", path)
        names = self.tree.names[self._directory(path)]
        files = self.tree.files
        return sorted(
            DirectoryEntry(name, node not in files, len(files.get(node, b"")))
            for name, node in names.items()
        )

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._place(path)
        except DiskFailed:
            return False
        return name in self.tree.names[directory]

    def mkdir(self, path: str) -> None:
        self._link(path, is_dir=True)

    def rename(self, old: str, new: str) -> None:
        directory, old_name = self._place(old)
        new_directory, new_name = self._place(new)
        if directory != new_directory:
            raise DiskFailed("the simulated disk renames inside one directory only")
        self.record(Rename(directory, old_name, new_name))

    def unlink(self, path: str) -> None:
        if not self.exists(path):
            raise DiskFailed(f"removal of {path!r} failed: no such file")
        self.record(Unlink(*self._place(path)))

    def rmdir(self, path: str) -> None:
        if self.tree.names[self._directory(path)]:
            raise DiskFailed(f"directory {path!r} is not empty")
        self.record(Unlink(*self._place(path)))

    def sync_dir(self, path: str) -> None:
        self._check_descriptors("sync", path)
        self.record(SyncDir(self._directory(path)))

    def free_bytes(self) -> int:
        if self.capacity is None:
            return 1 << 62
        kept = {node for names in self.tree.names.values() for node in names.values()}
        kept.update(node for node, times in self.opened.items() if times)  # as on a real disk
        used = sum(len(self.tree.files[node]) for node in kept if node in self.tree.files)
        return max(0, self.capacity - used)

    def total_bytes(self) -> int:
        return 1 << 62 if self.capacity is None else self.capacity

    def lock(self, path: str) -> SimFile:
        if path in self._locked:
            raise PathInUse(f"{path} is in use")
        self._locked.add(path)
        return _LockFile(self, path, self.open(path, Access.CREATE)._node)

    def unlock(self, path: str) -> None:
        self._locked.discard(path)


class _LockFile(SimFile):
    """Gives the lock back when it is closed."""

    __slots__ = ()

    def close(self) -> None:
        super().close()
        self._disk.unlock(self._path)
