"""Hanging transactions: those that a transactional producer has left open, as the partitions'
leaders see them.

A producer that begins a transaction in a partition where an older one of its own is still open ends
both with one marker: rows of an aborted attempt would be committed with the next, or committed ones
aborted.
Coordinators write a marker to every partition before they allow the next transaction; but Apache
Kafka's coordinator takes a partition without a known leader for deleted (KAFKA-20734), so the
leaders have to be asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from onceflow.client.codec import (
    HangingTransaction,
    ProducerIdentity,
    describe_producers_request,
)
from onceflow.client.errors import BrokerError
from onceflow.client.net import RetryPolicy
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.connection import BlockingConnection
from onceflow.records import partition_by_hash
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

_OFFSETS_TOPIC: Final = "__consumer_offsets"


class HangingTransactionsReport(NamedTuple):
    """The leaders' responses together."""

    left: tuple[HangingTransaction, ...]
    hidden: frozenset[str]
    """Topics whose producers this user may not see."""


def find_hanging_transactions(
    cluster: BlockingCluster,
    policy: RetryPolicy,
    mine: ProducerIdentity,
    partitions: Iterable[TopicPartition],
) -> HangingTransactionsReport:
    """Transactions of this producer's older epochs that are open in these partitions."""
    asked = tuple(dict.fromkeys(partitions))

    def attempt(deadline: float, refind: bool) -> HangingTransactionsReport:
        if refind:
            cluster.refresh({partition.topic for partition in asked}, deadline)
        led: dict[BlockingConnection, list[TopicPartition]] = {}
        for partition in asked:
            led.setdefault(cluster.leader(partition, deadline), []).append(partition)
        left: list[HangingTransaction] = []
        hidden: set[str] = set()
        for connection, portion in led.items():
            request = describe_producers_request(portion)
            answer = cluster.ask(connection, request, deadline)
            for partition, code in answer.errors.items():
                if code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise BrokerError(code, request.api.name, f"partition {partition}")
                hidden.add(partition.topic)
            left += answer.open
        return HangingTransactionsReport(
            tuple(each for each in left if _is_older(each, mine)), frozenset(hidden)
        )

    return cluster.trying(attempt, policy)


def _is_older(transaction: HangingTransaction, mine: ProducerIdentity) -> bool:
    return (
        transaction.producer_id == mine.producer_id
        and transaction.producer_epoch < mine.producer_epoch
    )


def offsets_partitions(
    cluster: BlockingCluster, policy: RetryPolicy, groups: Iterable[str]
) -> dict[str, TopicPartition]:
    """The partition that keeps each group's offsets; empty when the offsets topic is hidden or does
    not exist yet."""

    def attempt(deadline: float, refind: bool) -> int:
        cluster.refresh({_OFFSETS_TOPIC}, deadline)
        return cluster.partition_count(_OFFSETS_TOPIC)

    if not (partitions := cluster.trying(attempt, policy)):
        return {}
    return {
        group: TopicPartition(_OFFSETS_TOPIC, partition_by_hash(group, partitions))
        for group in groups
    }
