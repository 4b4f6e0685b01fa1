"""DeleteTopics, versions 1-6: by name, and from version 6 on by id. The records go for good. A
topic named more than once is refused, also when it is so once by name and once by id; so is an
entry that has both or neither.

Unlike in Apache Kafka, the topics in which the broker keeps groups and transactions cannot be
deleted: everybody's progress would be forgotten, and what is open could never be ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse

from onceflow.broker.requests import Answer, RequestContext, or_hang_up, refusal_of
from onceflow.broker.topics import HostedTopic, Steps, internal_topic_refusal
from onceflow.errors import OnceflowError
from onceflow.log import Ticket
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest as RequestByName

    from onceflow.broker.node import Node

OLD_SHAPE_UNTIL = 5
"""Until then a request lists names."""


def upgrade(request: RequestByName) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=tuple(DeleteTopicState(name=name, topic_id=None) for name in request.topic_names),
        timeout=request.timeout,
    )


def handle(
    node: Node, client: RequestContext, request: DeleteTopicsRequest
) -> Answer[DeleteTopicsResponse]:
    """Deletes what is there; answers when that is durable."""
    tickets: list[Ticket] = []
    results: list[DeletableTopicResult] = []
    mentions: dict[object, list[DeleteTopicState]] = {}
    for each in request.topics:
        topic = _find(node, each)
        named = (each.name, each.topic_id) if topic is None else topic.topic_id
        mentions.setdefault(named, []).append(each)

    def delete_all() -> Steps[None]:
        for states in mentions.values():
            if len(states) > 1:
                results.append(_refused_as_one(states))
            else:
                results.append((yield from _delete(node, states[0], tickets)))
            yield 1

    def answer() -> Answer[DeleteTopicsResponse]:
        response = DeleteTopicsResponse(throttle_time=timedelta(0), responses=tuple(results))
        return or_hang_up(tickets, response)

    return node.turns.do(delete_all(), answer)


def _delete(
    node: Node, wanted: DeleteTopicState, tickets: list[Ticket]
) -> Steps[DeletableTopicResult]:
    if (wanted.topic_id is None) == (wanted.name is None):
        return _result(wanted, ErrorCode.INVALID_REQUEST)
    topic = _find(node, wanted)
    if topic is None:
        by_name = wanted.topic_id is None
        return _result(
            wanted,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID,
        )
    if topic.is_internal:
        return _result(wanted, *internal_topic_refusal(topic.name))
    try:
        tickets.append((yield from node.topics.delete(topic)))
    except OnceflowError as error:
        return _result(wanted, refusal_of(error).code)
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.NONE, error_message=None
    )


def _find(node: Node, wanted: DeleteTopicState) -> HostedTopic | None:
    if wanted.name is not None:
        return node.topics.find(wanted.name)
    return None if wanted.topic_id is None else node.topics.find(wanted.topic_id)


def _refused_as_one(states: list[DeleteTopicState]) -> DeletableTopicResult:
    """The answer to all that name one topic."""
    return DeletableTopicResult(
        name=next((each.name for each in states if each.name is not None), None),
        topic_id=next((each.topic_id for each in states if each.topic_id is not None), None),
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="The topic is named more than once.",
    )


def _result(
    wanted: DeleteTopicState, code: ErrorCode, message: str | None = None
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=wanted.name, topic_id=wanted.topic_id, error_code=code, error_message=message
    )
