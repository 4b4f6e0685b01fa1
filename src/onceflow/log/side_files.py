"""The files that a log keeps for its companion: when they are written, trusted, and removed.

`<end>.producers` is the companion's state below an offset at which a segment ended. It is written
only once all below that offset is durable, and trusted only when the checkpoint says so too: what
comes behind a checkpoint may be lost in a crash and the offsets be given to other batches, so
recovery removes such a file before anything is appended. The newest two are kept.

`<base>.txnindex` belongs to its segment as the other indexes do. An active segment has one only
after a clean stop.

Nothing depends on these files: without one, more of the log is read at the next start. So no
checkpoint waits for a snapshot that is still being made: it is written with the one after.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

from onceflow.errors import DiskError, DiskExhausted
from onceflow.log.companion import Companion, Snapshot
from onceflow.log.segments import segment_path
from onceflow.runtime import Access, Disk, Job

SNAPSHOT = "producers"
ABORTED_INDEX = "txnindex"
ABORTED_ENTRY = struct.Struct(">hqqqq")
"""Kafka's: version, producer id, first offset, last offset (the marker's), last stable offset."""
UNFINISHED = ".unfinished"
"""Behind the name of a file that is still being written."""
_KEPT = 2


class Beside(NamedTuple):
    """What is to be written beside one segment."""

    base: int
    end: int
    snapshot: Snapshot | None
    """None when later ones are waiting: this one would be removed at once."""
    aborted_index: bytes


class SideFileKeeper:
    """The companion of one log and its files."""

    __slots__ = ("_directory", "_disk", "_offsets", "_problem", "_waiting", "companion")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets: list[int] = []  # of the snapshots on the disk that are trusted, ascending
        self._waiting: list[Beside] = []  # sealed segments, ascending
        self._problem: Exception | None = None
        self.companion: Companion | None = None

    def start_moved(self, start: int) -> None:
        """The log durably starts there."""
        if self.companion is not None:
            self.companion.start_moved(start)

    def compacted(self, upto: int) -> None:
        """The log is compacted up to there."""
        if self.companion is not None:
            self.companion.compacted(upto)

    def sealed(self, base: int, end: int) -> None:
        """The segment [base, end) was sealed; its files are due when all of it is durable."""
        if self.companion is None:
            return
        try:
            files = self.companion.sealed(base, end)
        except Exception as error:  # an append is under way, which needs none of these files
            self._problem = error
            return
        self._waiting.append(Beside(base, end, *files))
        if len(self._waiting) > _KEPT:
            self._waiting[-1 - _KEPT] = _without_snapshot(self._waiting[-1 - _KEPT])

    def note_problem(self, error: Exception) -> None:
        """The companion could not go on with what it had begun to give."""
        self._problem = error

    def take_problem(self) -> Exception | None:
        """Why the companion had nothing to give, the last time that it had not; told once."""
        problem, self._problem = self._problem, None
        return problem

    def stopping(self, base: int, end: int) -> None:
        """As `sealed`, for the active segment in an orderly stop."""
        known = [*self._offsets, *(each.end for each in self._waiting)]
        has_aged = self.companion is not None and self.companion.has_aged()
        if end and (end not in known or has_aged):
            self.sealed(base, end)
        self._waiting = [self._finished(each) for each in self._waiting]

    def _finished(self, beside: Beside) -> Beside:
        """Nothing depends on a snapshot that cannot be finished, least of all a clean stop."""
        try:
            if beside.snapshot is not None:
                beside.snapshot.finish()
        except Exception as error:
            self._problem = error
            return _without_snapshot(beside)
        return beside

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._waiting)

    def collect(self, durable: int) -> tuple[Beside, ...]:
        """What can be written now, handed over."""
        due = tuple(
            takewhile(lambda each: each.end <= durable and _is_finished(each), self._waiting)
        )
        del self._waiting[: len(due)]
        return due

    def take_back(self, due: tuple[Beside, ...]) -> None:
        """There was no room: they are due again."""
        self._waiting[:0] = due

    def saved(self, due: tuple[Beside, ...]) -> list[str]:
        """A durable checkpoint covers these; returns the files that are not needed any more."""
        self.trust(each.end for each in due if each.snapshot is not None)
        outdated = self._offsets[:-_KEPT]
        del self._offsets[:-_KEPT]
        return [self._path(offset) for offset in outdated]

    def trust(self, offsets: Iterable[int]) -> None:
        """There are snapshots at these offsets, and they are right."""
        self._offsets = sorted({*self._offsets, *offsets})

    def cut(self, base: int, end: int) -> list[str]:
        """The log ends at `end` now, in the segment at `base`; returns the files that do not belong
        to it any more."""
        behind = [offset for offset in self._offsets if offset > end]
        self._offsets = [offset for offset in self._offsets if offset <= end]
        for each in self._waiting:
            if each.end > end:
                _without_snapshot(each)
        self._waiting = [each for each in self._waiting if each.end <= end]
        return [
            segment_path(self._directory, base, ABORTED_INDEX),
            *(self._path(offset) for offset in behind),
        ]

    def snapshots(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Those at offsets from `start` to `end`, newest first; one that cannot be read is left
        out."""
        for offset in reversed(self._offsets):
            path = self._path(offset)
            if start <= offset <= end and self._disk.exists(path):
                with suppress(DiskError):
                    file = self._disk.open(path, Access.READ)
                    yield offset, file.pread(0, file.size())

    def _path(self, offset: int) -> str:
        return segment_path(self._directory, offset, SNAPSHOT)


def _is_finished(beside: Beside) -> bool:
    return beside.snapshot is None or beside.snapshot.is_finished


def _without_snapshot(beside: Beside) -> Beside:
    if beside.snapshot is not None:
        beside.snapshot.cancel()
    return beside._replace(snapshot=None)


def write_beside(disk: Disk, directory: str, due: Iterable[Beside]) -> Job:
    """Writes the files, synced; their names are not durable yet."""
    for each in due:
        index = segment_path(directory, each.base, ABORTED_INDEX)
        if each.aborted_index:
            yield from _write_aside(disk, index, each.aborted_index)
        elif disk.exists(index):
            disk.unlink(index)  # that of a clean stop in the middle of the segment
            yield
        if each.snapshot is not None:
            yield from _write_aside(
                disk, segment_path(directory, each.end, SNAPSHOT), each.snapshot.to_bytes()
            )


def _write_aside(disk: Disk, path: str, data: bytes) -> Job:
    aside = path + UNFINISHED
    try:
        write_whole(disk, aside, data)
    except DiskExhausted:
        if disk.exists(aside):
            disk.unlink(aside)
        raise
    yield
    disk.rename(aside, path)
    yield


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Makes a file of these bytes, synced; its name is not durable yet."""
    file = disk.open(path, Access.CREATE)
    file.truncate(0)
    file.pwrite(0, data)
    file.sync()
