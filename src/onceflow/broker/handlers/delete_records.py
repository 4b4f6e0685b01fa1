"""DeleteRecords, versions 0-2: moves a partition's start; -1 means up to the high watermark. Of a
partition that is named more than once, the last offset counts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

from onceflow.broker.requests import Answer, RequestContext, or_hang_up, refusal_of
from onceflow.broker.topics import Steps
from onceflow.errors import OnceflowError
from onceflow.log import Ticket
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_TO_HIGH_WATERMARK = -1
_NO_WATERMARK = -1


def handle(
    node: Node, client: RequestContext, request: DeleteRecordsRequest
) -> Answer[DeleteRecordsResponse]:
    """Moves the starts that can be moved, some in each turn; answers when that is durable."""
    tickets: list[Ticket] = []
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = wanted.setdefault(topic.name, {})
        offsets.update((each.partition_index, each.offset) for each in topic.partitions)
    results: dict[str, list[DeleteRecordsPartitionResult]] = {name: [] for name in wanted}

    def delete_all() -> Steps[None]:
        for name, offsets in wanted.items():
            for index, offset in offsets.items():
                results[name].append(_delete(node, name, index, offset, tickets))
                yield 1

    def answer() -> Answer[DeleteRecordsResponse]:
        return or_hang_up(tickets, _response(results))

    return node.turns.do(delete_all(), answer)


def _response(results: dict[str, list[DeleteRecordsPartitionResult]]) -> DeleteRecordsResponse:
    topics = tuple(
        DeleteRecordsTopicResult(name=name, partitions=tuple(partitions))
        for name, partitions in results.items()
    )
    return DeleteRecordsResponse(throttle_time=timedelta(0), topics=topics)


def _delete(
    node: Node, topic: str, index: int, offset: int, tickets: list[Ticket]
) -> DeleteRecordsPartitionResult:
    found = node.topics.find(topic)
    partition = node.topics.partition(topic, index)
    if found is None or partition is None:
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if found.is_internal:
        return _result(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if "delete" not in found.config.cleanup_policy:
        return _result(index, ErrorCode.POLICY_VIOLATION)
    log = partition.log
    upto = log.high_watermark if offset == _TO_HIGH_WATERMARK else offset
    try:
        if upto > log.start_offset or upto < 0:
            tickets.append(node.store.delete_records(log, upto))
    except OnceflowError as error:
        return _result(index, refusal_of(error).code)
    return _result(index, ErrorCode.NONE, log.start_offset)


def _result(
    index: int, code: ErrorCode, low_watermark: int = _NO_WATERMARK
) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=low_watermark, error_code=code
    )
