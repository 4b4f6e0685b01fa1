"""Heartbeat, versions 0-4: a member shows that it lives, and learns whether to join again."""

from __future__ import annotations

from datetime import timedelta

from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import RequestContext
from onceflow.group import MemberIdentity


def handle(node: GroupHost, client: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Answers at once."""
    identity = MemberIdentity(request.member_id, request.group_instance_id)
    return HeartbeatResponse(
        throttle_time=timedelta(0),
        error_code=node.groups.heartbeat(request.group_id, identity, request.generation_id),
    )
