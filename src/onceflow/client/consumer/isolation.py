"""Which fetched batches a consumer may see: never a transaction marker, and with
`isolation.level=read_committed` no batch of an aborted transaction.

To such a consumer a leader returns nothing behind the first open transaction, and with every Fetch
response it lists all aborted transactions that reach into it, also those that began before it. So
the filter forgets the list of the response before: a stale entry could hide committed records of
the same producer. The position moves over all batches, visible or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop

from onceflow.records import CONTROL_BIT, TRANSACTIONAL_BIT, MarkerType, StoredBatch, parse_marker

NO_EPOCH = -1


class PartitionFilter:
    """One reader of one partition. `position` is the next offset it has not been given."""

    __slots__ = ("_aborted", "_hidden", "_read_committed", "leader_epoch", "position")

    def __init__(self, position: int, *, read_committed: bool) -> None:
        self.position = position
        self.leader_epoch = NO_EPOCH
        """Of the last batch that was passed; -1 before the first."""
        self._read_committed = read_committed
        self._aborted: list[tuple[int, int]] = []
        """(first offset, producer id), a heap: aborted transactions that are still to come."""
        self._hidden: set[int] = set()
        """Producers whose aborted transaction has begun and not ended."""

    def begin(self, aborted: Iterable[tuple[int, int]]) -> None:
        """A new range comes, with these aborted transactions: (producer id, first offset)."""
        self._aborted = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapify(self._aborted)
        self._hidden.clear()

    def visible(self, batches: Iterable[StoredBatch]) -> Iterator[StoredBatch]:
        """Those of the range's batches, in order, of which a record may be delivered; the first may
        begin before the position. The range may be given in pieces."""
        for batch in batches:
            header = batch.header
            next_offset = header.next_offset
            is_shown = self._is_shown(batch) and next_offset > self.position
            if next_offset > self.position:
                self.position = next_offset
                self.leader_epoch = header.leader_epoch
            if is_shown and header.record_count:
                yield batch

    def seek(self, position: int) -> None:
        """Goes on elsewhere; of what is there nothing is known."""
        self.position = position
        self.leader_epoch = NO_EPOCH
        self.begin(())

    def _is_shown(self, batch: StoredBatch) -> bool:
        attributes = batch.header.attributes
        if not self._read_committed:
            return not attributes & CONTROL_BIT
        while self._aborted and self._aborted[0][0] < batch.header.next_offset:
            self._hidden.add(heappop(self._aborted)[1])
        if attributes & CONTROL_BIT:
            found = parse_marker(batch)
            if found is not None and found.type is MarkerType.ABORT:
                self._hidden.discard(found.producer_id)
            return False
        return not (attributes & TRANSACTIONAL_BIT and batch.header.producer_id in self._hidden)
