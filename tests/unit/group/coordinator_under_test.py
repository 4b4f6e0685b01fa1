"""A group coordinator on a bench: time, the log and the clients are in the test's hands."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from onceflow.broker.group.coordinator import GroupOutcome, GroupService
from onceflow.broker.requests.answers import Answer, AnswerPromise, then
from onceflow.group.config import GroupConfig
from onceflow.group.driver import GroupDependencies
from onceflow.group.events import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    OffsetEntry,
    OffsetQuery,
    SyncRequest,
    SyncResult,
    TxnCommitRequest,
)
from onceflow.group.offsets import FoundOffset, FoundOffsets
from onceflow.group.state import Group, GroupState, Protocol
from onceflow.runtime.clock import SteadyClock
from onceflow.testing.rand import SimRand
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.group.coordinator_log import WALL_MS, BenchLog

T = TypeVar("T")

TOPICS = {"orders": 4, "clicks": 2}


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, version 1: topics, no user data, nothing owned."""
    data = (1).to_bytes(2, "big") + len(topics).to_bytes(4, "big")
    for topic in topics:
        data += len(topic).to_bytes(2, "big") + topic.encode()
    return data + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x00"


RANGE = (Protocol("range", subscription("orders")),)


class BenchClock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wall_offset_ms = WALL_MS

    def wall_ms(self) -> int:
        return self.wall_offset_ms + round(self.now * 1000)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def monotonic(self) -> float:
        return self.now


