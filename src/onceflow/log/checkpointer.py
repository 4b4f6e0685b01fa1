"""When a checkpoint is taken, of what, and what it sets free.

A checkpoint describes the store between two journal groups: the ends, starts and the set of logs as
of the last durable group, so that replaying the groups after it gives the rest. Taking it costs the
owner only a look at each log; syncing and writing happen in the background. When it is durable,
journal files before it are used again, and files of deleted data are removed: never earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from onceflow.errors import DiskError, DiskExhausted, StoreFailed
from onceflow.log.checkpoint import (
    Checkpoint,
    CheckpointedLog,
    Durability,
    SealedSegment,
    write_checkpoint,
)
from onceflow.log.jobs import Jobs
from onceflow.log.journal import Journal, Ticket
from onceflow.log.partition_log import Flush, LogPosition, PartitionLog, Unwritten
from onceflow.log.quarantine import Quarantine
from onceflow.log.recovery import remove_directory
from onceflow.log.segments import Segment
from onceflow.log.swap import Swap, remove_files
from onceflow.runtime import Disk, Job, JobLane
from onceflow.types import LogId

_SNAPSHOT = "snapshot"
_REMOVAL = "removal of deleted files"


class _Removal:
    """A job that removes files and directories that nothing needs. It notes those that it cannot
    remove, with the reason; they can be retried."""

    def __init__(self, files: list[str], directories: list[str]) -> None:
        self.files = files
        self.directories = directories
        self.removed_directories: list[str] = []
        """Durably."""
        self.left_files: list[tuple[str, Exception]] = []
        self.left_directories: list[tuple[str, Exception]] = []

    def run(self, disk: Disk) -> Job:
        removed = []
        for directory in self.directories:
            try:
                if disk.exists(directory):
                    remove_directory(disk, directory)
                removed.append(directory)
            except Exception as error:
                self.left_directories.append((directory, error))
            yield
        yield from remove_files(disk, self.files, self.left_files)
        if removed:
            self._make_durable(disk, removed)

    def _make_durable(self, disk: Disk, removed: list[str]) -> None:
        """Syncs the names: later checkpoints no longer list these directories in `gone`, so they
        must not come back. A failed sync is no reason to try another: that one may succeed without
        them."""
        try:
            disk.sync_dir(".")
        except DiskExhausted as error:
            self.left_directories += [(directory, error) for directory in removed]
        else:
            self.removed_directories = removed


def _described(log: PartitionLog, end: LogPosition) -> CheckpointedLog:
    """The log as it will be when the checkpoint is durable: with a swap that waits for it done."""
    swap = log.compaction.swap
    segments = log.segments if swap is None else swap.applied_to(log.segments)
    cleaned_to = log.compaction.cleaned_to if swap is None else swap.cleaned_to
    sealed = tuple(
        SealedSegment(segment.base_offset, segment.size, segment.max_timestamp)
        for segment in segments
        if segment.base_offset < end.segment
    )
    return CheckpointedLog(
        log.log_id,
        log.topic,
        log.durable_start,
        end,
        sealed,
        min(cleaned_to, end.offset),
        () if swap is None else swap.bases,
        tuple(_modified(segments, end)),
        log.layout,
    )


def _modified(segments: list[Segment], end: LogPosition) -> Iterator[tuple[int, int]]:
    for segment in segments:
        if segment.modified_ms is not None and segment.base_offset <= end.segment:
            is_last = segment.base_offset == end.segment
            modified = segment.modified_at(end.position if is_last else segment.size)
            if modified is not None:
                yield segment.base_offset, modified


class _Known(NamedTuple):
    """The last checkpoint's entry for a log, and its segments then: for most logs the next
    checkpoint has the same entry."""

    saved: CheckpointedLog
    segments: list[Segment]

    def is_true_of(self, log: PartitionLog) -> bool:
        _, _, start, end, _, cleaned_to, swapped, _, layout = self.saved
        return (
            end == log.durable
            and not log.has_news
            and start == log.durable_start
            and self.segments is log.segments
            and log.compaction.swap is None
            and not swapped
            and layout == log.layout
            and cleaned_to == min(log.compaction.cleaned_to, end.offset)
        )


class _Capture(NamedTuple):
    """One checkpoint: its content, what must be durable before it, and what may go afterwards."""

    checkpoint: Checkpoint
    changed: list[tuple[PartitionLog, CheckpointedLog]]
    """Of which it does not say the same as the last one."""
    flushes: list[Flush]
    deleted: list[PartitionLog]
    swaps: list[tuple[PartitionLog, Swap]]
    """Of compacted segments, to be done once this is durable."""
    ticket: Ticket
    unwritten: list[Unwritten]
    """Filled while it is written."""


class Checkpointer:
    """`durable` is the set of logs as of the last durable group; its owner keeps it so."""

    def __init__(
        self,
        disk: Disk,
        jobs: Jobs,
        durability: Durability,
        incarnation: int,
        journal: Journal | None,
        durable: dict[LogId, PartitionLog],
        quarantine: Quarantine,
        on_failure: Callable[[Exception], None],
        after_checkpoint: Callable[[list[PartitionLog]], None],
    ) -> None:
        self._disk = disk
        self._jobs = jobs
        self._durability = durability
        self._incarnation = incarnation
        self._journal = journal
        self._durable = durable
        self._quarantine = quarantine
        self._on_failure = on_failure
        self._after_checkpoint = after_checkpoint
        self._is_due = False
        self._is_running = False
        self._is_stopped = False
        self._known: dict[LogId, _Known] = {}
        self._next = Ticket()
        self._is_asked_for = False
        self.deleted: list[PartitionLog] = []  # durably so, but their files are still there
        self._going: dict[str, None] = {}  # their directories, until that is durably not so
        self._left_files: list[str] = []  # that could not be removed
        self._left_directories: list[str] = []

    def request(self) -> None:
        """Takes a checkpoint as soon as none is running and no group is in flight."""
        self._is_due = True
        self.proceed()

    def covers_now(self) -> Ticket:
        """Completes when a checkpoint that covers the present state is durable. It begins after the
        owner's current step, so that one checkpoint serves all changes made in that step."""
        ticket = self._next
        if not self._is_asked_for:
            self._is_asked_for = True
            self._jobs.soon(self._asked_for)
        return ticket

    @property
    def is_awaited(self) -> bool:
        """Whether there is a ticket that is not done."""
        return self._is_asked_for or self._is_running

    def _asked_for(self) -> None:
        if self._is_asked_for:
            self.request()

    def proceed(self) -> None:
        """Starts a checkpoint that is due, if that is possible now."""
        between_groups = self._journal is None or self._journal.is_between_groups
        may_begin = between_groups and not self._is_running and not self._is_stopped
        if self._is_due and may_begin:
            try:
                capture = self._capture()
            except Exception as error:
                # Only a start, from the journal, can find out now what has to be synced.
                self._on_failure(error)
                return
            self._is_running = True
            self._jobs.submit(JobLane.BULK, self._write(capture), partial(self._ended, capture))

    def stop(self) -> None:
        """From now on only `write_now` begins a checkpoint."""
        self._is_stopped = True

    def look_again(self) -> None:
        """Retries what failed for lack of room or descriptors."""
        self.proceed()
        self._remove([], [])

    def fail(self, error: Exception) -> None:
        """Takes no further checkpoint, and fails the tickets that wait for one."""
        self.stop()
        self._next.complete(_unknown_outcome(error))

    def write_now(
        self, *, clean: bool = False, cut: tuple[PartitionLog, LogPosition] | None = None
    ) -> None:
        """Writes a checkpoint, blocking; only between groups and while none is running."""
        try:
            capture = self._capture(clean=clean, cut=cut)
        except Exception as error:
            self._on_failure(error)
            raise
        try:
            for _ in self._write(capture):
                pass
        except Exception as error:
            self._ended(capture, error)
            raise
        self._ended(capture, None)

    def _capture(
        self, *, clean: bool = False, cut: tuple[PartitionLog, LogPosition] | None = None
    ) -> _Capture:
        self._is_due = self._is_asked_for = False
        deleted, self.deleted = self.deleted, []
        # A deleted log's directory stays in `gone` until its removal is durable. Left out earlier,
        # it could come back in a crash, and the next start would move it aside as a stray.
        self._going.update(dict.fromkeys(log.directory for log in deleted))
        ticket, self._next = self._next, Ticket()
        before, self._known = self._known, {}
        changed, flushes = [], []
        for log_id, log in self._durable.items():
            known = before.get(log_id)
            if cut is not None and cut[0] is log:
                known = _Known(_described(*cut), [])  # true of no log: it is cut afterwards
                changed.append((log, known.saved))
            elif known is None or not known.is_true_of(log):
                known = _Known(_described(log, log.durable), log.segments)
                changed.append((log, known.saved))
                log.has_news = False
            self._known[log_id] = known
            if clean or log.has_unflushed:
                flushes.append(self._collect(log, clean=clean))
        checkpoint = Checkpoint(
            durability=self._durability,
            incarnation=self._incarnation,
            clean=clean,
            journal=None if self._journal is None else self._journal.start,
            logs=tuple([known.saved for known in self._known.values()]),
            gone=tuple(self._going),
        )
        swaps = [
            (log, swap)
            for log, _ in changed
            if (swap := log.compaction.swap) is not None and not swap.is_done
        ]
        return _Capture(checkpoint, changed, flushes, deleted, swaps, ticket, [])

    def _collect(self, log: PartitionLog, *, clean: bool) -> Flush:
        flush = log.collect_flush(closing=clean)
        if (problem := log.side_files.take_problem()) is not None:
            self._quarantine.report(_SNAPSHOT, log.name, log.directory, problem)
        return flush

    def _write(self, capture: _Capture) -> Job:
        return write_checkpoint(self._disk, capture.checkpoint, capture.flushes, capture.unwritten)

    def _ended(self, capture: _Capture, error: Exception | None) -> None:
        self._is_running = False
        if error is not None and not isinstance(error, DiskExhausted):
            self._on_failure(error)
            capture.ticket.complete(_unknown_outcome(error))
            return
        # Even when the checkpoint found no room: that error comes after all data files were synced.
        for flush in capture.flushes:
            flush.log.synced(flush)
        if error is not None:
            self._postpone(capture)
            return
        try:
            self._set_free(capture)
        except DiskError as failure:
            self._on_failure(failure)
        finally:
            capture.ticket.complete()  # the checkpoint is durable, whatever comes of the rest

    def _postpone(self, capture: _Capture) -> None:
        """No room for the checkpoint itself: the old one stands, and the next one does it all.

        It is due at once but tried again only after the next group or request: by then some
        append has found room.
        """
        self._is_due = True
        self._known.clear()
        self.deleted = capture.deleted + self.deleted
        capture.ticket.add_done_callback(self._next.complete)  # in the order in which they came
        self._next = capture.ticket
        for flush in capture.flushes:
            flush.log.take_back(flush)

    def _set_free(self, capture: _Capture) -> None:
        # Not before the checkpoint is durable: until then a recovery starts from the one before,
        # which needs the old segments, the deleted logs and the journal files that go here.
        files = self._saved(capture)
        for log, swap in capture.swaps:
            log.finish_swap(swap)
        files += self._drop_segments(capture.changed)
        directories = [log.directory for log in capture.deleted if not log.compaction.is_busy]
        self.deleted += [log for log in capture.deleted if log.compaction.is_busy]
        if self._journal is not None and capture.checkpoint.journal is not None:
            files += self._journal.release(capture.checkpoint.journal)
        self._remove(files, directories)
        self._after_checkpoint([log for log, _ in capture.swaps])
        self.proceed()

    def _drop_segments(self, changed: list[tuple[PartitionLog, CheckpointedLog]]) -> list[str]:
        files = []
        for log, saved in changed:
            if not log.is_deleted:
                log.compaction.checkpointed = saved.end.segment
                log.compaction.is_named = bool(saved.swapped)
                files += log.drop_segments(saved.start_offset, saved.end)
                if log.compaction.is_busy:  # what could not go now is looked for again
                    self._known.pop(saved.log_id, None)
        return files

    def _saved(self, capture: _Capture) -> list[str]:
        """Notes which indexes and side files were written; the others are due again. Returns the
        outdated files."""
        outdated: list[str] = []
        unwritten = {id(each.flush): each.error for each in capture.unwritten}
        for flush in capture.flushes:
            error = unwritten.get(id(flush))
            if error is not None:
                flush.log.take_back(flush)
                if not isinstance(error, DiskExhausted):
                    self._quarantine.report(_SNAPSHOT, flush.log.name, flush.log.directory, error)
                continue
            for segment, _, _ in flush.indexes:
                segment.indexes_saved = True
                segment.release_indexes()
            outdated += flush.log.side_files.saved(flush.beside)
        return outdated

    def _remove(self, files: list[str], directories: list[str]) -> None:
        """Removes these in the background, along with what could not be removed before."""
        files += self._due_again(self._left_files)
        directories += self._due_again(self._left_directories)
        if files or directories:
            removal = _Removal(files, directories)
            self._jobs.submit(
                JobLane.BULK, removal.run(self._disk), partial(self._removed, removal)
            )

    def _due_again(self, left: list[str]) -> list[str]:
        """The paths to retry in this round; the others stay in `left`."""
        due = [path for path in left if self._quarantine.begin(_REMOVAL, path)]
        left[:] = sorted({*left}.difference(due))
        return due

    def _removed(self, removal: _Removal, error: Exception | None) -> None:
        """No promise depends on unneeded files: a failed removal only keeps their room occupied."""
        for path, reason in (*removal.left_files, *removal.left_directories):
            if not isinstance(reason, DiskExhausted):
                self._quarantine.failed(_REMOVAL, path, "", reason)
        if error is not None:
            self._quarantine.report(_REMOVAL, "the store", "", error)
        for directory in removal.removed_directories:
            self._going.pop(directory, None)
        self._left_files += [path for path, _ in removal.left_files]
        self._left_directories += [path for path, _ in removal.left_directories]
        left = {*self._left_files, *self._left_directories}
        for path in {*removal.files, *removal.directories} - left:
            self._quarantine.passed(_REMOVAL, path)


def _unknown_outcome(error: Exception) -> StoreFailed:
    return StoreFailed(f"not known to be durable: {error}")
