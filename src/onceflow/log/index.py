"""The two sparse indexes of a segment, in Kafka's file formats.

Offset index: (last offset of a batch, position of that batch), 8 bytes an entry. Time index:
(largest timestamp so far, last offset of the batch that has it), 12 bytes an entry, timestamps
strictly growing. Offsets are relative to the segment's base. Both only shorten a search: whoever
follows an entry checks the batch that it points to, and builds the index anew when that is another.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from onceflow.errors import IndexInvalid
from onceflow.records.batch import BatchHeader

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


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

    def __len__(self) -> int:
        return len(self.offsets)

    def to_bytes(self) -> bytes:
        entries = np.empty(len(self), _OFFSET_ENTRY)
        entries["offset"] = self.offsets
        entries["position"] = self.positions
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, segment_size: int) -> OffsetIndex:
        """Raises `IndexInvalid` when the entries cannot be those of such a segment."""
        if len(data) % _OFFSET_ENTRY.itemsize:
            raise IndexInvalid(f"{len(data)} bytes are no whole number of offset index entries")
        entries = np.frombuffer(data, _OFFSET_ENTRY)
        offsets, positions = entries["offset"].astype("i4"), entries["position"].astype("i4")
        if len(entries) and not (
            offsets[0] >= 0
            and positions[0] >= 0
            and positions[-1] < segment_size
            and (offsets[1:] > offsets[:-1]).all()
            and (positions[1:] > positions[:-1]).all()
        ):
            raise IndexInvalid("offset index entries do not grow or leave the segment")
        index = cls()
        index.offsets.frombytes(offsets.tobytes())
        index.positions.frombytes(positions.tobytes())
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
        entries = np.empty(len(self.timestamps), _TIME_ENTRY)
        entries["timestamp"] = self.timestamps
        entries["offset"] = self.offsets
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, last_offset: int) -> TimeIndex:
        """Raises `IndexInvalid` when the entries cannot be those of such a segment."""
        if len(data) % _TIME_ENTRY.itemsize:
            raise IndexInvalid(f"{len(data)} bytes are no whole number of time index entries")
        entries = np.frombuffer(data, _TIME_ENTRY)
        timestamps, offsets = entries["timestamp"].astype("i8"), entries["offset"].astype("i4")
        if len(entries) and not (
            timestamps[0] >= 0
            and offsets[0] >= 0
            and offsets[-1] <= last_offset
            and (timestamps[1:] > timestamps[:-1]).all()
            and (offsets[1:] > offsets[:-1]).all()
        ):
            raise IndexInvalid("time index entries do not grow or leave the segment")
        index = cls()
        index.timestamps.frombytes(timestamps.tobytes())
        index.offsets.frombytes(offsets.tobytes())
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

    def note(self, header: BatchHeader, position: int, base_offset: int) -> None:
        """The next batch of the segment stands at `position`."""
        last = header.last_offset - base_offset
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_at = header.max_timestamp, last
        if self._unindexed > self._interval:
            self.offsets.add(last, position)
            self.times.add(self.max_timestamp, self.max_timestamp_at)
            self._unindexed = 0
        self._unindexed += header.size

    def to_bytes(self) -> tuple[bytes, bytes]:
        """The two files; the time index ends with the largest timestamp, as Kafka's does."""
        self.times.add(self.max_timestamp, self.max_timestamp_at)
        return self.offsets.to_bytes(), self.times.to_bytes()
