"""Transactions as operators see them: list them, describe them, find and abort hanging ones.

Coordinators know transactional ids; the leaders of partitions know producers and where their open
transactions begin. A transaction hangs when a leader holds it open and no coordinator will end it:
consumers of committed records wait behind it until an operator aborts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from onceflow.client.errors import ApiNotServed, BrokerError, ClientError
from onceflow.client.net import Cluster, CoordinatorOf, check
from onceflow.client.types import (
    ActiveProducer,
    ListedTransaction,
    PartitionTransaction,
    TransactionDescription,
    by_topic,
)
from onceflow.errors import InvalidSetting
from onceflow.runtime import message_library
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse, ProducerState
    from kio.schema.describe_transactions.v0.response import (
        DescribeTransactionsResponse,
        TransactionState,
    )
    from kio.schema.list_transactions.v1.response import ListTransactionsResponse
    from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse

LONGEST_TIMEOUT_MS: Final = 15 * 60 * 1000
"""The brokers' default limit (transaction.max.timeout.ms)."""
_ANY_DURATION: Final = -1
_DURATION_FROM: Final = 1
_NEVER: Final = -1
_NONE_OPEN: Final = -1
_MOST_PARTITIONS: Final = 500
"""In one request."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


Producers: TypeAlias = dict[TopicPartition, tuple[ActiveProducer, ...]]


class TransactionNotFound(ClientError):
    """There is no such transactional id, or no transaction open where one was looked for."""


# --- coordinators -------------------------------------------------------------------------------


async def list_transactions(
    cluster: Cluster,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    open_longer_than_ms: int | None = None,
) -> list[ListedTransaction]:
    """The transactional ids of all coordinators, by name, that match one value of each filter. An
    id that never had a transaction counts as open for ever: to find old open transactions, filter
    by the state `Ongoing` too."""
    with message_library:
        from kio.schema.list_transactions.v1.request import ListTransactionsRequest

    duration = _ANY_DURATION if open_longer_than_ms is None else open_longer_than_ms
    request = ListTransactionsRequest(
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=duration,
    )

    async def ask(node_id: int) -> list[ListedTransaction]:
        connection = await cluster.broker(node_id)
        version = connection.version_of(ApiKey.LIST_TRANSACTIONS)
        # An older version has no such field: the broker would list all, as if all were that old.
        if duration != _ANY_DURATION and version < _DURATION_FROM:
            raise ApiNotServed(f"the broker at {connection.address} cannot list by duration")
        answer: ListTransactionsResponse = await connection.request(
            ApiKey.LIST_TRANSACTIONS, request
        )
        check(ApiKey.LIST_TRANSACTIONS, answer, f"broker {node_id}")
        if answer.unknown_state_filters:
            unknown = ", ".join(map(repr, answer.unknown_state_filters))
            raise InvalidSetting(f"{unknown}: not a state of a transaction; 'Ongoing' is one")
        return [
            ListedTransaction(each.transactional_id, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
        ]

    async def attempt() -> list[ListedTransaction]:
        await cluster.metadata([])
        parts = await asyncio.gather(*map(ask, cluster.node_ids))
        found = [each for part in parts for each in part]
        return sorted(found, key=lambda each: each.transactional_id)

    return await cluster.retrying(attempt)


async def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """A transaction, as its coordinator knows it; raises `TransactionNotFound`."""
    with message_library:
        from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

    subject = f"transactional id {transactional_id!r}"
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))

    async def attempt() -> TransactionDescription:
        connection = await cluster.coordinator(transactional_id, CoordinatorOf.TRANSACTION)
        answer: DescribeTransactionsResponse = await connection.request(
            ApiKey.DESCRIBE_TRANSACTIONS, request
        )
        for found in answer.transaction_states:
            check(ApiKey.DESCRIBE_TRANSACTIONS, found, subject)
            return _description(found, str(connection.address))
        raise TransactionNotFound(f"there is no {subject}")

    try:
        return await cluster.retrying(attempt)
    except BrokerError as error:
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise TransactionNotFound(f"there is no {subject}") from error
        raise


def _description(found: TransactionState, coordinator: str) -> TransactionDescription:
    start_ms = (found.transaction_start_time - _EPOCH) // _MILLISECOND
    return TransactionDescription(
        transactional_id=found.transactional_id,
        coordinator=coordinator,
        state=found.transaction_state,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout // _MILLISECOND,
        start_ms=None if start_ms == _NEVER else start_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, number)
            for topic in found.topics
            for number in topic.partitions
        ),
    )


async def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription]:
    """Descriptions of the transactional ids that exist."""

    async def ask(transactional_id: str) -> TransactionDescription | None:
        try:
            return await describe_transaction(cluster, transactional_id)
        except TransactionNotFound:
            return None

    names = sorted(set(transactional_ids))
    found = await asyncio.gather(*map(ask, names))
    return {name: each for name, each in zip(names, found, strict=True) if each is not None}


# --- leaders ------------------------------------------------------------------------------------


async def describe_producers(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Producers:
    """The producers that the leaders of partitions remember."""
    asked = list(partitions)
    found: Producers = {}
    for start in range(0, len(asked), _MOST_PARTITIONS):
        portion = asked[start : start + _MOST_PARTITIONS]

        async def attempt(portion: list[TopicPartition] = portion) -> list[Producers]:
            leaders = await cluster.by_leader(portion)
            return await asyncio.gather(
                *(_producers_of(cluster, leader, led) for leader, led in leaders.items())
            )

        for part in await cluster.retrying(attempt):
            found.update(part)
    return found


async def _producers_of(
    cluster: Cluster, leader: int, partitions: list[TopicPartition]
) -> Producers:
    with message_library:
        from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest

    topics = tuple(
        TopicRequest(name=topic, partition_indexes=tuple(numbers))
        for topic, numbers in by_topic(partitions).items()
    )
    connection = await cluster.broker(leader)
    request = DescribeProducersRequest(topics=topics)
    answer: DescribeProducersResponse = await connection.request(ApiKey.DESCRIBE_PRODUCERS, request)
    found = {}
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            check(ApiKey.DESCRIBE_PRODUCERS, each, f"partition {partition}")
            found[partition] = tuple(map(_producer, each.active_producers))
    return found


def _producer(found: ProducerState) -> ActiveProducer:
    start = found.current_txn_start_offset
    return ActiveProducer(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        last_sequence=found.last_sequence,
        last_timestamp_ms=found.last_timestamp,
        coordinator_epoch=found.coordinator_epoch,
        transaction_start_offset=None if start == _NONE_OPEN else start,
    )


async def open_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> list[PartitionTransaction]:
    """All transactions that leaders hold open, by partition and offset, with their transactional
    ids. Consumers of committed records wait for the first one of a partition."""
    found = _open(await describe_producers(cluster, partitions))
    return _named(found, await _owners(cluster, found))


def _open(
    producers: Mapping[TopicPartition, Iterable[ActiveProducer]],
) -> list[PartitionTransaction]:
    found = [
        PartitionTransaction(partition, each, each.transaction_start_offset)
        for partition, active in producers.items()
        for each in active
        if each.transaction_start_offset is not None
    ]
    return sorted(found, key=lambda each: (each.partition, each.start_offset))


async def _owners(cluster: Cluster, found: Iterable[PartitionTransaction]) -> dict[int, str]:
    """The transactional ids of producers, where a coordinator knows one."""
    producer_ids = {each.producer.producer_id for each in found}
    if not producer_ids:
        return {}
    listed = await list_transactions(cluster, producer_ids=sorted(producer_ids))
    return {each.producer_id: each.transactional_id for each in listed}


def _named(
    found: Iterable[PartitionTransaction], owners: Mapping[int, str]
) -> list[PartitionTransaction]:
    return [
        PartitionTransaction(
            each.partition,
            each.producer,
            each.start_offset,
            owners.get(each.producer.producer_id),
        )
        for each in found
    ]


async def find_hanging(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    *,
    now_ms: int,
    longest_timeout_ms: int = LONGEST_TIMEOUT_MS,
) -> list[PartitionTransaction]:
    """Open transactions without a write for longer than any transaction may last, which no
    coordinator will end in that partition."""
    found = _open(await describe_producers(cluster, partitions))
    old = [each for each in found if now_ms - each.producer.last_timestamp_ms > longest_timeout_ms]
    owners = await _owners(cluster, old)
    return hanging(_named(old, owners), await describe_transactions(cluster, owners.values()))


def hanging(
    found: Iterable[PartitionTransaction], described: Mapping[str, TransactionDescription]
) -> list[PartitionTransaction]:
    """The transactions that no coordinator will end. A coordinator lists all partitions that are
    still to get a marker: a partition that it does not list never gets one."""

    def is_looked_after(each: PartitionTransaction) -> bool:
        known = described.get(each.transactional_id or "")
        return known is not None and each.partition in known.partitions

    return [each for each in found if not is_looked_after(each)]


async def end_open_transaction(
    cluster: Cluster, partition: TopicPartition, start_offset: int, *, commit: bool
) -> PartitionTransaction:
    """Ends the transaction that begins at `start_offset`, in this one partition, without its
    coordinator. Only for a hanging transaction: the coordinator of any other one may still end it
    the other way in its other partitions. Raises `TransactionNotFound` when none is open there."""
    sent: list[PartitionTransaction] = []

    async def attempt() -> PartitionTransaction:
        for each in _open(await describe_producers(cluster, [partition])):
            if each.start_offset == start_offset:
                sent.append(each)
                await _write_marker(cluster, each, commit)
                return each
        if sent:  # an attempt whose answer was lost has done it
            return sent[-1]
        raise TransactionNotFound(
            f"no transaction that begins at offset {start_offset} is open in partition {partition}"
        )

    return await cluster.retrying(attempt)


async def _write_marker(cluster: Cluster, found: PartitionTransaction, commit: bool) -> None:
    with message_library:
        from kio.schema.write_txn_markers.v1.request import (
            WritableTxnMarker,
            WritableTxnMarkerTopic,
            WriteTxnMarkersRequest,
        )

    topic, number = found.partition
    marker = WritableTxnMarker(
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.producer_epoch,
        transaction_result=commit,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(number,)),),
        # A leader that has seen no coordinator takes any.
        coordinator_epoch=max(0, found.producer.coordinator_epoch),
    )
    connection = await cluster.broker(await cluster.leader(found.partition))
    request = WriteTxnMarkersRequest(markers=(marker,))
    answer: WriteTxnMarkersResponse = await connection.request(ApiKey.WRITE_TXN_MARKERS, request)
    for each in answer.markers:
        for written in each.topics:
            for result in written.partitions:
                check(ApiKey.WRITE_TXN_MARKERS, result, f"partition {found.partition}")
