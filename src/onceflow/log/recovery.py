"""Recovers the logs, as they were acknowledged, from the files on the disk.

In two halves. The first only reads: it verifies every log up to its checkpoint and the journal's
whole chain, and refuses damage with nothing changed. The second changes: logs are cut to their
checkpoint, unknown directories are moved aside, and the journal is replayed. Appends go to their
logs in runs (`replay.py`), all else through `Catalog.replay`. A crash on the way leaves checkpoint
and journal as they were: it can be repeated.

With `durability="os"` there is no journal: each log is read on from its checkpoint up to the first
batch that is not sound, and cut there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from onceflow.errors import DiskFull, LogCorrupt, RecordError
from onceflow.log.catalog import Catalog
from onceflow.log.checkpoint import Checkpoint, CheckpointedLog, Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal import EntryKind, JournalChain, key_log_id
from onceflow.log.partition_log import LogPosition, PartitionLog, directory_name, is_log_directory
from onceflow.log.replay import Replay
from onceflow.log.segments import CLEANED, BatchWalk, OpenFiles, Segment, segment_base, segment_path
from onceflow.log.side_files import ABORTED_INDEX, SNAPSHOT, UNFINISHED
from onceflow.runtime import Access, Disk

STRAY = ".stray"
_UNDERWAY = "recovering"
"""A file that is there from the first change of a recovery to the checkpoint that ends it."""
_DELETED = ".deleted"
"""Versions before `Checkpoint.gone` gave such names to what they were removing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found and did."""

    clean: bool = True
    is_first: bool = False
    """There was nothing before."""
    groups: int = 0
    entries: int = 0
    replayed_bytes: int = 0
    may_have_lost: bool = False
    """The last run did not stop cleanly and did not sync: the end of each log may be gone."""
    dropped_bytes: int = 0
    """Only with `durability="os"`: bytes behind the last sound batch."""
    strays: tuple[str, ...] = ()
    """Directories that no acknowledged operation made, moved aside under these names."""


class Recovered(NamedTuple):
    """The logs as acknowledged, the deleted ones whose files are still there, and a report."""

    catalog: Catalog
    deleted: list[PartitionLog]
    report: RecoveryReport


def recover(
    disk: Disk,
    files: OpenFiles,
    checkpoint: Checkpoint,
    config: LogConfig,
    *,
    is_first: bool = False,
) -> Recovered:
    """Raises `LogCorrupt`, with nothing changed, when durable data is damaged."""
    catalog = Catalog(disk, files, config)
    files.on_crowded = partial(_sync_all, catalog)
    found = [_Found(disk, files, saved, config) for saved in checkpoint.logs]
    for each in found:
        each.verify(clean=checkpoint.clean)
    start = None if checkpoint.clean else checkpoint.journal
    journal = None if start is None else JournalChain(disk, start)
    # The whole chain before the first change: a start that refuses damage must leave all files as
    # they are, for a backup or another attempt.
    created = _verify_journal(journal)
    was_cut_off = disk.exists(_UNDERWAY)
    if not checkpoint.clean:
        _note_underway(disk)
    # From here on files go because this checkpoint does not need them. After a kill its name may be
    # in the page cache alone: a power cut would bring back the checkpoint before, which needs them.
    disk.sync_dir(".")
    strays = _clear_unknown(disk, checkpoint, created)
    dropped = 0
    for each in found:
        if checkpoint.durability is Durability.OS and not checkpoint.clean:
            dropped += each.extend()
        each.trim(clean=checkpoint.clean)
        log = catalog.logs[each.saved.log_id] = each.open()
        each.hold_unsynced(log, was_cut_off=was_cut_off)
    replay = _replay(catalog, journal)
    for log in catalog.logs.values():  # all that was replayed is durable: it was in the journal
        log.settle(log.end_mark)
        log.settle_start(log.start_offset)
    report = RecoveryReport(
        clean=checkpoint.clean,
        is_first=is_first,
        may_have_lost=checkpoint.durability is Durability.OS and not checkpoint.clean,
        groups=replay.groups,
        entries=replay.entries,
        replayed_bytes=replay.bytes,
        dropped_bytes=dropped,
        strays=tuple(strays),
    )
    return Recovered(catalog, replay.deleted, report)


def _note_underway(disk: Disk) -> None:
    """A recovery that is killed leaves cuts in the page cache that the next one does not see: the
    files end where they should. A power cut would undo them, behind segments that have been closed
    since. So the next one has to know, and syncs every log."""
    with suppress(DiskFull):  # a start frees room, and must not need any
        disk.open(_UNDERWAY, Access.CREATE)


def recovery_is_durable(disk: Disk) -> None:
    """Call it when the checkpoint that ends the start is durable. The name goes unsynced: if a
    power cut brings it back, the next start takes a little longer."""
    if disk.exists(_UNDERWAY):
        disk.unlink(_UNDERWAY)


def _sync_all(catalog: Catalog) -> None:
    """Replayed data may become durable at any time, so a start never needs many descriptors."""
    for log in catalog.logs.values():
        log.sync_now()


class _Found:
    """One log's files on the disk, compared with the checkpoint's entry."""

    def __init__(
        self, disk: Disk, files: OpenFiles, saved: CheckpointedLog, config: LogConfig
    ) -> None:
        self.saved = saved
        self._disk = disk
        self._files = files
        self._config = config if saved.layout is None else config.laid_out(saved.layout)
        self._end = saved.end
        # The last run may have been killed after it had given compacted files their names.
        self._names_changed = bool(saved.swapped)
        self._unsynced: list[Segment] = []
        self._directory = directory_name(saved.topic, saved.log_id)
        if not disk.exists(self._directory):
            raise LogCorrupt(
                f"directory {self._directory} is missing but the checkpoint names it; "
                "restore it from a backup"
            )
        self._files_here = [
            (base, entry)
            for entry in disk.entries(self._directory)
            if (base := segment_base(entry.name)) is not None
        ]
        self._sizes = {
            base: entry.size for base, entry in self._files_here if entry.name.endswith(".log")
        }
        self._sizes |= {
            base: entry.size
            for base, entry in self._files_here
            if entry.name.endswith(f".log{CLEANED}") and base in saved.swapped
        }
        self._modified = dict(saved.modified)
        after = [*(each.base_offset for each in saved.sealed[1:]), saved.end.segment]
        self._segments = [
            self._segment(each.base_offset, each.size, end, each.max_timestamp)
            for each, end in zip(saved.sealed, after, strict=False)
            if end > saved.start_offset
        ]
        self._segments.append(
            self._segment(saved.end.segment, saved.end.position, saved.end.offset)
        )

    def _path(self, base_offset: int) -> str:
        return segment_path(self._directory, base_offset, "log")

    def _segment(self, base: int, size: int, end: int, max_timestamp: int | None = None) -> Segment:
        return Segment(
            self._disk,
            self._files,
            self._directory,
            base,
            self._config,
            size=size,
            end=end,
            max_timestamp=max_timestamp,
            modified_ms=self._modified.get(base),
            may_have_gaps=base < self.saved.cleaned_to,
        )

    def verify(self, *, clean: bool) -> None:
        """Every file that holds durable records is there; of the active one, every batch is sound.

        After a clean stop files end exactly where the checkpoint says, and need not be read.
        """
        active = self._segments[-1]
        for segment in self._segments:
            found = self._sizes.get(segment.base_offset)
            may_be_longer = segment is active and not clean
            if (
                found is None
                or found < segment.size
                or (found > segment.size and not may_be_longer)
            ):
                state = "is missing" if found is None else f"has {found} bytes"
                raise LogCorrupt(
                    f"{segment.path('log')} {state}, but {segment.size} were durable. "
                    "Nothing was changed; restore the file from a backup"
                )
        if clean and max(self._sizes) != active.base_offset:
            raise LogCorrupt(f"{self._path(max(self._sizes))} appeared after a clean stop")
        if not clean:
            active.rebuild_indexes(check_crc=True)

    def extend(self) -> int:
        """Without a journal: on to the last sound batch. Returns the bytes behind it."""
        for base in sorted(base for base in self._sizes if base >= self._end.segment):
            if base > self._end.segment:
                if self._end.position < self._sizes[self._end.segment] or base != self._end.offset:
                    break
                self._segments[-1].seal()
                self._segments.append(self._segment(base, 0, base))
                # After a mere kill its name may be in the page cache alone, even if it is empty and
                # has nothing to sync; and the checkpoint that ends this start names it.
                self._names_changed = True
            self._extend_active(base)
        return sum(size for base, size in self._sizes.items() if base >= self._end.segment) - (
            self._end.position
        )

    def _extend_active(self, base: int) -> None:
        active = self._segments[-1]
        end, position = self._last_sound(base, active.size)
        if position > active.size:
            self._unsynced.append(active)
        self._end = LogPosition(end, base, position)
        active.size, active.end_offset = position, end
        active.rebuild_indexes(check_crc=False)

    def _last_sound(self, base: int, start: int) -> tuple[int, int]:
        file = self._disk.open(self._path(base), Access.READ)
        end, position = self._end.offset, start
        with suppress(RecordError):  # a torn tail: what is before it counts
            for size, first, last, _ in BatchWalk(
                file, start, self._sizes[base], end, check_crc=True
            ):
                if first != end:
                    break
                end, position = last + 1, position + size
        return end, position

    def trim(self, *, clean: bool) -> None:
        """Removes what lies outside the log: behind its durable end, below its start, beside it;
        compacted files that the checkpoint names take their place."""
        live = {segment.base_offset for segment in self._segments}
        for base, entry in self._files_here:
            path = f"{self._directory}/{entry.name}"
            if base in live and base in self.saved.swapped and path.endswith(CLEANED):
                self._disk.rename(path, path.removesuffix(CLEANED))
            elif not self._belongs(base, entry.name, live, clean=clean):
                self._disk.unlink(path)
            else:
                continue
            self._names_changed = True
        if self._sizes[self._end.segment] > self._end.position:
            self._segments[-1].file.truncate(self._end.position)
            self._names_changed = True

    def _belongs(self, base: int, name: str, live: set[int], *, clean: bool) -> bool:
        """Whether a file is of the log up to its checkpoint, and has its final name."""
        if name.endswith((CLEANED, UNFINISHED)):
            return False
        if _is_snapshot(name):
            return base <= self.saved.end.offset
        may_be_ahead = base >= self.saved.end.segment and not clean
        return base in live and not (may_be_ahead and name.endswith(f".{ABORTED_INDEX}"))

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
        log.layout = self.saved.layout
        log.compaction.cleaned_to = self.saved.cleaned_to
        log.side_files.trust(
            offset
            for offset, entry in self._files_here
            if _is_snapshot(entry.name) and offset <= self.saved.end.offset
        )
        return log

    def hold_unsynced(self, log: PartitionLog, *, was_cut_off: bool) -> None:
        """Has the next flush sync what was cut, now or by a recovery that `was_cut_off`, and what
        was read behind the checkpoint, which may be in the page cache alone. Call it once the log
        is in the catalog: `_sync_all` finds the log there when descriptors run short."""
        if self._names_changed or self._unsynced or was_cut_off:
            log.files_changed(self._unsynced)


def _is_snapshot(name: str) -> bool:
    return name.endswith(f".{SNAPSHOT}")


def _verify_journal(journal: JournalChain | None) -> set[str]:
    """Reads the whole chain, which raises on damage; the directories that it creates."""
    if journal is None:
        return set()
    return {
        directory_name(bytes(group.data[start:end]).decode(), key_log_id(key))
        for group in journal.verify()
        for kind, key, _, start, end in group.entries()
        if kind == EntryKind.CREATE
    }


def _clear_unknown(disk: Disk, checkpoint: Checkpoint, created: set[str]) -> list[str]:
    """Makes room: removes directories of deleted logs and those that the replay will create again,
    and moves unknown ones aside."""
    ours = {directory_name(log.topic, log.log_id) for log in checkpoint.logs}
    gone = created | (set(checkpoint.gone) - ours)
    strays = []
    for entry in disk.entries("."):
        if entry.name in gone or _is_half_deleted(entry.name):
            remove_directory(disk, entry.name)
        elif is_log_directory(entry.name) and entry.name not in ours:
            strays.append(_move_aside(disk, entry.name))
    return strays


def _is_half_deleted(name: str) -> bool:
    return name.endswith(_DELETED) and is_log_directory(name.removesuffix(_DELETED))


def _move_aside(disk: Disk, name: str) -> str:
    """Under a name that no other has: a crash soon after the start may leave the same one again."""
    aside, earlier = name + STRAY, 0
    while disk.exists(aside):
        earlier += 1
        aside = f"{name}{STRAY}.{earlier}"
    disk.rename(name, aside)
    return aside


def remove_directory(disk: Disk, path: str) -> None:
    """Removes a directory of files."""
    for entry in disk.entries(path):
        disk.unlink(f"{path}/{entry.name}")
    disk.rmdir(path)


def _replay(catalog: Catalog, journal: JournalChain | None) -> Replay:
    replay = Replay(catalog)
    for group in journal or ():
        replay.apply(group)
    replay.finish()
    return replay
