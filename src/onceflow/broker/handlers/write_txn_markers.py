"""WriteTxnMarkers, versions 1-2: ends a producer's transaction in single partitions.

How an operator aborts a transaction that no coordinator knows (`kafka-transactions.sh abort`): the
marker goes to the partition, and the coordinator is not asked. Each partition checks the epochs of
producer and coordinator. Answered when the markers are durable. Unlike in Apache Kafka, they
cannot be written to `__transaction_state`, in which no transaction is ever open.
A partition that a marker names more than once gets it once; Apache Kafka never answers that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from onceflow.broker.requests import Answer, RequestContext, once_each, or_hang_up
from onceflow.log import Ticket
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: WriteTxnMarkersRequest
) -> Answer[WriteTxnMarkersResponse]:
    """Writes each marker that its partition takes."""
    tickets: list[Ticket] = []
    response = WriteTxnMarkersResponse(
        markers=tuple(_written(node, each, tickets) for each in request.markers)
    )
    return or_hang_up(tickets, response)


def _written(
    node: Node, wanted: WritableTxnMarker, tickets: list[Ticket]
) -> WritableTxnMarkerResult:
    def write(place: TopicPartition) -> WritableTxnMarkerPartitionResult:
        code, ticket = node.markers.write_checked(
            place,
            wanted.producer_id,
            wanted.producer_epoch,
            commit=wanted.transaction_result,
            coordinator_epoch=wanted.coordinator_epoch,
            transaction_version=wanted.transaction_version,
        )
        if ticket is not None:
            tickets.append(ticket)
        return WritableTxnMarkerPartitionResult(partition_index=place.partition, error_code=code)

    return WritableTxnMarkerResult(
        producer_id=wanted.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    write(TopicPartition(topic.name, index))
                    for index in once_each(topic.partition_indexes)
                ),
            )
            for topic in wanted.topics
        ),
    )
