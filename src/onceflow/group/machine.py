"""The classic group protocol: from an event and a group to effects.

Nothing here reads a clock, draws a random number or writes anywhere: time comes with the turn, ids
come with the request, and effects say what to do. `join` is in `joining`; `rebalance` leads from
one generation to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.group.events import (
    JOIN_TIMER,
    SYNC_TIMER,
    AssignmentStored,
    GroupTimer,
    MemberIdentity,
    ReplacementStored,
    Stored,
    SyncRequest,
    SyncResult,
    TimerKind,
    Turn,
)
from onceflow.group.joining import join, replacement_stored
from onceflow.group.persistence import value_of
from onceflow.group.rebalance import (
    check_member,
    complete_join,
    drop_member,
    join_time_is_over,
    maybe_complete_join,
    prepare_rebalance,
    refuse_parked,
    renew_session,
    reset_assignments,
)
from onceflow.group.state import Group, GroupState, MemberMetadata
from onceflow.wire import ErrorCode

__all__ = [
    "bury",
    "forget_pending",
    "heartbeat",
    "join",
    "leave",
    "loaded",
    "renew_session_of",
    "stored",
    "sync",
    "timer_fired",
]


# --- requests ---------------------------------------------------------------------------------


def sync(group: Group, request: SyncRequest, turn: Turn) -> None:
    """Answers a SyncGroup request, or parks it until the leader's assignment is durable."""
    error = _check_sync(group, request)
    if error is not ErrorCode.NONE:
        turn.answer_sync(request.ticket, SyncResult(error))
        return
    member = group.members[request.member_id]
    group.pending_sync.pop(member.member_id, None)
    if not group.pending_sync:
        turn.cancel_timer(SYNC_TIMER)
    if group.state is GroupState.STABLE:
        turn.answer_sync(request.ticket, _assignment_of(group, member))
        return
    if member.sync_ticket is not None:
        turn.answer_sync(member.sync_ticket, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync_ticket = request.ticket
    # No member is answered yet: `_assignment_stored` does that once the record is durable, so that
    # after a crash the group knows the assignment by which its members read. A leader that repeats
    # its request while the record is on its way changes nothing.
    if group.leader == member.member_id and group.stored_generation != group.generation:
        group.stored_generation = group.generation
        assignments = {each: request.assignments.get(each, b"") for each in group.members}
        turn.store(value_of(group, assignments), AssignmentStored(group.generation, assignments))


def _check_sync(group: Group, request: SyncRequest) -> ErrorCode:
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = check_member(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for said, is_so in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if said is not None and said != is_so:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _assignment_of(group: Group, member: MemberMetadata) -> SyncResult:
    return SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)


def heartbeat(group: Group, identity: MemberIdentity, generation: int, turn: Turn) -> ErrorCode:
    """Keeps a member's session alive; REBALANCE_IN_PROGRESS makes it join again."""
    error = check_member(group, *identity)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    renew_session(group.members[identity.member_id], turn)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def renew_session_of(group: Group, member_id: str, turn: Turn) -> None:
    """Renews the session of a member that commits, but not while the leader assigns."""
    member = group.members.get(member_id)
    if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
        renew_session(member, turn)


def leave(group: Group, identities: Sequence[MemberIdentity], turn: Turn) -> tuple[ErrorCode, ...]:
    """Removes members, each by its id or, for an administrator, by its instance id alone."""
    errors = tuple([_leave_one(group, identity, turn) for identity in identities])
    if any(error is ErrorCode.NONE for error in errors):
        if group.state is GroupState.PREPARING_REBALANCE:
            maybe_complete_join(group, turn)
        elif group.state is not GroupState.EMPTY:
            prepare_rebalance(group, turn)
    return errors


def _leave_one(group: Group, identity: MemberIdentity, turn: Turn) -> ErrorCode:
    member_id, instance_id = identity
    if not member_id:
        static_id = None if instance_id is None else group.static_members.get(instance_id)
        if static_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = static_id
    elif member_id not in group.pending:
        error = check_member(group, member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
    drop_member(group, member_id, turn)
    return ErrorCode.NONE


# --- time -------------------------------------------------------------------------------------


def timer_fired(group: Group, timer: GroupTimer, turn: Turn) -> None:
    """One of the group's timers ran out."""
    if timer == JOIN_TIMER:
        join_time_is_over(group, turn)
    elif timer == SYNC_TIMER:
        _sync_time_is_over(group, turn)
    elif timer.kind is TimerKind.HEARTBEAT:
        _session_is_over(group, timer.member_id, turn)


def _sync_time_is_over(group: Group, turn: Turn) -> None:
    """Drops the members that have not sent SyncGroup in time."""
    laggards = list(group.pending_sync)
    for member_id in laggards:
        drop_member(group, member_id, turn)
    if laggards:
        prepare_rebalance(group, turn)


def _session_is_over(group: Group, member_id: str, turn: Turn) -> None:
    """Drops a member whose session has expired, unless it waits for the coordinator."""
    member = group.members.get(member_id)
    # A client may send no heartbeats while it waits for JoinGroup or SyncGroup. A new one may never
    # come back for an id that it does not know, so it is dropped all the same.
    if member is not None and not member.is_new and _waits(member):
        return
    drop_member(group, member_id, turn)
    if group.state is GroupState.PREPARING_REBALANCE:
        if group.has_all_joined:
            complete_join(group, turn)
    elif member is not None:
        prepare_rebalance(group, turn)


def _waits(member: MemberMetadata) -> bool:
    return member.join_ticket is not None or member.sync_ticket is not None


# --- the log ----------------------------------------------------------------------------------


def stored(group: Group, what: Stored, error: ErrorCode, turn: Turn) -> None:
    """A record of the group is durable, or could not be written."""
    if isinstance(what, AssignmentStored):
        _assignment_stored(group, what, error, turn)
    elif isinstance(what, ReplacementStored):
        replacement_stored(group, what, error, turn)


def _assignment_stored(group: Group, what: AssignmentStored, error: ErrorCode, turn: Turn) -> None:
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != what.generation:
        return  # A rebalance came in between.
    if error is not ErrorCode.NONE:
        reset_assignments(group, error, turn)
        prepare_rebalance(group, turn)
        return
    for member in group.members.values():
        member.assignment = what.assignments.get(member.member_id, b"")
        if member.sync_ticket is not None:
            turn.answer_sync(member.sync_ticket, _assignment_of(group, member))
            member.sync_ticket = None
            renew_session(member, turn)
    group.transition(GroupState.STABLE, turn.now_ms)


def loaded(group: Group, turn: Turn) -> None:
    """Starts the sessions of a group that was read from its log: its members have one to return."""
    for member in group.members.values():
        renew_session(member, turn)
    if len(group.members) > turn.config.group_max_size:
        prepare_rebalance(group, turn)


def forget_pending(group: Group, turn: Turn) -> None:
    """Drops the member ids that were handed out and not used."""
    for member_id in list(group.pending):
        drop_member(group, member_id, turn)


def bury(group: Group, error: ErrorCode, turn: Turn) -> None:
    """Ends a group, and answers its waiting members with the error."""
    for member in group.members.values():
        refuse_parked(member, error, turn, told_member_id=member.member_id)
    group.transition(GroupState.DEAD, turn.now_ms)
