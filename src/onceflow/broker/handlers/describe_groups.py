"""DescribeGroups, versions 0-6: the state of groups, their members and what those are assigned.

Only stable groups show the metadata of their members. A group that does not exist is Dead; from
version 6 on that comes with GROUP_ID_NOT_FOUND. Authorized operations (version 3) are all those of
a group, because there is no authorization.
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import RequestContext, once_each, shortened
from onceflow.group import Group, GroupState, MemberMetadata
from onceflow.wire import ErrorCode

_NOT_FOUND_FROM = 6
_OPERATIONS_NOT_ASKED_FOR = -(2**31)
# One bit for each operation by its code: read, delete, describe, describe and alter configs.
_ALL_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))


def handle(
    node: GroupHost, client: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Answers at once."""
    asked = request.include_authorized_operations
    operations = _ALL_OPERATIONS if asked else _OPERATIONS_NOT_ASKED_FOR
    return DescribeGroupsResponse(
        throttle_time=timedelta(0),
        groups=tuple(
            _describe(group_id, node.groups.find(group_id), client.version, operations)
            for group_id in once_each(request.groups)
        ),
    )


def _describe(group_id: str, group: Group | None, version: int, operations: int) -> DescribedGroup:
    if group is None:
        return _missing(group_id, version, operations)
    # A group that rebalances has not settled on a protocol, and so on no metadata.
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=tuple(_describe_member(each, protocol) for each in group.members.values()),
        authorized_operations=operations,
    )


def _missing(group_id: str, version: int, operations: int) -> DescribedGroup:
    is_error = version >= _NOT_FOUND_FROM
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
        error_message=shortened(f"Group {group_id} not found.") if is_error else None,
        group_id=group_id,
        group_state=GroupState.DEAD.value,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=_OPERATIONS_NOT_ASKED_FOR if is_error else operations,
    )


def _describe_member(member: MemberMetadata, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol is None else member.metadata(protocol),
        member_assignment=member.assignment,
    )
