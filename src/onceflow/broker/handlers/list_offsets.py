"""ListOffsets, versions 1-11: the earliest, the latest, the newest by time, or the first since.

-1 latest (the high watermark, or the last stable offset for readers of committed records),
-2 earliest, -3 largest timestamp, -4 earliest on this machine (the same as -2: there is no tiered
storage), -5 and -6 what is in tiered storage (nothing). "None" is offset -1 without an error. A
partition that is named twice is refused, once.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

from onceflow.broker.handlers.fetch import epoch_error
from onceflow.broker.partition import Partition
from onceflow.broker.request import Client
from onceflow.errors import DiskError, LogError
from onceflow.wire.error_code import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _TIERED, _PENDING = range(-1, -7, -1)
_SINCE = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _TIERED: 9, _PENDING: 11}
_NOTHING = (-1, -1, -1)


def handle(node: Node, client: Client, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Looks each partition up."""
    committed = request.isolation_level == 1
    times = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )

    def look(topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        if times[topic, wanted.partition_index] > 1:
            times[topic, wanted.partition_index] = 0  # said once
            return _error(wanted.partition_index, ErrorCode.INVALID_REQUEST)
        return _partition(node, client.version, topic, wanted, committed)

    return ListOffsetsResponse(
        throttle_time=timedelta(0),
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    look(topic.name, each)
                    for each in topic.partitions
                    if times[topic.name, each.partition_index]
                ),
            )
            for topic in request.topics
        ),
    )


def _partition(
    node: Node, version: int, topic: str, wanted: ListOffsetsPartition, committed: bool
) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    partition = node.topics.partition(topic, index)
    if partition is None:
        return _error(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = epoch_error(partition, wanted.current_leader_epoch)
    if error:
        return _error(index, error)
    if wanted.timestamp < 0 and version < _SINCE.get(wanted.timestamp, 0):
        return _error(index, ErrorCode.UNSUPPORTED_VERSION)
    if wanted.timestamp < _PENDING:
        return _error(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        timestamp, offset, epoch = _find(partition, wanted.timestamp, committed)
    except (DiskError, LogError):  # out of descriptors, or a file that cannot be read
        return _error(index, ErrorCode.KAFKA_STORAGE_ERROR)
    return ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _find(partition: Partition, timestamp: int, committed: bool) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch."""
    log = partition.log
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == _LATEST:
        return -1, limit, partition.leader_epoch
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return -1, log.start_offset, partition.epoch_at(log.start_offset)
    if timestamp in (_TIERED, _PENDING):
        return _NOTHING
    found = log.max_timestamp() if timestamp == _MAX_TIMESTAMP else log.offset_for_time(timestamp)
    if found is None or found.offset >= limit:
        return _NOTHING
    return found.timestamp, found.offset, partition.epoch_at(found.offset)


def _error(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
