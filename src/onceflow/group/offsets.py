"""Committed offsets: a fold over the records of `__consumer_offsets`.

What readers see is durable. What was handed to the log and is not durable yet is kept apart, by
the number of the write it is part of, and counts only where a later decision must know of it (a
deletion must also delete a commit that is still on its way). A write that fails leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from onceflow.group.events import Identity
from onceflow.group.rebalance import check_member
from onceflow.group.records import OffsetKey, OffsetValue
from onceflow.group.state import Group, State
from onceflow.wire.error_code import ErrorCode

# From this version on clients know that a group can be unknown.
_GROUP_ID_NOT_FOUND_SINCE = 9


class TopicPartition(NamedTuple):
    """Where an offset is in."""

    topic: str
    partition: int


OffsetRecord: TypeAlias = tuple[OffsetKey, OffsetValue | None]


class CommittedOffsets:
    """The offsets of all groups."""

    __slots__ = ("_durable", "_on_their_way")

    def __init__(self) -> None:
        self._durable: dict[str, dict[TopicPartition, OffsetValue]] = {}
        self._on_their_way: dict[str, dict[int, Sequence[OffsetRecord]]] = {}

    # --- the fold -----------------------------------------------------------------------------

    def apply(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One durable record: a commit, or a tombstone."""
        place = TopicPartition(key.topic, key.partition)
        if value is not None:
            self._durable.setdefault(key.group_id, {})[place] = value
            return
        offsets = self._durable.get(key.group_id, {})
        offsets.pop(place, None)
        if not offsets:
            self._durable.pop(key.group_id, None)

    def admit(self, group_id: str, write: int, records: Sequence[OffsetRecord]) -> None:
        """Records of one group that were handed to the log as the write of this number."""
        if records:
            self._on_their_way.setdefault(group_id, {})[write] = records

    def settle(self, group_id: str, write: int, *, durable: bool) -> None:
        """What became of a write."""
        writes = self._on_their_way.get(group_id, {})
        records = writes.pop(write, ())
        if not writes:
            self._on_their_way.pop(group_id, None)
        if durable:
            for key, value in records:
                self.apply(key, value)

    # --- questions ----------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        """The groups that have durable offsets."""
        return iter(self._durable)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        """What readers see."""
        return self._durable.get(group_id, {})

    def admitted(self, group_id: str) -> dict[TopicPartition, OffsetValue]:
        """What readers will see when everything that is on its way has arrived."""
        offsets = dict(self._durable.get(group_id, {}))
        for records in self._on_their_way.get(group_id, {}).values():
            for key, value in records:
                place = TopicPartition(key.topic, key.partition)
                if value is None:
                    offsets.pop(place, None)
                else:
                    offsets[place] = value
        return offsets

    def groups_with_topic(self, topic: str) -> dict[str, list[TopicPartition]]:
        """Where a topic has offsets, durable or on their way."""
        found: dict[str, list[TopicPartition]] = {}
        for group_id in [*self._durable, *self._on_their_way]:
            places = [place for place in self.admitted(group_id) if place.topic == topic]
            if places:
                found[group_id] = places
        return found


def tombstones(group_id: str, places: Sequence[TopicPartition]) -> list[OffsetRecord]:
    """The records that delete offsets."""
    return [(OffsetKey(group_id, *place), None) for place in places]


# --- rules ------------------------------------------------------------------------------------


def check_commit(
    group: Group | None, identity: Identity, generation: int, version: int
) -> ErrorCode:
    """Whether a commit is accepted: from members of this generation, or, while nobody is in the
    group, from anybody who claims no generation."""
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        knows_the_code = version >= _GROUP_ID_NOT_FOUND_SINCE
        return ErrorCode.GROUP_ID_NOT_FOUND if knows_the_code else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and group.state is State.EMPTY:
        return ErrorCode.NONE
    error = check_member(group, *identity)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is State.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def check_delete(group: Group | None) -> ErrorCode:
    """Whether offsets may be deleted at all; topics that members read are refused one by one."""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not State.EMPTY and not group.uses_consumer_protocol:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def is_metadata_too_long(metadata: str | None, limit: int) -> bool:
    """Kafka counts UTF-16 code units, whatever the setting is called."""
    if metadata is None or len(metadata) * 2 <= limit:
        return False
    return len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit


def expired(
    group: Group,
    offsets: Mapping[TopicPartition, OffsetValue],
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """The offsets that nobody has needed for as long as they are kept.

    Of an empty group that had members, counted from when it became empty; of a group that only
    keeps offsets, from each commit; of a stable group of consumers likewise, but never of a topic
    that it reads. In all other states nothing expires.
    """
    since_ms: int | None = None
    if group.protocol_type is not None:
        if group.state is State.EMPTY:
            since_ms = group.state_since_ms
        elif group.state is not State.STABLE or group.subscribed_topics is None:
            return []
    return [
        place
        for place, value in offsets.items()
        if not group.is_subscribed_to(place.topic)
        and _is_expired(value, since_ms, now_ms, retention_ms)
    ]


def _is_expired(value: OffsetValue, since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    if value.expire_timestamp_ms is not None:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - (value.commit_timestamp_ms if since_ms is None else since_ms) >= retention_ms
