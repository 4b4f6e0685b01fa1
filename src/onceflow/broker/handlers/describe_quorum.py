"""DescribeQuorum, versions 0-2: who keeps the metadata log. This broker does, alone.

Only partition 0 of `__cluster_metadata`, and nothing beside it, can be asked for. Unlike Apache
Kafka's, the log has no listener of its own: the answer names the broker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v2.response import (
    DescribeQuorumResponse,
    Listener,
    Node as QuorumNode,
    PartitionData,
    ReplicaState,
    TopicData,
)

from onceflow.broker.requests import RequestContext
from onceflow.broker.topics import METADATA_LOG, METADATA_TOPIC
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_LISTENER = "PLAINTEXT"
_LEADER_EPOCH = 0
"""That of all records of the log: no other broker has ever led it."""


def handle(
    node: Node, client: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Describes the quorum of one."""
    asked = [
        (topic.topic_name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    if asked == [(METADATA_TOPIC, METADATA_LOG.partition)]:
        return _described(node)
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message="",
        topics=tuple(
            TopicData(
                topic_name=topic.topic_name,
                partitions=tuple(_unknown(each.partition_index) for each in topic.partitions),
            )
            for topic in request.topics
        ),
        nodes=(),
    )


def _described(node: Node) -> DescribeQuorumResponse:
    log, now_ms, here = node.store.logs[METADATA_LOG], node.clock.wall_ms(), node.config.node_id
    host, port = node.address
    voter = ReplicaState(
        replica_id=here,
        replica_directory_id=None,
        log_end_offset=log.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    partition = PartitionData(
        partition_index=METADATA_LOG.partition,
        error_code=ErrorCode.NONE,
        error_message="",
        leader_id=here,
        leader_epoch=_LEADER_EPOCH,
        high_watermark=log.high_watermark,
        current_voters=(voter,),
        observers=(),
    )
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message="",
        topics=(TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
        nodes=(
            QuorumNode(node_id=here, listeners=(Listener(name=_LISTENER, host=host, port=port),)),
        ),
    )


def _unknown(index: int) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=f"Ask for partition {METADATA_LOG.partition} of {METADATA_TOPIC} alone.",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=(),
        observers=(),
    )
