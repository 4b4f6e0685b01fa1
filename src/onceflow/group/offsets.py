"""The offsets of groups: a fold over the records and markers of `__consumer_offsets`, and rules.

A plain record is committed where it stands in the log. A transactional one is pending until its
producer's marker: a commit makes it count unless a later record has been committed meanwhile, an
abort drops it. A tombstone ends both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from onceflow.group.events import MemberIdentity, OffsetQuery
from onceflow.group.rebalance import check_member
from onceflow.group.records import OffsetKey, OffsetValue
from onceflow.group.state import Group, GroupState
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode


class Recorded(NamedTuple):
    """An offset, and the place of its record in the log: of two records the later one counts."""

    value: OffsetValue
    at: int


class PendingOffsets:
    """Offsets of transactions that are not decided yet.

    They are kept by producer and partition of `__consumer_offsets`, because a marker decides about
    everything that its producer wrote to that partition, and about nothing else.
    """

    __slots__ = ("_by_producer", "_producers")

    def __init__(self) -> None:
        self._by_producer: dict[tuple[int, int], dict[OffsetKey, Recorded]] = {}
        """By partition and producer id."""
        self._producers: dict[str, dict[OffsetKey, dict[int, None]]] = {}
        """By group and key: the producers that wait to commit it."""

    # --- changes ------------------------------------------------------------------------------

    def add(self, partition: int, producer_id: int, key: OffsetKey, recorded: Recorded) -> None:
        """Adds an offset to a producer's transaction; a second one for a key replaces the first."""
        self._by_producer.setdefault((partition, producer_id), {})[key] = recorded
        self._producers.setdefault(key.group_id, {}).setdefault(key, {})[producer_id] = None

    def clear(self, partition: int, key: OffsetKey) -> None:
        """Removes a key from all transactions."""
        for producer_id in list(self._producers.get(key.group_id, {}).get(key, ())):
            written = self._by_producer[partition, producer_id]
            del written[key]
            if not written:
                del self._by_producer[partition, producer_id]
            self._forget(key, producer_id)

    def take(self, partition: int, producer_id: int) -> Mapping[OffsetKey, Recorded]:
        """Ends a producer's transaction in a partition; returns what it wrote there."""
        written = self._by_producer.pop((partition, producer_id), {})
        for key in written:
            self._forget(key, producer_id)
        return written

    def _forget(self, key: OffsetKey, producer_id: int) -> None:
        keys = self._producers[key.group_id]
        del keys[key][producer_id]
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._producers[key.group_id]

    # --- questions ----------------------------------------------------------------------------

    def __contains__(self, key: OffsetKey) -> bool:
        return key in self._producers.get(key.group_id, {})

    def groups(self) -> Iterator[str]:
        """The groups that open transactions commit to."""
        return iter(self._producers)

    def of_group(self, group_id: str) -> KeysView[OffsetKey]:
        """What open transactions commit to a group."""
        return self._producers.get(group_id, {}).keys()


# From this version on clients know that a group can be unknown.
_GROUP_ID_NOT_FOUND_SINCE = 9
_TXN_GROUP_ID_NOT_FOUND_SINCE = 6
"""The versions of OffsetCommit and TxnOffsetCommit."""
_NOBODY = MemberIdentity("", None)


OffsetRecord: TypeAlias = tuple[OffsetKey, OffsetValue | None]


