"""Topics: list, describe, create, change, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from onceflow.client.errors import LOST, BrokerError, TopicNotFound
from onceflow.client.net import BrokerConnection, Cluster, check
from onceflow.client.offsets import offset_ranges
from onceflow.client.types import Config, TopicDescription, TopicMetadata
from onceflow.runtime import message_library
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
    from kio.schema.create_topics.v7.response import CreateTopicsResponse
    from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
    from kio.schema.describe_configs.v4.response import (
        DescribeConfigsResourceResult,
        DescribeConfigsResponse,
    )
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
    from kio.schema.metadata.v12.response import MetadataResponse

BROKER_DEFAULT: Final = -1
"""As a number of partitions or replicas: the broker's default."""
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_SET_HERE: Final = {_TOPIC_RESOURCE: (1,), _BROKER_RESOURCE: (2, 4)}
"""On the topic; on the running broker, or in its file."""
_SET: Final = 0
_DELETE: Final = 1


async def list_topics(cluster: Cluster) -> list[TopicMetadata]:
    """All topics, by name."""

    async def attempt() -> list[TopicMetadata]:
        return await cluster.metadata(None)

    return sorted(await cluster.retrying(attempt), key=lambda topic: topic.name)


async def describe_topic(cluster: Cluster, name: str) -> TopicDescription:
    """Everything about one topic; raises `TopicNotFound`."""
    topic = await cluster.find_topic(name)
    partitions = [TopicPartition(name, each.partition) for each in topic.partitions]
    offsets = await offset_ranges(cluster, partitions)
    return TopicDescription(
        topic=topic,
        configs=await topic_configs(cluster, name),
        offsets={partition.partition: found for partition, found in offsets.items()},
    )


async def topic_configs(cluster: Cluster, name: str) -> tuple[Config, ...]:
    """The settings of a topic, by name, including those inherited from the broker."""

    async def attempt() -> tuple[Config, ...]:
        connection = await cluster.any_broker()
        return await _configs(connection, _TOPIC_RESOURCE, name, f"settings of topic {name!r}")

    return await cluster.retrying(attempt)


async def broker_configs(cluster: Cluster, node_id: int) -> tuple[Config, ...]:
    """The settings of a broker, by name."""

    async def attempt() -> tuple[Config, ...]:
        connection = await cluster.broker(node_id)
        subject = f"settings of broker {node_id}"
        return await _configs(connection, _BROKER_RESOURCE, str(node_id), subject)

    return await cluster.retrying(attempt)


async def _configs(
    connection: BrokerConnection, kind: int, name: str, subject: str
) -> tuple[Config, ...]:
    with message_library:
        from kio.schema.describe_configs.v4.request import (
            DescribeConfigsRequest,
            DescribeConfigsResource,
        )

    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    answer: DescribeConfigsResponse = await connection.request(
        ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=(resource,))
    )
    found = []
    for result in answer.results:
        check(ApiKey.DESCRIBE_CONFIGS, result, subject)
        found += [_config(each, kind) for each in result.configs]
    return tuple(sorted(found, key=lambda config: config.name))


def _config(found: DescribeConfigsResourceResult, kind: int) -> Config:
    return Config(
        name=found.name,
        value=found.value,
        is_set=found.config_source in _SET_HERE[kind],
        is_sensitive=found.is_sensitive,
    )


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> TopicMetadata:
    """Creates a topic and waits until it can be used."""
    with message_library:
        from kio.schema.create_topics.v7.request import (
            CreatableTopic,
            CreatableTopicConfig,
            CreateTopicsRequest,
        )

    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=(),
        configs=tuple(
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ),
    )
    request = CreateTopicsRequest(topics=(topic,), timeout=_patience(cluster), validate_only=False)

    async def attempt() -> None:
        connection = await cluster.controller()
        answer: CreateTopicsResponse = await connection.request(ApiKey.CREATE_TOPICS, request)
        for result in answer.topics:
            check(ApiKey.CREATE_TOPICS, result, f"topic {name!r}")

    await cluster.retrying(attempt)
    return await _wait_for_leaders(cluster, name, partitions)


