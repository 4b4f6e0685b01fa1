"""Produce, versions 3-13 (13 names topics by id): batches in, offsets out.

A batch is checked (`broker/append.py`), gets its offset in its own bytes, and the answer waits
until it is as durable as the broker's `durability` says, for acks=1 and acks=all alike. With acks=0
nothing is answered, and an error ends the connection, which is the only way to tell.

One partition that is refused does not touch the others of the request. Not served: the versions
before 3, whose record formats are gone from Apache Kafka too. Never throttled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onceflow.broker.append import LOG_APPEND_TIME, checked_batch
from onceflow.broker.durable import once_durable
from onceflow.broker.partition import Partition
from onceflow.broker.promise import Answer
from onceflow.broker.refusal import Refused, refusal_of, was_examined
from onceflow.broker.request import NO_ANSWER, Client, Hangup
from onceflow.broker.topics import Topic
from onceflow.errors import OnceflowError
from onceflow.log.journal import Ticket
from onceflow.wire.error_code import ErrorCode
from onceflow.wire.produce import (
    PartitionRecords,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    TopicRef,
    read_request,
    write_response,
)

if TYPE_CHECKING:
    from onceflow.broker.node import Node

read = read_request
_ALL, _LEADER, _NONE = -1, 1, 0
_ADMIN_CLIENT = "__admin_client"


def write(response: ProduceResponse, version: int) -> Iterable[bytes]:
    return (write_response(response, version),)


def handle(node: Node, client: Client, request: ProduceRequest) -> Answer[object]:
    """Appends what can be appended; answers when that is durable."""
    if request.acks not in (_ALL, _LEADER, _NONE):
        return _all_refused(request, ErrorCode.INVALID_REQUIRED_ACKS)
    response: ProduceResponse = []
    tickets: list[Ticket] = []
    for topic, partitions in request.topics:
        results = []
        for each in partitions:
            result, ticket = _append(node, client, topic, each)
            results.append(result)
            if ticket is not None:
                tickets.append(ticket)
        response.append((topic, results))
    if request.acks == _NONE:
        return _without_answer(response)
    return once_durable(
        tickets, lambda error: response if error is None else _failed(response, refusal_of(error))
    )


def _append(
    node: Node, client: Client, topic_ref: TopicRef, data: PartitionRecords
) -> tuple[ProduceResult, Ticket | None]:
    partition = None
    try:
        topic = _topic(node, client, topic_ref)
        if not 0 <= data.partition < len(topic.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[data.partition]
        now_ms = node.clock.wall_ms()
        batch = checked_batch(topic, data.records, client.version, now_ms)
        time = now_ms if topic.config.message_timestamp_type == LOG_APPEND_TIME else None
        stored, ticket = partition.append(batch, log_append_time=time)
    except OnceflowError as error:
        return _refused(data.partition, error, partition), None
    result = ProduceResult(
        data.partition,
        ErrorCode.NONE,
        stored.header.base_offset,
        -1 if time is None else time,
        partition.log.start_offset,
    )
    return result, ticket


def _topic(node: Node, client: Client, wanted: TopicRef) -> Topic:
    topic = node.topics.find(wanted)
    if topic is None:
        by_name = isinstance(wanted, str)
        raise Refused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        )
    if topic.is_internal and client.client_id != _ADMIN_CLIENT:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own")
    return topic


def _refused(index: int, error: OnceflowError, partition: Partition | None) -> ProduceResult:
    refused = refusal_of(error)
    start = -1
    if partition is not None and was_examined(error):
        start = partition.log.start_offset
    return ProduceResult(
        index,
        refused.code,
        log_start_offset=start,
        message=refused.message,
        record_errors=refused.record_errors,
    )


def _failed(response: ProduceResponse, refused: Refused) -> ProduceResponse:
    """The disk failed: of what was appended nobody knows whether it is durable."""
    return [
        (
            topic,
            [
                result
                if result.error
                else ProduceResult(result.partition, refused.code, message=refused.message)
                for result in results
            ],
        )
        for topic, results in response
    ]


def _all_refused(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    return [
        (topic, [ProduceResult(each.partition, code) for each in partitions])
        for topic, partitions in request.topics
    ]


def _without_answer(response: ProduceResponse) -> object:
    for topic, results in response:
        for result in results:
            if result.error:
                code = ErrorCode(result.error).name
                raise Hangup(f"Produce with acks=0 to {topic}-{result.partition} failed: {code}")
    return NO_ANSWER
