"""Repairs transactions after a stop that may have lost the end of every log.

Only with `durability="os"`, where each log may have lost a different end: a marker may be gone
while its decision is there, or a decision while its records are there. Acknowledged data may be
gone too; the setting says so. But no transaction may stay open for ever, and the coordinator must
not give out an epoch that a partition has already seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from onceflow.broker.topics import Topics
from onceflow.broker.txn.markers import Markers
from onceflow.broker.txn.state_store import TransactionStateStore
from onceflow.log import Purpose
from onceflow.producers import OngoingTransaction
from onceflow.txn import NewProducerId, TransactionMetadata, TransactionState, fence, moved
from onceflow.types import TopicPartition
from onceflow.wire import TRANSACTION_V2

_log = logging.getLogger(__name__)
_NO_COORDINATOR = 0


def repair(
    topics: Topics,
    store: TransactionStateStore,
    markers: Markers,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> None:
    """Raises the coordinator's epochs to those in use, then ends every transaction that the
    coordinator does not know to be open."""
    seen = _epochs_in_use(topics)
    for transaction in list(store.all()):
        newest = seen.get(transaction.producer_id, transaction.epoch)
        if newest > transaction.epoch:
            _log.warning(
                "the newest records about transactional id %r are lost: its epoch is %d, not %d",
                transaction.transactional_id,
                newest,
                transaction.epoch,
            )
            _catch_up(store, replace(transaction, epoch=newest), now_ms, new_producer_id)
    owners = {each.producer_id: each for each in store.all()}
    for place, found in list(_open_transactions(topics)):
        owner = owners.get(found.producer_id)
        if owner is None or not _is_known_open(owner, place, found):
            _end(markers, place, found, owner)


def _epochs_in_use(topics: Topics) -> dict[int, int]:
    """The largest epoch of each producer in any partition."""
    seen: dict[int, int] = {}
    for topic in topics.by_name.values():
        for partition in topic.partitions:
            for producer_id, producer in partition.producers.producers():
                seen[producer_id] = max(seen.get(producer_id, 0), producer.epoch)
    return seen


def _catch_up(
    store: TransactionStateStore,
    transaction: TransactionMetadata,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> None:
    if transaction.is_idle:
        store.write(moved(transaction, TransactionState.EMPTY), Purpose.TRANSACTION_ENDS)
        return
    store.finish(fence(transaction, now_ms=now_ms, new_producer_id=new_producer_id))


def _open_transactions(topics: Topics) -> Iterator[tuple[TopicPartition, OngoingTransaction]]:
    for topic in topics.by_name.values():
        for partition in topic.partitions:
            for found in partition.producers.open_transactions():
                yield TopicPartition(topic.name, partition.index), found


def _is_known_open(
    owner: TransactionMetadata, place: TopicPartition, found: OngoingTransaction
) -> bool:
    return (
        owner.state is TransactionState.ONGOING
        and owner.epoch == found.epoch
        and place in owner.partitions
    )


def _end(
    markers: Markers,
    place: TopicPartition,
    found: OngoingTransaction,
    owner: TransactionMetadata | None,
) -> None:
    """Ends a transaction as it was decided, if that is known; otherwise aborts it, because nothing
    shows that it was committed."""
    commit = (
        owner is not None
        and owner.state is TransactionState.COMPLETE_COMMIT
        and owner.client_version >= TRANSACTION_V2
        and owner.epoch == found.epoch + 1
    )
    _log.warning(
        "%s the transaction of producer %d that was left open in %s-%d from offset %d on",
        "committed" if commit else "aborted",
        found.producer_id,
        *place,
        found.first_offset,
    )
    markers.write(
        place,
        found.producer_id,
        found.epoch if owner is None else max(owner.epoch, found.epoch),
        commit=commit,
        coordinator_epoch=max(found.coordinator_epoch, _NO_COORDINATOR),
    )
