"""Whether a batch of an idempotent producer is the next one, a repeat, or refused.

Every batch with a producer id is judged right before its append, in the same step of the loop. So
each of five requests in flight is judged by those before it. With a turn of the loop in between,
two sendings of one batch could both pass and both be written.
"""

from __future__ import annotations

import logging

from onceflow.broker.requests import RequestRefused
from onceflow.broker.topics import HostedPartition, HostedTopic
from onceflow.broker.txn import TransactionService
from onceflow.producers import WrittenBatch, judge
from onceflow.records import BatchHeader
from onceflow.types import TopicPartition
from onceflow.wire import IMPLICIT_PRODUCE_FROM, ErrorCode, ProducerIdAndEpoch

_log = logging.getLogger(__name__)


def admit_batch(
    transactions: TransactionService,
    topic: HostedTopic,
    partition: HostedPartition,
    header: BatchHeader,
    transactional_id: str | None,
    version: int,
) -> WrittenBatch | None:
    """None if the batch is to be appended, else the batch that it repeats. Raises `RequestRefused`.
    May add the partition to the transaction."""
    table = partition.producers
    opens = header.is_transactional and (
        not table.is_open(header.producer_id, header.producer_epoch)
        or transactions.is_closed_to_writes(header.producer_id)
    )
    if opens:
        _enter_transaction(transactions, topic, partition, header, transactional_id, version)
    producer = table.find(header.producer_id)
    verdict = judge(producer, header, from_zero=opens and version >= IMPLICIT_PRODUCE_FROM)
    if isinstance(verdict, WrittenBatch):
        return verdict
    if verdict:
        raise RequestRefused(verdict, _reason(verdict, topic, partition, header))
    if producer is None and header.base_sequence:
        _log.info(
            "%s-%d knows nothing of producer %d, which goes on at sequence %d: what it wrote "
            "before has expired, or was deleted",
            topic.name,
            partition.index,
            header.producer_id,
            header.base_sequence,
        )
    return None


def _enter_transaction(
    transactions: TransactionService,
    topic: HostedTopic,
    partition: HostedPartition,
    header: BatchHeader,
    transactional_id: str | None,
    version: int,
) -> None:
    """Asks the coordinator before the first batch of a transaction in a partition. Nobody would
    ever end a transaction that the coordinator does not know, and readers would wait for ever."""
    identity = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    place = TopicPartition(topic.name, partition.index)
    code = transactions.enter(transactional_id or "", identity, place, version)
    if code:
        raise RequestRefused(
            code, f"{topic.name}-{partition.index} is not part of an open transaction"
        )


def _reason(
    code: ErrorCode, topic: HostedTopic, partition: HostedPartition, header: BatchHeader
) -> str:
    producer = partition.producers.find(header.producer_id)
    known = "nothing" if producer is None else f"epoch {producer.epoch}"
    if producer is not None and producer.window:
        known += f" up to sequence {producer.window[-1].last_sequence}"
    return (
        f"producer {header.producer_id} sent epoch {header.producer_epoch}, sequence "
        f"{header.base_sequence} to {topic.name}-{partition.index}, where {known} is known of it"
    )
