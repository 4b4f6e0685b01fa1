"""The two sparse indexes of a segment, in Kafka's file formats.

Offset index: (last offset of a batch, position of that batch), 8 bytes an entry. Time index:
(largest timestamp so far, last offset of the batch that has it), 12 bytes an entry, timestamps
strictly growing. Offsets are relative to the segment's base. Both only shorten a search: a search
that follows an entry checks the batch there, and rebuilds the index when it is a different one.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import lt

from onceflow.errors import IndexInvalid
from onceflow.log.segments.batch_walk import Facts

# Files are handled as arrays of 32-bit words: two to an entry of the offset index, three to one of
# the time index, whose timestamp takes the first two.
_OFFSET_ENTRY_WORDS = 2
_TIME_ENTRY_WORDS = 3
_WORD = 4


def _swapped(numbers: array[int]) -> array[int]:
    """A copy from this machine's order of bytes to the files' big-endian, or back."""
    swapped = numbers[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped


def _words(data: bytes, entry_words: int, what: str) -> array[int]:
    if len(data) % (entry_words * _WORD):
        raise IndexInvalid(f"{len(data)} bytes are no whole number of {what} index entries")
    return array("i", data)


def _grows(numbers: array[int]) -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))


class OffsetIndex:
    """Where batches start; positions and offsets both grow."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def add(self, offset: int, position: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)

    def floor(self, offset: int) -> tuple[int, int] | None:
        """The last entry whose batch ends at or before `offset`."""
        at = bisect_right(self.offsets, offset) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else None

    def last_start_in(self, above: int, upto: int) -> tuple[int, int] | None:
        """The entry of the highest known start of a batch in (above, upto]."""
        at = bisect_right(self.positions, upto) - 1
        if at < 0 or self.positions[at] <= above:
            return None
        return self.offsets[at], self.positions[at]

    def first_start_from(self, position: int) -> int | None:
        """The last offset of the first indexed batch that starts at `position` or behind it."""
        at = bisect_left(self.positions, position)
        return self.offsets[at] if at < len(self.positions) else None

    def __len__(self) -> int:
        return len(self.offsets)

    def to_bytes(self) -> bytes:
        words = array("i", bytes(_OFFSET_ENTRY_WORDS * _WORD * len(self)))
        words[0::2] = self.offsets
        words[1::2] = self.positions
        return _swapped(words).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, segment_size: int) -> OffsetIndex:
        """Raises `IndexInvalid` when the entries cannot be those of such a segment."""
        words = _swapped(_words(data, _OFFSET_ENTRY_WORDS, "offset"))
        index = cls()
        index.offsets, index.positions = words[0::2], words[1::2]
        if words and not (
            index.offsets[0] >= 0
            and index.positions[0] >= 0
            and index.positions[-1] < segment_size
            and _grows(index.offsets)
            and _grows(index.positions)
        ):
            raise IndexInvalid("offset index entries do not grow or leave the segment")
        return index


class TimeIndex:
    """Growing timestamps, and the batches that first had them."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def add(self, timestamp: int, offset: int) -> None:
        """Adds an entry unless time has not moved on since the last one."""
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(offset)

    def before(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry that says: all batches up to this offset are older than `timestamp`."""
        at = bisect_right(self.timestamps, timestamp - 1) - 1
        return (self.timestamps[at], self.offsets[at]) if at >= 0 else None

    @property
    def last(self) -> tuple[int, int] | None:
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def to_bytes(self) -> bytes:
        halves = array("i", _swapped(self.timestamps).tobytes())
        words = array("i", bytes(_TIME_ENTRY_WORDS * _WORD * len(self.offsets)))
        words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], _swapped(self.offsets)
        return words.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, last_offset: int) -> TimeIndex:
        """Raises `IndexInvalid` when the entries cannot be those of such a segment."""
        words = _words(data, _TIME_ENTRY_WORDS, "time")
        halves = array("i", bytes(2 * _WORD * (len(words) // _TIME_ENTRY_WORDS)))
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
        index = cls()
        index.timestamps = _swapped(array("q", halves.tobytes()))
        index.offsets = _swapped(words[2::3])
        if words and not (
            index.timestamps[0] >= 0
            and index.offsets[0] >= 0
            and index.offsets[-1] <= last_offset
            and _grows(index.timestamps)
            and _grows(index.offsets)
        ):
            raise IndexInvalid("time index entries do not grow or leave the segment")
        return index


class Indexes:
    """Both indexes of one segment, kept batch by batch: a fold over its log file."""

    __slots__ = (
        "_interval",
        "_unindexed",
        "max_timestamp",
        "max_timestamp_at",
        "offsets",
        "times",
    )

    def __init__(
        self, interval: int, offsets: OffsetIndex, times: TimeIndex, unindexed: int = 0
    ) -> None:
        self._interval = interval
        self.offsets = offsets
        self.times = times
        self._unindexed = unindexed
        self.max_timestamp, self.max_timestamp_at = times.last or (-1, -1)

    @classmethod
    def empty(cls, interval: int) -> Indexes:
        """For a segment without batches; an entry for the first batch after `interval` bytes."""
        return cls(interval, OffsetIndex(), TimeIndex())

    @classmethod
    def from_bytes(
        cls, interval: int, offsets: bytes, times: bytes, *, size: int, last_offset: int
    ) -> Indexes:
        """Those of a segment of `size` bytes whose last relative offset is known."""
        index = OffsetIndex.from_bytes(offsets, size)
        unindexed = size - (index.positions[-1] if len(index) else 0)
        return cls(interval, index, TimeIndex.from_bytes(times, last_offset), unindexed)

    def note(self, batches: Iterable[Facts], position: int, base_offset: int) -> None:
        """The next batches of the segment stand one behind the other from `position` on."""
        latest, latest_at = self.max_timestamp, self.max_timestamp_at
        unindexed, interval = self._unindexed, self._interval
        for size, _, last_offset, max_timestamp in batches:
            if max_timestamp > latest:
                latest, latest_at = max_timestamp, last_offset - base_offset
            if unindexed > interval:
                self.offsets.add(last_offset - base_offset, position)
                self.times.add(latest, latest_at)
                unindexed = 0
            unindexed += size
            position += size
        self.max_timestamp, self.max_timestamp_at = latest, latest_at
        self._unindexed = unindexed

    def to_bytes(self) -> tuple[bytes, bytes]:
        """The two files; the time index ends with the largest timestamp, as Kafka's does."""
        self.times.add(self.max_timestamp, self.max_timestamp_at)
        return self.offsets.to_bytes(), self.times.to_bytes()
