"""CreateTopics, versions 2-7: each topic of a request is made whole or not at all.

Names, counts, assignments and configs are judged as Apache Kafka judges them. There is one broker,
so a replication factor above 1 is refused.
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

from onceflow.broker.durable import once_durable
from onceflow.broker.promise import Answer
from onceflow.broker.refusal import Refused, refusal_of
from onceflow.broker.request import Client
from onceflow.broker.topic_config import TopicConfig, config_of_new_topic
from onceflow.broker.topic_rules import (
    Assignment,
    Refusal,
    layout_refusal,
    new_name_refusal,
    partition_count,
    total_refusal,
)
from onceflow.errors import OnceflowError
from onceflow.log.journal import Ticket
from onceflow.wire.error_code import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_REPLICAS = 1


def handle(
    node: Node, client: Client, request: CreateTopicsRequest
) -> Answer[CreateTopicsResponse]:
    """Makes the topics that can be made; answers when they are durable."""
    tickets: list[Ticket] = []
    times = Counter(topic.name for topic in request.topics)
    too_many = total_refusal(_partitions(node, topic) for topic in request.topics)
    results = []
    for topic in request.topics:
        if times[topic.name] > 1:
            duplicate = Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(_refused(topic, duplicate))
            times[topic.name] = -1  # said once
        elif times[topic.name] == 1:
            results.append(_create(node, topic, too_many, request.validate_only, tickets))
    response = CreateTopicsResponse(throttle_time=timedelta(0), topics=tuple(results))
    return once_durable(
        tickets, lambda error: response if error is None else _all_failed(response, error)
    )


def _assignments(topic: CreatableTopic) -> list[Assignment]:
    return [Assignment(each.partition_index, each.broker_ids) for each in topic.assignments]


def _partitions(node: Node, topic: CreatableTopic) -> int:
    count = partition_count(topic.num_partitions, _assignments(topic), node.config.num_partitions)
    return max(count, 0)


def _create(
    node: Node,
    topic: CreatableTopic,
    too_many: Refusal | None,
    validate_only: bool,
    tickets: list[Ticket],
) -> CreatableTopicResult:
    try:
        config = _checked(node, topic, too_many)
        partitions = _partitions(node, topic)
        topic_id = node.topics.new_id()  # told also when nothing is made, as Kafka does
        if not validate_only:
            made, ticket = node.topics.create(topic.name, partitions, dict(config.overrides))
            tickets.append(ticket)
            topic_id = made.topic_id
    except OnceflowError as error:
        return _refused(topic, refusal_of(error))
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=partitions,
        replication_factor=_REPLICAS,
        configs=tuple(_config(config)),
    )


def _checked(node: Node, topic: CreatableTopic, too_many: Refusal | None) -> TopicConfig:
    refusal = (
        new_name_refusal(topic.name, node.topics.by_name)
        or layout_refusal(
            topic.num_partitions,
            topic.replication_factor,
            _assignments(topic),
            node.config.node_id,
        )
        or too_many
    )
    config = config_of_new_topic(
        [(each.name, each.value) for each in topic.configs], node.config.topic_defaults
    )
    if refusal is None and isinstance(config, Refusal):
        refusal = config
    if refusal is not None or isinstance(config, Refusal):
        raise Refused.of(refusal)
    return config


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


def _refused(topic: CreatableTopic, refused: Refused) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
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
            topic if topic.error_code else _refused(topic, refused) for topic in response.topics
        ),
    )
