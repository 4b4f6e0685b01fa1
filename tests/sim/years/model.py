"""What must be there, as far as clients were told: topics, records, offsets, producers.

Clients note here what was acknowledged; nobody else writes to the model. What time takes away is
worked out when it is asked for: between the age at which something may go and the age at which it
must be gone, both are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from tests.sim.txn.history import Identity, Place, PromiseBroken
from tests.sim.years.machine import DAY_MS, HOUR_MS, MARGIN_MS, Clocks

OFFSETS_KEPT_MS: Final = 7 * DAY_MS
IDS_KEPT_MS: Final = 7 * DAY_MS
PRODUCERS_KEPT_MS: Final = DAY_MS
"""The broker's defaults."""
SEGMENT_MS: Final = 7 * DAY_MS


class Fate(Enum):
    """What became of a record."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Record:
    """A record that was acknowledged at an offset."""

    place: Place
    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    wall_ms: int
    """When it was acknowledged, by the wall clock."""
    came_at: float
    """The same by the monotonic clock."""
    told_at: float
    """When its fate was acknowledged, by the monotonic clock."""
    fate: Fate = Fate.COMMITTED
    latest: int = 0
    """The largest timestamp that there may be in the partition up to here."""


class TopicRules(NamedTuple):
    """The part of a topic's config that says how long records stay."""

    retention_ms: int = SEGMENT_MS
    segment_ms: int = SEGMENT_MS
    compacts: bool = False
    deletes: bool = True
    is_timed: bool = True
    """False for records without a timestamp."""
    is_sized: bool = False
    """Whether also size makes records go."""


@dataclass(slots=True)
class Topic:
    """A topic that was made and not deleted."""

    name: str
    partitions: int
    configs: dict[str, str]
    rules: TopicRules
    is_read: bool = True


@dataclass(slots=True)
class Log:
    """The records of one partition that are not known to be gone, by offset."""

    records: dict[int, Record] = field(default_factory=dict)
    latest: int = -1

    def add(self, record: Record, furthest: int) -> None:
        """`furthest`: the latest that the broker's clock has shown. Of markers, and of records that
        nobody acknowledged, only that is known of when they were written."""
        self.latest = record.latest = max(self.latest, record.timestamp, furthest)
        self.records[record.offset] = record


@dataclass(slots=True)
class Committed:
    """An offset of a group."""

    offset: int
    wall_ms: int
    told_at: float


@dataclass(slots=True)
class Group:
    """What a group has committed for one partition, and since when nobody is in it."""

    history: list[Committed] = field(default_factory=list)
    """The newest last; older ones are needed where a power cut may lose the newest."""
    live_until: float = -1.0
    """So long it has a member that reads the topic, and nothing of it expires; -1: it never had
    one, and each commit counts by itself."""
    is_pending: bool = False
    """An open transaction may change it, so it does not expire."""
    emptied: tuple[int, float] | None = None
    """When the last member left, by the wall clock and by the monotonic one."""

    def since(self) -> tuple[int, float]:
        """From when on its offset ages, by both clocks."""
        last = self.history[-1]
        return self.emptied or (last.wall_ms, last.told_at)


@dataclass(slots=True)
class TransactionalId:
    """Who a transactional id was last known to be."""

    identity: Identity
    wall_ms: int
    told_at: float
    """When it was surely used."""
    latest_ms: int
    """Until when it may have been."""
    is_open: bool = False
    """A transaction that no time ends."""
    is_sure: bool = True
    """False once a power cut may have lost the newest about it."""


@dataclass(slots=True)
class Repeatable:
    """A batch of an idempotent producer, to be sent again."""

    record: Record
    data: bytes
    wall_ms: int
    told_at: float


