"""The events of a group, and the effects that follow from them.

Requests and results carry what the protocol carries. Effects are what the machine wants done; the
shell around it performs them in order. A request that may have to wait brings a ticket, a number
under which its answer is given later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from onceflow.group.config import GroupConfig
from onceflow.group.records import GroupValue
from onceflow.group.state import Protocol
from onceflow.wire import ErrorCode, ProducerIdAndEpoch

# --- requests and results ---------------------------------------------------------------------


class JoinRequest(NamedTuple):
    """JoinGroup: a client wants to be part of the next generation."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    requires_known_member_id: bool
    """A new dynamic member first gets its id and joins again with it (version 4 and later)."""
    supports_skipping_assignment: bool
    """The answer can ask a leader not to assign anew (version 9 and later)."""
    ticket: int = 0
    """Given by the shell, like the following."""
    new_member_id: str = ""
    """The id for a client that has none yet."""


class JoinedMember(NamedTuple):
    """A member as the JoinGroup response describes it to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to a JoinGroup request."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(NamedTuple):
    """SyncGroup: a member asks for its assignment; the leader brings those of all members."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]
    ticket: int = 0
    """Given by the shell."""


class SyncResult(NamedTuple):
    """The answer to a SyncGroup request."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class MemberIdentity(NamedTuple):
    """A member as the client names it: by id, by instance id, or both."""

    member_id: str
    group_instance_id: str | None


class OffsetEntry(NamedTuple):
    """An offset that a client commits."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class CommitRequest(NamedTuple):
    """OffsetCommit: a client has processed its input up to these offsets."""

    group_id: str
    identity: MemberIdentity
    generation: int
    version: int
    entries: tuple[OffsetEntry, ...]


class TxnCommitRequest(NamedTuple):
    """TxnOffsetCommit: a client makes its progress part of a transaction."""

    transactional_id: str
    group_id: str
    identity: MemberIdentity
    generation: int
    producer: ProducerIdAndEpoch
    entries: tuple[OffsetEntry, ...]
    version: int = 0


class OffsetQuery(NamedTuple):
    """OffsetFetch: a client asks for the offsets of a group, of some partitions or of all."""

    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None


# --- timers -----------------------------------------------------------------------------------


class TimerKind(Enum):
    """What a timer of a group waits for."""

    JOIN = "members to join"
    SYNC = "members to sync"
    HEARTBEAT = "a sign of life of a member"


class GroupTimer(NamedTuple):
    """One of a group's timers."""

    kind: TimerKind
    member_id: str = ""


JOIN_TIMER = GroupTimer(TimerKind.JOIN)
SYNC_TIMER = GroupTimer(TimerKind.SYNC)


# --- what was stored --------------------------------------------------------------------------


class AssignmentStored(NamedTuple):
    """The leader's assignment for a generation."""

    generation: int
    assignments: Mapping[str, bytes]


class ReplacementStored(NamedTuple):
    """A static member under its new id, in a generation that goes on."""

    new_member_id: str
    old_member_id: str
    old_leader: str
    old_protocols: tuple[Protocol, ...]
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int
    ticket: int
    supports_skipping_assignment: bool


class EmptinessStored(NamedTuple):
    """The group has no members. No answer waits for this record."""


Stored: TypeAlias = AssignmentStored | ReplacementStored | EmptinessStored


# --- effects ----------------------------------------------------------------------------------


class AnswerJoin(NamedTuple):
    """Answer a JoinGroup request."""

    ticket: int
    result: JoinResult


class AnswerSync(NamedTuple):
    """Answer a SyncGroup request."""

    ticket: int
    result: SyncResult


class SetTimer(NamedTuple):
    """Start or restart a timer."""

    timer: GroupTimer
    delay_ms: int


class CancelTimer(NamedTuple):
    """Stop a timer if it runs."""

    timer: GroupTimer


class Store(NamedTuple):
    """Write the group's record, and report when it is durable or has failed."""

    value: GroupValue
    stored: Stored


Effect: TypeAlias = AnswerJoin | AnswerSync | SetTimer | CancelTimer | Store


@dataclass(slots=True)
class Turn:
    """The circumstances of one event, and the effects that it has produced so far."""

    now_ms: int
    config: GroupConfig
    effects: list[Effect] = field(default_factory=list)

    def answer_join(self, ticket: int, result: JoinResult) -> None:
        self.effects.append(AnswerJoin(ticket, result))

    def answer_sync(self, ticket: int, result: SyncResult) -> None:
        self.effects.append(AnswerSync(ticket, result))

    def set_timer(self, timer: GroupTimer, delay_ms: int) -> None:
        self.effects.append(SetTimer(timer, delay_ms))

    def cancel_timer(self, timer: GroupTimer) -> None:
        self.effects.append(CancelTimer(timer))

    def store(self, value: GroupValue, stored: Stored) -> None:
        self.effects.append(Store(value, stored))
