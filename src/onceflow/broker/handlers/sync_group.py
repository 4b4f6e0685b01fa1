"""SyncGroup, versions 0-5: a member gets its assignment, and the leader brings everybody's.

The answer comes when the leader's assignment is durable. From version 5 on the protocol's type and
name have to be there and to be the group's; before, they are not looked at.
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.group import SyncRequest, SyncResult
from onceflow.wire import ErrorCode

_PROTOCOL_FROM = 5


def handle(
    node: GroupHost, client: RequestContext, request: SyncGroupRequest
) -> Answer[SyncGroupResponse]:
    """Gives the assignment, or waits for it."""
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if client.version >= _PROTOCOL_FROM and not names_protocol:
        return _response(SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    synced = node.groups.sync(
        SyncRequest(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={each.member_id: each.assignment for each in request.assignments},
        )
    )
    return then(synced, _response)


def _response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=timedelta(0),
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
