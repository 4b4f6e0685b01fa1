"""The state of a group member, without a clock and without a network.

All transitions are in one table, `MEMBER_STATES`; the error table says what an error code means. A
response counts only for the `Membership` under which the request was sent: a late response to an
older generation must not remove a member that has joined again since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from onceflow.client.codec import NO_GENERATION, GroupMember
from onceflow.client.errors import Action, ClientError, ConsumerError, FencedMember, action_for
from onceflow.client.events import GROUPS
from onceflow.errors import OnceflowError

NO_MEMBER_ID: Final = ""


class MemberState(Enum):
    """Where a member is."""

    UNJOINED = "is not in the group: not yet, or no longer"
    STALE = "has to join again, and keeps its membership until then"
    JOINING = "has asked to join, and waits for the other members"
    SYNCING = "is in the group, and waits for its assignment"
    STABLE = "has its assignment"
    FENCED = "has been replaced by another member, for good"


class MemberEvent(Enum):
    """What can happen to it."""

    ASKED = "a JoinGroup was sent"
    JOINED = "the broker let it in, with a new generation"
    SYNCED = "it has received its assignment"
    OUTDATED = "the group, or the member's subscription, has changed since"
    INTERRUPTED = "a request to join failed"
    FORGOTTEN = "the group has gone on without it"
    LEFT = "it has left the group"
    FENCED = "another member has taken over its group.instance.id"


class ImpossibleEvent(OnceflowError):
    """A defect: the table has no such entry."""


_S, _E = MemberState, MemberEvent
MEMBER_STATES: Final[Mapping[tuple[MemberState, MemberEvent], MemberState]] = {
    (_S.UNJOINED, _E.ASKED): _S.JOINING,
    (_S.UNJOINED, _E.OUTDATED): _S.UNJOINED,
    (_S.UNJOINED, _E.FORGOTTEN): _S.UNJOINED,
    (_S.UNJOINED, _E.LEFT): _S.UNJOINED,
    (_S.UNJOINED, _E.FENCED): _S.FENCED,
    (_S.STALE, _E.ASKED): _S.JOINING,
    (_S.STALE, _E.OUTDATED): _S.STALE,
    (_S.STALE, _E.FORGOTTEN): _S.UNJOINED,
    (_S.STALE, _E.LEFT): _S.UNJOINED,
    (_S.STALE, _E.FENCED): _S.FENCED,
    (_S.JOINING, _E.JOINED): _S.SYNCING,
    # A member that joins hears of all changes so far, and compares when it is in.
    (_S.JOINING, _E.OUTDATED): _S.JOINING,
    (_S.JOINING, _E.INTERRUPTED): _S.STALE,
    (_S.JOINING, _E.FORGOTTEN): _S.UNJOINED,
    (_S.JOINING, _E.LEFT): _S.UNJOINED,
    (_S.JOINING, _E.FENCED): _S.FENCED,
    (_S.SYNCING, _E.SYNCED): _S.STABLE,
    (_S.SYNCING, _E.OUTDATED): _S.SYNCING,
    (_S.SYNCING, _E.INTERRUPTED): _S.STALE,
    (_S.SYNCING, _E.FORGOTTEN): _S.UNJOINED,
    (_S.SYNCING, _E.LEFT): _S.UNJOINED,
    (_S.SYNCING, _E.FENCED): _S.FENCED,
    (_S.STABLE, _E.OUTDATED): _S.STALE,
    (_S.STABLE, _E.FORGOTTEN): _S.UNJOINED,
    (_S.STABLE, _E.LEFT): _S.UNJOINED,
    (_S.STABLE, _E.FENCED): _S.FENCED,
    (_S.FENCED, _E.OUTDATED): _S.FENCED,
    (_S.FENCED, _E.FORGOTTEN): _S.FENCED,
    (_S.FENCED, _E.LEFT): _S.FENCED,
    (_S.FENCED, _E.FENCED): _S.FENCED,
}

_JOINS: Final = (_S.JOINING, _S.SYNCING)
_BEATS: Final = (_S.STABLE, _S.STALE, _S.SYNCING)
_ON_REFUSAL: Final[Mapping[Action, MemberEvent]] = {
    Action.REJOIN: _E.OUTDATED,
    Action.CATCH_UP: _E.FORGOTTEN,
    Action.JOIN_ANEW: _E.FORGOTTEN,
    Action.FATAL: _E.FENCED,
}


@dataclass(frozen=True, slots=True)
class Membership:
    """Who a member is in its group, as requests say it."""

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION


class MemberMachine:
    """`has_lost` says that it has lost its partitions, until its listener has heard of that."""

    def __init__(self, group_id: str, instance_id: str | None) -> None:
        self.group_id = group_id
        self.instance_id = instance_id
        self.state = MemberState.UNJOINED
        self.membership = Membership()
        self.has_lost = False
        self.failure: ConsumerError | None = None
        self.why_out = "it has not joined yet"

    @property
    def must_join(self) -> bool:
        return self.state in (MemberState.UNJOINED, MemberState.STALE)

    @property
    def beats(self) -> bool:
        """Whether the broker waits for heartbeats. While it lets a member wait to join it does
        not."""
        return self.state in _BEATS and self.membership.generation != NO_GENERATION

    @property
    def may_commit(self) -> bool:
        return self.membership.generation != NO_GENERATION and self.failure is None

    @property
    def metadata(self) -> GroupMember:
        """What fences commits of an older generation."""
        member_id, generation = self.membership.member_id, self.membership.generation
        return GroupMember(self.group_id, generation, member_id, self.instance_id)

    # --- what happens ---------------------------------------------------------------------------

    def asked(self) -> None:
        self._happened(MemberEvent.ASKED)

    def named(self, member_id: str) -> None:
        """The broker has chosen a member id."""
        self.membership = replace(self.membership, member_id=member_id)

    def joined(self, membership: Membership) -> None:
        self._happened(MemberEvent.JOINED)
        self.membership = membership

    def synced(self) -> None:
        self._happened(MemberEvent.SYNCED)

    def outdated(self) -> None:
        self._happened(MemberEvent.OUTDATED)

    def left(self, why: str) -> None:
        """As after `FORGOTTEN`, by its own will."""
        self._out(MemberEvent.LEFT, why, keep_id=False)

    def join_refused(self, error: ClientError) -> Action:
        """A JoinGroup or SyncGroup was refused or lost; what is to be done about it."""
        action = action_for(error)
        event = _ON_REFUSAL.get(action, MemberEvent.INTERRUPTED)
        if event is MemberEvent.OUTDATED:  # of the answer that is being waited for
            event = MemberEvent.INTERRUPTED
        self._refused(error, action, event)
        return action

    def join_ended(self) -> None:
        """A member that was joining is to begin again."""
        if self.state in _JOINS:
            self._happened(MemberEvent.INTERRUPTED)

    def refused(self, error: ClientError, asked_as: Membership) -> None:
        """A heartbeat or a commit of that membership was refused. A member that is joining learns
        from the join how it stands."""
        event = _ON_REFUSAL.get(action_for(error))
        if asked_as != self.membership or self.state in _JOINS or event is None:
            return
        self._refused(error, action_for(error), event)

    def _refused(self, error: ClientError, action: Action, event: MemberEvent) -> None:
        if event is MemberEvent.FORGOTTEN:
            self._out(event, str(error), keep_id=action is Action.CATCH_UP)
        elif event is MemberEvent.FENCED:
            self._fenced(error)
        else:
            self._happened(event)

    def _out(self, event: MemberEvent, why: str, *, keep_id: bool) -> None:
        self._happened(event)
        self.has_lost = True
        self.why_out = why
        self.membership = Membership(self.membership.member_id if keep_id else NO_MEMBER_ID)

    def _fenced(self, error: ClientError) -> None:
        self._happened(MemberEvent.FENCED)
        if self.failure is None:
            GROUPS.error(
                "fenced",
                "another member of group %(group)r has the group.instance.id %(instance_id)r: "
                "%(reason)s",
                group=self.group_id,
                instance_id=self.instance_id,
                reason=str(error),
            )
        self.has_lost = True
        self.why_out = str(error)
        self.failure = FencedMember(str(error))

    def _happened(self, event: MemberEvent) -> None:
        following = MEMBER_STATES.get((self.state, event))
        if following is None:
            raise ImpossibleEvent(f"a member that {self.state.value}: {event.value}")
        self.state = following
