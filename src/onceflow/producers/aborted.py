"""The aborted transactions of one partition: what a read_committed reader must leave out.

Markers are written in offset order, so the list is sorted by its last offsets without any sorting.
A long transaction may end far behind its first record, so first offsets are in no order; the
smallest one of each block of entries says which blocks a reader can pass over.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_INDEX_VERSION = 0
_INDEX_ENTRY = struct.Struct(">hqqqq")
_BLOCK = 64


class Aborted(NamedTuple):
    """One transaction that ended with an abort marker, at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """When the marker was written: where the earliest transaction of another producer that was
    still open began, or the offset behind the marker."""


class AbortedTransactions:
    """Sorted by last offset, appended to in that order."""

    __slots__ = ("_block_minimum", "_dropped", "_entries", "_last_offsets")

    def __init__(self, entries: Iterable[Aborted] = ()) -> None:
        self._entries: list[Aborted] = []
        self._last_offsets: list[int] = []
        self._block_minimum: list[int] = []
        # How many entries are missing from the first block: blocks do not move when some go.
        self._dropped = 0
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Aborted]:
        return iter(self._entries)

    def append(self, entry: Aborted) -> None:
        if (self._dropped + len(self._entries)) % _BLOCK == 0:
            self._block_minimum.append(entry.first_offset)
        elif entry.first_offset < self._block_minimum[-1]:
            self._block_minimum[-1] = entry.first_offset
        self._entries.append(entry)
        self._last_offsets.append(entry.last_offset)

    def overlapping(self, start: int, end: int) -> list[Aborted]:
        """Those with an offset from `start` on and one below `end`."""
        if not self._last_offsets or self._last_offsets[-1] < start:
            return []
        index = bisect_left(self._last_offsets, start)
        found: list[Aborted] = []
        for block in range((index + self._dropped) // _BLOCK, len(self._block_minimum)):
            if self._block_minimum[block] < end:
                first = max(index, block * _BLOCK - self._dropped)
                block_end = (block + 1) * _BLOCK - self._dropped
                found += [entry for entry in self._entries[first:block_end] if entry[1] < end]
        return found

    def between(self, fetch_offset: int, upper: int) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of those that a reader of these offsets must know."""
        return tuple([entry[:2] for entry in self.overlapping(fetch_offset, upper)])

    def drop_before(self, offset: int) -> None:
        """Forget those that ended before `offset`: no record of theirs is left to leave out."""
        count = bisect_left(self._last_offsets, offset)
        del self._entries[:count]
        del self._last_offsets[:count]
        blocks, self._dropped = divmod(self._dropped + count, _BLOCK)
        del self._block_minimum[:blocks]

    def encode(self, base: int, end: int) -> bytes:
        """The `.txnindex` file of a segment with the offsets from `base` up to before `end`."""
        low, high = bisect_left(self._last_offsets, base), bisect_left(self._last_offsets, end)
        return b"".join(
            [_INDEX_ENTRY.pack(_INDEX_VERSION, *entry) for entry in self._entries[low:high]]
        )
