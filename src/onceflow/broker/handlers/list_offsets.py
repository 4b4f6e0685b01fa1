"""ListOffsets, versions 1-11: the earliest, the latest, the newest by time, or the first since.

-1 latest (the high watermark, or the last stable offset for readers of committed records),
-2 earliest, -3 largest timestamp, -4 earliest on this machine (the same as -2: there is no tiered
storage), -5 and -6 what is in tiered storage (nothing). "None" is offset -1 without an error. A
partition that is named twice is refused, once.

A search by time reads a batch, which may have to be decompressed: everybody else is served between
two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

from onceflow.broker.handlers.fetch import epoch_error
from onceflow.broker.requests import Answer, AnswerPromise, Hangup, RequestContext, refusal_of
from onceflow.broker.topics import HostedPartition
from onceflow.errors import OnceflowError
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _TIERED, _PENDING = range(-1, -7, -1)
_SINCE = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _TIERED: 9, _PENDING: 11}
_NOTHING = (-1, -1, -1)
_END = object()
_requests = count(1)

Steps = Generator[None, None, None]
Promise = AnswerPromise[ListOffsetsResponse | Hangup]


def handle(
    node: Node, client: RequestContext, request: ListOffsetsRequest
) -> Answer[ListOffsetsResponse | Hangup]:
    """Looks each partition up."""
    found: list[ListOffsetsTopicResponse] = []
    steps = _steps(node, client, request, found)
    if next(steps, _END) is _END:
        return _response(found)
    promise: Promise = AnswerPromise(on_abandoned=steps.close)
    node.slices.run(f"ListOffsets {next(_requests)}", _then_resolve(steps, promise, found))
    return promise


def _then_resolve(
    steps: Steps, promise: Promise, found: list[ListOffsetsTopicResponse]
) -> Iterator[None]:
    try:
        yield from steps
    except Exception as error:  # a defect of ours costs one connection at most
        promise.resolve(Hangup(f"a search by time failed: {error}"))
        raise
    promise.resolve(_response(found))


def _response(found: list[ListOffsetsTopicResponse]) -> ListOffsetsResponse:
    return ListOffsetsResponse(throttle_time=timedelta(0), topics=tuple(found))


def _steps(
    node: Node,
    client: RequestContext,
    request: ListOffsetsRequest,
    found: list[ListOffsetsTopicResponse],
) -> Steps:
    """Fills `found`, and stops wherever others may be served."""
    committed = request.isolation_level == 1
    times = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    searches = 0
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            index = each.partition_index
            if times[topic.name, index] > 1:
                partitions.append(_error(index, ErrorCode.INVALID_REQUEST))
                times[topic.name, index] = 0  # said once
            elif times[topic.name, index]:
                if each.timestamp >= 0 or each.timestamp == _MAX_TIMESTAMP:
                    searches += 1
                    if searches > 1:
                        yield
                partitions.append(_partition(node, client.version, topic.name, each, committed))
        found.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))


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
    except OnceflowError as problem:  # a batch that cannot be read
        return _error(index, refusal_of(problem).code)
    return ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _find(partition: HostedPartition, timestamp: int, committed: bool) -> tuple[int, int, int]:
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