@dataclass(order=True)
class _Call:
    due: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class Asked(Generic[T]):
    """A request that was sent, and its answer when there is one."""

    def __init__(self, answer: Answer[T]) -> None:
        self.answers: list[T] = []
        if isinstance(answer, AnswerPromise):
            answer.then(self.answers.append)
        else:
            self.answers.append(answer)

    @property
    def waits(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> T:
        assert len(self.answers) == 1, "no answer yet"
        return self.answers[0]


class Admission:
    """A transaction coordinator that always says the same."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.code = code

    def enter_offsets(
        self, transactional_id: str, identity: ProducerIdAndEpoch, group_id: str, version: int
    ) -> ErrorCode:
        return self.code


class Bench:
    """One coordinator, its surroundings, and short words for requests."""

    def __init__(self, log: BenchLog | None = None, **settings: int) -> None:
        self.clock = BenchClock()
        self.log = log or BenchLog()
        self.config = GroupConfig(**settings)
        self._calls: list[_Call] = []
        self._numbers = count()
        self.groups = GroupService(
            self.config,
            GroupDependencies(
                SteadyClock(self.clock),
                SimRand(1),
                self._call_later,
                self.log,
                lambda topic, partition: 0 <= partition < TOPICS.get(topic, 0),
            ),
        )
        for partition, batches in self.log.batches.items():
            for batch in batches:
                assert not self.groups.replay(partition, batch)
        self.groups.loaded()

    def _call_later(self, delay: float, callback: Callable[[], None]) -> _Call:
        call = _Call(self.clock.now + delay, next(self._numbers), callback)
        heapq.heappush(self._calls, call)
        return call

    def advance(self, seconds: float) -> None:
        """Lets time pass, and everything happen that is due meanwhile."""
        end = self.clock.now + seconds
        while self._calls and self._calls[0].due <= end:
            call = heapq.heappop(self._calls)
            self.clock.now = max(self.clock.now, call.due)
            if not call.is_cancelled:
                call.callback()
        self.clock.now = end

    def advance_to_next_call(self) -> None:
        """Lets the next thing happen that was asked for, and nothing else."""
        call = heapq.heappop(self._calls)
        self.clock.now = max(self.clock.now, call.due)
        if not call.is_cancelled:
            call.callback()

    @property
    def group(self) -> Group:
        found = self.groups.find("g")
        assert found is not None
        return found

    def state(self) -> GroupState:
        return self.group.state

    # --- requests -----------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = "g",
        instance: str | None = None,
        version: int = 9,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "consumer",
        protocols: tuple[Protocol, ...] = RANGE,
    ) -> Asked[JoinResult]:
        request = JoinRequest(
            group_id,
            member_id,
            instance,
            "client",
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            version >= 4,
            version >= 9,
        )
        return Asked(self.groups.join(request))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol: tuple[str | None, str | None] = (None, None),
    ) -> Asked[SyncResult]:
        request = SyncRequest("g", generation, member_id, instance, *protocol, assignments or {})
        return Asked(self.groups.sync(request))

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.groups.heartbeat("g", MemberIdentity(member_id, instance), generation)

    def leave(self, *members: str | tuple[str, str | None]) -> tuple[ErrorCode, ...]:
        outcome = self.leave_without_waiting(*members).answer
        assert outcome.error is ErrorCode.NONE
        return outcome.errors

    def leave_without_waiting(self, *members: str | tuple[str, str | None]) -> Asked[GroupOutcome]:
        identities = [
            MemberIdentity(each, None) if isinstance(each, str) else MemberIdentity(*each)
            for each in members
        ]
        return Asked(self.groups.leave("g", identities))

    def commit(
        self,
        offset: int,
        *,
        group_id: str = "g",
        member_id: str = "",
        generation: int = -1,
        topic: str = "orders",
        partition: int = 0,
        metadata: str | None = "",
        instance: str | None = None,
        version: int = 9,
    ) -> Asked[tuple[ErrorCode, ...]]:
        entry = OffsetEntry(topic, partition, offset, -1, metadata)
        identity = MemberIdentity(member_id, instance)
        return Asked(
            self.groups.commit(CommitRequest(group_id, identity, generation, version, (entry,)))
        )

    def txn_commit(
        self,
        offset: int,
        *,
        producer_id: int = 7,
        group_id: str = "g",
        member_id: str = "",
        generation: int = -1,
        topic: str = "orders",
        partition: int = 0,
        metadata: str | None = "",
        instance: str | None = None,
        verified: ErrorCode = ErrorCode.NONE,
    ) -> Asked[tuple[ErrorCode, ...]]:
        request = TxnCommitRequest(
            "t",
            group_id,
            MemberIdentity(member_id, instance),
            generation,
            ProducerIdAndEpoch(producer_id, 0),
            (OffsetEntry(topic, partition, offset, -1, metadata),),
        )
        return Asked(self.groups.txn_commit(request, Admission(verified)))

    def end(self, *, commit: bool, producer_id: int = 7, group_id: str = "g") -> None:
        """The marker of a transaction, in the partition of a group."""
        partition = self.groups.partition_for(group_id)
        ticket = self.log.append_marker(partition, producer_id, commit=commit)
        self.groups.marker_appended(partition, producer_id, ticket, commit=commit)

    def fetch(
        self,
        topic: str = "orders",
        partition: int = 0,
        *,
        group_id: str = "g",
        require_stable: bool = False,
    ) -> int | None:
        """The committed offset, None when there is none."""
        found = self.ask(topic, partition, group_id=group_id, require_stable=require_stable).answer
        assert found.error is ErrorCode.NONE
        return None if found.value is None else found.value.offset

    def ask(
        self,
        topic: str = "orders",
        partition: int = 0,
        *,
        group_id: str = "g",
        require_stable: bool = True,
    ) -> Asked[FoundOffset]:
        """What a reader is told of one offset."""
        query = OffsetQuery(group_id, ((topic, (partition,)),))
        answer = self.groups.fetch([query], require_stable=require_stable)
        return Asked(then(answer, lambda found: found[0][0][1][0]))

    def fetch_all(self, group_id: str = "g") -> FoundOffsets:
        query = OffsetQuery(group_id, None)
        return Asked(self.groups.fetch([query], require_stable=False)).answer[0]

    # --- whole stories ------------------------------------------------------------------------

    def new_member(self, **options: object) -> tuple[str, Asked[JoinResult]]:
        """A dynamic client that asks for its id and joins with it; its JoinGroup may wait."""
        first = self.join(**options).answer  # type: ignore[arg-type]  # passed on as they are
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **options)  # type: ignore[arg-type]

    def stable(self, members: int = 1, *, instances: bool = False) -> list[str]:
        """A stable group; the ids of its members, the leader first."""
        if instances:
            asked = [self.join(instance=f"i{number}") for number in range(members)]
        else:
            asked = [self.new_member()[1] for _ in range(members)]
        while any(each.waits for each in asked):
            self.advance(3)
        ids = [each.answer.member_id for each in asked]
        leader = asked[0].answer.leader
        ids.sort(key=lambda each: each != leader)
        self.complete(ids)
        return ids

    def complete(self, ids: list[str]) -> None:
        """Everybody syncs; the leader, who is the first, gives each its own name."""
        generation = self.group.generation
        asked = [self.sync(each, generation) for each in ids[1:]]
        asked.insert(0, self.sync(ids[0], generation, {each: each.encode() for each in ids}))
        assert [each.answer.assignment for each in asked] == [each.encode() for each in ids]
        assert self.state() is GroupState.STABLE


def check_invariants(group: Group) -> None:
    """What holds of a group between events."""
    assert set(group.static_members.values()) == {
        each.member_id for each in group.members.values() if each.group_instance_id is not None
    }
    assert list(group.members) == [each.member_id for each in group.members.values()]
    assert not set(group.pending) & set(group.members)
    assert set(group.pending_sync) <= set(group.members)
    if group.state is GroupState.EMPTY:
        assert not group.members
        assert group.leader is None
    if group.members:
        assert group.leader in group.members
    if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        assert group.members
        assert group.protocol_name is not None
        assert all(
            group.protocol_name in {p.name for p in m.protocols} for m in group.members.values()
        )
    if group.state is not GroupState.COMPLETING_REBALANCE:
        assert all(each.sync_ticket is None for each in group.members.values())
    if group.state is GroupState.COMPLETING_REBALANCE:
        assert all(each.join_ticket is None for each in group.members.values())
