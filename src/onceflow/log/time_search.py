"""Records by their timestamps: the searches behind ListOffsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onceflow.log.segment import Found, Segment
from onceflow.records.batch import StoredBatch


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
            for each in _records(segment, found):
                if each.timestamp >= timestamp and each.offset >= start:
                    return each
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
    records = [each for each in _records(segment, latest) if each.offset >= start]
    return max(records, key=lambda each: (each.timestamp, -each.offset), default=None)


def _records(segment: Segment, found: Found) -> list[TimestampedOffset]:
    from onceflow.records.columns import decode  # loads the kernels: only a search needs them

    data = segment.file.pread(found.position, found.header.size)
    rows = decode([StoredBatch.parse(data)])
    offsets: list[int] = rows.column("offset").to_numpy().tolist()
    timestamps: list[int] = rows.column("timestamp").to_numpy().astype("i8").tolist()
    return [TimestampedOffset(*pair) for pair in zip(offsets, timestamps, strict=True)]
