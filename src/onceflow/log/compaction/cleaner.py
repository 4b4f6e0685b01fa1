"""Compacts segments into new files beside them: the job behind `Compactor`, which changes nothing
that exists.

First the latest offset of each key in the dirty part is found, then all segments up to there are
copied without the records that a later one of their key displaces, as Kafka does it:
- a tombstone (a key without a value) stays for `delete_retention_ms` after the first pass that met
  it, so that a reader who is behind learns of it, and goes in the first pass after that;
- a record without a key goes; offsets and the order of records never change;
- a batch without records goes too, unless it is the last of its producer in the part that is
  compacted and that producer is remembered: then its header stays;
- records of aborted transactions go and displace nothing (`transactions.py`);
- a marker stays while there is a batch of its transaction, then for `delete_retention_ms` from the
  pass that finds none, and as long as it is the last of such a producer: it has the epoch.
Without a companion it is not known what became of transactions: then the log is compacted up to the
first batch of one.

Nothing durable depends on these files before a checkpoint names them, and the directory is synced
with that. So no error in here means a failed disk: it is reported, and the files go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from onceflow.errors import ColumnsTooLarge, OutOfDescriptors
from onceflow.log.compaction.cleaning import (
    CleanedSegment,
    Cleaning,
    CleaningOutcome,
    CleaningStopped,
    SourceSegment,
    remove_cleaned,
)
from onceflow.log.compaction.plan import grouped
from onceflow.log.compaction.rewrite import with_records, without_records
from onceflow.log.compaction.transactions import (
    BatchKind,
    LastBatches,
    Outcomes,
    UnendedBatches,
    entries_from,
)
from onceflow.log.config import NO_LIMIT_MS
from onceflow.log.segments import (
    CLEANED,
    Facts,
    Indexes,
    Rows,
    facts_of,
    read_portions,
    read_rows,
    scan,
    segment_path,
)
from onceflow.log.side_files import ABORTED_INDEX, write_whole
from onceflow.records import BatchHeader, StoredBatch, iter_stored, read_header
from onceflow.runtime import Access, Disk, Job

_READ_BYTES = 64 << 10  # more small batches at a time keep the garbage collector busy
_KEY_MEMORY = 64 << 20
_KEY_OVERHEAD = 120
"""The memory that a key costs besides its own bytes."""
_LARGEST_FILE = 2**31 - 1

_T = TypeVar("_T")
_Steps = Generator[None, None, _T]


def clean(disk: Disk, cleaning: Cleaning, outcome: CleaningOutcome) -> Job:
    """Writes the new files, or leaves none behind and says in `outcome` why."""
    try:
        yield from remove_cleaned(disk, cleaning.directory)  # what a failure has left
        yield from _clean(disk, cleaning, outcome)
    except Exception as problem:  # whatever it is: the owner says so, and tries again
        outcome.problem = problem
        with suppress(OutOfDescriptors):  # then the next attempt writes over them
            yield from remove_cleaned(disk, cleaning.directory)


def _clean(disk: Disk, cleaning: Cleaning, outcome: CleaningOutcome) -> Job:
    outcomes = Outcomes(cleaning.aborted)
    latest, end = yield from _latest_offsets(cleaning, outcomes)
    sources = [each for each in cleaning.sources if each.base_offset < end]
    judge = _Judge(cleaning, outcomes, latest, end, (yield from _last_batches(cleaning, sources)))
    for group in grouped(sources, cleaning.config.segment_bytes):
        cleaned = yield from _clean_group(disk, cleaning, group, judge)
        if cleaned is not None:
            outcome.segments.append(cleaned)
    outcome.cleaned_to = end


def _chunks(cleaning: Cleaning, source: SourceSegment) -> Iterator[list[StoredBatch]]:
    """All batches, verified, some at a time."""
    cleaning.reads(source.file.path)
    position = 0
    while position < source.size:
        if cleaning.should_stop():
            raise CleaningStopped("a compaction was stopped")
        data = source.file.pread(position, min(_READ_BYTES, source.size - position))
        batches = list(iter_stored(data))
        if not batches:  # it is longer than that
            data = source.file.pread(position, read_header(data).size)
            batches = [StoredBatch.parse(data)]
        position += sum(batch.header.size for batch in batches)
        yield batches


def _committed(
    batches: Iterable[StoredBatch], kind_of: Callable[[BatchHeader], BatchKind]
) -> list[StoredBatch]:
    return [batch for batch in batches if kind_of(batch.header) is BatchKind.COMMITTED]


def _note(latest: dict[bytes | None, int], rows: Rows) -> int:
    """Notes the offsets of the keys; about how much memory that took."""
    known = len(latest)
    latest.update(zip(rows.keys, rows.offsets, strict=True))
    new = len(latest) - known
    size = sum(len(key) for key in rows.keys if key is not None)
    return new * (_KEY_OVERHEAD + size // len(rows.keys)) if new else 0


def _latest_offsets(
    cleaning: Cleaning, outcomes: Outcomes
) -> _Steps[tuple[dict[bytes | None, int], int]]:
    """The latest offset of each key in the dirty part, and where that part ends: before its real
    end when keys take too much memory, or the outcome of a transaction is not known; the rest is
    left for the next pass."""
    latest: dict[bytes | None, int] = {}
    memory = 0
    end = cleaning.first_dirty
    for source in cleaning.sources:
        if source.end_offset <= cleaning.first_dirty:
            continue
        for batches in _chunks(cleaning, source):
            if batches[-1].header.next_offset <= cleaning.first_dirty:
                continue
            decided = outcomes.decided(batches)
            for _, rows in read_portions(_committed(decided, outcomes.kind_of)):
                memory += _note(latest, rows)
            if len(decided) < len(batches):
                return latest, max(end, batches[len(decided)].header.base_offset)
            end = batches[-1].header.next_offset
            if memory > _KEY_MEMORY:
                return latest, end
            yield
        end = source.end_offset
    return latest, end


def _last_batches(cleaning: Cleaning, sources: list[SourceSegment]) -> _Steps[set[int]]:
    """The base offsets of the last batches and markers of all producers that may come back."""
    last = LastBatches()
    for source in sources:
        cleaning.reads(source.file.path)
        for _, header in scan(source.file, 0, source.size):
            last.meets(header)
        yield
    return last.of(cleaning.producers)


def _with_rows(batches: list[StoredBatch]) -> Iterator[tuple[Rows, int]]:
    """For each batch the rows that its records are among, and the first of them."""
    for portion, rows in read_portions(batches):
        row = 0
        for batch in portion:
            yield rows, row
            row += batch.header.record_count


class _Judge:
    """Decides what stays of each batch; it must see all batches, in their order."""

    def __init__(
        self,
        cleaning: Cleaning,
        outcomes: Outcomes,
        latest: dict[bytes | None, int],
        end: int,
        last_batches: set[int],
    ) -> None:
        self._outcomes = outcomes
        self._unended = UnendedBatches()
        self._now_ms = cleaning.now_ms
        # Saturates: a retention that reaches behind the end of time means for ever.
        self._delete_horizon = min(
            cleaning.now_ms + cleaning.config.delete_retention_ms, NO_LIMIT_MS
        )
        self._latest = latest
        self.end = end
        self._last_batches = last_batches

    def retained(self, batches: list[StoredBatch]) -> Iterator[StoredBatch]:
        placed = _with_rows(_committed(batches, self._kind_of))
        for batch in batches:
            kind = self._kind_of(batch.header)
            kept: StoredBatch | None = batch
            ends_nothing = self._unended.meets(batch.header, kind)
            if kind is BatchKind.COMMITTED:
                kept = self._filtered(batch, *next(placed))
            elif kind is BatchKind.ABORTED:
                kept = self._emptied(batch)
            elif ends_nothing:
                kept = self._without_use(batch)
            if kept is not None:
                yield kept

    def _kind_of(self, header: BatchHeader) -> BatchKind:
        """Nothing is decided from `end` on."""
        return (
            self._outcomes.kind_of(header) if header.base_offset < self.end else BatchKind.UNKNOWN
        )

    def _emptied(self, batch: StoredBatch) -> StoredBatch | None:
        if batch.header.base_offset not in self._last_batches:
            return None
        return without_records(batch) if batch.header.record_count else batch

    def _without_use(self, marker: StoredBatch) -> StoredBatch | None:
        """What stays of a marker whose transaction has no batch left in the log."""
        header = marker.header
        if not header.has_delete_horizon:
            read_rows([marker])  # raises when it is not sound
            return with_records(
                marker,
                bytearray(b"\1"),
                max_timestamp=header.max_timestamp,
                delete_horizon=self._delete_horizon,
            )
        is_due = header.base_timestamp <= self._now_ms
        return None if is_due and header.base_offset not in self._last_batches else marker

    def _filtered(self, batch: StoredBatch, rows: Rows, row: int) -> StoredBatch | None:
        """What stays of a batch whose records start at `row`."""
        header = batch.header
        span = range(row, row + header.record_count)
        expired = header.has_delete_horizon and header.base_timestamp <= self._now_ms
        keep = bytearray(self._is_kept(rows, each, expired) for each in span)
        kept = [each for each, is_kept in zip(span, keep, strict=True) if is_kept]
        if not kept:
            return self._emptied(batch)
        tombstones = any(rows.is_dead[each] for each in kept)
        sets_horizon = tombstones and not header.has_delete_horizon
        if len(kept) == len(span) and not sets_horizon:
            return batch
        return with_records(
            batch,
            keep,
            max_timestamp=max(rows.timestamps[each] for each in kept),
            delete_horizon=self._delete_horizon if sets_horizon else None,
        )

    def _is_kept(self, rows: Rows, row: int, expired: bool) -> bool:
        key = rows.keys[row]
        return (
            key is not None
            and self._latest.get(key, -1) <= rows.offsets[row]
            and not (expired and rows.is_dead[row])
        )


class _Writer:
    """A new segment file and its indexes, beside the segments there are."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, interval: int) -> None:
        self._disk = disk
        self._directory = directory
        self._base_offset = base_offset
        self._file = disk.open(self.path("log"), Access.CREATE)
        self._file.truncate(0)
        self.indexes = Indexes.empty(interval)
        self.size = 0

    def path(self, suffix: str) -> str:
        return segment_path(self._directory, self._base_offset, suffix) + CLEANED

    def write(self, batches: list[StoredBatch]) -> None:
        data = b"".join(batch.buffer for batch in batches)
        if self.size + len(data) > _LARGEST_FILE:
            raise ColumnsTooLarge(f"{self.path('log')} would exceed 2 GiB")
        facts: list[Facts] = [facts_of(batch.header) for batch in batches]
        self._file.pwrite(self.size, data)
        self.indexes.note(facts, self.size, self._base_offset)
        self.size += len(data)

    def finish(self, aborted_index: bytes) -> Job:
        """Makes the files durable; their names are not yet."""
        # Here, not with the checkpoint: that one names the swap and syncs only the directory.
        self._file.sync()
        yield
        offsets, times = self.indexes.to_bytes()
        files = {"index": offsets, "timeindex": times}
        if aborted_index:
            files[ABORTED_INDEX] = aborted_index
        for suffix, data in files.items():
            write_whole(self._disk, self.path(suffix), data)
            yield

    def discard(self) -> None:
        self._file.close()
        self._disk.unlink(self.path("log"))


