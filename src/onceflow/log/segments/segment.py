"""One segment: a `.log` file of consecutive batches and the indexes to search it.

The `.log` file is the truth. Indexes of the active segment live in memory and are written when the
segment is sealed; a sealed segment's are read when first needed, checked at every use, and built
anew from the log when they do not fit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from onceflow.errors import BatchTruncated, DiskFull, IndexInvalid, LogCorrupt, RecordError
from onceflow.log.config import NO_LIMIT_MS, LogConfig
from onceflow.log.segments.batch_walk import BatchWalk, Facts
from onceflow.log.segments.index import Indexes
from onceflow.log.segments.open_files import OpenFiles
from onceflow.records import HEADER_SIZE, BatchHeader, Buffer, read_header
from onceflow.runtime import Access, Disk, File

_MAX_RELATIVE_OFFSET = 2**31 - 1
"""Of an offset in a segment to its base: what the indexes have room for."""
_SEARCH_READ = 1 << 13
CLEANED = ".cleaned"
"""Behind the name of a file that compaction has made to stand in for the one of that name."""


class FoundBatch(NamedTuple):
    """A batch in a segment."""

    position: int
    header: BatchHeader


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020}.{suffix}"


def segment_base(name: str) -> int | None:
    """The base offset in a file's name; None for a name that is not a segment's."""
    stem, dot, _ = name.partition(".")
    return int(stem) if dot and len(stem) == 20 and stem.isdigit() else None


def scan(file: File, start: int, end: int) -> Iterator[FoundBatch]:
    """The batches between two positions; raises a `RecordError` at the first header that is not
    sound. CRCs are not looked at.

    `end` must be where a batch ends: a batch that crosses it is truncated.
    """
    position, window_start = start, start
    window = memoryview(b"")
    while position < end:
        at = position - window_start
        if len(window) - at < HEADER_SIZE:
            window = memoryview(file.pread(position, min(_SEARCH_READ, end - position)))
            window_start, at = position, 0
        header = read_header(window, at)
        size = header.size
        if position + size > end:
            raise BatchTruncated(f"the batch takes {size} bytes, {end - position} are left")
        yield FoundBatch(position, header)
        position += size


def _latest_beside(first_timestamp: int, config: LogConfig) -> int:
    """The largest timestamp in a segment that starts with this one. Where the first batch has no
    timestamp, the clock gives the segment's age: see `look_at_age`."""
    return first_timestamp + config.roll_ms if first_timestamp >= 0 else NO_LIMIT_MS


def _has_records(found: FoundBatch) -> bool:
    """False for the empty batches that compaction keeps for a producer's sequence alone."""
    return found.header.record_count > 0


