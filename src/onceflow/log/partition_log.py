"""The log of one partition: consecutive batches in segments, from a start offset to an end.

Three offsets describe its state: `start_offset` (nothing below it is served), `high_watermark`
(everything below it is durable and may be shown), `end_offset` (where the next batch goes). This
class changes memory and the page cache only; the store decides when, and makes changes durable.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, cast

from onceflow.errors import DiskExhausted, DiskFull, InvariantViolated, OffsetOutsideLog
from onceflow.log.config import LogConfig, LogLayout
from onceflow.log.journal import Ticket, log_key
from onceflow.log.retention import SegmentFacts, retained_from
from onceflow.log.segments import (
    Facts,
    OpenFiles,
    Segment,
    TimestampedOffset,
    facts_of,
    latest_record,
    offset_for_time,
)
from onceflow.log.side_files import (
    Companion,
    PendingSideFile,
    SideFileKeeper,
    write_beside,
    write_whole,
)
from onceflow.log.swap import CompactionState, Swap, files_of
from onceflow.records import BatchHeader, Buffer
from onceflow.runtime import Disk, File, Job
from onceflow.types import LogId, topic_id_text


def directory_name(topic: str, log_id: LogId) -> str:
    """The id makes it unique for ever, so a deleted topic's files never get in the way."""
    return f"{topic[:180]}-{log_id.partition}.{topic_id_text(log_id.topic_id)}"


def is_log_directory(name: str) -> bool:
    """Whether a name is of the form that `directory_name` gives."""
    return re.fullmatch(r".+-\d+\.[A-Za-z0-9_-]{22}", name) is not None


_HINTS = 16


class LogPosition(NamedTuple):
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
        return self.file.pread(self.position, self.length) if self.length else b""


_NOTHING = Span(cast(File, None), 0, 0)
"""No file is opened for it: most reads of most partitions find no more than this."""


