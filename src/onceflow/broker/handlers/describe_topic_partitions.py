"""DescribeTopicPartitions, version 0: topics by name, in pages.

Topics come in the order of their names. An empty list asks for all. There are no eligible leader
replicas: there is one replica.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

from onceflow.broker.handlers.metadata import TOPIC_OPERATIONS
from onceflow.broker.requests import RequestContext
from onceflow.broker.topics import HostedPartition, name_refusal
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_MOST_PARTITIONS = 2000


def handle(
    node: Node, client: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """One page of topics."""
    asked = {each.name for each in request.topics}
    names = sorted(asked or node.topics.by_name)
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first = max(request.cursor.partition_index, 0)
    left = min(max(request.response_partition_limit, 1), _MOST_PARTITIONS)
    topics = []
    cursor = None
    for name in names:
        if left == 0:
            cursor = Cursor(topic_name=name, partition_index=0)
            break
        shown = _topic(node, name, first, left)
        topics.append(shown)
        left -= len(shown.partitions)
        end = first + len(shown.partitions)
        first = 0
        found = node.topics.by_name.get(name)
        if found is not None and end < len(found.partitions):
            cursor = Cursor(topic_name=name, partition_index=end)
            break
    return DescribeTopicPartitionsResponse(
        throttle_time=timedelta(0), topics=tuple(topics), next_cursor=cursor
    )


def _topic(node: Node, name: str, first: int, most: int) -> DescribeTopicPartitionsResponseTopic:
    topic = node.topics.by_name.get(name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_refusal(name):
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return DescribeTopicPartitionsResponseTopic(
            error_code=code,
            name=name,
            topic_id=None,
            partitions=(),
            topic_authorized_operations=TOPIC_OPERATIONS,
        )
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_partition(node, each) for each in topic.partitions[first : first + most]),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(node: Node, partition: HostedPartition) -> DescribeTopicPartitionsResponsePartition:
    here = (node.config.node_id,)
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=node.config.node_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=here,
        isr_nodes=here,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=(),
    )
