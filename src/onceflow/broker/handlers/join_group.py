"""JoinGroup, versions 0-9: a client becomes part of a group's next generation.

The answer comes when the generation has formed. From version 4 on a new dynamic client is given its
member id first (MEMBER_ID_REQUIRED); version 0 has no rebalance timeout and uses the session's.
A static member that returns to a stable group keeps its old place; from version 9 on the answer
tells a leader to skip the assignment. If a member that already waits sends a second request, that
one counts; the first is answered with REBALANCE_IN_PROGRESS. Not kept: the reason (version 8).
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.group import JoinRequest, JoinResult, Protocol

_REBALANCE_TIMEOUT_FROM = 1
_MEMBER_ID_REQUIRED_FROM = 4
_SKIP_ASSIGNMENT_FROM = 9


def handle(
    node: GroupHost, client: RequestContext, request: JoinGroupRequest
) -> Answer[JoinGroupResponse]:
    """Joins, or waits until the generation forms."""
    has_own_timeout = client.version >= _REBALANCE_TIMEOUT_FROM
    session_ms = _milliseconds(request.session_timeout)
    joined = node.groups.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            client_id=client.client_id,
            client_host=f"/{client.host}",  # As Java prints an address, and so Kafka's tools.
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=(
                _milliseconds(request.rebalance_timeout) if has_own_timeout else session_ms
            ),
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(each.name, each.metadata) for each in request.protocols),
            requires_known_member_id=client.version >= _MEMBER_ID_REQUIRED_FROM,
            supports_skipping_assignment=client.version >= _SKIP_ASSIGNMENT_FROM,
        )
    )
    return then(joined, _response)


def _response(result: JoinResult) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time=timedelta(0),
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                metadata=each.metadata,
            )
            for each in result.members
        ),
    )


def _milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
