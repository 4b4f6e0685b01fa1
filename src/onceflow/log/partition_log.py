"""The log of one partition: consecutive batches in segments, from a start offset to an end.

Three offsets tell its state: `start_offset` (below it nothing is served), `high_watermark` (all
below it is durable and may be shown), `end_offset` (where the next batch goes). This class changes
memory and the page cache only; the store decides when, and makes it durable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from onceflow.errors import DiskFull, InvariantViolated, OffsetOutOfRange
from onceflow.log.batch_walk import Facts, facts_of
from onceflow.log.config import LogConfig
from onceflow.log.directories import directory_name
from onceflow.log.files import OpenFiles
from onceflow.log.journal_format import log_key
from onceflow.log.retention import SegmentFacts, retained_from
from onceflow.log.segment import Segment
from onceflow.log.swap import SUFFIXES, CompactionState, Swap
from onceflow.log.time_search import TimestampedOffset, latest_record, offset_for_time
from onceflow.records.batch import BatchHeader, Buffer
from onceflow.runtime.disk import Disk, File
from onceflow.types import LogId

_MAX_RELATIVE_OFFSET = 2**31 - 1
_HINTS = 16


class Mark(NamedTuple):
    """An offset between two batches, and where it lies on the disk."""

    offset: int
    segment: int
    position: int


class Span(NamedTuple):
    """Whole batches, as bytes of a file: to be sent from it or read."""

    file: File
    position: int
    length: int

    def read(self) -> bytes:
        return self.file.pread(self.position, self.length)


class Flush(NamedTuple):
    """What a checkpoint has to make durable of one log."""

    log: PartitionLog
    files: tuple[File, ...]
    indexes: tuple[tuple[Segment, bytes, bytes], ...]
    directory: str | None
    """Set when names in it have changed."""


class PartitionLog:
    """See the module. `segments` is never empty; the last one is active."""

    def __init__(
        self,
        disk: Disk,
        files: OpenFiles,
        log_id: LogId,
        topic: str,
        segments: list[Segment],
        *,
        start_offset: int,
        config: LogConfig,
    ) -> None:
        self._disk = disk
        self._files = files
        self.log_id = log_id
        self.key = log_key(log_id)
        self.topic = topic
        self.directory = directory_name(topic, log_id)
        self.segments = segments
        self.start_offset = start_offset
        self.durable_start = start_offset
        self.config = config
        self.durable = self.end_mark
        self.is_deleted = False
        self._dirty: dict[int, File] = {}  # held open: whoever reopens may miss a write error
        self._names_changed = False
        self._hints: dict[int, tuple[int, int]] = {}
        self.compaction = CompactionState()

    @classmethod
    def create(
        cls, disk: Disk, files: OpenFiles, log_id: LogId, topic: str, config: LogConfig
    ) -> PartitionLog:
        """A new, empty log in a new directory."""
        directory = directory_name(topic, log_id)
        disk.mkdir(directory)
        try:
            segment = Segment.create(disk, files, directory, 0, config)
        except DiskFull:
            disk.rmdir(directory)
            raise
        log = cls(disk, files, log_id, topic, [segment], start_offset=0, config=config)
        log._names_changed = True
        return log

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset

    @property
    def high_watermark(self) -> int:
        return self.durable.offset

    @property
    def end_mark(self) -> Mark:
        active = self.segments[-1]
        return Mark(active.end_offset, active.base_offset, active.size)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    # --- writing ------------------------------------------------------------------------------

    def append(self, header: BatchHeader, data: Buffer) -> Mark:
        """Puts a batch at the end; refuses with `DiskFull` without a trace."""
        if header.base_offset != self.end_offset:
            raise InvariantViolated(
                f"offsets-are-contiguous: {header.base_offset} appended at {self.end_offset} "
                f"of {self.topic}-{self.log_id.partition}"
            )
        facts = facts_of(header)
        if self._must_roll(facts):
            self.roll()
        active = self.segments[-1]
        active.append(facts, data)
        self._dirty[active.base_offset] = active.file
        return Mark(active.end_offset, active.base_offset, active.size)

    def append_run(self, batches: Sequence[Facts], data: Sequence[Buffer]) -> None:
        """`append` for each of many batches that follow one another, with few writes."""
        done = 0
        while done < len(batches):
            if self._must_roll(batches[done]):
                self.roll()
            active = self.segments[-1]
            stop = done + self._fitting(islice(batches, done, None))
            active.append_run(batches[done:stop], data[done:stop])
            self._dirty[active.base_offset] = active.file
            done = stop

    def _must_roll(self, batch: Facts) -> bool:
        active = self.segments[-1]
        if not active.size:
            return False
        size, _, last_offset, max_timestamp = batch
        config = self.config
        return (
            active.size + size > config.segment_bytes
            or max_timestamp - active.first_timestamp > config.roll_ms
            or last_offset - active.base_offset > _MAX_RELATIVE_OFFSET
            or (len(active.indexes.offsets) + 1) * 8 > config.segment_index_bytes
        )

    def _fitting(self, batches: Iterable[Facts]) -> int:
        """How many of the batches go into the active segment; the first one does. With many index
        entries it may be fewer than one by one: where a log is cut into files has no meaning."""
        active, config = self.segments[-1], self.config
        room = config.segment_bytes - active.size
        latest = active.first_timestamp + config.roll_ms
        last = active.base_offset + _MAX_RELATIVE_OFFSET
        count = 0
        for size, _, last_offset, max_timestamp in batches:
            if not active.size and not count:
                latest = max_timestamp + config.roll_ms
            elif count and (size > room or max_timestamp > latest or last_offset > last):
                break
            room -= size
            count += 1
        return max(1, min(count, config.segment_index_bytes // 8 - len(active.indexes.offsets)))

    def roll(self) -> None:
        """Starts a new segment at the end. No event of the order: recovery may roll elsewhere."""
        sealed = self.segments[-1]
        base = self.end_offset
        segment = Segment.create(self._disk, self._files, self.directory, base, self.config)
        self.segments.append(segment)
        self.durable = self._on_active(self.durable)
        self._dirty[sealed.base_offset] = sealed.file
        sealed.seal()
        self._names_changed = True

    def settle(self, mark: Mark) -> None:
        """All up to `mark` is durable."""
        if mark.offset < self.durable.offset:
            raise InvariantViolated(f"high-watermark-never-goes-back: {mark} < {self.durable}")
        self.durable = self._on_active(mark)

    def _on_active(self, mark: Mark) -> Mark:
        """The end of a sealed segment is the start of the next: then the sealed one may go."""
        base = self.active.base_offset
        return Mark(base, base, 0) if mark.offset == base else mark

    def mark_at(self, offset: int) -> Mark:
        """Where an offset between two durable batches lies."""
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(self._range_text(offset))
        if offset == self.high_watermark:
            return self.durable
        segment = self._segment_of(offset)
        found = segment.find(offset)
        if found is None or found.header.base_offset != offset:
            raise OffsetOutOfRange(f"offset {offset} lies inside a batch; cut between batches")
        return Mark(offset, segment.base_offset, found.position)

    def truncate(self, mark: Mark) -> list[str]:
        """Cuts the log to `mark`; returns the files that are no longer part of it."""
        kept = [segment for segment in self.segments if segment.base_offset <= mark.segment]
        removed = self.segments[len(kept) :]
        self.segments = kept
        self.active.truncate(mark.position, mark.offset)
        for segment in removed:
            self._dirty.pop(segment.base_offset, None)
            self._files.forget(segment.path("log"))
        self.files_changed()
        self._hints.clear()
        self.durable = mark
        self.compaction.cleaned_to = min(self.compaction.cleaned_to, mark.offset)
        return [path for segment in removed for path in self._paths(segment)]

    def collect_flush(self, *, closing: bool = False) -> Flush:
        """Everything that is not durable yet, handed over: it is not collected again."""
        unsaved = [
            segment
            for segment in (self.segments if closing else self.segments[:-1])
            if not segment.indexes_saved
        ]
        flush = Flush(
            self,
            tuple(self._dirty.values()),
            tuple((segment, *segment.indexes.to_bytes()) for segment in unsaved),
            self.directory if self._names_changed or unsaved else None,
        )
        for segment in unsaved:
            segment.indexes_saved = True
        self._dirty, self._names_changed = {}, False
        return flush

    def take_back(self, flush: Flush) -> None:
        """The data files were synced, but there was no room for the rest: it is due again."""
        for segment, _, _ in flush.indexes:
            segment.indexes_saved = False
        self._names_changed = True

    def files_changed(self) -> None:
        """Something else has cut the active file or changed names: the next flush has to know."""
        self._dirty[self.active.base_offset] = self.active.file
        self._names_changed = True

    # --- old data -----------------------------------------------------------------------------

    def retained_from(self, now_ms: int) -> int:
        """The log start that the config's retention allows now."""
        facts = [
            SegmentFacts(each.end_offset, each.size, each.max_timestamp) for each in self.segments
        ]
        return retained_from(
            facts,
            start_offset=self.start_offset,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
            config=self.config,
        )

    def advance_start(self, offset: int) -> None:
        """Nothing below `offset` is served any more."""
        if offset == self.end_offset and self.active.size:
            with suppress(DiskFull):  # deleting is what makes room: it must not ask for some
                self.roll()  # so that the last segment's file can go too
        self.start_offset = max(self.start_offset, offset)

    def drop_segments(self, start_offset: int, end: Mark) -> list[str]:
        """Forgets the segments that a durable checkpoint of these values does not need any more,
        wholly below the start; returns their files."""
        if self.compaction.is_busy:
            return []  # next time
        count = sum(
            each.end_offset <= start_offset and each.base_offset < end.segment
            for each in self.segments[:-1]
        )
        dropped, self.segments = self.segments[:count], self.segments[count:]
        for segment in dropped:
            self._files.forget(segment.path("log"))
        return [path for segment in dropped for path in self._paths(segment)]

    def _paths(self, segment: Segment) -> list[str]:
        return [segment.path(suffix) for suffix in SUFFIXES]

    def finish_swap(self, swap: Swap) -> None:
        """Compacted segments take over, here and on the disk."""
        swap.rename(self._disk)
        self.segments = swap.applied_to(self.segments)
        for segment in (*swap.old, *swap.new):
            self._files.forget(segment.path("log"))
        self._hints.clear()
        swap.is_done = True
        self.compaction.cleaned_to = swap.cleaned_to

    # --- reading ------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, until: int | None = None) -> Span:
        """Whole batches from the one that holds `offset`, all below `until` (by default the high
        watermark): about `max_bytes`, but at least one batch when there is one."""
        limit = self.durable.offset if until is None else min(until, self.durable.offset)
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(self._range_text(offset))
        if offset >= limit:
            if offset == self.durable.offset:
                self._hint(offset, self.durable)
            return Span(self._segment_of(offset).file, 0, 0)
        segment, position = self._locate(offset)
        stop = self._stop(segment, limit)
        if stop - position > max_bytes:
            stop = self._cut(segment, position, position + max_bytes)
        elif stop == self.durable.position and segment.base_offset == self.durable.segment:
            self._hint(self.durable.offset, self.durable)
        return Span(segment.file, position, max(stop - position, 0))

    def _segment_of(self, offset: int) -> Segment:
        return self.segments[self._segment_at(offset)]

    def _segment_at(self, offset: int) -> int:
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        return max(at, 0)

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """The batch that holds `offset`, or the first one behind it: compaction leaves gaps, and
        where a truncation has cut in one, there is nothing behind it."""
        for segment in islice(self.segments, self._segment_at(offset), None):
            position = self._position_of(segment, offset)
            if position < segment.size:
                return segment, position
        return self.active, self.active.size

    def _position_of(self, segment: Segment, offset: int) -> int:
        """Where the first batch that ends at or behind `offset` starts; else the segment's end."""
        hint = self._hints.get(offset)
        if hint is not None and hint[0] == segment.base_offset:
            return hint[1]
        found = segment.find(offset)
        return segment.size if found is None else found.position

    def _stop(self, segment: Segment, limit: int) -> int:
        """Where in the segment the batches below `limit` end."""
        if limit == self.durable.offset and segment.base_offset == self.durable.segment:
            return self.durable.position
        if limit >= segment.end_offset:
            return segment.size
        return self._position_of(segment, limit)

    def _cut(self, segment: Segment, position: int, upto: int) -> int:
        """The start of a batch at which to stop, or the end of the first batch."""
        found = segment.cut(position, upto)
        if found is not None:
            self._hint(found.header.base_offset, Mark(0, segment.base_offset, found.position))
            return found.position
        return segment.whole_batches(position, upto)

    def _hint(self, offset: int, mark: Mark) -> None:
        """Remembers where a reader goes on, so that its next read needs no search."""
        if len(self._hints) >= _HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[offset] = (mark.segment, mark.position)

    def offset_for_time(self, timestamp: int) -> TimestampedOffset | None:
        """The first durable record that is not older than `timestamp`."""
        return offset_for_time(self.segments, timestamp, self.start_offset, self.high_watermark)

    def max_timestamp(self) -> TimestampedOffset | None:
        """The first durable record that has the largest timestamp of all."""
        return latest_record(self.segments, self.start_offset, self.high_watermark)

    def _range_text(self, offset: int) -> str:
        return (
            f"offset {offset} of {self.topic}-{self.log_id.partition} is outside "
            f"{self.start_offset}..{self.end_offset}"
        )
