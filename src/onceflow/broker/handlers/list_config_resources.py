"""ListConfigResources, versions 0-1: of what the configs can be described: topics and this broker.

Version 0 asks for client metrics only, of which there are none, as there are no groups with configs
of their own. Unlike in Apache Kafka, the levels of loggers are no configs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_config_resources.v1.response import (
    ConfigResource,
    ListConfigResourcesResponse,
)

from onceflow.broker.handlers.config_changes import BROKER, TOPIC
from onceflow.broker.requests import RequestContext
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 8, 16, 32
_KNOWN = frozenset((TOPIC, BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP))
_TYPES_FROM = 1


def handle(
    node: Node, client: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Lists those of the types asked for; of all types where none is named."""
    wanted = frozenset(request.resource_types) or _KNOWN
    if client.version < _TYPES_FROM:
        wanted = frozenset((_CLIENT_METRICS,))
    is_known = wanted <= _KNOWN
    return ListConfigResourcesResponse(
        throttle_time=timedelta(0),
        error_code=ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_VERSION,
        config_resources=tuple(_resources(node, wanted)) if is_known else (),
    )


def _resources(node: Node, wanted: frozenset[int]) -> Iterator[ConfigResource]:
    if BROKER in wanted:
        yield ConfigResource(resource_name=str(node.config.node_id), resource_type=BROKER)
    if TOPIC in wanted:
        for name in node.topics.by_name:
            yield ConfigResource(resource_name=name, resource_type=TOPIC)
