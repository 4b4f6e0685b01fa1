"""CreatePartitions, versions 0-3: a topic can grow, never shrink.

Unlike in Apache Kafka, the topics in which the broker keeps groups and transactions stay as they
are: which partition keeps an id goes by their number, so a start would find it in two of them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.create_partitions.v3.request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kio.schema.create_partitions.v3.response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

from onceflow.broker.requests import Answer, RequestContext, RequestRefused, or_hang_up, refusal_of
from onceflow.broker.topics import Steps, increase_refusal, internal_topic_refusal
from onceflow.errors import OnceflowError
from onceflow.log import Ticket
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: CreatePartitionsRequest
) -> Answer[CreatePartitionsResponse]:
    """Grows the topics that can grow; answers when that is durable."""
    tickets: list[Ticket] = []
    results: list[CreatePartitionsTopicResult] = []

    def answer() -> Answer[CreatePartitionsResponse]:
        response = CreatePartitionsResponse(throttle_time=timedelta(0), results=tuple(results))
        return or_hang_up(tickets, response)

    return node.turns.do(_grow_all(node, request, results, tickets), answer)


def _grow_all(
    node: Node,
    request: CreatePartitionsRequest,
    results: list[CreatePartitionsTopicResult],
    tickets: list[Ticket],
) -> Steps[None]:
    times = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        refused = RequestRefused(ErrorCode.NONE)
        if not times[topic.name]:
            continue
        try:
            if times[topic.name] > 1:
                times[topic.name] = 0  # said once
                raise RequestRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
            yield from _grow(node, topic, request.validate_only, tickets)
        except OnceflowError as error:
            refused = refusal_of(error)
        results.append(
            CreatePartitionsTopicResult(
                name=topic.name, error_code=refused.code, error_message=refused.message
            )
        )
        yield 1


def _grow(
    node: Node, wanted: CreatePartitionsTopic, validate_only: bool, tickets: list[Ticket]
) -> Steps[None]:
    topic = node.topics.by_name.get(wanted.name)
    if topic is None:
        raise RequestRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        )
    if topic.is_internal:
        raise RequestRefused.of(internal_topic_refusal(topic.name))
    assignments = wanted.assignments
    refusal = increase_refusal(
        topic.name,
        len(topic.partitions),
        wanted.count,
        None if assignments is None else [each.broker_ids for each in assignments],
        node.config.node_id,
    )
    if refusal is not None:
        raise RequestRefused.of(refusal)
    if not validate_only:
        tickets.append((yield from node.topics.add_partitions(topic, wanted.count)))
