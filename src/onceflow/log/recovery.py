"""From what is on the disk to the logs as they were acknowledged.

In two halves. The first only looks: every log up to its checkpoint and the journal's whole chain
are verified, and damage is refused with nothing changed. The second changes: logs are cut to their
checkpoint, unknown directories are moved aside, and the journal is replayed by the same `apply`
that wrote it. A crash on the way leaves checkpoint and journal as they were: it can be repeated.

With `durability="os"` there is no journal: each log is read on from its checkpoint up to the first
batch that is not sound, and cut there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from onceflow.errors import LogCorrupt, RecordError
from onceflow.log.catalog import Catalog
from onceflow.log.checkpoint import Checkpoint, CheckpointedLog, Durability
from onceflow.log.config import LogConfig
from onceflow.log.files import OpenFiles
from onceflow.log.journal import JournalStart
from onceflow.log.journal_format import EntryKind
from onceflow.log.journal_reader import read_journal
from onceflow.log.journal_ring import DIRECTORY as JOURNAL
from onceflow.log.partition_log import Mark, PartitionLog, directory_name
from onceflow.log.segment import Segment, scan, segment_base, segment_path
from onceflow.runtime.disk import Access, Disk

STRAY = ".stray"
DELETED = ".deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found and did."""

    clean: bool = True
    groups: int = 0
    entries: int = 0
    replayed_bytes: int = 0
    dropped_bytes: int = 0
    """Only with `durability="os"`: bytes behind the last sound batch."""
    strays: tuple[str, ...] = ()
    """Directories that no acknowledged operation made, moved aside under these names."""


class Recovered(NamedTuple):
    """The logs as acknowledged, the deleted ones whose files are still there, and a report."""

    catalog: Catalog
    deleted: list[PartitionLog]
    report: RecoveryReport


def recover(disk: Disk, files: OpenFiles, checkpoint: Checkpoint, config: LogConfig) -> Recovered:
    """Raises `LogCorrupt`, with nothing changed, when durable data is damaged."""
    catalog = Catalog(disk, files, config)
    found = [_Found(disk, files, saved, config) for saved in checkpoint.logs]
    if checkpoint.clean:
        for each in found:
            each.check_unchanged()
            if each.has_leftovers:
                each.trim()
            catalog.logs[each.saved.log_id] = each.open()
        return Recovered(catalog, [], RecoveryReport())
    for each in found:
        each.verify()
    created = _verify_journal(disk, checkpoint.journal)
    strays = _clear_unknown(disk, checkpoint.logs, created)
    dropped = 0
    for each in found:
        if checkpoint.durability is Durability.OS:
            dropped += each.extend()
        each.trim()
        catalog.logs[each.saved.log_id] = each.open()
    deleted, report = _replay(disk, catalog, checkpoint.journal)
    for log in catalog.logs.values():  # all that was replayed is durable: it was in the journal
        log.settle(log.end_mark)
        log.durable_start = log.start_offset
    report = replace(report, dropped_bytes=dropped, strays=tuple(strays))
    return Recovered(catalog, deleted, report)


