"""AlterPartitionReassignments, versions 0-1: a partition may be put where it is, on this broker.

Any other replica is refused with INVALID_REPLICA_ASSIGNMENT. To cancel what is under way (a null
list) is refused with NO_REASSIGNMENT_IN_PROGRESS, for nothing ever is.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
)
from kio.schema.alter_partition_reassignments.v1.response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

from onceflow.broker.requests import RequestContext, RequestRefused
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_UNFIT = ErrorCode.INVALID_REPLICA_ASSIGNMENT


def handle(
    node: Node, client: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Moves nothing, and says of each partition whether that is what was asked for."""
    return AlterPartitionReassignmentsResponse(
        throttle_time=timedelta(0),
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(_reassign(node, topic.name, each) for each in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _reassign(
    node: Node, topic: str, asked: ReassignablePartition
) -> ReassignablePartitionResponse:
    refused = _refusal(node, topic, asked)
    return ReassignablePartitionResponse(
        partition_index=asked.partition_index,
        error_code=refused.code,
        error_message=refused.message,
    )


def _refusal(node: Node, topic: str, asked: ReassignablePartition) -> RequestRefused:
    index, replicas, here = asked.partition_index, asked.replicas, node.config.node_id
    if node.topics.partition(topic, index) is None:
        reason = "There is no such partition."  # its name may be long, and is once in the answer
        return RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
    if replicas is None:
        return RequestRefused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if not replicas:
        return RequestRefused(_UNFIT, "The list of replicas is empty.")
    for each in replicas:
        if each != here:
            return RequestRefused(_UNFIT, f"There is no broker {each}: the only one is {here}.")
    if len(replicas) > 1:
        return RequestRefused(_UNFIT, f"The list of replicas has broker {here} more than once.")
    return RequestRefused(ErrorCode.NONE)
