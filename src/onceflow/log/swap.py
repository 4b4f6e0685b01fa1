"""The switch from segments to the compacted ones that stand in for them, atomic in a crash.

The new files are whole and durable beside the old, under names that end in `.cleaned`, before a
checkpoint names the new segments and says that they are swapped in. That checkpoint is the switch:
- before it is durable, recovery finds a checkpoint of the old segments, and removes `.cleaned`;
- from then on the new files take the old names, and recovery does what of that a crash left undone;
- checkpoints go on saying so until the new names are durable, and no compaction of the log starts
  before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onceflow.log.segments import CLEANED, Segment
from onceflow.log.side_files import ABORTED_INDEX
from onceflow.runtime import Disk, Job

_SUFFIXES = ("log", "index", "timeindex")


def files_of(segment: Segment) -> list[str]:
    """All that there may be of a segment on the disk."""
    return [segment.path(suffix) for suffix in (*_SUFFIXES, ABORTED_INDEX)]


def remove_files(disk: Disk, paths: Iterable[str], left: list[tuple[str, Exception]]) -> Job:
    """Removes the files that exist; one that cannot be removed does not stop the others."""
    for path in paths:
        try:
            if disk.exists(path):
                disk.unlink(path)
        except Exception as error:  # no promise depends on it: the owner reports it
            left.append((path, error))
        yield


@dataclass(slots=True, eq=False)
class Swap:
    """Segments of one log and the compacted ones that replace them."""

    old: tuple[Segment, ...]
    new: tuple[Segment, ...]
    cleaned_to: int
    is_done: bool = False
    """The new files have the old names, and the log uses them."""

    @property
    def bases(self) -> tuple[int, ...]:
        """Whose `.cleaned` files, where there are any, are the right ones."""
        return tuple(segment.base_offset for segment in self.new)

    def applied_to(self, segments: list[Segment]) -> list[Segment]:
        if self.is_done:
            return segments
        gone = {segment.base_offset for segment in self.old}
        kept = [segment for segment in segments if segment.base_offset not in gone]
        return sorted([*kept, *self.new], key=lambda segment: segment.base_offset)

    def rename(self, disk: Disk) -> None:
        """Gives the new files the old names. A reader of an old file keeps that one."""
        for segment in self.new:
            for suffix in _SUFFIXES:
                disk.rename(segment.path(suffix) + CLEANED, segment.path(suffix))
            index = segment.path(ABORTED_INDEX)
            if disk.exists(index + CLEANED):
                disk.rename(index + CLEANED, index)
            elif disk.exists(index):
                disk.unlink(index)

    def remove_old(self, disk: Disk, directory: str, left: list[tuple[str, Exception]]) -> Job:
        """Removes the old files whose names no new file took, and makes all names durable. A file
        that cannot be removed goes to `left`, with the reason: the next start removes it."""
        for segment in self.old:
            if segment.base_offset not in self.bases:
                yield from remove_files(disk, files_of(segment), left)
        # Before `swap` is dropped: a checkpoint that no longer names it, with the renames not yet
        # durable, would lead a recovery to the old files.
        disk.sync_dir(directory)


@dataclass(slots=True)
class CompactionState:
    """How far a log is compacted, and the compaction under way."""

    cleaned_to: int = 0
    checkpointed: int = 0
    """Segments whose base is below this are sealed and durable."""
    is_busy: bool = False
    """A compaction uses its files: none of them may go, nor the log's directory."""
    swap: Swap | None = None
    is_named: bool = False
    """The durable checkpoint says that it is swapped: a recovery would take any `.cleaned` file for
    one of that swap, so no other may be made."""
