"""DeleteGroups, versions 0-3: deletes groups without members, and their offsets.

A group with members is refused with NON_EMPTY_GROUP, an unknown one with GROUP_ID_NOT_FOUND. One
that is named more than once is answered once. From version 3 on the answer says so in words.
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import Answer, RequestContext, once_each, then
from onceflow.wire import ErrorCode
from onceflow.wire.newer.delete_groups_v3 import DeletableGroupResult, DeleteGroupsResponse

_WORDS = {
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop them first",
}


def handle(
    node: GroupHost, client: RequestContext, request: DeleteGroupsRequest
) -> Answer[DeleteGroupsResponse]:
    """Answers when the groups are durably gone."""
    names = once_each(request.groups_names)

    def response(codes: tuple[ErrorCode, ...]) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            throttle_time=timedelta(0),
            results=tuple(
                DeletableGroupResult(
                    group_id=group_id, error_code=code, error_message=_WORDS.get(code)
                )
                for group_id, code in zip(names, codes, strict=True)
            ),
        )

    return then(node.groups.delete_groups(names), response)
