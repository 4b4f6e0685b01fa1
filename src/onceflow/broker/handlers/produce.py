"""Produce, versions 3-13 (13 names topics by id): batches in, offsets out.

A batch is checked (`broker/append.py`), if it has a producer id also against what that producer
has written (`broker/producer_rules.py`), gets its offset in its own bytes, and the answer waits
until it is as durable as the broker's `durability` says, for acks=1 and acks=all alike. With acks=0
nothing is answered, and an error ends the connection, which is the only way to tell. A repeat is
answered as the batch that it repeats, when that one is durable.

One partition that is refused does not touch the others of the request. One that is named twice is
refused: Apache Kafka drops all but the last of its batches, and does not say so. A batch that takes
long to check is looked at in the background, and until then nothing more is read from its client.
Not served: the versions before 3, whose record formats are gone from Apache Kafka too. Never
throttled. Clients cannot write to the topics in which the broker keeps groups and transactions;
Apache Kafka lets a client do so that calls itself `__admin_client`, which no tool does any more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from onceflow.broker.produce import (
    LOG_APPEND_TIME,
    Effort,
    HeavyBatch,
    HeavyRecords,
    admit_batch,
    altered_meanwhile,
    checked_batch,
)
from onceflow.broker.requests import (
    NO_ANSWER,
    Answer,
    Hangup,
    OrderedPromise,
    RequestContext,
    RequestRefused,
    once_durable,
    refusal_of,
    was_examined,
)
from onceflow.broker.topics import HostedPartition, HostedTopic, internal_topic_refusal
from onceflow.errors import OnceflowError
from onceflow.log import Ticket
from onceflow.producers import WrittenBatch
from onceflow.records import MAGIC, TRANSACTIONAL_BIT, NewBatch
from onceflow.wire import (
    ErrorCode,
    PartitionRecords,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    TopicRef,
    read_produce_request,
    write_produce_response,
)

if TYPE_CHECKING:
    from onceflow.broker.node import Node

read = read_produce_request
_ALL, _LEADER, _NONE = -1, 1, 0
_ACKS = (_ALL, _LEADER, _NONE)
_MAGIC = 16
_ATTRIBUTES = 22  # its lower byte
_PRODUCER_ID = slice(43, 51)

_DECOMPRESSED_AT_ONCE = 1 << 20
_COMPRESSED_AT_ONCE = 64 << 10
"""What is more takes too long for everybody else to wait for it."""

_Topics = list[tuple[TopicRef, list[PartitionRecords]]]

_log = logging.getLogger(__name__)


def write(response: ProduceResponse, version: int) -> Iterable[bytes]:
    return (write_produce_response(response, version),)


def handle(node: Node, client: RequestContext, request: ProduceRequest) -> Answer[object]:
    """Appends what can be appended; answers when that is durable."""
    transactional_id, acks, _, topics = request
    if acks not in _ACKS:
        return _all_refused(request, ErrorCode.INVALID_REQUIRED_ACKS)
    if code := _transaction_error(request):
        return _all_refused(request, code)
    response: ProduceResponse = []
    if len(topics) > 1 or (topics and len(topics[0][1]) > 1):
        topics = _without_repeated(topics, response)
    tickets: list[Ticket] = []
    heavy: list[_Heavy] = []
    effort = Effort(_DECOMPRESSED_AT_ONCE, _COMPRESSED_AT_ONCE, node.checks.room)
    for topic, partitions in topics:
        results: list[ProduceResult] = []
        for each in partitions:
            try:
                result, ticket = _append(node, client, transactional_id, topic, each, effort)
            except HeavyBatch:
                heavy.append(_heavy(node, client, topic, each, results))
                result, ticket = _NOT_YET, None
            results.append(result)
            if ticket is not None:
                tickets.append(ticket)
        response.append((topic, results))
    node.checks.note_done_here(effort)
    if heavy:
        return _append_later(node, client, transactional_id, acks, response, tickets, heavy)
    if acks == _NONE:
        return _without_answer(response)
    return once_durable(tickets, partial(_outcome, response))


def _without_repeated(topics: _Topics, response: ProduceResponse) -> _Topics:
    """What names a partition once; each of the others is refused, in `response`."""
    times = Counter((topic, each.partition) for topic, rows in topics for each in rows)
    if len(times) == sum(times.values()):
        return topics
    for (topic, index), number in times.items():
        if number > 1:
            said = f"partition {index} is named {number} times in one request; nothing was written"
            response.append((topic, [ProduceResult(index, _TWICE, message=said)]))
    once = [
        (topic, [each for each in rows if times[topic, each.partition] == 1])
        for topic, rows in topics
    ]
    return [(topic, rows) for topic, rows in once if rows]


def _outcome(response: ProduceResponse, error: Exception | None) -> ProduceResponse:
    return response if error is None else _failed(response, refusal_of(error))


def _transaction_error(request: ProduceRequest) -> ErrorCode:
    """What is wrong with the request as a whole: records of a transaction come under the one
    transactional id that it names, from one producer."""
    producers = set()
    for _, partitions in request.topics:
        for _, records in partitions:
            # Where attributes are, older formats have a part of a timestamp.
            if (
                records
                and len(records) > _ATTRIBUTES
                and records[_ATTRIBUTES] & TRANSACTIONAL_BIT
                and records[_MAGIC] == MAGIC
            ):
                producers.add(bytes(records[_PRODUCER_ID]))
    if not producers:
        return ErrorCode.NONE
    if request.transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE if len(producers) == 1 else ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _append(
    node: Node,
    client: RequestContext,
    transactional_id: str | None,
    topic_ref: TopicRef,
    data: PartitionRecords,
    effort: Effort,
    checked: HeavyRecords | None = None,
) -> tuple[ProduceResult, Ticket | None]:
    """The answer for one partition, and what it has to wait for. Raises `HeavyBatch`; the same is
    asked again once the batch is `checked`."""
    index, records = data
    partition = None
    try:
        topic = _topic(node, topic_ref)
        if not 0 <= index < len(topic.partitions):
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[index]
        now_ms = node.clock.wall_ms()
        if checked is not None:
            batch = _batch_of(checked, topic)
        else:
            batch = checked_batch(topic.name, topic.config, records, client.version, now_ms, effort)
        if batch.header.producer_id >= 0:
            first = admit_batch(
                node.transactions, topic, partition, batch.header, transactional_id, client.version
            )
            if first is not None:
                return _answer_again(index, partition, first)
        # In the same step as `admit_batch`: anything in between could make its judgement wrong,
        # such as a marker that ends the transaction or another batch of the same sequence.
        time = now_ms if topic.config.message_timestamp_type == LOG_APPEND_TIME else None
        (header, _), ticket = partition.append(batch, log_append_time=time)
    except OnceflowError as error:
        return _refused(index, error, partition), None
    append_time = -1 if time is None else time
    start = partition.log.start_offset
    return ProduceResult(index, 0, header.base_offset, append_time, start), ticket


# --- batches that take long ---------------------------------------------------------------------

_NOT_YET = ProduceResult(-1)
_TWICE = ErrorCode.INVALID_REQUEST


class _Heavy(NamedTuple):
    """A batch that is checked in the background, and the place of its result."""

    topic: TopicRef
    partition: int
    records: HeavyRecords
    results: list[ProduceResult]
    at: int


def _heavy(
    node: Node,
    client: RequestContext,
    topic: TopicRef,
    data: PartitionRecords,
    results: list[ProduceResult],
) -> _Heavy:
    index, records = data
    found = _topic(node, topic)
    batch = HeavyRecords(found, records or memoryview(b""), client.version, node.clock.wall_ms())
    return _Heavy(topic, index, batch, results, len(results))


def _append_later(
    node: Node,
    client: RequestContext,
    transactional_id: str | None,
    acks: int,
    response: ProduceResponse,
    tickets: list[Ticket],
    heavy: list[_Heavy],
) -> OrderedPromise[object]:
    """Appends, once they are checked, the batches that are `heavy`; all others have been. Nothing
    of the request may be kept for that long: its views would keep the whole frame."""
    promise: OrderedPromise[object] = OrderedPromise()
    nothing = Effort(0)

    def append_all() -> Answer[object]:
        for topic, index, records, results, at in heavy:
            data = PartitionRecords(index, None)
            results[at], ticket = _append(
                node, client, transactional_id, topic, data, nothing, records
            )
            if ticket is not None:
                tickets.append(ticket)
        return _answer(acks, response, tickets)

    def checked() -> None:
        try:
            answer = append_all()
        except Exception:
            _log.exception("internal error after a batch was checked")
            answer = Hangup("an internal error; the broker's log has more")
        promise.take_effect(answer)

    node.checks.submit([each.records for each in heavy], checked)
    return promise


def _answer(acks: int, response: ProduceResponse, tickets: list[Ticket]) -> Answer[object]:
    if acks != _NONE:
        return once_durable(tickets, partial(_outcome, response))
    try:
        return _without_answer(response)
    except Hangup as reason:
        return reason


def _batch_of(checked: HeavyRecords, topic: HostedTopic) -> NewBatch:
    """The batch to append, unless it was refused, or its topic is another one by now or has another
    config."""
    if checked.topic is not topic:
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if checked.config is not topic.config:
        raise altered_meanwhile(topic.name)
    outcome = checked.outcome
    if isinstance(outcome, NewBatch):
        return outcome
    if not isinstance(outcome, OnceflowError):
        _log.error("internal error while checking a batch for %s", topic.name, exc_info=outcome)
        raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, str(outcome)) from outcome
    raise outcome


def _answer_again(
    index: int, partition: HostedPartition, first: WrittenBatch
) -> tuple[ProduceResult, Ticket | None]:
    """The answer that the first sending of a batch got, or is about to get."""
    # Not before the first sending is durable: to the client a repeat is as good as the first.
    ticket = partition.once_durable(first.last_offset)
    start = partition.log.start_offset
    return ProduceResult(index, 0, first.first_offset, first.timestamp, start), ticket


def _topic(node: Node, wanted: TopicRef) -> HostedTopic:
    topic = node.topics.find(wanted)
    if topic is None:
        by_name = isinstance(wanted, str)
        raise RequestRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        )
    if topic.is_internal:
        raise RequestRefused.of(internal_topic_refusal(topic.name))
    return topic


def _refused(index: int, error: OnceflowError, partition: HostedPartition | None) -> ProduceResult:
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


def _failed(response: ProduceResponse, refused: RequestRefused) -> ProduceResponse:
    """The response when the disk has failed: it is not known which appended batches are durable."""
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
