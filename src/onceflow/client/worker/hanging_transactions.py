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

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from onceflow.client.codec import ProducerIdentity
from onceflow.client.errors import BrokerError
from onceflow.client.net import RetryPolicy
from onceflow.client.types import by_topic
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.connection import BlockingConnection
from onceflow.errors import MessageMalformed
from onceflow.records import partition_by_hash
from onceflow.types import TopicPartition
from onceflow.wire import (
    INT16,
    INT32,
    ApiKey,
    ErrorCode,
    count,
    read_count,
    read_int,
    read_text,
    skip_tags,
    text,
)

_OFFSETS_TOPIC: Final = "__consumer_offsets"
_FLEXIBLE: Final = True
_NO_TAGS: Final = b"\x00"
_NONE_OPEN: Final = -1
_PRODUCER: Final = struct.Struct(">qiiqiq")


class HangingTransaction(NamedTuple):
    """A transaction that a leader holds open."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int


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
            body, key = write_describe_producers(portion), ApiKey.DESCRIBE_PRODUCERS
            answer = cluster.ask(connection, key, body, read_describe_producers, deadline)
            for partition, code in answer.errors.items():
                if code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise BrokerError(code, key.name, f"partition {partition}")
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


# --- the message --------------------------------------------------------------------------------


class DescribedProducers(NamedTuple):
    """The open transactions that a leader reports, and the partitions that it refuses to report."""

    open: list[HangingTransaction]
    errors: dict[TopicPartition, int]


def write_describe_producers(partitions: Iterable[TopicPartition]) -> bytes:
    topics = by_topic(partitions)
    parts = [count(_FLEXIBLE, len(topics))]
    for topic, numbers in topics.items():
        packed = [INT32.pack(each) for each in numbers]
        parts += (text(_FLEXIBLE, topic), count(_FLEXIBLE, len(packed)), *packed, _NO_TAGS)
    return b"".join((*parts, _NO_TAGS))


def read_describe_producers(buffer: memoryview) -> DescribedProducers:
    described = DescribedProducers([], {})
    topics, at = read_count(_FLEXIBLE, buffer, INT32.size)
    for _ in range(topics):
        topic, at = read_text(_FLEXIBLE, buffer, at)
        partitions, at = read_count(_FLEXIBLE, buffer, at)
        for _ in range(partitions):
            at = _read_partition(described, topic or "", buffer, at)
        at = skip_tags(buffer, at)
    return described


def _read_partition(described: DescribedProducers, topic: str, buffer: memoryview, at: int) -> int:
    number, at = read_int(INT32, buffer, at)
    error, at = read_int(INT16, buffer, at)
    _, at = read_text(_FLEXIBLE, buffer, at)
    partition = TopicPartition(topic, number)
    if error:
        described.errors[partition] = error
    producers, at = read_count(_FLEXIBLE, buffer, at)
    for _ in range(producers):
        if at + _PRODUCER.size > len(buffer):
            raise MessageMalformed(f"the answer is cut off at byte {at}")
        producer_id, epoch, _, _, _, start = _PRODUCER.unpack_from(buffer, at)
        at = skip_tags(buffer, at + _PRODUCER.size)
        if start != _NONE_OPEN:
            described.open.append(HangingTransaction(partition, producer_id, epoch, start))
    return skip_tags(buffer, at)
