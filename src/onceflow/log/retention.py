"""Which segments are too old or too many: a pure function from facts to a new log start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onceflow.log.config import LogConfig


class SegmentFacts(NamedTuple):
    """The facts about a segment that retention needs."""

    end_offset: int
    size: int
    newest_ms: int | None
    """When its newest record was written; see `Segment.newest_ms`."""


def retained_from(
    segments: Sequence[SegmentFacts],
    *,
    start_offset: int,
    high_watermark: int,
    now_ms: int,
    config: LogConfig,
) -> int:
    """The log start that retention allows: whole segments go, oldest first, durable ones only.

    A segment goes when all of its records are older than `retention_ms`, or when the log is still
    at least `retention_bytes` long without it.
    """
    total = sum(segment.size for segment in segments)
    start = start_offset
    for segment in segments:
        too_old = (
            config.retention_ms >= 0
            and segment.newest_ms is not None
            and now_ms - segment.newest_ms > config.retention_ms
        )
        too_much = config.retention_bytes >= 0 and total - segment.size >= config.retention_bytes
        if not segment.size or segment.end_offset > high_watermark or not (too_old or too_much):
            break
        total -= segment.size
        start = max(start, segment.end_offset)
    return start