def _aborted_index(disk: Disk, directory: str, group: list[SourceSegment], end: int) -> bytes:
    """The entries of aborted transactions that reach beyond the compacted part."""
    entries: list[bytes] = []
    for source in group:
        path = segment_path(directory, source.base_offset, ABORTED_INDEX)
        if source.end_offset > end and disk.exists(path):
            file = disk.open(path, Access.READ)
            entries += entries_from(file.pread(0, file.size()), end)
    return b"".join(entries)


def _clean_group(
    disk: Disk, cleaning: Cleaning, group: list[SourceSegment], judge: _Judge
) -> _Steps[CleanedSegment | None]:
    """The group as one new segment; None when it would be the same as the only one there is."""
    first, last = group[0], group[-1]
    interval = cleaning.config.index_interval_bytes
    writer = _Writer(disk, cleaning.directory, first.base_offset, interval)
    is_changed = len(group) > 1
    for source in group:
        for batches in _chunks(cleaning, source):
            retained = list(judge.retained(batches))
            is_changed = is_changed or [id(each.buffer) for each in retained] != [
                id(each.buffer) for each in batches
            ]
            writer.write(retained)
            yield
    if writer.size and is_changed:
        yield from writer.finish(_aborted_index(disk, cleaning.directory, group, judge.end))
    else:
        writer.discard()
        if not is_changed:
            return None
    return CleanedSegment(
        first.base_offset,
        last.end_offset,
        writer.size,
        writer.indexes.max_timestamp,
        tuple(source.base_offset for source in group),
    )
