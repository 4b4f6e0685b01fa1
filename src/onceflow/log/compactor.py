"""Compacts the logs that need it, one at a time, the dirtiest first.

One log goes through: cleaned (a job writes new files beside the old ones), waiting for a durable
checkpoint that names them (`swap.Swap`), tidied up (a job removes the old files). Whatever happens
to the log meanwhile, the state of all else is never touched; a log that cannot be compacted now is
left as it is, to be looked at again when `start` is called the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from onceflow.errors import DiskFailed, RecordError
from onceflow.log.cleaning import Cleaning, Outcome, Source, remove_cleaned
from onceflow.log.compaction_plan import DirtySegment, cleanable
from onceflow.log.config import NO_LIMIT_MS
from onceflow.log.jobs import Jobs
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segment import Segment
from onceflow.log.swap import Swap
from onceflow.runtime.background import Job, Lane
from onceflow.runtime.disk import Access, Disk


def _clean(disk: Disk, cleaning: Cleaning, outcome: Outcome) -> Job:
    from onceflow.log.cleaner import clean  # loads numba, so not in the owner's thread

    yield from clean(disk, cleaning, outcome)


def _candidates(log: PartitionLog) -> list[Segment]:
    state = log.compaction
    return [
        segment
        for segment in log.segments[:-1]
        if segment.base_offset < state.checkpointed and segment.end_offset > log.durable_start
    ]


def _cleanable(log: PartitionLog, now_ms: int) -> tuple[list[Segment], float]:
    """The segments that are to be compacted now, if any, and how dirty they are."""
    state = log.compaction
    if not log.config.compact or log.is_deleted or state.problem is not None:
        return [], 0.0
    if state.is_busy or state.is_named:
        return [], 0.0
    segments = _candidates(log)
    # Reading the first batch is spared where nobody asks for it.
    has_limit = log.config.max_compaction_lag_ms < NO_LIMIT_MS
    facts = [
        DirtySegment(
            each.end_offset,
            each.size,
            each.first_timestamp if has_limit else now_ms,
            each.max_timestamp,
        )
        for each in segments
    ]
    unstable = None if log.companion is None else log.companion.first_unstable()
    count, ratio = cleanable(facts, state.cleaned_to, now_ms, log.config, unstable)
    return segments[:count], ratio


class Compactor:
    """Belongs to the store, as the checkpoints do that it waits for."""

    def __init__(
        self,
        disk: Disk,
        jobs: Jobs,
        free_bytes: Callable[[], int],
        request_checkpoint: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._disk = disk
        self._jobs = jobs
        self._free_bytes = free_bytes
        self._request_checkpoint = request_checkpoint
        self._on_failure = on_failure
        self._waiting: list[PartitionLog] = []
        self._log: PartitionLog | None = None
        self._now_ms = 0
        self._is_stopped = False

    def start(self, logs: Iterable[PartitionLog], now_ms: int) -> None:
        """Compacts all logs that need it; nothing when that is already under way."""
        if self._log is not None:
            return
        self._now_ms = now_ms
        self._is_stopped = False
        dirty = [(ratio, log) for log in logs if (ratio := _cleanable(log, now_ms)[1])]
        self._waiting = [log for _, log in sorted(dirty, key=lambda each: each[0])]
        self._next()

    def stop(self) -> None:
        """Ends what is being cleaned as soon as possible; nothing comes of it."""
        self._is_stopped = True
        self._waiting.clear()

    def _next(self) -> None:
        self._log = None
        while self._waiting and self._log is None:
            log = self._waiting.pop()
            segments, _ = _cleanable(log, self._now_ms)
            if segments and self._free_bytes() > sum(segment.size for segment in segments):
                try:
                    self._begin(log, segments)
                except DiskFailed as error:
                    self._on_failure(error)

    def _begin(self, log: PartitionLog, segments: list[Segment]) -> None:
        sources = tuple(
            Source(
                self._disk.open(each.path("log"), Access.READ),
                each.base_offset,
                each.end_offset,
                each.size,
            )
            for each in segments
        )
        start, end = sources[0].base_offset, sources[-1].end_offset
        cleaning = Cleaning(
            directory=log.directory,
            sources=sources,
            first_dirty=max(log.compaction.cleaned_to, start),
            aborted=None if log.companion is None else log.companion.aborted(start, end),
            config=log.config,
            now_ms=self._now_ms,
            should_stop=lambda: self._is_stopped or log.is_deleted,
        )
        self._log = log
        log.compaction.is_busy = True
        outcome = Outcome()
        job = _clean(self._disk, cleaning, outcome)
        self._jobs.submit(Lane.COMPACT, job, partial(self._cleaned, log, outcome))

    def _cleaned(self, log: PartitionLog, outcome: Outcome, error: Exception | None) -> None:
        state = log.compaction
        if error is not None:
            self._on_failure(error)
        elif outcome.problem is not None:
            if isinstance(outcome.problem, RecordError):
                state.problem = outcome.problem
            self._ended(log)
        elif not outcome.segments:
            state.cleaned_to = outcome.cleaned_to
            log.side_files.compacted(outcome.cleaned_to)
            self._ended(log)
        else:
            state.swap = self._swap(log, outcome)
            self._request_checkpoint()

    @staticmethod
    def _swap(log: PartitionLog, outcome: Outcome) -> Swap:
        segments = {segment.base_offset: segment for segment in log.segments}
        old = tuple(segments[base] for cleaned in outcome.segments for base in cleaned.replaces)
        new = tuple(
            segments[each.base_offset].compacted(
                log.config,
                size=each.size,
                end=each.end_offset,
                max_timestamp=each.max_timestamp,
            )
            for each in outcome.segments
            if each.size
        )
        return Swap(old, new, outcome.cleaned_to)

    def checkpointed(self, swapped: Iterable[PartitionLog]) -> None:
        """A checkpoint is durable, and the swaps that it was the first to name have been done."""
        for log in swapped:
            if (swap := log.compaction.swap) is not None:
                job = swap.remove_old(self._disk, log.directory)
                self._jobs.submit(Lane.BULK, job, partial(self._tidied, log))
        waiting = self._log
        if waiting is not None and waiting.is_deleted:
            swap = waiting.compaction.swap
            if swap is not None and not swap.is_done:  # no checkpoint will ever name it
                waiting.compaction.swap = None
                self._ended(waiting)

    def _tidied(self, log: PartitionLog, error: Exception | None) -> None:
        if error is not None:
            self._on_failure(error)
            return
        log.compaction.swap = None
        self._ended(log)

    def abandon(self, log: PartitionLog) -> None:
        """Gives up a swap that no checkpoint names, for lack of room. Blocks; no job may run."""
        if log.compaction.swap is not None:
            for _ in remove_cleaned(self._disk, log.directory):
                pass
            log.compaction.swap = None
            log.compaction.is_busy = False
            self._log = None

    def _ended(self, log: PartitionLog) -> None:
        log.compaction.is_busy = False
        self._next()
        self._request_checkpoint()  # for files that had to wait
