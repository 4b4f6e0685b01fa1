"""DescribeProducers, version 0: who writes to a partition, and since where in a transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

from onceflow.broker.request import Client
from onceflow.wire.error_code import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_NONE = -1


def handle(
    node: Node, client: Client, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Looks each partition up, once."""
    wanted: dict[str, dict[int, None]] = {}
    for each in request.topics:
        wanted.setdefault(each.name, {}).update(dict.fromkeys(each.partition_indexes))
    return DescribeProducersResponse(
        throttle_time=timedelta(0),
        topics=tuple(
            TopicResponse(
                name=topic,
                partitions=tuple(_partition(node, topic, index) for index in indexes),
            )
            for topic, indexes in wanted.items()
        ),
    )


def _partition(node: Node, topic: str, index: int) -> PartitionResponse:
    partition = node.topics.partition(topic, index)
    if partition is None:
        return PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            active_producers=(),
        )
    return PartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=tuple(
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.window[-1].last_sequence if producer.window else _NONE,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=(
                    _NONE if producer.transaction_start is None else producer.transaction_start
                ),
            )
            for producer_id, producer in partition.producers.producers()
        ),
    )
