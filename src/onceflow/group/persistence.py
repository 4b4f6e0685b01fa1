"""Turns a group into its record, and a record into its group."""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.group.records import GroupRecordMalformed, GroupValue, MemberValue
from onceflow.group.state import Group, GroupState, MemberMetadata, Protocol


def value_of(group: Group, assignments: Mapping[str, bytes]) -> GroupValue:
    """The record of a group, with the assignments that take effect once it is durable."""
    protocol = group.protocol_name
    return GroupValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=protocol,
        leader=group.leader,
        state_timestamp_ms=-1 if group.state_since_ms is None else group.state_since_ms,
        members=tuple(
            MemberValue(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=b"" if protocol is None else member.metadata(protocol),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ),
    )


def empty_value_of(group: Group) -> GroupValue:
    """The record of a new group, before it has a generation."""
    since_ms = -1 if group.state_since_ms is None else group.state_since_ms
    return GroupValue("", 0, None, None, since_ms, ())


def group_of(group_id: str, value: GroupValue) -> Group:
    """The group that a record describes: stable if it has members, else empty. Raises
    `GroupRecordMalformed` if no group can be like that."""
    _check(value)
    group = Group(
        group_id,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        state_since_ms=None if value.state_timestamp_ms == -1 else value.state_timestamp_ms,
    )
    for each in value.members:
        member = MemberMetadata(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            each.rebalance_timeout_ms,
            each.session_timeout_ms,
            (Protocol(value.protocol or "", each.subscription),),
            each.assignment,
        )
        group.add(member, value.protocol_type)
    if value.leader in group.members:
        group.leader = value.leader
    group.refresh_subscribed_topics()
    return group


def _check(value: GroupValue) -> None:
    """Checks that members have a protocol, and that no two of them share an id."""
    if value.generation < 0:
        raise GroupRecordMalformed(f"a group in generation {value.generation}")
    if value.members and value.protocol is None:
        raise GroupRecordMalformed("a group with members and without a protocol")
    for what, ids in (
        ("member id", [each.member_id for each in value.members]),
        ("group instance id", [each.group_instance_id for each in value.members]),
    ):
        given = [each for each in ids if each is not None]
        if len(set(given)) < len(given):
            raise GroupRecordMalformed(f"a group of which two members have one {what}")
