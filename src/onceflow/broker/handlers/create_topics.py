"""CreateTopics, versions 2-7: each topic of a request is made whole or not at all, in as many turns
of the loop as that takes.

Names, counts, assignments and configs are judged as Apache Kafka judges them. There is one broker,
so a replication factor above 1 is refused. Unlike in Apache Kafka, a topic in which the broker
keeps groups or transactions is made only as the broker itself makes it.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)

from onceflow.broker.config import TopicConfig, config_of_new_topic
from onceflow.broker.requests import (
    Answer,
    RequestContext,
    RequestRefusal,
    RequestRefused,
    once_durable,
    refusal_of,
)
from onceflow.broker.topics import (
    POLICIES,
    Assignment,
    Steps,
    layout_refusal,
    new_name_refusal,
    own_topic_difference,
    partition_count,
    total_refusal,
)
from onceflow.errors import OnceflowError
from onceflow.log import Ticket
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_REPLICAS = 1


def handle(
    node: Node, client: RequestContext, request: CreateTopicsRequest
) -> Answer[CreateTopicsResponse]:
    """Makes the topics that can be made; answers when they are durable."""
    tickets: list[Ticket] = []
    results: list[CreatableTopicResult] = []

    def answer() -> Answer[CreateTopicsResponse]:
        response = CreateTopicsResponse(throttle_time=timedelta(0), topics=tuple(results))
        return once_durable(
            tickets, lambda error: response if error is None else _all_failed(response, error)
        )

    return node.turns.do(_create_all(node, request, results, tickets), answer)


def _create_all(
    node: Node,
    request: CreateTopicsRequest,
    results: list[CreatableTopicResult],
    tickets: list[Ticket],
) -> Steps[None]:
    times = Counter(topic.name for topic in request.topics)
    too_many = total_refusal(_partitions(node, topic) for topic in request.topics)
    for topic in request.topics:
        if times[topic.name] > 1:
            duplicate = RequestRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(_refused(topic.name, duplicate))
            times[topic.name] = -1  # said once
        elif times[topic.name] == 1:
            create = _create(node, topic, too_many, request.validate_only, tickets)
            results.append((yield from create))
        yield 1


def _assignments(topic: CreatableTopic) -> list[Assignment]:
    return [Assignment(each.partition_index, each.broker_ids) for each in topic.assignments]


def _partitions(node: Node, topic: CreatableTopic) -> int:
    own = node.own_topics.get(topic.name)
    default = node.config.num_partitions if own is None else own.partition_count
    return max(partition_count(topic.num_partitions, _assignments(topic), default), 0)


def _create(
    node: Node,
    topic: CreatableTopic,
    too_many: RequestRefusal | None,
    validate_only: bool,
    tickets: list[Ticket],
) -> Steps[CreatableTopicResult]:
    try:
        config = _checked(node, topic, too_many)
        partitions = _partitions(node, topic)
        topic_id = node.topics.new_id()  # also in an answer without a new topic, as in Kafka
        if not validate_only:
            tickets.append((yield from _make(node, topic.name, partitions, config)))
            topic_id = node.topics.by_name[topic.name].topic_id
    except OnceflowError as error:
        return _refused(topic.name, refusal_of(error))
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=partitions,
        replication_factor=_REPLICAS,
        configs=tuple(_config(config)),
    )


def _make(node: Node, name: str, partitions: int, config: TopicConfig) -> Steps[Ticket]:
    own = node.own_topics.get(name)
    if own is not None:
        return own.make()[0]
    return (yield from node.topics.make(name, partitions, dict(config.overrides)))[1]


def _checked(node: Node, topic: CreatableTopic, too_many: RequestRefusal | None) -> TopicConfig:
    refusal = (
        new_name_refusal(topic.name, node.topics.names_like(topic.name))
        or layout_refusal(
            topic.num_partitions,
            topic.replication_factor,
            _assignments(topic),
            node.config.node_id,
        )
        or too_many
    )
    configs = [(each.name, each.value) for each in topic.configs]
    own = node.own_topics.get(topic.name)
    if own is None:
        config = config_of_new_topic(configs, node.settings.defaults)
    else:
        config = _config_of_own(topic.name, configs, _partitions(node, topic), own.partition_count)
    if refusal is None and isinstance(config, RequestRefusal):
        refusal = config
    if refusal is not None or isinstance(config, RequestRefusal):
        raise RequestRefused.of(refusal)
    return config


def _config_of_own(
    name: str, configs: list[tuple[str, str | None]], count: int, own_count: int
) -> TopicConfig | RequestRefusal:
    policy = POLICIES[name]
    difference = own_topic_difference(name, count, configs, own_count, policy)
    return difference or TopicConfig.parse(policy, {})


def _config(config: TopicConfig) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=each.name,
            value=each.value,
            read_only=each.read_only,
            config_source=each.source,
            is_sensitive=each.is_sensitive,
        )
        for each in config.describe()
    ]


def _refused(name: str, refused: RequestRefused) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=None,
        error_code=refused.code,
        error_message=refused.message,
        configs=(),
    )


def _all_failed(response: CreateTopicsResponse, error: Exception) -> CreateTopicsResponse:
    refused = refusal_of(error)
    return CreateTopicsResponse(
        throttle_time=timedelta(0),
        topics=tuple(
            topic if topic.error_code else _refused(topic.name, refused)
            for topic in response.topics
        ),
    )