class Offsets:
    """The offsets of all groups, as far as the log has been applied."""

    __slots__ = ("_committed", "pending")

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, Recorded]] = {}
        self.pending = PendingOffsets()

    # --- the fold -----------------------------------------------------------------------------

    def apply(
        self,
        partition: int,
        at: int,
        key: OffsetKey,
        value: OffsetValue | None,
        producer_id: int | None,
    ) -> None:
        """Applies the record at an offset of a partition; `producer_id` if it is transactional."""
        if value is None:
            self.pending.clear(partition, key)
            self._remove(key)
        elif producer_id is not None:
            self.pending.add(partition, producer_id, key, Recorded(value, at))
        else:
            self._put(key, Recorded(value, at))

    def end(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """Applies the marker that ends a producer's transaction in a partition.

        Of the committed records the last one in the log counts, not the last decision. Compaction
        keeps the last record; by the other rule it would change what is committed.
        """
        for key, recorded in self.pending.take(partition, producer_id).items():
            known = self.committed(key.group_id).get(TopicPartition(key.topic, key.partition))
            if commit and (known is None or recorded.at > known.at):
                self._put(key, recorded)

    def _put(self, key: OffsetKey, recorded: Recorded) -> None:
        place = TopicPartition(key.topic, key.partition)
        self._committed.setdefault(key.group_id, {})[place] = recorded

    def _remove(self, key: OffsetKey) -> None:
        offsets = self._committed.get(key.group_id, {})
        offsets.pop(TopicPartition(key.topic, key.partition), None)
        if not offsets:
            self._committed.pop(key.group_id, None)

    # --- questions ----------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The groups that have offsets, committed or pending."""
        return list(dict.fromkeys([*self._committed, *self.pending.groups()]))

    def committed(self, group_id: str) -> Mapping[TopicPartition, Recorded]:
        """What a group has committed."""
        return self._committed.get(group_id, {})

    def is_pending(self, group_id: str, place: TopicPartition) -> bool:
        """Whether an open transaction is about to change an offset."""
        return OffsetKey(group_id, *place) in self.pending

    def places(self, group_id: str) -> list[TopicPartition]:
        """Where a group has offsets, committed or pending."""
        pending = [TopicPartition(*key[1:]) for key in self.pending.of_group(group_id)]
        return list(dict.fromkeys([*self.committed(group_id), *pending]))

    def groups_with_topic(self, topic: str) -> dict[str, list[TopicPartition]]:
        """Where a topic has offsets, committed or pending."""
        found = {
            group_id: [place for place in self.places(group_id) if place.topic == topic]
            for group_id in self.groups()
        }
        return {group_id: places for group_id, places in found.items() if places}


def tombstones(group_id: str, places: Sequence[TopicPartition]) -> list[OffsetRecord]:
    """The records that delete offsets."""
    return [(OffsetKey(group_id, *place), None) for place in places]


# --- rules ------------------------------------------------------------------------------------


def check_commit(
    group: Group | None, identity: MemberIdentity, generation: int, version: int
) -> ErrorCode:
    """Whether to accept a commit: from members of this generation, or, while the group is empty,
    from any client that names no generation."""
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        knows_the_code = version >= _GROUP_ID_NOT_FOUND_SINCE
        return ErrorCode.GROUP_ID_NOT_FOUND if knows_the_code else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    error = _check_generation(group, identity, generation)
    if error is ErrorCode.NONE and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def check_txn_commit(
    group: Group | None, identity: MemberIdentity, generation: int, version: int
) -> ErrorCode:
    """Whether a transaction may commit offsets. A client that names its generation or its member id
    must be right about both: this fences a zombie of the group. An older client names neither and
    is accepted. A rebalance under way is no obstacle."""
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        knows_the_code = version >= _TXN_GROUP_ID_NOT_FOUND_SINCE
        return ErrorCode.GROUP_ID_NOT_FOUND if knows_the_code else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and (group.state is GroupState.EMPTY or identity == _NOBODY):
        return ErrorCode.NONE
    return _check_generation(group, identity, generation)


def _check_generation(group: Group, identity: MemberIdentity, generation: int) -> ErrorCode:
    error = check_member(group, *identity)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def check_delete(group: Group | None) -> ErrorCode:
    """Whether the group's offsets may be deleted; topics that it reads are refused one by one."""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def is_metadata_too_long(metadata: str | None, limit: int) -> bool:
    """Kafka counts UTF-16 code units, whatever the setting is called."""
    if metadata is None or len(metadata) * 2 <= limit:
        return False
    return len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit


def expired(
    group: Group,
    offsets: Offsets,
    age_ms: Callable[[int], int],
    retention_ms: int,
) -> list[TopicPartition]:
    """The expired offsets of a group; `age_ms` says how long ago a time was.

    The time counts from when a group that had members became empty. In a group that only keeps
    offsets it counts from each commit; in a stable group of consumers too, but offsets of topics
    that it reads never expire. In other states none do, nor does an offset that an open transaction
    may change.
    """
    since_ms: int | None = None
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            since_ms = group.state_since_ms
        elif group.state is not GroupState.STABLE or group.subscribed_topics is None:
            return []
    return [
        place
        for place, recorded in offsets.committed(group.group_id).items()
        if not group.is_subscribed_to(place.topic)
        and not offsets.is_pending(group.group_id, place)
        and _is_expired(recorded.value, since_ms, age_ms, retention_ms)
    ]


def _is_expired(
    value: OffsetValue, since_ms: int | None, age_ms: Callable[[int], int], retention_ms: int
) -> bool:
    if value.expire_timestamp_ms is not None:
        return age_ms(value.expire_timestamp_ms) >= 0
    return age_ms(value.commit_timestamp_ms if since_ms is None else since_ms) >= retention_ms


# --- answers to readers -----------------------------------------------------------------------


class FoundOffset(NamedTuple):
    """The offset of a partition; None if there is none, or with an error."""

    partition: int
    value: OffsetValue | None
    error: ErrorCode = ErrorCode.NONE


FoundOffsets: TypeAlias = tuple[tuple[str, tuple[FoundOffset, ...]], ...]
"""By topic."""


def look_up(offsets: Offsets, query: OffsetQuery, *, require_stable: bool) -> FoundOffsets:
    """The offsets that a client asks for.

    An offset that an open transaction is about to change is not stable. A client that requires
    stable offsets gets UNSTABLE_OFFSET_COMMIT for it; otherwise a restarted consumer would begin at
    the old offset, and process again what the transaction commits. Any other client gets what is
    committed. An answer for a whole group lists the committed offsets, not the pending ones.
    """
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
