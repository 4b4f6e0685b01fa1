"""AlterConfigs, versions 0-2: all configs of a topic or of this broker at once.

What the request does not name goes back to its default, so that two who alter at the same time undo
each other's work: IncrementalAlterConfigs does not. What can be altered is the same
(`broker/config_changes.py`). A resource that is named more than once is refused.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.response import (
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

from onceflow.broker.config import Alteration, Operation
from onceflow.broker.handlers.config_changes import Change, make_changes
from onceflow.broker.requests import Answer, RequestContext, RequestRefused

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: AlterConfigsRequest
) -> Answer[AlterConfigsResponse]:
    """Alters what can be altered; answers when that is durable."""
    changes = [
        Change(
            each.resource_type,
            each.resource_name,
            [Alteration(config.name, Operation.SET, config.value) for config in each.configs],
            anew=True,
        )
        for each in request.resources
    ]

    def answer(outcomes: list[RequestRefused]) -> AlterConfigsResponse:
        return AlterConfigsResponse(
            throttle_time=timedelta(0),
            responses=tuple(
                AlterConfigsResourceResponse(
                    error_code=outcome.code,
                    error_message=outcome.message,
                    resource_type=change.kind,
                    resource_name=change.name,
                )
                for change, outcome in zip(changes, outcomes, strict=True)
            ),
        )

    return make_changes(node, changes, validate_only=request.validate_only, answer=answer)
