"""Metadata, versions 0-13: this broker, and the topics asked for or all of them.

A topic that is asked for by name and is not there is made, where the client and
`auto.create.topics.enable` both allow it. The answer says all the same that it is not there, as
Apache Kafka's does: clients ask again at once. Topics may be asked for by id from version 10 on.
Versions 8 to 10 may ask what the client may do with the cluster, as DescribeCluster does since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from kio.schema.metadata.v10.request import MetadataRequest as RequestAboutCluster
from kio.schema.metadata.v10.response import MetadataResponse as ResponseAboutCluster
from kio.schema.metadata.v13.request import MetadataRequest
from kio.schema.metadata.v13.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from onceflow.broker.handlers.describe_cluster import CLUSTER_OPERATIONS
from onceflow.broker.requests import Answer, RequestContext, once_each, or_hang_up, refusal_of
from onceflow.broker.topics import METADATA_TOPIC, HostedTopic, Steps, name_refusal
from onceflow.errors import OnceflowError
from onceflow.log import Ticket
from onceflow.wire import ErrorCode, recast

if TYPE_CHECKING:
    from onceflow.broker.node import Node

OLD_SHAPE_UNTIL = 10
"""Until then a request may ask about the cluster."""
Request: TypeAlias = MetadataRequest | RequestAboutCluster
Response: TypeAlias = MetadataResponse | ResponseAboutCluster
TOPIC_OPERATIONS = 0x0DF8
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE and the two for configs: all are allowed here."""


def handle(node: Node, client: RequestContext, request: Request) -> Answer[Response]:
    """Describes topics; makes missing ones where that is allowed."""
    created: dict[str, ErrorCode] = {}
    if request.allow_auto_topic_creation and node.config.auto_create_topics_enable:
        names = [each.name for each in request.topics or () if each.topic_id is None]
        created = {name: ErrorCode.NONE for name in names if name and _is_missing(node, name)}
    if not created:
        return _response(node, client, request, created)
    tickets: list[Ticket] = []
    return node.turns.do(
        _auto_create(node, created, tickets),
        lambda: or_hang_up(tickets, _response(node, client, request, created)),
    )


def _is_missing(node: Node, name: str) -> bool:
    if name == METADATA_TOPIC:  # which is no topic, and never will be
        return False
    return name not in node.topics.by_name and name_refusal(name) is None


def _auto_create(node: Node, created: dict[str, ErrorCode], tickets: list[Ticket]) -> Steps[None]:
    for name in created:
        # Clients ask again at once, and find it.
        created[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            if name not in node.topics.by_name:  # another request may have been before
                tickets.append((yield from node.auto_create(name)))
        except OnceflowError as error:
            created[name] = refusal_of(error).code
        yield 1


def _response(
    node: Node, client: RequestContext, request: Request, created: Mapping[str, ErrorCode]
) -> Response:
    """`created` are topics that were not there when they were asked for."""
    wanted = request.topics
    if wanted is None or (client.version == 0 and not wanted):
        topics = [_topic(node, topic) for topic in node.topics.by_name.values()]
    else:
        topics = [
            _one(node, name, topic_id, created)
            for name, topic_id in once_each(
                (each.name if each.topic_id is None else None, each.topic_id) for each in wanted
            )
        ]
    if not request.include_topic_authorized_operations:
        topics = [_without_operations(topic) for topic in topics]
    host, port = node.address
    response = MetadataResponse(
        throttle_time=timedelta(0),
        brokers=(
            MetadataResponseBroker(node_id=node.config.node_id, host=host, port=port, rack=None),
        ),
        cluster_id=node.topics.cluster_id,
        controller_id=node.config.node_id,
        topics=tuple(topics),
        error_code=ErrorCode.NONE,
    )
    if isinstance(request, MetadataRequest) or not request.include_cluster_authorized_operations:
        return response
    older = recast(response, ResponseAboutCluster)
    return replace(older, cluster_authorized_operations=CLUSTER_OPERATIONS)


def _one(
    node: Node, name: str | None, topic_id: UUID | None, created: Mapping[str, ErrorCode]
) -> MetadataResponseTopic:
    if topic_id is not None:
        found = node.topics.by_id.get(topic_id)
        return _topic(node, found) if found else _error(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if name is None:
        return _error(None, None, ErrorCode.INVALID_REQUEST)
    if name in created:
        return _error(name, None, created[name])
    topic = node.topics.by_name.get(name)
    if topic is not None:
        return _topic(node, topic)
    if name_refusal(name):
        return _error(name, None, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return _error(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _error(name: str | None, topic_id: UUID | None, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=())


def _topic(node: Node, topic: HostedTopic) -> MetadataResponseTopic:
    here = (node.config.node_id,)
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=partition.index,
                leader_id=node.config.node_id,
                leader_epoch=partition.leader_epoch,
                replica_nodes=here,
                isr_nodes=here,
                offline_replicas=(),
            )
            for partition in topic.partitions
        ),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _without_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
    )
