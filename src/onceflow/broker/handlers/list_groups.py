"""ListGroups, versions 0-5: every group, or those in certain states (4) and of certain types (5).

Names of states and types are compared without regard to case; every group is of type "classic".
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import RequestContext
from onceflow.wire import ErrorCode

_TYPE = "classic"


def handle(
    node: GroupHost, client: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    """Answers at once."""
    states = {each.strip().lower() for each in request.states_filter}
    types = {each.strip().lower() for each in request.types_filter}
    return ListGroupsResponse(
        throttle_time=timedelta(0),
        error_code=ErrorCode.NONE,
        groups=tuple(
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=_TYPE,
            )
            for group in node.groups.all_groups()
            if (not states or group.state.value.lower() in states) and (not types or _TYPE in types)
        ),
    )
