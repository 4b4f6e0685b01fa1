"""What a power cut can leave of a `SimDisk`: images at every boundary between two ops.

At a boundary, what was synced is there. Of what was not, the images hold:
- nothing; all of it; all of it but one op, for each op;
- seeded subsets: of each write any of its 512-byte sectors (so torn and reordered), of truncations
  any, a file's length grown but its bytes still zero, and of the changes of names a prefix (file
  systems journal names in order; "nothing" is the empty prefix, so unsynced names are absent).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from onceflow.testing.disk import (
    ROOT,
    DataOp,
    Link,
    NameOp,
    Op,
    Rename,
    SimDisk,
    Sync,
    SyncDir,
    SyncWrite,
    Tree,
    Truncate,
    Unlink,
    Write,
)

SECTOR = 512


class Image(NamedTuple):
    """A disk as found after the cut, with what tells it apart for the reader of a failed test."""

    boundary: int
    kind: str
    disk: SimDisk


class _Cut:
    """The durable tree and the list of ops not yet synced, moved on op by op."""

    def __init__(self, disk: SimDisk) -> None:
        self.durable = disk.base.copy()
        self.durable.next_node = disk.tree.next_node  # a lost node's number is never used again
        self.pending: dict[int, DataOp | NameOp] = {}

    def step(self, index: int, op: Op) -> None:
        if isinstance(op, Sync):
            self._settle(lambda each: isinstance(each, Write | Truncate) and each.node == op.node)
        elif isinstance(op, SyncDir):
            self._settle(lambda each: isinstance(each, NameOp) and each.directory == op.directory)
        elif isinstance(op, SyncWrite):
            self._apply(self.durable, self.pending.pop(op.write))
        else:
            self.pending[index] = op

    def _settle(self, chosen: Callable[[DataOp | NameOp], bool]) -> None:
        for index in [index for index, each in self.pending.items() if chosen(each)]:
            self._apply(self.durable, self.pending.pop(index))

    @staticmethod
    def _apply(tree: Tree, op: DataOp | NameOp) -> None:
        if isinstance(op, Write | Truncate):
            tree.apply_data(op)
        else:
            tree.apply_name(op)

    def image(self, ops: list[DataOp | NameOp]) -> SimDisk:
        tree = self.durable.copy()
        for op in ops:
            self._apply(tree, op)
        return SimDisk(tree)


def _torn(op: DataOp, rand: random.Random) -> Iterator[DataOp]:
    """A seeded part of a write: any of its sectors, and perhaps its length without its bytes."""
    if isinstance(op, Truncate):
        if rand.random() < 0.5:
            yield op
        return
    end = op.position + len(op.data)
    start = op.position
    keep = rand.choice((0.0, 0.2, 0.5, 0.8, 1.0))
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if rand.random() < keep:
            yield Write(op.node, start, op.data[start - op.position : stop - op.position])
        elif rand.random() < 0.2:
            yield Write(op.node, stop, b"")  # the length reached stable storage, the bytes did not
        start = stop


def _subset(pending: list[DataOp | NameOp], rand: random.Random) -> list[DataOp | NameOp]:
    names = [op for op in pending if isinstance(op, Link | Unlink | Rename)]
    survivors = {id(op) for op in names[: rand.randint(0, len(names))]}
    chosen: list[DataOp | NameOp] = []
    for op in pending:
        if isinstance(op, Write | Truncate):
            chosen.extend(_torn(op, rand))
        elif id(op) in survivors:
            chosen.append(op)
    return chosen


def _needs(op: DataOp | NameOp, missing: DataOp | NameOp) -> bool:
    """Whether `op` cannot have happened without `missing`: a rename of a name never made."""
    if isinstance(missing, Link) and isinstance(op, Rename):
        return op.directory == missing.directory and op.old == missing.name
    if isinstance(missing, Link) and isinstance(op, Link | Unlink | Rename):
        return op.directory == missing.node
    if isinstance(missing, Rename) and isinstance(op, Rename):
        return op.directory == missing.directory and op.old == missing.new
    return False


def _without(pending: list[DataOp | NameOp], missing: DataOp | NameOp) -> list[DataOp | NameOp]:
    """All but one op, and but those that need it."""
    gone = [missing]
    kept: list[DataOp | NameOp] = []
    for op in pending:
        if op is missing or any(_needs(op, each) for each in gone):
            gone.append(op)
        else:
            kept.append(op)
    return kept


def forget_settled(disk: SimDisk) -> None:
    """Lets go of what no power cut from here on can bring back: the ops that are durable, and the
    bytes of files that have no name any more. For simulations that would outgrow the memory."""
    cut = _Cut(disk)
    for index, op in enumerate(disk.ops):
        cut.step(index, op)
    pending = list(cut.pending.values())
    disk.base = cut.durable
    wanted = _named(disk.base) | _named(disk.tree) | set(+disk.opened)
    wanted |= {op.node for op in pending if isinstance(op, Link)}
    disk.ops = [op for op in pending if isinstance(op, NameOp) or op.node in wanted]
    for tree in (disk.base, disk.tree):
        for node in tree.files.keys() - wanted:
            del tree.files[node]
        for node in tree.names.keys() - wanted - {ROOT}:
            del tree.names[node]


def _named(tree: Tree) -> set[int]:
    """All nodes to which a name leads."""
    found, waiting = set[int](), [ROOT]
    while waiting:
        nodes = tree.names.get(waiting.pop(), {}).values()
        found.update(nodes)
        waiting += [node for node in nodes if node in tree.names]
    return found


def crash_images(
    disk: SimDisk, *, seed: int, subsets: int, first: int = 0, last: int | None = None
) -> Iterator[Image]:
    """Every image at every boundary from `first` to `last` (by default the end)."""
    rand = random.Random(seed)
    cut = _Cut(disk)
    stop = len(disk.ops) if last is None else last
    for boundary in range(stop + 1):
        if boundary >= first:
            pending = list(cut.pending.values())
            yield Image(boundary, "nothing unsynced", cut.image([]))
            if pending:
                yield Image(boundary, "all unsynced", cut.image(pending))
                for number, op in enumerate(pending):
                    if len(pending) > 1:
                        yield Image(
                            boundary,
                            f"all but op {number} {type(op).__name__}",
                            cut.image(_without(pending, op)),
                        )
                for number in range(subsets):
                    yield Image(boundary, f"subset {number}", cut.image(_subset(pending, rand)))
        if boundary < stop:
            cut.step(boundary, disk.ops[boundary])


def sampled_images(
    disk: SimDisk, *, seed: int, others: int, first: int = 0, last: int | None = None
) -> Iterator[Image]:
    """At every boundary from `first` to `last`: nothing and all of what was not synced, and some
    `others` of its images, chosen by seed. For where judging all of them would take hours."""
    rand = random.Random(seed)
    cut = _Cut(disk)
    stop = len(disk.ops) if last is None else last
    for boundary in range(stop + 1):
        if boundary >= first:
            pending = list(cut.pending.values())
            yield Image(boundary, "nothing unsynced", cut.image([]))
            if pending:
                yield Image(boundary, "all unsynced", cut.image(pending))
            for number in range(others if len(pending) > 1 else 0):
                if rand.random() < 0.5:
                    chosen, kind = _subset(pending, rand), f"subset {number}"
                else:
                    op = rand.choice(pending)
                    chosen, kind = _without(pending, op), f"all but {type(op).__name__}"
                yield Image(boundary, kind, cut.image(chosen))
        if boundary < stop:
            cut.step(boundary, disk.ops[boundary])
