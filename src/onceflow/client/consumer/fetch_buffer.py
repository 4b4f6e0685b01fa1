"""From the queue of a fetcher to its reader: chunks become columns, and rows leave in order.

A position moves when its rows leave, not before. What is decoded and not yet delivered is dropped
when the reader seeks, and kept while its partition is paused. What was sent can be far less than
what it becomes: about `fetched.DECODED_BYTES` of that are decoded at a time, and the rest goes back
to the queue. A table may be made before it leaves: if by then other rows would leave, it is
forgotten.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from onceflow.client.consumer.fetch_state import Chunk, FetchCore
from onceflow.client.consumer.metrics import FetchMetrics
from onceflow.client.errors import RecordsUnreadable
from onceflow.errors import RecordError
from onceflow.records import DECOMPRESSED_LIMIT, StoredBatch
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.client.consumer.fetched import Record


TABLE_BYTES: Final = 16 << 20
"""About how much, as it was sent, becomes one table."""
PORTION_BYTES: Final = 4 << 20
"""About how much, as it was sent, is decoded at once for tables of so many rows: little enough for
memory that was just given back to be used again, as touching new memory takes longer than to decode
into it."""


class _Held(NamedTuple):
    """Rows of one partition; behind them the position is `next_offset`."""

    partition: TopicPartition
    turn: int
    rows: pa.RecordBatch
    next_offset: int


class _Departure(NamedTuple):
    """Which rows leave next, of all that are held: `most` of them at most."""

    most: int | None
    held: list[_Held]
    leaving: list[_Held]
    kept: list[_Held]
    table: pa.Table


class FetchBuffer:
    """What has been decoded and not been delivered."""

    def __init__(
        self,
        core: FetchCore,
        measured: FetchMetrics | None = None,
        *,
        most_of_a_batch: int = DECOMPRESSED_LIMIT,
    ) -> None:
        self._core = core
        self._measured = measured
        self._most_of_a_batch = most_of_a_batch
        self._behind: TopicPartition | None = None
        """The last partition that was decoded when there was no room for the others."""
        self._held: list[_Held] = []
        self._next: _Departure | None = None

    def fill(self, max_rows: int | None) -> bool:
        """Decodes what is queued unless there are rows already, for tables of `max_rows` at most;
        whether there are any. Raises an error that is next in the queue."""
        while not self._has_rows():
            chunks = self._core.take(TABLE_BYTES if max_rows is None else PORTION_BYTES)
            if not chunks:
                return False
            self._decode_all(chunks)
        return True

    def _decode_all(self, chunks: list[Chunk]) -> None:
        """As much of them as there is room for; the rest is put back."""
        from onceflow.client.consumer import fetched

        # Partitions that had to wait come first: one whose few bytes decode into many must not be
        # the only one that is read.
        behind = self._behind
        ordered = sorted(
            chunks,
            key=lambda chunk: (behind is not None and chunk.partition <= behind, chunk.partition),
        )
        self._behind = None
        left = fetched.DECODED_BYTES
        rest: list[Chunk] = []
        for partition, group in groupby(ordered, key=lambda chunk: chunk.partition):
            if left <= 0:
                rest += group
                continue
            left -= self._decode(list(group), left, rest)
            if left <= 0:
                self._behind = partition
        if rest:
            self._core.put_back(rest)
        if self._measured is not None:
            sent, again = (sum(chunk.size for chunk in each) for each in (chunks, rest))
            self._measured.decoded(sent - again)

    def _has_rows(self) -> bool:
        core = self._core
        self._held = [each for each in self._held if core.is_current(each.partition, each.turn)]
        return any(not core.reading(each.partition).is_paused for each in self._held)

    def _decode(self, chunks: list[Chunk], most: int, rest: list[Chunk]) -> int:
        """Chunks of one partition, one behind the other, as far as `most` bytes go; the others are
        added to `rest`. How many bytes there were, decompressed."""
        from onceflow.client.consumer.fetched import portion_of

        partition, turn, first = chunks[0].partition, chunks[0].turn, chunks[0].first
        next_offset = chunks[-1].next_offset
        batches = list(chain.from_iterable(chunk.batches for chunk in chunks))
        if not batches:
            self._core.delivered(partition, turn, next_offset)
            return 0
        limit = self._most_of_a_batch
        try:
            rows, used, size = portion_of(partition, batches, first, most=most, limit=limit)
        except RecordsUnreadable as error:
            self._core.fail_now(partition, error)
            return 0
        if used < len(batches):
            behind = batches[used - 1].header.next_offset
            rest.append(_chunk(chunks[-1], batches[used:], behind))
            next_offset = behind
        if rows.num_rows:
            self._held.append(_Held(partition, turn, rows, next_offset))
        else:
            self._core.delivered(partition, turn, next_offset)
        return size

    def ahead(self, partition: TopicPartition) -> int:
        """How many records were fetched of a partition and not delivered."""
        core = self._core
        held = (
            each.rows.num_rows
            for each in self._held
            if each.partition == partition and core.is_current(partition, each.turn)
        )
        return sum(held) + sum(map(_record_count, core.queued(partition)))

    def table(self, max_rows: int | None) -> pa.Table:
        """The rows that are there, `max_rows` at most; the prepared table if it has the same."""
        found, self._next = self._next, None
        if found is not None and found.most == max_rows and self._is_still_next(found):
            self._depart(found.leaving, found.kept)
            return found.table
        leaving, kept = self._next_rows(max_rows)
        self._depart(leaving, kept)
        return _table_of(leaving)

    def prepare(self, max_rows: int | None) -> pa.Table | None:
        """Decodes as `fill`, and makes the table that leaves next, as far as it is known now. None
        when there are no rows, or an error is queued for the caller that waits for rows."""
        self._next = None
        if not self._has_rows() and self._core.has_error:
            return None
        try:
            if not self.fill(max_rows):
                return None
        except RecordsUnreadable:  # fetched again; the caller that waits gets the error
            return None
        leaving, kept = self._next_rows(max_rows)
        self._next = _Departure(max_rows, self._held, leaving, kept, _table_of(leaving))
        return self._next.table

    def _is_still_next(self, found: _Departure) -> bool:
        """Nothing came, was dropped, or paused, since it was prepared."""
        return len(found.held) == len(self._held) and all(
            one is other and not self._core.reading(one.partition).is_paused
            for one, other in zip(found.held, self._held, strict=True)
        )

    def records(self, max_records: int) -> list[Record]:
        """The same, by record."""
        from onceflow.client.consumer.fetched import records_of

        leaving, kept = self._next_rows(max_records)
        self._depart(leaving, kept)
        return records_of(each.rows for each in leaving)

    def _next_rows(self, most: int | None) -> tuple[list[_Held], list[_Held]]:
        """What leaves, and what is kept."""
        from onceflow.client.consumer.fetched import offset_at

        leaving, kept = [], []
        for held in self._held:
            rows = held.rows
            if self._core.reading(held.partition).is_paused or most == 0:
                kept.append(held)
                continue
            if most is not None and rows.num_rows > most:
                rest = rows.slice(most)
                kept.append(held._replace(rows=rest))
                rows = rows.slice(0, most)
                held = held._replace(rows=rows, next_offset=offset_at(rest, 0))
            if most is not None:
                most -= rows.num_rows
            leaving.append(held)
        return leaving, kept

    def _depart(self, leaving: list[_Held], kept: list[_Held]) -> None:
        for partition, turn, _, next_offset in leaving:
            self._core.delivered(partition, turn, next_offset)
        self._held = kept


def _chunk(last: Chunk, batches: list[StoredBatch], first: int) -> Chunk:
    """What is left, up to the end of the `last` chunk."""
    size = sum(len(batch.buffer) for batch in batches)
    return last._replace(batches=batches, first=first, size=size)


def _table_of(leaving: list[_Held]) -> pa.Table:
    import pyarrow as pa

    from onceflow.client.consumer.fetched import FETCHED_SCHEMA

    return pa.Table.from_batches([each.rows for each in leaving], schema=FETCHED_SCHEMA)


def _record_count(chunk: Chunk) -> int:
    """The first batch may begin before what was asked for: only there has one to look inside."""
    counts = [batch.header.record_count for batch in chunk.batches]
    if counts and chunk.batches[0].header.base_offset < chunk.first:
        from onceflow.client.consumer.fetched import columns_of

        with suppress(RecordError):  # the reader of the batch gets it
            counts[0] = columns_of(chunk.partition, chunk.batches[:1], chunk.first).num_rows
    return sum(counts)
