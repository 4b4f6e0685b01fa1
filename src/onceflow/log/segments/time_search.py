"""Records by their timestamps: the searches behind ListOffsets."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from onceflow.log.segments.segment import FoundBatch, Segment
from onceflow.records import StoredBatch
from onceflow.runtime import loading

_NEVER = 2**63 - 1
_NOWHERE = -1


class TimestampedOffset(NamedTuple):
    """Answer to a search by time."""

    offset: int
    timestamp: int


def offset_for_time(
    segments: Iterable[Segment], timestamp: int, start: int, end: int
) -> TimestampedOffset | None:
    """The first record in [start, end) that is not older than `timestamp`."""
    for segment in segments:
        if segment.max_timestamp < timestamp or segment.end_offset <= start:
            continue
        found = segment.find_by_time(timestamp)
        while found is not None and found.header.base_offset < end:
            # Behind what was deleted many batches may follow that are all older.
            if found.header.max_timestamp >= timestamp:
                record = _find(segment, found, timestamp, start)
                if record is not None and record.timestamp >= timestamp:
                    return record
            found = segment.find(found.header.next_offset)
    return None


def latest_record(segments: Iterable[Segment], start: int, end: int) -> TimestampedOffset | None:
    """The first record in [start, end) that has the largest timestamp of all."""
    found = [
        (segment, latest)
        for segment in segments
        if segment.end_offset > start and (latest := segment.latest(start, end)) is not None
    ]
    if not found:
        return None
    segment, latest = max(found, key=lambda each: each[1].header.max_timestamp)
    return _find(segment, latest, _NEVER, start)


def _find(
    segment: Segment, found: FoundBatch, timestamp: int, start: int
) -> TimestampedOffset | None:
    """Of the records of one batch from offset `start` on the first that is not older than
    `timestamp`, else the first of the latest ones. A marker is one of them, as in Apache Kafka."""
    with loading:  # loads the kernels: only a search needs them
        from onceflow.log.segments.record_rows import SoundRecords
        from onceflow.log.segments.time_kernel import find_time

    records = SoundRecords()
    records.add(StoredBatch.parse(segment.file.pread(found.position, found.header.size)))
    records.check()
    place = array("q", (_NOWHERE, 0))
    find_time(records.table, timestamp, start, place.buffer_info()[0])
    return None if place[0] == _NOWHERE else TimestampedOffset(place[0], place[1])
