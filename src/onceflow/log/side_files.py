"""The files beside a log's segments that hold the state of its producers and transactions.

The log calls its `Companion` when a segment is sealed, keeps the bytes it returns in files that
share the segments' fate, and asks it which transactions compaction must wait for, which were
aborted and which producers may come back. The log never interprets the bytes. All calls come from
the owner's thread unless a method says otherwise.

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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple, Protocol

from onceflow.errors import DiskError, DiskExhausted
from onceflow.log.segments import segment_path
from onceflow.runtime import Access, Disk, Job


class CompanionSnapshot(Protocol):
    """A companion's state at one offset. To make it may take long, so it may not be finished when
    it is handed out; it says the same whenever it is."""

    @property
    def is_finished(self) -> bool:
        """Whether there are bytes."""

    def finish(self) -> None:
        """Makes the rest at once."""

    def cancel(self) -> None:
        """Stops the work: the bytes are not needed."""

    def to_bytes(self) -> bytes:
        """Once it is finished; from any thread."""


class SideFiles(NamedTuple):
    """The contents of the files beside a sealed segment."""

    snapshot: CompanionSnapshot
    """The companion's state after all batches below the segment's end."""
    aborted_index: bytes
    """The aborted transactions whose markers are in the segment, as in Kafka's `.txnindex`; no file
    when it is empty."""


class Companion(Protocol):
    """Knows the state of producers and transactions as of the log's end, always."""

    def sealed(self, base: int, end: int) -> SideFiles:
        """The segment [base, end) takes no more batches. Called before anything is appended at
        `end`, and of the active segment in an orderly stop."""

    def has_aged(self) -> bool:
        """Whether its state is another than at the last `sealed` even if nothing was appended: some
        of it may change with time alone."""

    def start_moved(self, start: int) -> None:
        """Records below are gone for good."""

    def first_unstable(self) -> int | None:
        """The first offset of all transactions that are open or whose marker is not durable yet:
        from there on the outcome of records is not certain."""

    def aborted(self, start: int, end: int) -> Sequence[tuple[int, int, int]]:
        """All aborted transactions, as producer id, first offset and offset of the marker, that
        have an offset in [start, end)."""

    def remembered(self) -> Collection[int]:
        """The ids of all producers that are remembered, and so may come back: of each the last
        batch and the last marker outlive compaction, as the state after a restart rests on them."""

    def compacted(self, upto: int) -> None:
        """Of transactions whose aborting marker is below `upto` no record is left in the log: they
        are to be forgotten, because their markers may go too. Called in the same turn in which
        readers begin to see the compacted log."""


SNAPSHOT = "producers"
ABORTED_INDEX = "txnindex"
ABORTED_ENTRY = struct.Struct(">hqqqq")
"""Kafka's: version, producer id, first offset, last offset (the marker's), last stable offset."""
UNFINISHED = ".unfinished"
"""Behind the name of a file that is still being written."""
_KEPT = 2


class PendingSideFile(NamedTuple):
    """Files that are still to be written beside one segment."""

    base: int
    end: int
    snapshot: CompanionSnapshot | None
    """None when later ones are waiting: this one would be removed at once."""
    aborted_index: bytes


class SideFileKeeper:
    """The companion of one log and its files."""

    __slots__ = ("_directory", "_disk", "_offsets", "_problem", "_waiting", "companion")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets: list[int] = []  # of the snapshots on the disk that are trusted, ascending
        self._waiting: list[PendingSideFile] = []  # sealed segments, ascending
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
        self._waiting.append(PendingSideFile(base, end, *files))
        if len(self._waiting) > _KEPT:
            self._waiting[-1 - _KEPT] = _without_snapshot(self._waiting[-1 - _KEPT])

    def note_problem(self, error: Exception) -> None:
        """Keeps an error that the companion met while it finished a snapshot."""
        self._problem = error

    def take_problem(self) -> Exception | None:
        """The error of the companion's last failure; returned once."""
        problem, self._problem = self._problem, None
        return problem

    def stopping(self, base: int, end: int) -> None:
        """As `sealed`, for the active segment in an orderly stop."""
        known = [*self._offsets, *(each.end for each in self._waiting)]
        has_aged = self.companion is not None and self.companion.has_aged()
        if end and (end not in known or has_aged):
            self.sealed(base, end)
        self._waiting = [self._finished(each) for each in self._waiting]

    def _finished(self, beside: PendingSideFile) -> PendingSideFile:
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

    def collect(self, durable: int) -> tuple[PendingSideFile, ...]:
        """Hands over the files that can be written now."""
        # Not ahead of what is durable: such a snapshot would survive a crash that takes its batches
        # and vouch for producers whose offsets then go to other batches.
        due = tuple(
            takewhile(lambda each: each.end <= durable and _is_finished(each), self._waiting)
        )
        del self._waiting[: len(due)]
        return due

    def take_back(self, due: tuple[PendingSideFile, ...]) -> None:
        """Returns files that found no room: they are due again."""
        self._waiting[:0] = due

    def saved(self, due: tuple[PendingSideFile, ...]) -> list[str]:
        """Notes that a durable checkpoint covers these; returns the files no longer needed."""
        self.trust(each.end for each in due if each.snapshot is not None)
        outdated = self._offsets[:-_KEPT]
        del self._offsets[:-_KEPT]
        return [self._path(offset) for offset in outdated]

    def trust(self, offsets: Iterable[int]) -> None:
        """There are snapshots at these offsets, and they are right."""
        self._offsets = sorted({*self._offsets, *offsets})

    def cut(self, base: int, end: int) -> list[str]:
        """Notes that the log now ends at `end`, in the segment at `base`; returns the files that no
        longer belong to it."""
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
        """The snapshots at offsets from `start` to `end`, newest first, without unreadable ones."""
        for offset in reversed(self._offsets):
            path = self._path(offset)
            if start <= offset <= end and self._disk.exists(path):
                with suppress(DiskError):
                    file = self._disk.open(path, Access.READ)
                    yield offset, file.pread(0, file.size())

    def _path(self, offset: int) -> str:
        return segment_path(self._directory, offset, SNAPSHOT)


def _is_finished(beside: PendingSideFile) -> bool:
    return beside.snapshot is None or beside.snapshot.is_finished


def _without_snapshot(beside: PendingSideFile) -> PendingSideFile:
    if beside.snapshot is not None:
        beside.snapshot.cancel()
    return beside._replace(snapshot=None)


def write_beside(disk: Disk, directory: str, due: Iterable[PendingSideFile]) -> Job:
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
    # Recovery trusts a snapshot by its name, so only a whole, synced file may get it.
    disk.rename(aside, path)
    yield


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Makes a file of these bytes, synced; its name is not durable yet."""
    file = disk.open(path, Access.CREATE)
    file.truncate(0)
    file.pwrite(0, data)
    file.sync()
