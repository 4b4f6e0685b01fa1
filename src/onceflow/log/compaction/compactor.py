"""Compacts the logs that need it, one at a time, the dirtiest first.

One log goes through: cleaned (a job writes new files beside the old ones), waiting for a durable
checkpoint that names them (`swap.Swap`), tidied up (a job removes the old files). Whatever happens
to the log meanwhile, the state of all else is never touched; a log that cannot be compacted now is
left as it is, to be looked at again when `start` is called the next time, or some times later when
it has failed (`quarantine.py`). The only error that stops the store is that of a sync which a
checkpoint relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from onceflow.errors import DiskExhausted, OutOfDescriptors
from onceflow.log.compaction.cleaning import (
    Cleaning,
    CleaningOutcome,
    CleaningStopped,
    SourceSegment,
    remove_cleaned,
)
from onceflow.log.compaction.plan import DirtySegment, cleanable
from onceflow.log.config import NO_LIMIT_MS
from onceflow.log.jobs import Jobs
from onceflow.log.partition_log import PartitionLog
from onceflow.log.quarantine import Quarantine
from onceflow.log.segments import OpenFiles, Segment
from onceflow.log.swap import Swap
from onceflow.runtime import Disk, Job, JobLane, loading

_MOST_OPEN = 8
"""Files of segments that are being compacted."""

_JOB = "compaction"


def _clean(disk: Disk, cleaning: Cleaning, outcome: CleaningOutcome) -> Job:
    with loading:
        from onceflow.log.compaction.cleaner import (
            clean,  # loads numba, so not in the owner's thread
        )

    yield from clean(disk, cleaning, outcome)


def _is_free(log: PartitionLog) -> bool:
    """Whether nothing stands in the way of a compaction."""
    state = log.compaction
    in_use = log.is_deleted or state.is_busy or state.is_named
    return log.config.compact and not in_use


def _plan(log: PartitionLog, now_ms: int, upto: int) -> tuple[list[Segment], float]:
    """The segments with a base below `upto` that are to be compacted now, if any, and how dirty
    they are."""
    state, config = log.compaction, log.config
    segments = [
        segment
        for segment in log.segments[:-1]
        if segment.base_offset < upto and segment.end_offset > log.durable_start
    ]
    # The first batch, and an index, are read only where the config asks for it.
    has_limit = config.max_compaction_lag_ms < NO_LIMIT_MS
    has_lag = config.min_compaction_lag_ms > 0
    facts = [
        DirtySegment(
            each.end_offset,
            each.size,
            each.first_timestamp if has_limit else now_ms,
            each.newest_ms if has_lag else now_ms,
        )
        for each in segments
    ]
    unstable = None if log.companion is None else log.companion.first_unstable()
    count, ratio = cleanable(facts, state.cleaned_to, now_ms, config, unstable)
    return segments[:count], ratio


def _modified(replaced: list[Segment]) -> int | None:
    """When the youngest of these was modified; None when that is not known of all."""
    times = [segment.newest_ms for segment in replaced]
    known = [each for each in times if each is not None]
    return max(known) if len(known) == len(times) else None


class Compactor:
    """Belongs to the store, as the checkpoints do that it waits for."""

    def __init__(
        self,
        disk: Disk,
        jobs: Jobs,
        free_bytes: Callable[[], int],
        request_checkpoint: Callable[[], None],
        quarantine: Quarantine,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._disk = disk
        self._jobs = jobs
        self._free_bytes = free_bytes
        self._request_checkpoint = request_checkpoint
        self._quarantine = quarantine
        self._on_failure = on_failure
        self._waiting: list[PartitionLog] = []
        self._untidied: list[PartitionLog] = []
        self._log: PartitionLog | None = None
        self._now_ms = 0
        self._is_stopped = False

    def start(self, logs: Iterable[PartitionLog], now_ms: int) -> None:
        """Compacts all logs that need it; when that is already under way, sees to it that it goes
        on. To be called now and then: it asks for no more than one checkpoint each time."""
        untidied, self._untidied = self._untidied, []
        for log in untidied:
            self._tidy(log)
        if self._log is not None:
            if self._log.compaction.swap is not None:
                self._request_checkpoint()  # one that found no room may find some now
            return
        self._now_ms = now_ms
        self._is_stopped = False
        dirty = [
            (dirtiness, log)
            for log in logs
            if log.config.compact and (dirtiness := self._find(log))
        ]
        self._waiting = [log for _, log in sorted(dirty, key=lambda each: each[0])]
        self._next()

    def _find(self, log: PartitionLog) -> float:
        """How dirty a log is that should be compacted now; else 0. Where only a checkpoint is
        missing, this requests it: on a quiet broker nothing else would."""
        state = log.compaction
        if not self._quarantine.begin(_JOB, log.name):
            return 0.0
        try:
            if state.is_named and not state.is_busy:
                self._request_checkpoint()  # the one after the last swap found no room
            if not _is_free(log):
                return 0.0
            if log.config.min_compaction_lag_ms > 0:
                log.note_growth(self._now_ms)
            segments, ratio = _plan(log, self._now_ms, state.checkpointed)
            if segments:
                return ratio
            # Only what a checkpoint would change is a reason to ask for one: else an idle broker
            # would take one after the other.
            end = log.durable.segment
            if end > state.checkpointed and _plan(log, self._now_ms, end)[0]:
                self._request_checkpoint()
        except Exception as error:  # of this log alone
            self._failed(log, error, log.directory)
        return 0.0

    def _failed(self, log: PartitionLog, error: Exception, path: str) -> None:
        self._quarantine.failed(_JOB, log.name, path, error)

    def stop(self) -> None:
        """Ends the current cleaning as soon as possible and discards its files."""
        self._is_stopped = True
        self._waiting.clear()

    def _next(self) -> None:
        self._log = None
        while self._waiting and self._log is None:
            log = self._waiting.pop()
            if not _is_free(log):
                continue
            try:
                segments, _ = _plan(log, self._now_ms, log.compaction.checkpointed)
                if segments and self._free_bytes() > sum(segment.size for segment in segments):
                    self._begin(log, segments)
            except Exception as error:  # out of descriptors, a file that cannot be read
                self._failed(log, error, log.directory)

    def _begin(self, log: PartitionLog, segments: list[Segment]) -> None:
        files = OpenFiles(self._disk, _MOST_OPEN)
        sources = tuple(
            SourceSegment(files, each.path("log"), each.base_offset, each.end_offset, each.size)
            for each in segments
        )
        start, end = sources[0].base_offset, sources[-1].end_offset
        companion = log.companion
        outcome = CleaningOutcome()
        cleaning = Cleaning(
            directory=log.directory,
            sources=sources,
            first_dirty=max(log.compaction.cleaned_to, start),
            aborted=None if companion is None else companion.aborted(start, end),
            producers=None if companion is None else companion.remembered(),
            config=log.config,
            now_ms=self._now_ms,
            should_stop=lambda: self._is_stopped or log.is_deleted,
            reads=outcome.reads,
        )
        self._log = log
        log.compaction.is_busy = True
        job = _clean(self._disk, cleaning, outcome)
        self._jobs.submit(JobLane.COMPACT, job, partial(self._cleaned, log, outcome))

    def _cleaned(
        self, log: PartitionLog, outcome: CleaningOutcome, error: Exception | None
    ) -> None:
        state = log.compaction
        problem = outcome.problem or error
        if problem is not None:
            if not isinstance(problem, DiskExhausted | CleaningStopped) and not log.is_deleted:
                self._failed(log, problem, outcome.path or log.directory)
            self._ended(log)
            return
        self._quarantine.passed(_JOB, log.name)
        if not outcome.segments:
            state.cleaned_to = outcome.cleaned_to
            log.side_files.compacted(outcome.cleaned_to)
            self._ended(log)
        else:
            state.swap = self._swap(log, outcome)
            log.names_changed()  # so that the names of the copies are durable before the checkpoint
            self._request_checkpoint()

    @staticmethod
    def _swap(log: PartitionLog, outcome: CleaningOutcome) -> Swap:
        segments = {segment.base_offset: segment for segment in log.segments}
        old = tuple(segments[base] for cleaned in outcome.segments for base in cleaned.replaces)
        new = tuple(
            segments[each.base_offset].compacted(
                log.config,
                size=each.size,
                end=each.end_offset,
                max_timestamp=each.max_timestamp,
                modified_ms=_modified([segments[base] for base in each.replaces]),
            )
            for each in outcome.segments
            if each.size
        )
        return Swap(old, new, outcome.cleaned_to)

    def checkpointed(self, swapped: Iterable[PartitionLog]) -> None:
        """A checkpoint is durable, and the swaps that it was the first to name have been done."""
        for log in swapped:
            self._tidy(log)
        waiting = self._log
        if waiting is not None and waiting.is_deleted:
            swap = waiting.compaction.swap
            if swap is not None and not swap.is_done:  # no checkpoint will ever name it
                waiting.compaction.swap = None
                self._ended(waiting)

    def _tidy(self, log: PartitionLog) -> None:
        if (swap := log.compaction.swap) is not None:
            left: list[tuple[str, Exception]] = []
            job = swap.remove_old(self._disk, log.directory, left)
            self._jobs.submit(JobLane.BULK, job, partial(self._tidied, log, left))

    def _tidied(
        self, log: PartitionLog, left: list[tuple[str, Exception]], error: Exception | None
    ) -> None:
        if isinstance(error, OutOfDescriptors):
            self._untidied.append(log)  # checkpoints go on naming the swap until it is done
            return
        if error is not None:  # the sync of the names that the checkpoint promises
            self._on_failure(error)
            return
        for path, reason in left:
            self._quarantine.report(_JOB, log.name, path, reason)
        # Only after the directory sync of `remove_old`: see there.
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
