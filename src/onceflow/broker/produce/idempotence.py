"""Whether a batch of an idempotent producer is the next one, a repeat of one, or refused.

Asked for every batch with a producer id right before it is appended, in the same step: so of five
requests in flight each is judged against the ones before it.
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
    """None for a batch to append, else the batch that it repeats. Raises `RequestRefused`."""
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
    """The first batch of a transaction in a partition is asked for at the coordinator: what it does
    not know of, nobody would ever end, and readers would wait for that for ever."""
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
