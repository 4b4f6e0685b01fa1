"""Between a partition's producers and the files that its log keeps for them.

A snapshot only shortens the way: the table is the fold over the whole log, and one that does not
verify is passed over for an older one, or for the log itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from onceflow.broker.requests import Slices
from onceflow.errors import LogCorrupt
from onceflow.log import PartitionLog, SideFiles, Span
from onceflow.producers import ProducerTable, SnapshotDraft, SnapshotInvalid, replay

_READ_BYTES = 4 << 20

_log = logging.getLogger(__name__)


def load_producers(log: PartitionLog) -> ProducerTable:
    """The producers of a log: its newest sound snapshot, and all batches behind that."""
    offset, table = _newest_snapshot(log)
    for span in log.spans(offset):
        _replay(table, span)
    table.start_moved(log.start_offset)
    return table


def _replay(table: ProducerTable, span: Span) -> None:
    position, left, size = span.position, span.length, _READ_BYTES
    while left > 0:
        data = span.file.pread(position, min(size, left))
        consumed = replay(table, data, left - len(data))
        if not consumed:
            if len(data) == left:
                raise LogCorrupt(f"no whole batch at byte {position} of {span.file}")
            size *= 2  # for a batch that is larger than what was read
        position += consumed
        left -= consumed


def _newest_snapshot(log: PartitionLog) -> tuple[int, ProducerTable]:
    for offset, data in log.snapshots():
        try:
            return offset, ProducerTable.from_bytes(data, offset)
        except SnapshotInvalid as error:
            _log.warning(
                "the producers of %s-%d are read from the log, as their snapshot at offset %d is "
                "damaged: %s",
                log.topic,
                log.log_id.partition,
                offset,
                error,
            )
    return log.start_offset, ProducerTable()


class ProducerFiles:
    """What the log asks for when it writes files and when it is compacted."""

    __slots__ = ("_log", "_slices", "_table")

    def __init__(self, log: PartitionLog, table: ProducerTable, slices: Slices) -> None:
        self._log = log
        self._table = table
        self._slices = slices

    def sealed(self, base: int, end: int) -> SideFiles:
        """The state of all batches below `end`, and the aborted transactions ended in between. Of
        many producers the first are encoded now, the others in turns to come."""
        draft = self._table.draft(end)
        draft.advance()
        if not draft.is_finished:
            name = f"the producer snapshot of {self._log.directory} at offset {end}"
            self._slices.run(name, self._finish(draft))
        return SideFiles(draft, self._table.aborted.encode(base, end))

    def _finish(self, draft: SnapshotDraft) -> Iterator[None]:
        while not draft.is_finished:
            try:
                draft.advance()
            except Exception as error:  # it never will be; two rolls later nobody wants it
                self._log.side_files.note_problem(error)
                return
            yield

    def has_aged(self) -> bool:
        """Whether time has changed what is remembered."""
        return self._table.has_aged

    def start_moved(self, start: int) -> None:
        """Forgets the aborted transactions below, of which no record is left."""
        self._table.start_moved(start)

    def first_unstable(self) -> int | None:
        """Up to where compaction may go."""
        return self._table.first_unstable_offset(self._log.high_watermark)

    def aborted(self, start: int, end: int) -> Sequence[tuple[int, int, int]]:
        """The aborted transactions that reach into a range of offsets."""
        return [each[:3] for each in self._table.aborted.overlapping(start, end)]

    def remembered(self) -> Collection[int]:
        """The producers that have not expired, by the broker's own judgement. A copy: it is read in
        another thread."""
        return frozenset(self._table.ids())

    def compacted(self, upto: int) -> None:
        """Nothing is left of transactions that were aborted below."""
        self._table.aborted.drop_before(upto)