class Model:
    """All of it."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.topics: dict[str, Topic] = {}
        self.changing: set[str] = set()
        """Topics of which nobody knows yet whether they have been made, deleted, or made larger."""
        self.logs: dict[Place, Log] = {}
        self.groups: dict[str, Group] = {}
        self.ids: dict[str, TransactionalId] = {}
        self.handed_out: set[int] = set()
        """Every producer id that anybody was ever given."""
        self.repeatable: list[Repeatable] = []

    # --- what clients were told -----------------------------------------------------------------

    def topic_made(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        for number in range(topic.partitions):
            self.logs[Place(topic.name, number)] = Log()

    def partitions_added(self, name: str, total: int) -> None:
        topic = self.topics[name]
        for number in range(topic.partitions, total):
            self.logs[Place(name, number)] = Log()
        topic.partitions = total

    def topic_deleted(self, name: str) -> None:
        topic = self.topics.pop(name)
        for number in range(topic.partitions):
            del self.logs[Place(name, number)]

    def appended(
        self,
        place: Place,
        offset: int,
        records: list[tuple[bytes, bytes | None]],
        timestamp: int,
        fate: Fate,
    ) -> list[Record]:
        """A batch that was acknowledged at an offset."""
        log = self.logs[place]
        now = self.clocks.wall(), self.clocks.now()
        made = [
            Record(place, offset + at, key, value, timestamp, *now, now[1], fate)
            for at, (key, value) in enumerate(records)
        ]
        for record in made:
            known = log.records.get(record.offset)
            if known is not None:
                raise PromiseBroken(
                    f"{place}: {record.value!r} was acknowledged at offset {record.offset}, where "
                    f"{known.value!r} was before it"
                )
            log.add(record, self.clocks.furthest())
        return made

    def decided(self, records: list[Record], fate: Fate) -> None:
        for record in records:
            record.fate, record.told_at = fate, self.clocks.now()

    def given_producer_id(self, producer_id: int) -> None:
        if producer_id in self.handed_out:
            raise PromiseBroken(f"producer id {producer_id} was handed out before")
        self.handed_out.add(producer_id)

    def commit_of(self, offset: int) -> Committed:
        """One that was acknowledged now."""
        return Committed(offset, self.clocks.stamp(), self.clocks.now())

    def committed(self, group_id: str, commit: Committed) -> None:
        self.groups.setdefault(group_id, Group()).history.append(commit)

    def lost_power(self) -> None:
        """What was told lately may not be so any more, where acknowledged is not durable."""
        for known in self.ids.values():
            known.is_sure = False
            known.latest_ms = max(known.latest_ms, self.clocks.stamp() + MARGIN_MS)
        self.repeatable.clear()

    def used_id(self, name: str, identity: Identity, *, is_open: bool = False) -> None:
        wall_ms = self.clocks.stamp()
        self.ids[name] = TransactionalId(identity, wall_ms, self.clocks.now(), wall_ms, is_open)

    def put_out(self, name: str) -> None:
        """Its transaction was aborted for it, or it was forgotten: nobody told when."""
        known = self.ids[name]
        known.latest_ms, known.is_open = max(known.latest_ms, self.clocks.stamp()), False

    # --- what time may take away, and what it must ----------------------------------------------

    def must_stay(self, record: Record, latest: Mapping[bytes, Record]) -> bool:
        """Of a committed record: whether it can be read. `latest` has those of each key."""
        rules = self.topics[record.place.topic].rules
        if rules.is_sized:
            return False
        if rules.compacts and (record.value is None or latest[record.key] is not record):
            return False
        if not rules.deletes or rules.retention_ms < 0:
            return True
        if rules.is_timed:
            then = record.timestamp
        else:  # whatever the clock showed then: records that came later say what it shows now
            aged_ms = int((self.clocks.now() - record.came_at) * 1000)
            then = min(record.wall_ms, self.clocks.wall() - aged_ms)
        return not self.clocks.was_older(then, record.came_at, rules.retention_ms)

    def must_be_gone(self, record: Record) -> bool:
        """Whether a record that is still there is there for too long."""
        rules = self.topics[record.place.topic].rules
        if not rules.deletes or rules.retention_ms < 0 or not rules.is_timed or rules.compacts:
            return False  # compaction joins segments, and the youngest of all counts for all
        # A segment goes when its youngest record is old, and takes records for as long as they
        # are not much younger than its first.
        age = rules.retention_ms + rules.segment_ms
        return self.clocks.must_be_noticed(record.latest, age)

    def latest_by_key(self, place: Place) -> dict[bytes, Record]:
        """Of committed records, in the order of offsets."""
        found: dict[bytes, Record] = {}
        for _, record in sorted(self.logs[place].records.items()):
            if record.fate is Fate.COMMITTED:
                found[record.key] = record
        return found

    def expected_offset(self, group: Group) -> set[int]:
        """What OffsetFetch may answer; -1 is nothing."""
        last = group.history[-1]
        if self.clocks.now() < group.live_until:
            return {last.offset}
        if group.live_until > 0:
            return {last.offset, -1}  # its member was put out, nobody knows when
        wall_ms, told_at = group.since()
        if self.clocks.must_be_expired(wall_ms, OFFSETS_KEPT_MS) and not group.is_pending:
            return {-1}
        if self.clocks.was_expired(wall_ms, told_at, OFFSETS_KEPT_MS):
            return {last.offset, -1}
        return {last.offset}

    def is_id_kept(self, known: TransactionalId) -> bool | None:
        """Whether the broker knows a transactional id; None where both would be right."""
        if known.is_open:
            return True
        if self.clocks.must_be_expired(known.latest_ms, IDS_KEPT_MS):
            return False
        if self.clocks.was_expired(known.wall_ms, known.told_at, IDS_KEPT_MS):
            return None
        return True

    def repeats(self) -> Iterator[Repeatable]:
        """Batches whose repeat must be recognised. Those that are too old are let go."""
        oldest = self.clocks.now() - PRODUCERS_KEPT_MS / 1000
        self.repeatable = [each for each in self.repeatable if each.told_at > oldest]
        latest = self.clocks.wall() + HOUR_MS
        for each in self.repeatable:
            # A time that is far ahead is refused, of a repeat too: as Kafka does it.
            if each.record.timestamp < latest or each.record.place.topic == "keep":
                yield each
