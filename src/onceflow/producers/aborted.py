"""The aborted transactions of one partition, whose records a read_committed reader must skip.

Markers come in offset order, so the list is sorted by last offset without any sorting. A long
transaction may end far behind its first record, so first offsets are in no order; the smallest one
of each block of entries shows which blocks a reader can skip.

A log may have millions of aborted transactions. Their entries lie in flat arrays, 40 bytes each,
and are written to files as a whole, so a snapshot need not walk them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_INDEX_VERSION = struct.Struct(">h")
_VERSION_0 = _INDEX_VERSION.pack(0)
_BLOCK = 64


class Aborted(NamedTuple):
    """One transaction that ended with an abort marker, at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """As of the marker: the first offset of the earliest transaction that was still open, or the
    offset behind the marker."""


_FIELDS = len(Aborted._fields)
_FIRST_OFFSET = Aborted._fields.index("first_offset")
_LAST_OFFSET = Aborted._fields.index("last_offset")
ENTRY_SIZE = 8 * _FIELDS


class AbortedTransactions:
    """Sorted by last offset, appended to in that order."""

    __slots__ = ("_block_minimum", "_dropped", "_last_offsets", "_values")

    def __init__(self, entries: Iterable[Aborted] = ()) -> None:
        self._values = array("q")  # the fields of the first entry, of the second, ...
        self._last_offsets = array("q")
        self._block_minimum: list[int] = []
        # How many entries are missing from the first block: blocks do not move when some go.
        self._dropped = 0
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._last_offsets)

    def __iter__(self) -> Iterator[Aborted]:
        return (self._entry(number) for number in range(len(self._last_offsets)))

    def _entry(self, number: int) -> Aborted:
        return Aborted._make(self._values[_FIELDS * number : _FIELDS * (number + 1)])

    def append(self, entry: Aborted) -> None:
        if (self._dropped + len(self._last_offsets)) % _BLOCK == 0:
            self._block_minimum.append(entry.first_offset)
        elif entry.first_offset < self._block_minimum[-1]:
            self._block_minimum[-1] = entry.first_offset
        self._values.extend(entry)
        self._last_offsets.append(entry.last_offset)

    def overlapping(self, start: int, end: int) -> list[Aborted]:
        """The transactions with an offset from `start` on and one below `end`."""
        if not self._last_offsets or self._last_offsets[-1] < start:
            return []
        index = bisect_left(self._last_offsets, start)
        found: list[Aborted] = []
        for block in range((index + self._dropped) // _BLOCK, len(self._block_minimum)):
            if self._block_minimum[block] < end:
                begin = max(index, block * _BLOCK - self._dropped)
                block_end = (block + 1) * _BLOCK - self._dropped
                firsts = self._values[_FIELDS * begin + _FIRST_OFFSET : _FIELDS * block_end]
                found += [
                    self._entry(number)
                    for number, first in enumerate(firsts[::_FIELDS], begin)
                    if first < end
                ]
        return found

    def between(self, fetch_offset: int, upper: int) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of each transaction that a reader of these offsets needs."""
        return tuple([entry[:2] for entry in self.overlapping(fetch_offset, upper)])

    def drop_before(self, offset: int) -> None:
        """Forgets transactions that ended before `offset`: none of their records is left."""
        count = bisect_left(self._last_offsets, offset)
        del self._values[: _FIELDS * count]
        del self._last_offsets[:count]
        blocks, self._dropped = divmod(self._dropped + count, _BLOCK)
        del self._block_minimum[:blocks]

    # --- as bytes -----------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The fields of each entry as big-endian numbers, `ENTRY_SIZE` bytes per entry."""
        return _big_endian(self._values[:]).tobytes()

    @classmethod
    def from_bytes(cls, data: memoryview) -> AbortedTransactions:
        """From a whole number of entries."""
        found = cls()
        found._values.frombytes(data)
        _big_endian(found._values)
        found._last_offsets = found._values[_LAST_OFFSET::_FIELDS]
        firsts = found._values[_FIRST_OFFSET::_FIELDS]
        found._block_minimum = [
            min(firsts[begin : begin + _BLOCK]) for begin in range(0, len(firsts), _BLOCK)
        ]
        return found

    def encode(self, base: int, end: int) -> bytes:
        """The `.txnindex` file of a segment with the offsets from `base` up to, but without, `end`:
        a version and the fields of each entry."""
        low, high = bisect_left(self._last_offsets, base), bisect_left(self._last_offsets, end)
        fields = _big_endian(self._values[_FIELDS * low : _FIELDS * high]).tobytes()
        size = _INDEX_VERSION.size + ENTRY_SIZE
        index = bytearray(_VERSION_0.ljust(size, b"\0") * (high - low))
        for column in range(ENTRY_SIZE):  # not one by one: there may be very many
            index[_INDEX_VERSION.size + column :: size] = fields[column::ENTRY_SIZE]
        return bytes(index)


def _big_endian(values: array[int]) -> array[int]:
    """Swaps the byte order of all numbers, to or from that of the file; changes `values`."""
    if sys.byteorder == "little":
        values.byteswap()
    return values
