"""DescribeTransactions, version 0: the state of single transactional ids, all that is known of it.

While a transaction is being ended, only the partitions are listed that lack their marker.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

from onceflow.broker.requests import Answer, RequestContext, once_each
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def handle(
    node: Node, client: RequestContext, request: DescribeTransactionsRequest
) -> Answer[DescribeTransactionsResponse]:
    """Looks each id up; answers when what it has seen is durable."""
    asked = once_each(request.transactional_ids)
    response = DescribeTransactionsResponse(
        throttle_time=timedelta(0),
        transaction_states=tuple(_state(node, each) for each in asked),
    )
    found = (node.transactions.find(each) for each in asked)
    return node.transactions.once_durable([each for each in found if each is not None], response)


def _state(node: Node, transactional_id: str) -> TransactionState:
    transaction = node.transactions.find(transactional_id) if transactional_id else None
    if transaction is None:
        return TransactionState(
            error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            if transactional_id
            else ErrorCode.INVALID_REQUEST,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout=timedelta(0),
            transaction_start_time=_EPOCH,
            producer_id=0,
            producer_epoch=0,
            topics=(),
        )
    return TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=transaction.state.title,
        transaction_timeout=timedelta(milliseconds=transaction.timeout_ms),
        transaction_start_time=_EPOCH + timedelta(milliseconds=transaction.started_ms),
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=_topics(node.transactions.partitions_of(transaction)),
    )


def _topics(places: Iterable[TopicPartition]) -> tuple[TopicData, ...]:
    by_topic: dict[str, list[int]] = {}
    for place in sorted(places):
        by_topic.setdefault(place.topic, []).append(place.partition)
    return tuple(TopicData(topic=topic, partitions=(*each,)) for topic, each in by_topic.items())
