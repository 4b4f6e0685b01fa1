"""FindCoordinator, versions 0-6: it is always this broker.

Key type 0 is a group; asking for one makes `__consumer_offsets` if it is not there. Not served: key
types 1 (transactions) and 2 (share groups).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse

from onceflow.broker.durable import or_hang_up
from onceflow.broker.promise import Answer
from onceflow.broker.request import Client
from onceflow.log.journal import Ticket
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import message_class
from onceflow.wire.error_code import ErrorCode
from onceflow.wire.recast import recast

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_MANY_KEYS_FROM = 4
_GROUP = 0
_NOBODY = (-1, "", -1)


def upgrade(request: Any, version: int) -> FindCoordinatorRequest:
    """Older versions ask for one key."""
    if version >= _MANY_KEYS_FROM:
        return FindCoordinatorRequest(
            key_type=request.key_type, coordinator_keys=request.coordinator_keys
        )
    return FindCoordinatorRequest(
        key_type=getattr(request, "key_type", _GROUP), coordinator_keys=(request.key,)
    )


def downgrade(response: FindCoordinatorResponse, version: int) -> Any:
    """Older versions answer for one key."""
    wanted = message_class(ApiKey.FIND_COORDINATOR, version, "response")
    if version >= _MANY_KEYS_FROM:
        return recast(response, wanted)
    (only,) = response.coordinators
    fields = {
        "error_code": only.error_code,
        "node_id": only.node_id,
        "host": only.host,
        "port": only.port,
    }
    if version >= 1:
        fields |= {"throttle_time": timedelta(0), "error_message": only.error_message}
    return wanted(**fields)


def handle(
    node: Node, client: Client, request: FindCoordinatorRequest
) -> Answer[FindCoordinatorResponse]:
    """Answers when the topic that holds the groups is durable."""
    tickets: list[Ticket] = []
    if request.key_type == _GROUP:
        tickets += node.make_offsets_topic()
    code = ErrorCode.NONE if request.key_type == _GROUP else ErrorCode.INVALID_REQUEST
    host, port = node.address
    where = _NOBODY if code else (node.config.node_id, host, port)
    response = FindCoordinatorResponse(
        throttle_time=timedelta(0),
        coordinators=tuple(
            Coordinator(
                key=key,
                node_id=where[0],
                host=where[1],
                port=where[2],
                error_code=code,
                error_message=None,
            )
            for key in request.coordinator_keys
        ),
    )
    return or_hang_up(tickets, response)
