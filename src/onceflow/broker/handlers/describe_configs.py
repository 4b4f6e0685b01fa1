"""DescribeConfigs, versions 1-4: of topics (type 2) and of this broker (type 4).

For the broker it shows its own settings and its defaults for topics, under Kafka's names; for an
empty broker name, what was altered for all brokers. Other resources are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.describe_configs.v4.request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

from onceflow.broker.config import ConfigEntry, describe_all_brokers, describe_broker
from onceflow.broker.handlers.config_changes import BROKER, TOPIC
from onceflow.broker.requests import RequestContext, RequestRefused, once_each
from onceflow.broker.topics import name_refusal
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describes each resource."""
    return DescribeConfigsResponse(
        throttle_time=timedelta(0),
        results=tuple(_describe(node, each, request) for each in once_each(request.resources)),
    )


def _describe(
    node: Node, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    refused = RequestRefused(ErrorCode.NONE)
    entries: Iterable[ConfigEntry] = ()
    try:
        entries = _entries(node, resource)
    except RequestRefused as error:
        refused = error
    return DescribeConfigsResult(
        error_code=refused.code,
        error_message=refused.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            DescribeConfigsResourceResult(
                name=each.name,
                value=each.value,
                read_only=each.read_only,
                config_source=each.source,
                is_sensitive=each.is_sensitive,
                synonyms=_synonyms(each) if request.include_synonyms else (),
                config_type=each.type,
                documentation=each.documentation if request.include_documentation else None,
            )
            for each in entries
        ),
    )


def _entries(node: Node, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    name, names = resource.resource_name, resource.configuration_keys
    if resource.resource_type == TOPIC:
        if refusal := name_refusal(name):
            raise RequestRefused.of(refusal)
        topic = node.topics.by_name.get(name)
        if topic is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.config.describe(names)
    if resource.resource_type == BROKER:
        if name not in ("", str(node.config.node_id)):
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node.config.node_id} or empty string, "
                f"but received {name}",
            )
        if not name:
            return describe_all_brokers(node.settings, names)
        return describe_broker(node.settings, node.listening, node.address, names)
    raise RequestRefused(
        ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}"
    )


def _synonyms(entry: ConfigEntry) -> tuple[DescribeConfigsSynonym, ...]:
    return tuple(
        DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
        for each in entry.synonyms
    )