class Creation:
    """The creation of a log that no checkpoint names yet, in a store without a journal: a restart
    would not know the log. Its batches are neither shown nor acknowledged before one names it."""

    __slots__ = ("effects", "ticket")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.effects: list[Callable[[], None]] = []
        """The effects of appends that wait for the checkpoint, in their order."""


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
        self.name = f"{topic}-{log_id.partition}"
        self.directory = directory_name(topic, log_id)
        self.segments = segments
        self.start_offset = start_offset
        self.durable_start = start_offset
        self.config = config
        self.layout: LogLayout | None = None
        """The config's layout, where it differs from the store's default."""
        self.durable = self.end_mark
        self.is_deleted = False
        self.creation: Creation | None = None
        self.has_news = False
        """Something that a checkpoint has to say, though no offset has moved since the last."""
        self._dirty: dict[Segment, File] = {}  # held open: a reopened file may miss a write error
        self._names_changed = False
        self._hints: dict[int, tuple[int, int]] = {}
        self.compaction = CompactionState()
        self.side_files = SideFileKeeper(disk, self.directory)

    @classmethod
    def create(
        cls, disk: Disk, files: OpenFiles, log_id: LogId, topic: str, config: LogConfig
    ) -> PartitionLog:
        """A new, empty log in a new directory."""
        directory = directory_name(topic, log_id)
        disk.mkdir(directory)
        try:
            segment = Segment.create(disk, files, directory, 0, config, to_append=False)
        except DiskExhausted:
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
    def end_mark(self) -> LogPosition:
        active = self.segments[-1]
        return LogPosition(active.end_offset, active.base_offset, active.size)

    @property
    def companion(self) -> Companion | None:
        """The owner of the producers' state sets it; it learns at once how far compaction is."""
        return self.side_files.companion

    @companion.setter
    def companion(self, companion: Companion) -> None:
        self.side_files.companion = companion
        self.side_files.compacted(self.compaction.cleaned_to)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    # --- writing ------------------------------------------------------------------------------

    def append(self, header: BatchHeader, data: Buffer) -> LogPosition:
        """Puts a batch at the end; refuses with `DiskExhausted` without a trace."""
        active = self.segments[-1]
        facts = facts_of(header)
        if facts[1] != active.end_offset:
            raise InvariantViolated(
                f"offsets-are-contiguous: {header.base_offset} appended at {self.end_offset} "
                f"of {self.name}"
            )
        if active.size and active.is_full_for(facts, self.config):
            self.roll()
            active = self.segments[-1]
        try:
            active.append((facts,), data)
        except DiskFull:
            # That a part of it was cut off again must be durable before a checkpoint says how long
            # the file is: a longer one would be refused at the next start.
            self._hold(active)
            raise
        if active not in self._dirty:
            self._hold(active)
        return LogPosition(active.end_offset, active.base_offset, active.size)

    def append_run(self, batches: Sequence[Facts], data: Sequence[Buffer]) -> None:
        """`append` for each of many batches that follow one another, with few writes."""
        done = 0
        while done < len(batches):
            active = self.segments[-1]
            if active.size and active.is_full_for(batches[done], self.config):
                self.roll()
                active = self.segments[-1]
            stop = done + active.fitting(islice(batches, done, None), self.config)
            active.append(batches[done:stop], b"".join(data[done:stop]))
            self._hold(active)
            done = stop

    def _hold(self, segment: Segment) -> None:
        """Keeps the file open until it is synced."""
        if segment not in self._dirty:
            self._dirty[segment] = segment.file
            self._files.dirtied(segment)

    def roll(self) -> None:
        """Starts a new segment at the end. No event of the order: recovery may roll elsewhere."""
        sealed = self.segments[-1]
        base = self.end_offset
        # What can fail comes first: a name that is there and not noted would never be made durable.
        sealed.load_indexes()
        segment = Segment.create(
            self._disk, self._files, self.directory, base, self.config, to_append=True
        )
        self._names_changed = True
        self.segments.append(segment)
        self.durable = self._on_active(self.durable)
        sealed.seal()
        self.side_files.sealed(sealed.base_offset, base)

    def settle(self, mark: LogPosition) -> None:
        """All up to `mark` is durable."""
        if mark[0] < self.durable[0]:
            raise InvariantViolated(f"high-watermark-never-goes-back: {mark} < {self.durable}")
        self.durable = mark if mark[1] == self.segments[-1].base_offset else self._on_active(mark)

    def settle_start(self, offset: int) -> None:
        """That the log starts at `offset` is durable."""
        self.durable_start = offset
        self.side_files.start_moved(offset)

    def _on_active(self, mark: LogPosition) -> LogPosition:
        """The end of a sealed segment is the start of the next: then the sealed one may go."""
        base = self.segments[-1].base_offset
        return LogPosition(base, base, 0) if mark[0] == base else mark

    def mark_at(self, offset: int) -> LogPosition:
        """Where an offset between two durable batches lies."""
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutsideLog(self._range_text(offset))
        if offset == self.high_watermark:
            return self.durable
        segment = self._segment_of(offset)
        found = segment.find(offset)
        if found is None or found.header.base_offset != offset:
            raise OffsetOutsideLog(f"offset {offset} lies inside a batch; cut between batches")
        return LogPosition(offset, segment.base_offset, found.position)

    def truncate(self, mark: LogPosition) -> list[str]:
        """Cuts the log to `mark`; returns the files that are no longer part of it."""
        kept = [segment for segment in self.segments if segment.base_offset <= mark.segment]
        removed = self.segments[len(kept) :]
        self.segments = kept
        self.active.truncate(mark.position, mark.offset)
        self._drop(removed)
        self.files_changed()
        self._hints.clear()
        self.durable = mark
        self.compaction.cleaned_to = min(self.compaction.cleaned_to, mark.offset)
        gone = [path for segment in removed for path in files_of(segment)]
        return gone + self.side_files.cut(mark.segment, mark.offset)

    @property
    def has_unflushed(self) -> bool:
        """Whether there is anything for `collect_flush`; an index that was built anew can wait."""
        return bool(self._dirty) or self._names_changed or self.side_files.has_waiting

    def collect_flush(self, *, closing: bool = False) -> Flush:
        """Hands over everything that is not durable yet; it is not collected again. Indexes stay in
        memory until they are saved."""
        unsaved = [
            segment
            for segment in (self.segments if closing else self.segments[:-1])
            if not segment.indexes_saved and segment.size  # those of an empty one say nothing
        ]
        if closing:
            self.side_files.stopping(self.active.base_offset, self.end_offset)
        beside = self.side_files.collect(self.durable.offset)
        flush = Flush(
            self,
            tuple(self._dirty.items()),
            tuple((segment, *segment.indexes.to_bytes()) for segment in unsaved),
            beside,
            self.directory if self._names_changed or unsaved or beside else None,
        )
        self._dirty, self._names_changed = {}, False
        return flush

    def synced(self, flush: Flush) -> None:
        """The data files were synced; they may be closed."""
        self._files.synced(segment for segment, _ in flush.files)

    def sync_now(self) -> None:
        """Syncs the data files, blocking: for a start, before the store serves requests."""
        dirty, self._dirty = self._dirty, {}
        for file in dirty.values():
            file.sync()
        self._files.synced(dirty)

    def close_files(self) -> None:
        """The log is deleted for good: open files would keep their room on the disk."""
        self._drop(self.segments)

    def _drop(self, segments: list[Segment]) -> None:
        self._files.dropped(segments)
        for segment in segments:
            self._dirty.pop(segment, None)
            self._files.forget(segment.path("log"))
            segment.let_go()

    def take_back(self, flush: Flush) -> None:
        """The data files were synced, but there was no room for the rest: it is due again."""
        self.side_files.take_back(flush.beside)
        self._names_changed = True

    def files_changed(self, segments: Iterable[Segment] = ()) -> None:
        """Notes that other code wrote to these, cut the active file or changed names, so that the
        next flush syncs it."""
        self._names_changed = True
        for segment in (*segments, self.active):
            self._hold(segment)

    def names_changed(self) -> None:
        """Notes that other code changed names in the directory, so that the next flush syncs it."""
        self._names_changed = True

    # --- old data -----------------------------------------------------------------------------

    def note_growth(self, now_ms: int) -> bool:
        """As `Segment.note_growth`, of all segments."""
        is_news = sum(segment.note_growth(now_ms) for segment in self.segments) > 0
        self.has_news = self.has_news or is_news
        return is_news

    @property
    def ages_by_clock(self) -> bool:
        """Whether there is something for `roll_aged` to look at."""
        return self.segments[-1].ages_by_clock(self.config)

    def roll_aged(self, now_ms: int) -> None:
        """Closes an active segment whose age only the clock shows."""
        if self.segments[-1].look_at_age(now_ms, self.config):
            self.roll()

    def retained_from(self, now_ms: int) -> int:
        """The log start that the config's retention allows now."""
        facts = [SegmentFacts(each.end_offset, each.size, each.newest_ms) for each in self.segments]
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
            with suppress(DiskExhausted):  # deleting is what makes room: it must not ask for some
                self.roll()  # so that the last segment's file can go too
        self.start_offset = max(self.start_offset, offset)

    @property
    def has_droppable(self) -> bool:
        """Whether files can go once a checkpoint knows the log start."""
        return len(self.segments) > 1 and self.segments[0].end_offset <= self.start_offset

    def drop_segments(self, start_offset: int, end: LogPosition) -> list[str]:
        """Drops the segments wholly below the start, which a durable checkpoint with these values
        no longer needs; returns their files."""
        if self.compaction.is_busy:
            return []  # next time
        count = sum(
            each.end_offset <= start_offset and each.base_offset < end.segment
            for each in self.segments[:-1]
        )
        if not count:
            return []
        dropped, self.segments = self.segments[:count], self.segments[count:]
        self._drop(dropped)
        return [path for segment in dropped for path in files_of(segment)]

    def finish_swap(self, swap: Swap) -> None:
        """Puts the compacted segments in place, here and on the disk. Only once the checkpoint that
        names the swap is durable: a recovery from the one before would find files of another size
        and refuse them as damaged."""
        swap.rename(self._disk)
        self.segments = swap.applied_to(self.segments)
        # What is open under these names is the old file, where the new positions mean nothing.
        for segment in (*swap.old, *swap.new):
            self._files.forget(segment.path("log"))
        self._hints.clear()
        swap.is_done = True
        self.compaction.cleaned_to = swap.cleaned_to
        self.side_files.compacted(swap.cleaned_to)

    # --- reading ------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, until: int | None = None) -> Span:
        """Whole batches from the one that holds `offset`, all below `until` (by default the high
        watermark): about `max_bytes`, but at least one batch when there is one."""
        # Never past `durable`: a reader would see batches that a crash can still take back, and
        # later others at the same offsets.
        limit = self.durable.offset if until is None else min(until, self.durable.offset)
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutsideLog(self._range_text(offset))
        if offset >= limit:
            if offset == self.durable.offset:
                self._hint(offset, self.durable)
            return _NOTHING
        segment, position = self._locate(offset)
        stop = self._stop(segment, limit)
        if stop - position > max_bytes:
            stop = self._cut(segment, position, position + max_bytes)
        elif stop == self.durable.position and segment.base_offset == self.durable.segment:
            self._hint(self.durable.offset, self.durable)
        return Span(segment.file, position, max(stop - position, 0))

    def spans(self, offset: int) -> Iterator[Span]:
        """All durable batches from the one that holds `offset` on: a span for each segment."""
        for segment in islice(self.segments, self._segment_at(offset), None):
            position = self._position_of(segment, offset) if offset > segment.base_offset else 0
            length = self._stop(segment, self.durable.offset) - position
            if length > 0:
                yield Span(segment.file, position, length)

    def bound_of(self, offset: int, span: Span) -> int:
        """An offset above all in a span that was read from `offset`; the index makes it a near
        one."""
        segment, _ = self._locate(offset)
        found = segment.indexes.offsets.first_start_from(span.position + span.length)
        return segment.end_offset if found is None else segment.base_offset + found + 1

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """The companion's saved states with their offsets, newest first. None from below the log
        start or the compacted part: batches behind such a snapshot may be gone, and its state could
        not be brought up to date."""
        lowest = max(self.start_offset, self.compaction.cleaned_to)
        return self.side_files.snapshots(lowest, self.end_offset)

    def _segment_of(self, offset: int) -> Segment:
        return self.segments[self._segment_at(offset)]

    def _segment_at(self, offset: int) -> int:
        if offset >= self.segments[-1].base_offset:
            return len(self.segments) - 1
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
            self._hint(
                found.header.base_offset, LogPosition(0, segment.base_offset, found.position)
            )
            return found.position
        return segment.whole_batches(position, upto)

    def _hint(self, offset: int, mark: LogPosition) -> None:
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
        return f"offset {offset} of {self.name} is outside {self.start_offset}..{self.end_offset}"


