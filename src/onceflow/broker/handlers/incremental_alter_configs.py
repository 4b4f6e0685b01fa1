"""IncrementalAlterConfigs, versions 0-1: of topics; all alterations of one topic, or none. A topic
that is named more than once is refused.

Not served: altering the broker, whose settings come from its flags, environment and file. Unlike in
Apache Kafka, the configs of the topics in which the broker keeps groups and transactions are fixed:
with another policy committed offsets would be forgotten, and what is open could never be ended.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.incremental_alter_configs.v1.request import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from onceflow.broker.durable import or_hang_up
from onceflow.broker.handlers.describe_configs import TOPIC
from onceflow.broker.promise import Answer
from onceflow.broker.refusal import Refused, refusal_of
from onceflow.broker.request import Client
from onceflow.broker.topic_config import Alteration, altered
from onceflow.broker.topic_rules import Refusal, name_refusal, own_topic_refusal
from onceflow.errors import OnceflowError
from onceflow.log.journal import Ticket
from onceflow.wire.error_code import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: Client, request: IncrementalAlterConfigsRequest
) -> Answer[IncrementalAlterConfigsResponse]:
    """Alters what can be altered; answers when that is durable."""
    tickets: list[Ticket] = []
    responses = []
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    for resource in request.resources:
        refused = Refused(ErrorCode.NONE)
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _alter(node, resource, request.validate_only, tickets)
        except OnceflowError as error:
            refused = refusal_of(error)
        responses.append(
            AlterConfigsResourceResponse(
                error_code=refused.code,
                error_message=refused.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    response = IncrementalAlterConfigsResponse(
        throttle_time=timedelta(0), responses=tuple(responses)
    )
    return or_hang_up(tickets, response)


def _alter(
    node: Node, resource: AlterConfigsResource, validate_only: bool, tickets: list[Ticket]
) -> None:
    name = resource.resource_name
    if resource.resource_type != TOPIC:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource.resource_type} cannot be altered here: only topics (2); "
            "a broker's settings come from its flags, environment and file",
        )
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "a topic needs a name")
    if refusal := name_refusal(name):
        raise Refused.of(refusal)
    topic = node.topics.by_name.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if topic.is_internal:
        raise Refused.of(own_topic_refusal(name))
    alterations = [
        Alteration(each.name, each.config_operation, each.value) for each in resource.configs
    ]
    config = altered(topic.config, alterations)
    if isinstance(config, Refusal):
        raise Refused.of(config)
    if not validate_only:
        tickets.append(node.topics.alter(topic, config))
