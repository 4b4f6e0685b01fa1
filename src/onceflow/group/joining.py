"""JoinGroup: which clients may join, under which id, and whether that needs a new generation."""

from __future__ import annotations

from onceflow.group.config import GroupConfig
from onceflow.group.events import JoinRequest, JoinResult, ReplacementStored, Turn
from onceflow.group.persistence import value_of
from onceflow.group.rebalance import (
    check_member,
    current_generation,
    drop_member,
    heartbeat_timer,
    joined_members,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
    refuse_parked,
    renew_session,
)
from onceflow.group.state import Group, GroupState, MemberMetadata
from onceflow.wire import ErrorCode

# A new member does not know its id before the first answer and cannot send heartbeats. If it gives
# up and joins again under another id, the rebalance must not wait for the old one for ever.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


def join(group: Group, request: JoinRequest, turn: Turn) -> None:
    """Answers a JoinGroup request, or parks it until the generation forms."""
    names = frozenset(protocol.name for protocol in request.protocols)
    if not _has_room(group, request.member_id, turn.config):
        drop_member(group, request.member_id, turn)
        _refuse(request, ErrorCode.GROUP_MAX_SIZE_REACHED, "", turn)
        maybe_complete_join(group, turn)
    elif not group.supports(request.protocol_type, names):
        _refuse(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id, turn)
    elif not request.member_id:
        _join_unknown(group, request, turn)
    elif request.member_id in group.pending and request.group_instance_id is None:
        _add(group, request, request.member_id, turn)
    else:
        _join_known(group, request, turn)


def _refuse(request: JoinRequest, error: ErrorCode, member_id: str, turn: Turn) -> None:
    turn.answer_join(request.ticket, JoinResult(error, member_id))


def _has_room(group: Group, member_id: str, config: GroupConfig) -> bool:
    """During a rebalance only members that have joined count, so the last ones are refused."""
    if group.state is GroupState.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        has_come = member is not None and member.join_ticket is not None
        return has_come or group.awaiting_join < config.group_max_size
    return member is not None or len(group.members) < config.group_max_size


def _join_unknown(group: Group, request: JoinRequest, turn: Turn) -> None:
    """A client without a member id: a new one, or the new process of a static member."""
    new_id = request.new_member_id
    if request.group_instance_id is not None:
        existing = group.static_members.get(request.group_instance_id)
        if existing is None:
            _add(group, request, new_id, turn)
        else:
            _replace_static(group, request, group.members[existing], turn)
    elif request.requires_known_member_id:
        group.pending[new_id] = None
        turn.set_timer(heartbeat_timer(new_id), request.session_timeout_ms)
        _refuse(request, ErrorCode.MEMBER_ID_REQUIRED, new_id, turn)
    else:
        _add(group, request, new_id, turn)


def _join_known(group: Group, request: JoinRequest, turn: Turn) -> None:
    """A client that says it is a member."""
    error = check_member(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        _refuse(request, error, request.member_id, turn)
        return
    member = group.members[request.member_id]
    if _calls_for_rebalance(group, member, request):
        _update(member, request, turn)
        rebalance_or_complete(group, turn)
        return
    turn.answer_join(request.ticket, current_generation(group, member.member_id))


def _calls_for_rebalance(group: Group, member: MemberMetadata, request: JoinRequest) -> bool:
    """A leader that joins a stable group wants to assign anew; others only if they have changed.

    A member that joins again while the generation is completing has probably not received its
    answer, and gets it again.
    """
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
        return True
    return group.state is GroupState.STABLE and group.leader == member.member_id


def _add(group: Group, request: JoinRequest, member_id: str, turn: Turn) -> None:
    member = MemberMetadata(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocols,
        join_ticket=request.ticket,
        is_new=True,
    )
    if group.is_initial_rebalance:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    turn.set_timer(heartbeat_timer(member_id), NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance_or_complete(group, turn)


def _update(member: MemberMetadata, request: JoinRequest, turn: Turn) -> None:
    """Takes over the new request of a member; an older one that still waits gets an error."""
    if member.join_ticket is not None:
        told = JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        turn.answer_join(member.join_ticket, told)
    member.protocols = request.protocols
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    member.join_ticket = request.ticket


def _replace_static(group: Group, request: JoinRequest, member: MemberMetadata, turn: Turn) -> None:
    """A new process takes the place of a static member; the old one is fenced."""
    old_id, old_leader = member.member_id, group.leader or ""
    stored = ReplacementStored(
        new_member_id=request.new_member_id,
        old_member_id=old_id,
        old_leader=old_leader,
        old_protocols=member.protocols,
        old_rebalance_timeout_ms=member.rebalance_timeout_ms,
        old_session_timeout_ms=member.session_timeout_ms,
        ticket=request.ticket,
        supports_skipping_assignment=request.supports_skipping_assignment,
    )
    # The old process is fenced before the record is durable: two processes of one member must not
    # both pass `check_member` meanwhile. If the write fails, `_put_back` restores the old id.
    refuse_parked(member, ErrorCode.FENCED_INSTANCE_ID, turn, told_member_id=old_id)
    turn.cancel_timer(heartbeat_timer(old_id))
    group.rename(member, request.new_member_id)
    _update(member, request, turn)
    member.is_new = False
    renew_session(member, turn)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        assignments = {each.member_id: each.assignment for each in group.members.values()}
        turn.store(value_of(group, assignments), stored)
    elif group.state is GroupState.PREPARING_REBALANCE:
        maybe_complete_join(group, turn)
    else:
        # The leader may already be assigning to the old id, which no member has any more.
        prepare_rebalance(group, turn)


def replacement_stored(
    group: Group, stored: ReplacementStored, error: ErrorCode, turn: Turn
) -> None:
    """Answers the new process, which takes the old one's place, or puts the old one back."""
    member = group.members.get(stored.new_member_id)
    if (
        member is None
        or member.join_ticket != stored.ticket
        or group.state is not GroupState.STABLE
    ):
        return  # A rebalance came in between, and will answer.
    member.join_ticket = None
    if error is not ErrorCode.NONE:
        _put_back(group, member, stored, turn)
        told = current_generation(group, "")._replace(error=error, leader=stored.old_leader)
        turn.answer_join(stored.ticket, told)
        return
    turn.answer_join(stored.ticket, _told_of_replacement(group, member, stored))


def _told_of_replacement(
    group: Group, member: MemberMetadata, stored: ReplacementStored
) -> JoinResult:
    """The answer must not make a leader assign anew: it says to skip that, where the client knows
    the field, or else names the old leader."""
    told = current_generation(group, member.member_id)._replace(members=())
    if not stored.supports_skipping_assignment:
        return told._replace(leader=stored.old_leader)
    if group.leader != member.member_id or group.protocol_name is None:
        return told
    return told._replace(skip_assignment=True, members=joined_members(group, group.protocol_name))


def _put_back(group: Group, member: MemberMetadata, stored: ReplacementStored, turn: Turn) -> None:
    member.protocols = stored.old_protocols
    member.rebalance_timeout_ms = stored.old_rebalance_timeout_ms
    member.session_timeout_ms = stored.old_session_timeout_ms
    turn.cancel_timer(heartbeat_timer(stored.new_member_id))
    group.rename(member, stored.old_member_id)
    renew_session(member, turn)
