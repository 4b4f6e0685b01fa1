"""When a checkpoint is taken, of what, and what it sets free.

A checkpoint describes the store between two journal groups: the ends, starts and the set of logs as
of the last durable group, so that replaying the groups after it gives the rest. Taking it costs the
owner only a look at each log; syncing and writing happen in the background. When it is durable,
journal files before it are used again, and files of deleted data are removed: never earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from onceflow.errors import DiskFull
from onceflow.log.checkpoint import Checkpoint, CheckpointedLog, Durability, write_checkpoint
from onceflow.log.journal import Journal
from onceflow.log.partition_log import Flush, Mark, PartitionLog
from onceflow.log.recovery import DELETED, remove_directory
from onceflow.runtime.background import Background, Job, Lane
from onceflow.runtime.disk import Disk
from onceflow.types import LogId


def _remove(disk: Disk, files: list[str], directories: list[str]) -> Job:
    for directory in directories:
        disk.rename(directory, directory + DELETED)  # recovery finishes what a crash interrupts
        yield
        remove_directory(disk, directory + DELETED)
        yield
    for path in files:
        if disk.exists(path):
            disk.unlink(path)
            yield


def _described(log: PartitionLog, end: Mark) -> CheckpointedLog:
    sealed = tuple(
        (segment.base_offset, segment.size)
        for segment in log.segments
        if segment.base_offset < end.segment
    )
    return CheckpointedLog(log.log_id, log.topic, log.durable_start, end, sealed)


class Checkpointer:
    """`durable` is the set of logs as of the last durable group; its owner keeps it so."""

    def __init__(
        self,
        disk: Disk,
        background: Background,
        durability: Durability,
        incarnation: int,
        journal: Journal | None,
        durable: dict[LogId, PartitionLog],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._disk = disk
        self._background = background
        self._durability = durability
        self._incarnation = incarnation
        self._journal = journal
        self._durable = durable
        self._on_failure = on_failure
        self._due = False
        self.deleted: list[PartitionLog] = []  # durably so, but their files are still there
        self._is_running = False
        self._removals = 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way in the background."""
        return not self._is_running and not self._removals

    def request(self) -> None:
        """Takes a checkpoint as soon as none is running and no group is in flight."""
        self._due = True
        self.proceed()

    def proceed(self) -> None:
        """Starts a checkpoint that is due, if that is possible now."""
        between_groups = self._journal is None or self._journal.is_between_groups
        if self._due and not self._is_running and between_groups:
            self._due = False
            self._start()

    def _start(self) -> None:
        checkpoint, flushes = self._capture()
        gone, self.deleted = self.deleted, []
        self._is_running = True

        def done(error: Exception | None) -> None:
            self._is_running = False
            if isinstance(error, DiskFull):
                self._postpone(gone, flushes)
            elif error is not None:
                self._on_failure(error)
            else:
                self._completed(checkpoint, gone)

        self._background.submit(Lane.BULK, write_checkpoint(self._disk, checkpoint, flushes), done)

    def _capture(
        self, *, clean: bool = False, cut: tuple[PartitionLog, Mark] | None = None
    ) -> tuple[Checkpoint, list[Flush]]:
        logs = self._durable.values()
        marks = {log.log_id: log.durable for log in logs}
        if cut is not None:
            marks[cut[0].log_id] = cut[1]
        checkpoint = Checkpoint(
            durability=self._durability,
            incarnation=self._incarnation,
            clean=clean,
            journal=None if self._journal is None else self._journal.start,
            logs=tuple(_described(log, marks[log.log_id]) for log in logs),
        )
        return checkpoint, [log.collect_flush(closing=clean) for log in logs]

    def _postpone(self, gone: list[PartitionLog], flushes: list[Flush]) -> None:
        """No room for the checkpoint itself: the old one stands, and the next one does it all.

        It is due at once but tried again only after the next group or request: by then some
        append has found room.
        """
        self._due = True
        self.deleted = gone + self.deleted
        for flush in flushes:
            flush.log.take_back(flush)

    def _completed(self, checkpoint: Checkpoint, gone: Iterable[PartitionLog]) -> None:
        files: list[str] = []
        for saved in checkpoint.logs:
            log = self._durable.get(saved.log_id)
            if log is not None:
                files += log.drop_segments(saved.start_offset, saved.end)
        directories = [log.directory for log in gone]
        if files or directories:
            self._removals += 1
            self._background.submit(
                Lane.BULK, _remove(self._disk, files, directories), self._removed
            )
        if self._journal is not None and checkpoint.journal is not None:
            self._journal.release(checkpoint.journal.sequence)
        self.proceed()

    def _removed(self, error: Exception | None) -> None:
        self._removals -= 1
        if error is not None:
            self._on_failure(error)

    def write_now(
        self, *, clean: bool = False, cut: tuple[PartitionLog, Mark] | None = None
    ) -> None:
        """A checkpoint before going on; only between groups and while none is running."""
        self._due = False
        checkpoint, flushes = self._capture(clean=clean, cut=cut)
        gone, self.deleted = self.deleted, []
        for _ in write_checkpoint(self._disk, checkpoint, flushes):
            pass
        self._completed(checkpoint, gone)
