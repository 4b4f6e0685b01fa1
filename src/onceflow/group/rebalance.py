"""How a group gets from one generation to the next.

A rebalance waits until every member has joined or its timeout has passed, drops the dynamic members
that did not join, begins the next generation and waits for SyncGroup. The first generation of an
empty group is held back for a while, so that clients that start together end up in it together.
"""

from __future__ import annotations

from onceflow.group.events import (
    JOIN_TIMER,
    SYNC_TIMER,
    EmptinessStored,
    GroupTimer,
    JoinedMember,
    JoinResult,
    SyncResult,
    TimerKind,
    Turn,
)
from onceflow.group.persistence import value_of
from onceflow.group.state import TRANSITIONS, Group, GroupState, InitialDelay, MemberMetadata
from onceflow.wire import ErrorCode

# A client may name a rebalance timeout of zero; waiting again and again must not spin.
_SHORTEST_POSTPONEMENT_MS = 1_000


def heartbeat_timer(member_id: str) -> GroupTimer:
    """The timer that fires when a member's session expires."""
    return GroupTimer(TimerKind.HEARTBEAT, member_id)


def renew_session(member: MemberMetadata, turn: Turn) -> None:
    """Starts the member's session anew."""
    turn.set_timer(heartbeat_timer(member.member_id), member.session_timeout_ms)


def check_member(group: Group, member_id: str, group_instance_id: str | None) -> ErrorCode:
    """Whether a request comes from a member, and for a static one from its current process."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def drop_member(group: Group, member_id: str, turn: Turn) -> None:
    """Removes a member or a pending id from the group, and answers what it waits for."""
    turn.cancel_timer(heartbeat_timer(member_id))
    member = group.remove(member_id)
    if member is not None:
        refuse_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, turn)


def refuse_parked(
    member: MemberMetadata, error: ErrorCode, turn: Turn, *, told_member_id: str = ""
) -> None:
    """Answers the waiting requests of a member with an error."""
    if member.join_ticket is not None:
        turn.answer_join(member.join_ticket, JoinResult(error, told_member_id))
        member.join_ticket = None
    if member.sync_ticket is not None:
        turn.answer_sync(member.sync_ticket, SyncResult(error))
        member.sync_ticket = None


def current_generation(group: Group, member_id: str) -> JoinResult:
    """The JoinGroup answer of the current generation; that of the leader lists all members."""
    members: tuple[JoinedMember, ...] = ()
    if group.leader == member_id and group.protocol_name is not None:
        members = joined_members(group, group.protocol_name)
    return JoinResult(
        ErrorCode.NONE,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader or "",
        members=members,
    )


def joined_members(group: Group, protocol_name: str) -> tuple[JoinedMember, ...]:
    """All members as the leader sees them."""
    return tuple(
        JoinedMember(each.member_id, each.group_instance_id, each.metadata(protocol_name))
        for each in group.members.values()
    )


def rebalance_or_complete(group: Group, turn: Turn) -> None:
    """After a change: starts a rebalance, or moves on the one that is under way."""
    if GroupState.PREPARING_REBALANCE in TRANSITIONS[group.state]:
        prepare_rebalance(group, turn)
    else:
        maybe_complete_join(group, turn)


def prepare_rebalance(group: Group, turn: Turn) -> None:
    """Begins a rebalance: all members have to join."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        reset_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, turn)
    turn.cancel_timer(SYNC_TIMER)
    is_initial = group.state is GroupState.EMPTY
    group.transition(GroupState.PREPARING_REBALANCE, turn.now_ms)
    if is_initial:
        delay_ms = turn.config.group_initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        group.new_member_added = False
        group.initial_delay = InitialDelay(delay_ms, remaining_ms)
        turn.set_timer(JOIN_TIMER, delay_ms)
    elif group.has_all_joined:
        complete_join(group, turn)
    else:
        turn.set_timer(JOIN_TIMER, max(group.rebalance_timeout_ms, 0))


def maybe_complete_join(group: Group, turn: Turn) -> None:
    """Forms the generation if all members have joined; the first one waits for its timer."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and not group.is_initial_rebalance
        and group.has_all_joined
    ):
        complete_join(group, turn)


def join_time_is_over(group: Group, turn: Turn) -> None:
    """The join timer fired; a first generation gets more time while new members come."""
    waited = group.initial_delay
    if waited is None or not group.new_member_added or waited.remaining_ms == 0:
        complete_join(group, turn)
        return
    group.new_member_added = False
    delay_ms = min(turn.config.group_initial_rebalance_delay_ms, waited.remaining_ms)
    group.initial_delay = InitialDelay(delay_ms, max(waited.remaining_ms - waited.delay_ms, 0))
    turn.set_timer(JOIN_TIMER, delay_ms)


def complete_join(group: Group, turn: Turn) -> None:
    """Forms the generation from the members that have joined. Static members keep their place even
    if they have not."""
    turn.cancel_timer(JOIN_TIMER)
    absent = [
        member.member_id
        for member in group.members.values()
        if member.join_ticket is None and member.group_instance_id is None
    ]
    for member_id in absent:
        drop_member(group, member_id, turn)
    if not group.elect_joined_leader() and group.members:
        # Only absent static members are left: wait until they join or their sessions expire.
        postponed_ms = max(group.rebalance_timeout_ms, _SHORTEST_POSTPONEMENT_MS)
        turn.set_timer(JOIN_TIMER, postponed_ms)
        return
    group.start_generation(turn.now_ms)
    if group.state is GroupState.EMPTY:
        turn.store(value_of(group, {}), EmptinessStored())
        return
    # Answered before any record of this generation is written. That is safe: until the assignment
    # is durable no member reads anything by it, and after a crash `check_member` and the check of
    # the generation make the members join again.
    for member in group.members.values():
        if member.join_ticket is not None:
            turn.answer_join(member.join_ticket, current_generation(group, member.member_id))
            member.join_ticket = None
        renew_session(member, turn)
        member.is_new = False
        group.pending_sync[member.member_id] = None
    turn.set_timer(SYNC_TIMER, max(group.rebalance_timeout_ms, 0))


def reset_assignments(group: Group, error: ErrorCode, turn: Turn) -> None:
    """Clears all assignments, and answers the members that wait for theirs with the error."""
    for member in group.members.values():
        member.assignment = b""
        if member.sync_ticket is not None:
            turn.answer_sync(member.sync_ticket, SyncResult(error))
            member.sync_ticket = None
            renew_session(member, turn)