# --- what a checkpoint makes durable of a log -------------------------------------------------


class Flush(NamedTuple):
    """The part of a log that is not durable yet."""

    log: PartitionLog
    files: tuple[tuple[Segment, File], ...]
    indexes: tuple[tuple[Segment, bytes, bytes], ...]
    beside: tuple[PendingSideFile, ...]
    directory: str | None
    """Set when names in it have changed."""


class Unwritten(NamedTuple):
    """Indexes or side files of a log that could not be written; its data is durable all the same,
    and nothing depends on the rest."""

    flush: Flush
    error: Exception


def write_flushes(disk: Disk, flushes: list[Flush], unwritten: list[Unwritten]) -> Job:
    """Syncs the data of all logs first, then writes indexes and side files. Those that fail are
    added to `unwritten` and are due again. They must not stop the checkpoint on a full disk: the
    files of deleted records can go only after it."""
    for flush in flushes:
        for _, file in flush.files:
            file.sync()
            yield
    for flush in flushes:
        try:
            yield from _write_rest(disk, flush)
        except Exception as error:
            unwritten.append(Unwritten(flush, _bare(error)))
        if flush.directory is not None:
            # Also when the rest has failed: the checkpoint names new data files, whose names would
            # otherwise be lost in a power cut.
            disk.sync_dir(flush.directory)
            yield


def _bare(error: Exception) -> Exception:
    """Without the frames that it came through: they hold the files of all flushes, and would keep
    them open until the collector of cycles comes by."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _write_rest(disk: Disk, flush: Flush) -> Job:
    for segment, offsets, times in flush.indexes:
        yield from _write_index(disk, segment.path("index"), offsets)
        yield from _write_index(disk, segment.path("timeindex"), times)
    yield from write_beside(disk, flush.log.directory, flush.beside)


def _write_index(disk: Disk, path: str, data: bytes) -> Job:
    try:
        write_whole(disk, path, data)
    except DiskFull:
        if disk.exists(path):
            disk.unlink(path)  # a part of one takes room, and has to be found out
        raise
    yield
