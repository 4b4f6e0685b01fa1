"""LeaveGroup, versions 0-5: members go, and the others share what they had.

From version 3 on a request names several members, and a static one may be named by its instance id
alone, which is how an administrator removes it; each has its own error code. Before, there is one
member, whose error code is the answer's. Not kept: the reason (version 5).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity as LeavingMember
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse

from onceflow.broker.group import GroupHost, GroupOutcome
from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.group import MemberIdentity
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from kio.schema.leave_group.v2.request import LeaveGroupRequest as RequestOfOne
    from kio.schema.leave_group.v2.response import LeaveGroupResponse as ResponseToOne

OLD_SHAPE_UNTIL = 2
"""Until then a request names one member."""


def upgrade(request: RequestOfOne) -> LeaveGroupRequest:
    member = LeavingMember(member_id=request.member_id, group_instance_id=None, reason=None)
    return LeaveGroupRequest(group_id=request.group_id, members=(member,))


def downgrade(response: LeaveGroupResponse, older: type[ResponseToOne]) -> ResponseToOne:
    codes = [response.error_code, *(each.error_code for each in response.members)]
    return older(
        throttle_time=response.throttle_time,
        error_code=next(filter(None, codes), ErrorCode.NONE),
    )


def handle(
    node: GroupHost, client: RequestContext, request: LeaveGroupRequest
) -> Answer[LeaveGroupResponse]:
    """Takes the members out."""
    identities = [
        MemberIdentity(each.member_id, each.group_instance_id) for each in request.members
    ]

    def response(left: GroupOutcome) -> LeaveGroupResponse:
        return LeaveGroupResponse(
            throttle_time=timedelta(0),
            error_code=left.error,
            members=tuple(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=error,
                )
                for identity, error in zip(identities, left.errors, strict=False)
            ),
        )

    return then(node.groups.leave(request.group_id, identities), response)
