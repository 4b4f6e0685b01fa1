"""Watches a simulated disk: no group of the journal that a recovery would need is ever touched.

Power cuts find a file of the journal that is used again too early only when one falls into the few
moments in which that matters. The guard looks at every write and every removal, whether the power
goes then or not: `disk.watch = JournalGuard(disk)`.
"""

from __future__ import annotations

from typing import NamedTuple

from onceflow.log.checkpoint import PATH, decode
from onceflow.log.journal.format import padded, read_group_header
from onceflow.log.journal.journal import JournalStart
from onceflow.log.journal.ring import DIRECTORY
from onceflow.testing.disk import ROOT, Op, Rename, SimDisk, SyncDir, Unlink, Write


class _Group(NamedTuple):
    """A group as it was written."""

    incarnation: int
    sequence: int
    start: int
    end: int

    def is_needed_by(self, checkpoint: JournalStart) -> bool:
        return self.incarnation == checkpoint.incarnation and self.sequence >= checkpoint.sequence


class JournalGuard:
    """`broken` says what was done that must not be; `reused` how often a file was begun anew."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._groups: dict[int, list[_Group]] = {}  # by node
        self._starts: list[JournalStart] = []
        """Of the checkpoints that a power cut now could leave: the durable one, and a later one
        whose name is not durable yet."""
        self.broken: list[str] = []
        self.reused = 0

    def __call__(self, op: Op) -> None:
        """Before the op is done."""
        if isinstance(op, Rename) and (op.directory, op.new) == (ROOT, PATH):
            self._checkpoint(bytes(self._disk.tree.files[self._node(ROOT, op.old)]))
        elif isinstance(op, SyncDir) and op.directory == ROOT:
            del self._starts[:-1]
        elif isinstance(op, Write) and op.node in self._journal_files:
            self._write(op)
        elif isinstance(op, Unlink) and op.directory == self._node(ROOT, DIRECTORY):
            self._remove(op)

    def _node(self, directory: int, name: str) -> int:
        return self._disk.tree.names[directory].get(name, -1)

    @property
    def _journal_files(self) -> dict[int, str]:
        names = self._disk.tree.names.get(self._node(ROOT, DIRECTORY), {})
        return {node: name for name, node in names.items()}

    def _checkpoint(self, data: bytes) -> None:
        start = decode(data).journal
        if start is not None:
            self._starts.append(start)

    def _write(self, op: Write) -> None:
        header = read_group_header(op.data)
        if header is None:
            return  # zeros, of a file that is being made
        end = op.position + padded(len(op.data))
        for group in self._groups.get(op.node, []):
            if group.start < end and op.position < group.end:
                self._check(group, f"group {header.sequence} is written over")
        self.reused += op.position == 0 and op.node in self._groups
        others = [
            group
            for group in self._groups.get(op.node, [])
            if group.end <= op.position or end <= group.start
        ]
        written = _Group(header.incarnation, header.sequence, op.position, end)
        self._groups[op.node] = [*others, written]

    def _remove(self, op: Unlink) -> None:
        node = self._node(op.directory, op.name)
        for group in self._groups.pop(node, []):
            self._check(group, f"{op.name} is removed with")
        if any(op.name == f"{start.file:08}.journal" for start in self._starts):
            self.broken.append(f"{op.name} is removed, in which a recovery would start")

    def _check(self, group: _Group, what: str) -> None:
        for start in self._starts:
            if group.is_needed_by(start):
                self.broken.append(
                    f"{what} group {group.sequence}, but a recovery would start at {start.sequence}"
                )
