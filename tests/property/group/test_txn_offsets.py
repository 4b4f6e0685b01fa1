"""Plain and transactional commits, markers and deletions in any order, and the log at any pace.

Whatever happens: what readers see is what a plain reading of the durable log says, and a broker
that starts from that log sees the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onceflow.group.offsets import FoundOffset
from onceflow.group.records import OffsetKey, decode_key, decode_offset
from onceflow.records.batch import StoredBatch
from onceflow.records.control import MarkerType, parse_marker
from onceflow.records.plain import read_placed
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode
from tests.doses import examples
from tests.unit.group.coordinator_log import BenchLog
from tests.unit.group.coordinator_under_test import Asked, Bench

GROUPS = ("a", "b", "c")
PLACES = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks", 0))
KEYS = [OffsetKey(group_id, *place) for group_id in GROUPS for place in PLACES]
SETTINGS = {"offsets_topic_num_partitions": 2, "offsets_retention_check_interval_ms": 10**12}

groups = st.sampled_from(GROUPS)
places = st.sampled_from(PLACES)
producers = st.integers(0, 2)
offsets = st.integers(0, 99)


class Written(NamedTuple):
    """A record of one key, or a marker."""

    at: int
    producer_id: int | None
    offset: int | None
    """None is a tombstone."""
    commit: bool | None = None
    """Of a marker."""


def written(batches: list[StoredBatch], key: OffsetKey) -> Iterator[Written]:
    """What a partition says about a key, and all its markers."""
    for batch in batches:
        header = batch.header
        if header.is_control:
            found = parse_marker(batch)
            assert found is not None
            commit = found.type is MarkerType.COMMIT
            yield Written(header.base_offset, found.producer_id, None, commit)
            continue
        producer_id = header.producer_id if header.is_transactional else None
        for at, record in read_placed(batch):
            if decode_key(record.key or b"") == key:
                value = None if record.value is None else decode_offset(record.value).offset
                yield Written(at, producer_id, value)


def expected(batches: list[StoredBatch], key: OffsetKey) -> tuple[int | None, bool]:
    """The committed offset of a key, and whether a transaction may change it: by definition, with
    no regard to how long it takes."""
    events = list(written(batches, key))
    ends = [each for each in events if each.commit is not None]
    records = [each for each in events if each.commit is None]
    deleted = max((each.at for each in records if each.offset is None), default=-1)
    committed: list[Written] = []
    is_pending = False
    for each in records:
        if each.at <= deleted:
            continue
        if each.producer_id is None:
            committed.append(each)
            continue
        decisions = [
            end.commit for end in ends if end.producer_id == each.producer_id and end.at > each.at
        ]
        is_pending = is_pending or not decisions
        if decisions and decisions[0]:
            committed.append(each)
    return (committed[-1].offset if committed else None), is_pending


class Commits(RuleBasedStateMachine):
    """Groups that share partitions, and producers that commit to several of them."""

    @initialize()
    def start(self) -> None:
        self.bench = Bench(BenchLog(), **SETTINGS)

    @rule(group_id=groups, place=places, offset=offsets)
    def a_commit(self, group_id: str, place: TopicPartition, offset: int) -> None:
        self.bench.commit(offset, group_id=group_id, **named(place))

    @rule(group_id=groups, place=places, offset=offsets, producer_id=producers)
    def a_transactional_commit(
        self, group_id: str, place: TopicPartition, offset: int, producer_id: int
    ) -> None:
        self.bench.txn_commit(offset, group_id=group_id, producer_id=producer_id, **named(place))

    @rule(group_id=groups, producer_id=producers, commit=st.booleans())
    def a_marker(self, group_id: str, producer_id: int, commit: bool) -> None:
        self.bench.end(commit=commit, producer_id=producer_id, group_id=group_id)

    @rule(group_id=groups, place=places)
    def an_offset_is_deleted(self, group_id: str, place: TopicPartition) -> None:
        self.bench.groups.delete_offsets(group_id, [place])

    @rule(group_id=groups)
    def a_group_is_deleted(self, group_id: str) -> None:
        self.bench.groups.delete_groups([group_id])

    @rule(topic=st.sampled_from(["orders", "clicks"]))
    def a_topic_is_deleted(self, topic: str) -> None:
        self.bench.groups.topic_deleted(topic)

    @rule(number=st.integers(0, 5))
    def the_log_stalls_and_catches_up(self, number: int) -> None:
        self.bench.log.is_holding = True
        self.bench.log.release(number)

    @rule()
    def the_log_goes_on(self) -> None:
        self.bench.log.is_holding = False
        self.bench.log.release()

    @rule()
    def the_broker_crashes(self) -> None:
        self.bench = Bench(self.bench.log.copy(), **SETTINGS)

    @invariant()
    def readers_see_what_the_durable_log_says(self) -> None:
        for key in KEYS:
            partition = self.bench.groups.partition_for(key.group_id)
            offset, is_pending = expected(self.bench.log.batches.get(partition, []), key)
            assert offset_of(self.ask(key, require_stable=False).answer) == offset
            stable = self.ask(key, require_stable=True)
            if self.bench.log.held:
                continue
            if is_pending:
                assert stable.answer.error is ErrorCode.UNSTABLE_OFFSET_COMMIT
                assert stable.answer.value is None
                assert self.bench.groups.find(key.group_id) is not None
            else:
                assert offset_of(stable.answer) == offset

    def ask(self, key: OffsetKey, *, require_stable: bool) -> Asked[FoundOffset]:
        return self.bench.ask(
            key.topic, key.partition, group_id=key.group_id, require_stable=require_stable
        )

    def teardown(self) -> None:
        """Deletions reach everything, also what was on its way when they came."""
        if not hasattr(self, "bench"):
            return
        for topic in ("orders", "clicks"):
            self.bench.groups.topic_deleted(topic)
        for group_id in GROUPS:
            for producer_id in range(3):
                self.bench.end(commit=True, producer_id=producer_id, group_id=group_id)
        self.the_log_goes_on()
        for key in KEYS:
            assert self.ask(key, require_stable=True).answer == FoundOffset(key.partition, None)


def named(place: TopicPartition) -> dict[str, Any]:
    return {"topic": place.topic, "partition": place.partition}


def offset_of(found: FoundOffset) -> int | None:
    assert found.error is ErrorCode.NONE
    return None if found.value is None else found.value.offset


TestCommits = Commits.TestCase
TestCommits.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
