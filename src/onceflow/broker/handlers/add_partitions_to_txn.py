"""AddPartitionsToTxn, versions 0-5: partitions become part of the open transaction, or open one.

All partitions of a transaction are added or none: when one is not known, the others are said not to
have been attempted. The answer does not wait for the disk: records of the transaction come behind
it in the journal's order, so what is durable of them makes it durable too. The topics in which the
broker keeps groups and transactions are refused; in Apache Kafka up to version 3, for clients.

Versions 4 and 5 are for brokers, which ask for many transactions at once, or only whether some
partitions belong to one (`verify_only`). This broker asks itself without a request, and serves them
to anyone else.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.add_partitions_to_txn.v3.response import (
    AddPartitionsToTxnTopicResult as OldTopicResult,
)
from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

from onceflow.broker.requests import RequestContext
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode, ProducerIdAndEpoch, recast

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v3.request import (
        AddPartitionsToTxnRequest as RequestForOne,
    )
    from kio.schema.add_partitions_to_txn.v3.response import (
        AddPartitionsToTxnResponse as ResponseForOne,
    )

    from onceflow.broker.node import Node

OLD_SHAPE_UNTIL = 3
"""Until then a request is about one transaction."""


def upgrade(request: RequestForOne) -> AddPartitionsToTxnRequest:
    only = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=tuple(recast(each, AddPartitionsToTxnTopic) for each in request.v3_and_below_topics),
    )
    return AddPartitionsToTxnRequest(transactions=(only,))


def downgrade(response: AddPartitionsToTxnResponse, older: type[ResponseForOne]) -> ResponseForOne:
    (only,) = response.results_by_transaction
    return older(
        throttle_time=timedelta(0),
        results_by_topic_v3_and_below=tuple(
            recast(each, OldTopicResult) for each in only.topic_results
        ),
    )


def handle(
    node: Node, client: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Adds, or verifies, for each transaction by itself."""
    return AddPartitionsToTxnResponse(
        throttle_time=timedelta(0),
        error_code=ErrorCode.NONE,
        results_by_transaction=tuple(
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=_topics(each, _codes(node, client, each)),
            )
            for each in request.transactions
        ),
    )


def _codes(
    node: Node, client: RequestContext, wanted: AddPartitionsToTxnTransaction
) -> dict[TopicPartition, ErrorCode]:
    identity = ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch)
    places = [
        TopicPartition(topic.name, index) for topic in wanted.topics for index in topic.partitions
    ]
    if wanted.verify_only:
        return node.transactions.verify_partitions(wanted.transactional_id, identity, places)
    return node.transactions.add_partitions(
        wanted.transactional_id, identity, places, client.version
    )


def _topics(
    wanted: AddPartitionsToTxnTransaction, codes: dict[TopicPartition, ErrorCode]
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=codes[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ),
        )
        for topic in wanted.topics
    )