class _Found:
    """One log's files on the disk, held against what the checkpoint says of them."""

    def __init__(
        self, disk: Disk, files: OpenFiles, saved: CheckpointedLog, config: LogConfig
    ) -> None:
        self.saved = saved
        self._disk = disk
        self._files = files
        self._config = config
        self._end = saved.end
        self._trimmed = False
        self._directory = directory_name(saved.topic, saved.log_id)
        if not disk.exists(self._directory):
            raise LogCorrupt(
                f"directory {self._directory} is missing but the checkpoint names it; "
                "restore it from a backup"
            )
        self._sizes = {
            base: entry.size
            for entry in disk.entries(self._directory)
            if entry.name.endswith(".log") and (base := segment_base(entry.name)) is not None
        }
        self._check_sizes()
        self._segments = self._live_segments()

    def _path(self, base_offset: int) -> str:
        return segment_path(self._directory, base_offset, "log")

    def _check_sizes(self) -> None:
        """Every file that holds durable records is there and long enough."""
        files = [*self.saved.sealed, (self._end.segment, self._end.position)]
        needed = [
            each for each, after in pairwise(files) if after[0] > self.saved.start_offset
        ] + files[-1:]
        for base, size in needed:
            found = self._sizes.get(base)
            if found is None or found < size or (found > size and base != self._end.segment):
                state = "is missing" if found is None else f"has {found} bytes"
                raise LogCorrupt(
                    f"{self._path(base)} {state}, but {size} were durable. "
                    "Nothing was changed; restore the file from a backup"
                )

    def _live_segments(self) -> list[Segment]:
        """The segments from the one with the log start to the one with the durable end."""
        bases = sorted(base for base in self._sizes if base <= self._end.segment)
        starts = [*bases, self._end.offset]
        return [
            self._segment(base, self._sizes[base], end)
            for base, end in pairwise(starts)
            if base != self._end.segment and end > self.saved.start_offset
        ] + [self._segment(self._end.segment, self._end.position, self._end.offset)]

    def _segment(self, base: int, size: int, end: int) -> Segment:
        directory, config = self._directory, self._config
        return Segment(self._disk, self._files, directory, base, config, size=size, end=end)

    @property
    def has_leftovers(self) -> bool:
        """Whether files of deleted segments are still there: a removal that did not last."""
        return len(self._sizes) != len(self._segments)

    def check_unchanged(self) -> None:
        """After a clean stop the files end where the checkpoint says, and nothing follows."""
        if max(self._sizes) != self._end.segment or (
            self._sizes[self._end.segment] != self._end.position
        ):
            raise LogCorrupt(
                f"{self._directory} was changed after a clean stop: the last file should be "
                f"{self._path(self._end.segment)} with {self._end.position} bytes"
            )

    def verify(self) -> None:
        """Reads the segment that was active up to its durable end, and builds its indexes."""
        self._segments[-1].rebuild_indexes(check_crc=True)

    def extend(self) -> int:
        """Without a journal: on to the last sound batch. Returns the bytes behind it."""
        behind = 0
        for base in sorted(base for base in self._sizes if base >= self._end.segment):
            if base > self._end.segment and base != self._end.offset:
                break
            start = self._end.position if base == self._end.segment else 0
            end, position = self._last_sound(base, start)
            self._end = Mark(end, base, position)
            behind = self._sizes[base] - position
            if behind:
                break
        behind += sum(size for base, size in self._sizes.items() if base > self._end.segment)
        self._segments = self._live_segments()
        for segment in self._segments:
            if segment.end_offset > self.saved.end.offset:
                segment.rebuild_indexes(check_crc=False)
        return behind

    def _last_sound(self, base: int, start: int) -> tuple[int, int]:
        file = self._disk.open(self._path(base), Access.READ)
        end, position = self._end.offset, start
        with suppress(RecordError):  # a torn tail: what is before it counts
            for at, header in scan(file, start, self._sizes[base], check_crc=True):
                if header.base_offset != end:
                    break
                end, position = header.next_offset, at + header.size
        return end, position

    def trim(self) -> None:
        """Removes what lies outside the log: behind its durable end, below its start."""
        live = {segment.base_offset for segment in self._segments}
        self._trimmed = True
        for entry in self._disk.entries(self._directory):
            base = segment_base(entry.name)
            if base is not None and base not in live:
                self._disk.unlink(f"{self._directory}/{entry.name}")
        if self._sizes[self._end.segment] > self._end.position:
            self._segments[-1].file.truncate(self._end.position)

    def open(self) -> PartitionLog:
        log = PartitionLog(
            self._disk,
            self._files,
            self.saved.log_id,
            self.saved.topic,
            self._segments,
            start_offset=self.saved.start_offset,
            config=self._config,
        )
        if self._trimmed:
            log.files_changed()
        return log


def _verify_journal(disk: Disk, start: JournalStart | None) -> set[str]:
    """Reads the whole chain, which raises on damage; the directories that it creates."""
    if start is None:
        return set()
    return {
        directory_name(bytes(entry.payload).decode(), entry.log_id)
        for group in read_journal(disk, start)
        for entry in group
        if entry.kind is EntryKind.CREATE
    }


def _clear_unknown(disk: Disk, known: Iterable[CheckpointedLog], created: set[str]) -> list[str]:
    """Makes room: directories that replay will make again go, unknown ones are moved aside."""
    ours = {directory_name(log.topic, log.log_id) for log in known}
    strays = []
    for entry in disk.entries("."):
        if not entry.is_dir or entry.name == JOURNAL or entry.name in ours:
            continue
        if entry.name in created or entry.name.endswith(DELETED):
            remove_directory(disk, entry.name)
        elif not entry.name.endswith(STRAY):
            disk.rename(entry.name, entry.name + STRAY)
            strays.append(entry.name + STRAY)
    return strays


def remove_directory(disk: Disk, path: str) -> None:
    """Removes a directory of files."""
    for entry in disk.entries(path):
        disk.unlink(f"{path}/{entry.name}")
    disk.rmdir(path)


def _replay(
    disk: Disk, catalog: Catalog, start: JournalStart | None
) -> tuple[list[PartitionLog], RecoveryReport]:
    groups = entries = size = 0
    deleted = []
    for group in read_journal(disk, start) if start is not None else ():
        groups += 1
        for entry in group:
            entries += 1
            size += len(entry.payload)
            log = catalog.replay(entry)
            if entry.kind is EntryKind.DELETE:
                deleted.append(log)
    report = RecoveryReport(clean=False, groups=groups, entries=entries, replayed_bytes=size)
    return deleted, report
