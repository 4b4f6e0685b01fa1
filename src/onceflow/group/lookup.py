"""What a reader of offsets is told.

An offset that an open transaction is about to change is not stable: who asks for stable offsets is
told so instead of the offset; everybody else gets what is committed. Asked for everything that a
group has, the answer names what is committed, and not what only a transaction may yet commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from onceflow.group.events import OffsetQuery
from onceflow.group.offsets import Offsets, TopicPartition
from onceflow.group.records import OffsetValue
from onceflow.wire import ErrorCode


class FoundOffset(NamedTuple):
    """The offset of a partition; None where there is none, or none to be told."""

    partition: int
    value: OffsetValue | None
    error: ErrorCode = ErrorCode.NONE


FoundOffsets: TypeAlias = tuple[tuple[str, tuple[FoundOffset, ...]], ...]
"""By topic."""


def look_up(offsets: Offsets, query: OffsetQuery, *, require_stable: bool) -> FoundOffsets:
    """The offsets that a client wants to know."""
    committed = offsets.committed(query.group_id)

    def found(topic: str, partition: int) -> FoundOffset:
        place = TopicPartition(topic, partition)
        if require_stable and offsets.is_pending(query.group_id, place):
            return FoundOffset(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        recorded = committed.get(place)
        return FoundOffset(partition, None if recorded is None else recorded.value)

    topics = _all_of(committed) if query.topics is None else query.topics
    return tuple(
        (topic, tuple(found(topic, partition) for partition in partitions))
        for topic, partitions in topics
    )


def _all_of(places: Iterable[TopicPartition]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return tuple((topic, tuple(partitions)) for topic, partitions in by_topic.items())