async def _wait_for_leaders(cluster: Cluster, name: str, partitions: int) -> TopicMetadata:
    """Waits until all brokers know the topic: they learn of a change only after the controller has
    answered."""
    partition_count = max(partitions, 1)

    async def attempt() -> TopicMetadata:
        try:
            (topic,) = await cluster.metadata([name])
        except TopicNotFound as error:
            raise _not_there_yet(name) from error
        if len(topic.partitions) < partition_count:
            raise _not_there_yet(name)
        for each in topic.partitions:
            await cluster.leader(TopicPartition(name, each.partition))
        for node in cluster.node_ids:
            if await _leaders_known_to(cluster, node, name) < partition_count:
                raise _not_there_yet(name)
        return topic

    return await cluster.retrying(attempt)


async def _leaders_known_to(cluster: Cluster, node: int, name: str) -> float:
    """How many of the topic's partitions a broker knows a leader of; all for a broker that is down,
    which learns of them when it is back.

    Apache Kafka's coordinator takes a partition that it does not know for deleted, and ends a
    transaction without a marker there: rows written right after the topic's creation stay open.
    """
    with message_library:
        from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name=name),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    try:
        answer: MetadataResponse = await (await cluster.broker(node)).request(
            ApiKey.METADATA, request
        )
    except LOST:
        return inf
    return sum(each.leader_id >= 0 for topic in answer.topics for each in topic.partitions)


def _not_there_yet(name: str) -> BrokerError:
    code = ErrorCode.LEADER_NOT_AVAILABLE
    return BrokerError(code, ApiKey.METADATA.name, f"topic {name!r}", "it does not show up")


async def delete_topic(cluster: Cluster, name: str) -> None:
    """Deletes a topic with all its records; raises `TopicNotFound`."""
    with message_library:
        from kio.schema.delete_topics.v5.request import DeleteTopicsRequest

    await cluster.metadata([name])
    request = DeleteTopicsRequest(topic_names=(name,), timeout=_patience(cluster))

    async def attempt() -> None:
        connection = await cluster.controller()
        answer: DeleteTopicsResponse = await connection.request(ApiKey.DELETE_TOPICS, request)
        for result in answer.responses:
            check(ApiKey.DELETE_TOPICS, result, f"topic {name!r}")

    await cluster.retrying(attempt)
    cluster.forget(name)


async def add_partitions(cluster: Cluster, name: str, partitions: int) -> TopicMetadata:
    """Raises a topic's number of partitions to `partitions`."""
    with message_library:
        from kio.schema.create_partitions.v3.request import (
            CreatePartitionsRequest,
            CreatePartitionsTopic,
        )

    await cluster.metadata([name])
    topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(
        topics=(topic,), timeout=_patience(cluster), validate_only=False
    )

    async def attempt() -> None:
        connection = await cluster.controller()
        answer: CreatePartitionsResponse = await connection.request(
            ApiKey.CREATE_PARTITIONS, request
        )
        for result in answer.results:
            check(ApiKey.CREATE_PARTITIONS, result, f"topic {name!r}")

    await cluster.retrying(attempt)
    return await _wait_for_leaders(cluster, name, partitions)


async def alter_configs(
    cluster: Cluster, name: str, *, changes: Mapping[str, str], removals: Iterable[str] = ()
) -> None:
    """Sets some settings of a topic and resets others to the broker's."""
    with message_library:
        from kio.schema.incremental_alter_configs.v1.request import (
            AlterableConfig,
            AlterConfigsResource,
            IncrementalAlterConfigsRequest,
        )

    await cluster.metadata([name])
    configs = [
        AlterableConfig(name=key, config_operation=_SET, value=value)
        for key, value in changes.items()
    ]
    configs += [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in removals]
    resource = AlterConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configs=tuple(configs)
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)

    async def attempt() -> None:
        connection = await cluster.controller()
        answer: IncrementalAlterConfigsResponse = await connection.request(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, request
        )
        for result in answer.responses:
            check(ApiKey.INCREMENTAL_ALTER_CONFIGS, result, f"topic {name!r}")

    await cluster.retrying(attempt)


def _patience(cluster: Cluster) -> timedelta:
    return timedelta(seconds=cluster.settings.request_timeout_s / 2)
