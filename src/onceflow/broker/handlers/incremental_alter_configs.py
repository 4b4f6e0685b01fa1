"""IncrementalAlterConfigs, versions 0-1: single configs of topics and of this broker; all that are
altered of one resource, or none. A resource that is named more than once is refused.

`config_changes` says what can be altered.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from onceflow.broker.config import Alteration
from onceflow.broker.handlers.config_changes import Change, make_changes
from onceflow.broker.requests import Answer, RequestContext, RequestRefused

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: IncrementalAlterConfigsRequest
) -> Answer[IncrementalAlterConfigsResponse]:
    """Alters what can be altered; answers when that is durable."""
    changes = [
        Change(
            each.resource_type,
            each.resource_name,
            [
                Alteration(config.name, config.config_operation, config.value)
                for config in each.configs
            ],
            anew=False,
        )
        for each in request.resources
    ]

    def answer(outcomes: list[RequestRefused]) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
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
