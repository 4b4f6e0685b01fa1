"""FindCoordinator, versions 0-6: it is always this broker.

Key type 0 is a group, 1 a transactional id; asking for one makes `__consumer_offsets` or
`__transaction_state` if it is not there. Not served: key type 2 (share groups).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse

from onceflow.broker.requests import Answer, RequestContext, or_hang_up
from onceflow.errors import OnceflowError
from onceflow.group import failure_code
from onceflow.log import Ticket
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as RequestForOne
    from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse as ResponseForOne

    from onceflow.broker.node import Node

OLD_SHAPE_UNTIL = 3
"""Until then a request asks for one key."""
_GROUP, _TRANSACTION = 0, 1
_NOBODY = (-1, "", -1)


def upgrade(request: RequestForOne) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=request.key_type, coordinator_keys=(request.key,))


def downgrade(response: FindCoordinatorResponse, older: type[ResponseForOne]) -> ResponseForOne:
    (only,) = response.coordinators
    return older(
        throttle_time=response.throttle_time,
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def handle(
    node: Node, client: RequestContext, request: FindCoordinatorRequest
) -> Answer[FindCoordinatorResponse]:
    """Answers when the topic that holds what is asked for is durable."""
    tickets, code = _made(node, request.key_type)
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


def _made(node: Node, key_type: int) -> tuple[list[Ticket], ErrorCode]:
    """Sees to it that the topic is there, if it can be made."""
    try:
        if key_type == _GROUP:
            return node.make_offsets_topic(), ErrorCode.NONE
        if key_type == _TRANSACTION:
            return node.make_transactions_topic(), ErrorCode.NONE
    except OnceflowError as error:
        return [], failure_code(error)
    return [], ErrorCode.INVALID_REQUEST
