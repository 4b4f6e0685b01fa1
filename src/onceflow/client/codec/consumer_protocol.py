"""What the members of a group tell each other through the broker, which does not look inside: what
a member wants and holds (its subscription), and what the leader gives it (its assignment).

The bytes are those of Kafka's consumer protocol, so that members written by others can be in the
same group, and lead it. Newer versions only add fields at the end, and are read as far as they are
known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from onceflow.client.types import by_topic
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire import INT16, INT32, read_count, read_int, read_slice, read_text, text

NO_GENERATION: Final = -1
_NULL: Final = INT32.pack(-1)
_SUBSCRIPTION_VERSION: Final = 3
_ASSIGNMENT_VERSION: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolSubscription:
    """What a member wants, and what it holds since which generation."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


def write_subscription(subscription: ConsumerProtocolSubscription) -> bytes:
    """Sorted: the same wish has to be the same bytes, or the broker sees a change in it."""
    topics = sorted(subscription.topics)
    return b"".join(
        (
            INT16.pack(_SUBSCRIPTION_VERSION),
            INT32.pack(len(topics)),
            *(text(False, topic) for topic in topics),
            _bytes(subscription.user_data),
            _partitions(subscription.owned),
            INT32.pack(subscription.generation),
            text(False, subscription.rack),
        )
    )


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Raises `MessageMalformed`."""
    view = memoryview(data)
    version, at = read_int(INT16, view, 0)
    if version < 0:
        raise MessageMalformed(f"a subscription of version {version}")
    count, at = read_count(False, view, at)
    topics: list[str] = []
    for _ in range(count):
        topic, at = read_text(False, view, at)
        topics.append(topic or "")
    user_data, at = read_slice(False, INT32, view, at)
    owned: tuple[TopicPartition, ...] = ()
    generation, rack = NO_GENERATION, None
    if version >= 1:
        owned, at = _read_partitions(view, at)
    if version >= 2:
        generation, at = read_int(INT32, view, at)
    if version >= 3:
        rack, at = read_text(False, view, at)
    return ConsumerProtocolSubscription(
        topics=tuple(topics),
        user_data=None if user_data is None else bytes(user_data),
        owned=owned,
        generation=generation,
        rack=rack,
    )


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What a member is given."""
    return INT16.pack(_ASSIGNMENT_VERSION) + _partitions(partitions) + _NULL


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Raises `MessageMalformed`. No bytes at all mean no partitions: a leader may leave a member
    out."""
    if not data:
        return ()
    view = memoryview(data)
    version, at = read_int(INT16, view, 0)
    if version < 0:
        raise MessageMalformed(f"an assignment of version {version}")
    return _read_partitions(view, at)[0]


def _bytes(value: bytes | None) -> bytes:
    return _NULL if value is None else INT32.pack(len(value)) + value


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    grouped = by_topic(sorted(partitions))
    parts = [INT32.pack(len(grouped))]
    for topic, numbers in grouped.items():
        parts += (text(False, topic), INT32.pack(len(numbers)), *map(INT32.pack, numbers))
    return b"".join(parts)


def _read_partitions(view: memoryview, at: int) -> tuple[tuple[TopicPartition, ...], int]:
    found: list[TopicPartition] = []
    topic_count, at = read_count(False, view, at)
    for _ in range(topic_count):
        topic, at = read_text(False, view, at)
        count, at = read_count(False, view, at)
        for _ in range(count):
            number, at = read_int(INT32, view, at)
            found.append(TopicPartition(topic or "", number))
    return tuple(found), at
