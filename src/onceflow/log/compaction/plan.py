"""When a log is compacted and which of its segments: pure functions from facts to a plan.

The words are Kafka's: segments below `cleaned_to` have been compacted, the others are dirty. A plan
takes only sealed segments that a durable checkpoint names, so never the active one. It stops at the
first segment with a record younger than `min_compaction_lag_ms`, or of a transaction whose outcome
is not certain. Without such a lag the age of records does not matter: a clock that was ahead when
they were written must not keep them from being compacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from onceflow.log.config import LogConfig

_MAX_RELATIVE_OFFSET = 2**31 - 1


class _Extent(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def size(self) -> int: ...


_E = TypeVar("_E", bound=_Extent)


class DirtySegment(NamedTuple):
    """The facts for the decision; `first_timestamp` is that of the segment's first batch."""

    end_offset: int
    size: int
    first_timestamp: int
    newest_ms: int | None
    """None when that is not known yet."""


def cleanable(
    segments: Iterable[DirtySegment],
    cleaned_to: int,
    now_ms: int,
    config: LogConfig,
    unstable: int | None = None,
) -> tuple[int, float]:
    """How many of the segments, from the first on, should be compacted now, and how dirty they are;
    no segments when that is not worth it yet. Never a segment that reaches beyond `unstable`."""
    count = clean = dirty = 0
    overdue = False
    for segment in segments:
        if unstable is not None and segment.end_offset > unstable:
            break
        if segment.end_offset > cleaned_to:
            if _is_too_young(segment, now_ms, config.min_compaction_lag_ms):
                break
            dirty += segment.size
            first = segment.first_timestamp
            overdue = overdue or (first >= 0 and now_ms - first > config.max_compaction_lag_ms)
        else:
            clean += segment.size
        count += 1
    ratio = dirty / (clean + dirty) if dirty else 0.0
    is_worth_it = dirty > 0 and (overdue or ratio > config.min_cleanable_dirty_ratio)
    return (count, ratio) if is_worth_it else (0, ratio)


def _is_too_young(segment: DirtySegment, now_ms: int, lag_ms: int) -> bool:
    return lag_ms > 0 and (segment.newest_ms is None or segment.newest_ms > now_ms - lag_ms)


def grouped(segments: Sequence[_E], segment_bytes: int) -> list[list[_E]]:
    """Neighbours that fit into one segment together: small ones do not stay small for ever."""
    groups: list[list[_E]] = []
    size = 0
    for segment in segments:
        size += segment.size
        if (
            not groups
            or size > segment_bytes
            or segment.end_offset - groups[-1][0].base_offset > _MAX_RELATIVE_OFFSET
        ):
            groups.append([])
            size = segment.size
        groups[-1].append(segment)
    return groups