class Segment:
    """Batches from `base_offset` up to the next segment's base."""

    __slots__ = (
        "_disk",
        "_file",
        "_files",
        "_first_timestamp",
        "_index_interval",
        "_indexes",
        "_may_have_gaps",
        "_noted_size",
        "_sealed_max_timestamp",
        "_seen_ms",
        "base_offset",
        "directory",
        "end_offset",
        "indexes_saved",
        "modified_ms",
        "size",
    )

    def __init__(
        self,
        disk: Disk,
        files: OpenFiles,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        size: int,
        end: int,
        max_timestamp: int | None = None,
        modified_ms: int | None = None,
        may_have_gaps: bool = False,
    ) -> None:
        self._disk = disk
        self._files = files
        self._index_interval = config.index_interval_bytes
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.end_offset = end
        self._file: File | None = None  # held open while appended to; else borrowed from `files`
        self._may_have_gaps = may_have_gaps  # compaction has taken batches out, also at its end
        self._first_timestamp: int | None = None
        self._indexes: Indexes | None = None
        self._sealed_max_timestamp = max_timestamp  # known of sealed segments without an index
        self.indexes_saved = True  # on disk; an append or a rebuilding makes that untrue
        self.modified_ms = modified_ms  # of batches without a timestamp: see `note_growth`
        self._noted_size = size
        self._seen_ms: int | None = None  # by `look_at_age`, when the first batch has no timestamp

    @classmethod
    def create(
        cls,
        disk: Disk,
        files: OpenFiles,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        to_append: bool,
    ) -> Segment:
        """A new, empty, active segment. An older file of that name was never acknowledged. Unless
        it is appended to at once it holds no descriptor."""
        segment = cls(disk, files, directory, base_offset, config, size=0, end=base_offset)
        path = segment.path("log")
        if to_append:
            file = segment._file = files.open_to_append(segment, path, Access.CREATE)
        else:
            file = disk.open(path, Access.CREATE)
        if file.size():
            file.truncate(0)
        segment._indexes = Indexes.empty(config.index_interval_bytes)
        segment.indexes_saved = False
        return segment

    def compacted(
        self,
        config: LogConfig,
        *,
        size: int,
        end: int,
        max_timestamp: int,
        modified_ms: int | None,
    ) -> Segment:
        """The sealed segment that stands in for this one, and perhaps for some behind it."""
        return Segment(
            self._disk,
            self._files,
            self.directory,
            self.base_offset,
            config,
            size=size,
            end=end,
            max_timestamp=max_timestamp,
            modified_ms=modified_ms,
            may_have_gaps=True,
        )

    def path(self, suffix: str) -> str:
        return segment_path(self.directory, self.base_offset, suffix)

    @property
    def file(self) -> File:
        if self._file is not None:
            return self._file
        return self._files.get(self.path("log"), self.release_indexes)

    @property
    def holds_file(self) -> bool:
        """Whether the file is open because it was appended to."""
        return self._file is not None

    def let_go(self) -> File | None:
        """Gives the file up; the next append opens it again."""
        file, self._file = self._file, None
        return file

    @property
    def indexes(self) -> Indexes:
        return self._indexes or self.load_indexes()

    def load_indexes(self) -> Indexes:
        """Reads or builds them, unless they are in memory."""
        if self._indexes is None:
            self._indexes = self._load_indexes()
        return self._indexes

    # --- writing ------------------------------------------------------------------------------

    @property
    def first_timestamp(self) -> int:
        """The first batch's timestamp, from which the segment's age counts; -1 without one."""
        if self._first_timestamp is None:
            head = self.file.pread(0, HEADER_SIZE) if self.size else b""
            self._first_timestamp = read_header(head).max_timestamp if head else -1
        return self._first_timestamp

    def is_full_for(self, batch: Facts, config: LogConfig) -> bool:
        """Whether the next batch has to go into a new segment."""
        size, _, last_offset, max_timestamp = batch
        first_timestamp, indexes = self._first_timestamp, self._indexes
        if first_timestamp is None:
            first_timestamp = self.first_timestamp
        if indexes is None:
            indexes = self.indexes
        return (
            self.size + size > config.segment_bytes
            or 0 <= first_timestamp < max_timestamp - config.roll_ms
            or last_offset - self.base_offset > _MAX_RELATIVE_OFFSET
            or (len(indexes.offsets.offsets) + 1) * 8 > config.segment_index_bytes
        )

    def fitting(self, batches: Iterable[Facts], config: LogConfig) -> int:
        """How many of the batches go in here; the first one does. With many index entries it may
        be fewer than one by one: where a log is cut into files has no meaning."""
        room = config.segment_bytes - self.size
        latest = _latest_beside(self.first_timestamp, config)
        last = self.base_offset + _MAX_RELATIVE_OFFSET
        count = 0
        for size, _, last_offset, max_timestamp in batches:
            if not self.size and not count:
                latest = _latest_beside(max_timestamp, config)
            elif count and (size > room or max_timestamp > latest or last_offset > last):
                break
            room -= size
            count += 1
        return max(1, min(count, config.segment_index_bytes // 8 - len(self.indexes.offsets)))

    def append(self, batches: Sequence[Facts], data: Buffer) -> None:
        """Puts batches that follow one another into the page cache, in one write. On any error
        the segment is as it was."""
        file, position = self._file, self.size
        if file is None:
            file = self._file = self._files.open_to_append(self, self.path("log"), Access.WRITE)
        try:
            file.pwrite(position, data)
        except DiskFull:
            file.truncate(position)  # a part of it may be there
            raise
        (self._indexes or self.indexes).note(batches, position, self.base_offset)
        if position == 0:
            self._first_timestamp = batches[0][3]
        self.size = position + len(data)
        self.end_offset = batches[-1][2] + 1
        self.indexes_saved = False

    @property
    def max_timestamp(self) -> int:
        """The largest of all its batches; -1 when there is none."""
        if self._sealed_max_timestamp is not None:
            return self._sealed_max_timestamp
        return self.indexes.max_timestamp

    def seal(self) -> None:
        """No more appends; the file is from now on borrowed when needed."""
        self._sealed_max_timestamp = self.indexes.max_timestamp
        self._file = None

    def release_indexes(self) -> None:
        """Frees the indexes' memory when they can be read from the disk again."""
        if self._file is None and self.indexes_saved:
            self._indexes = None

    def truncate(self, position: int, end_offset: int) -> None:
        """Cuts the file and builds the indexes anew."""
        self.file.truncate(position)
        self.size = position
        self.end_offset = end_offset
        self._first_timestamp = None
        self._sealed_max_timestamp = None
        self.rebuild_indexes(check_crc=False)

    def rebuild_indexes(self, *, check_crc: bool) -> None:
        """Reads the whole log file; raises `LogCorrupt` when its batches are not consecutive."""
        indexes = Indexes.empty(self._index_interval)
        walk = BatchWalk(self.file, 0, self.size, self.base_offset, check_crc=check_crc)
        try:
            indexes.note(walk, 0, self.base_offset)
        except RecordError as error:
            raise LogCorrupt(
                f"{self.path('log')} is damaged at byte {walk.position}, below what was durable: "
                f"{error}. Nothing was changed; restore the file from a backup"
            ) from error
        end = walk.next_offset
        if end > self.end_offset or (end < self.end_offset and not self._may_have_gaps):
            raise LogCorrupt(f"{self.path('log')} ends at offset {end}, not {self.end_offset}")
        self._indexes, self.indexes_saved = indexes, False

    def _load_indexes(self) -> Indexes:
        """From the files, or from the log where they do not fit it."""
        try:
            self._indexes = Indexes.from_bytes(
                self._index_interval,
                self._read("index"),
                self._read("timeindex"),
                size=self.size,
                last_offset=self.end_offset - self.base_offset - 1,
            )
            self._check_time_entry(self._indexes.times.last)
            if self._indexes.max_timestamp != self.max_timestamp:
                raise IndexInvalid(f"{self.path('timeindex')} does not reach the last timestamp")
        except IndexInvalid:
            self.rebuild_indexes(check_crc=False)
        return self.indexes

    def _read(self, suffix: str) -> bytes:
        path = self.path(suffix)
        if not self._disk.exists(path):
            raise IndexInvalid(f"{path} is missing")
        file = self._disk.open(path, Access.READ)
        return file.pread(0, file.size())

    # --- age ----------------------------------------------------------------------------------

    @property
    def newest_ms(self) -> int | None:
        """The largest timestamp; where no batch has one, the time when growth was last seen. None
        when that is not known yet."""
        largest = self.max_timestamp
        return largest if largest >= 0 else self.modified_ms

    def note_growth(self, now_ms: int) -> bool:
        """Remembers when batches without a timestamp were seen, as nothing else shows their age.
        Returns whether the next checkpoint should keep it."""
        is_known = self.modified_ms is not None and self._noted_size == self.size
        if is_known or not self.size or self.max_timestamp >= 0:
            return False
        self.modified_ms, self._noted_size = now_ms, self.size
        return True

    def modified_at(self, size: int) -> int | None:
        """`modified_ms` for a checkpoint of the first `size` bytes; None when the segment has not
        been looked at since it had so many: then it is, after a start."""
        return self.modified_ms if self._noted_size == size else None

    def ages_by_clock(self, config: LogConfig) -> bool:
        """Whether an active segment may have to be closed though no append shows its age: because
        its records have to be compacted in time, or its first batch has no timestamp. (Without an
        append since the start the latter is not known, and does not matter.)"""
        first = self._first_timestamp
        has_limit = config.compact and config.max_compaction_lag_ms < NO_LIMIT_MS
        return self.size > 0 and (has_limit or (first is not None and first < 0))

    def look_at_age(self, now_ms: int, config: LogConfig) -> bool:
        """Whether an active segment that `ages_by_clock` has to be closed now."""
        first = self.first_timestamp
        if first >= 0:
            return config.compact and now_ms - first > config.max_compaction_lag_ms
        if self._seen_ms is None:
            self._seen_ms = now_ms
        return now_ms - self._seen_ms > config.roll_ms

    # --- searching ----------------------------------------------------------------------------

    def find(self, offset: int) -> FoundBatch | None:
        """The first batch that ends at or after `offset`."""
        return self._trying(lambda: self._find(offset))

    def find_by_time(self, timestamp: int) -> FoundBatch | None:
        """The first batch with a record that is not older than `timestamp`."""
        return self._trying(lambda: self._find_by_time(timestamp))

    def latest(self, start: int, end: int) -> FoundBatch | None:
        """The first batch in [start, end) with the largest timestamp."""
        return self._trying(lambda: self._latest(start, end))

    def _latest(self, start: int, end: int) -> FoundBatch | None:
        found = self._find(self.base_offset + max(self.indexes.max_timestamp_at, 0))
        if found is not None and start <= found.header.base_offset < end and _has_records(found):
            return found
        batches = (
            each
            for each in self._batches_from(start)
            if each.header.last_offset >= start and _has_records(each)
        )
        durable = takewhile(lambda each: each.header.base_offset < end, batches)
        return max(durable, key=lambda each: each.header.max_timestamp, default=None)

    def cut(self, position: int, upto: int) -> FoundBatch | None:
        """The last batch known to start in (position, upto]."""
        return self._trying(
            lambda: self._follow(self.indexes.offsets.last_start_in(position, upto))
        )

    def whole_batches(self, position: int, upto: int) -> int:
        """Where the batches from `position` on end, at most `upto`, but for the first one: as
        `cut`, where no batch in between is indexed, so they are few, or the first is large."""
        stop = position + read_header(self.file.pread(position, HEADER_SIZE)).size
        while stop + HEADER_SIZE <= upto:
            end = stop + read_header(self.file.pread(stop, HEADER_SIZE)).size
            if end > upto:
                break
            stop = end
        return stop

    def _trying(self, search: Callable[[], FoundBatch | None]) -> FoundBatch | None:
        """A search that follows an index which does not fit the log is done again without it."""
        try:
            return search()
        except IndexInvalid:
            self.rebuild_indexes(check_crc=False)
            return search()

    def _follow(self, entry: tuple[int, int] | None) -> FoundBatch | None:
        """The batch that an entry of the offset index points to; it must be that one."""
        if entry is None:
            return None
        last_offset, position = entry
        try:
            header = read_header(self.file.pread(position, HEADER_SIZE))
        except RecordError as error:
            raise IndexInvalid(f"{self.path('index')} points into a batch") from error
        if header.last_offset != self.base_offset + last_offset:
            raise IndexInvalid(f"{self.path('index')} points to another batch")
        return FoundBatch(position, header)

    def _check_time_entry(self, entry: tuple[int, int] | None) -> None:
        if entry is not None:
            timestamp, last_offset = entry
            found = self._find(self.base_offset + last_offset)
            if found is None or found.header.max_timestamp != timestamp:
                raise IndexInvalid(f"{self.path('timeindex')} names another batch")

    def _batches_from(self, offset: int) -> Iterator[FoundBatch]:
        """The batches from the last indexed one before `offset` on."""
        near = self._follow(self.indexes.offsets.floor(offset - self.base_offset))
        start = near.position if near else 0
        return scan(self.file, start, self.size)

    def _find(self, offset: int) -> FoundBatch | None:
        batches = self._batches_from(offset)
        return next((each for each in batches if each.header.last_offset >= offset), None)

    def _find_by_time(self, timestamp: int) -> FoundBatch | None:
        before = self.indexes.times.before(timestamp)
        self._check_time_entry(before)
        batches = self._batches_from(self.base_offset + (before[1] if before else 0))
        return next((each for each in batches if each.header.max_timestamp >= timestamp), None)
