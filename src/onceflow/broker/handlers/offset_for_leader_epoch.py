"""OffsetForLeaderEpoch, versions 2-4: where an epoch ended, so that a reader sees what it lost.

A new epoch begins with a start that may have found records missing (`durability="os"` without a
clean stop); else there is one epoch, which ends at the high watermark.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

from onceflow.broker.handlers.fetch import epoch_error
from onceflow.broker.requests import RequestContext
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Looks each epoch up."""
    return OffsetForLeaderEpochResponse(
        throttle_time=timedelta(0),
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(_end(node, topic.topic, each) for each in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _end(node: Node, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = node.topics.partition(topic, wanted.partition)
    if partition is None:
        return EpochEndOffset(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition=wanted.partition
        )
    error = epoch_error(partition, wanted.current_leader_epoch)
    end = partition.end_of_epoch(wanted.leader_epoch)
    if error or end is None:
        return EpochEndOffset(error_code=error, partition=wanted.partition)
    return EpochEndOffset(
        error_code=ErrorCode.NONE,
        partition=wanted.partition,
        leader_epoch=end.epoch,
        end_offset=end.offset,
    )
