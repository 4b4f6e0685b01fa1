"""What the coordinator decides about each request: pure functions of the state and the request.

These functions write and remember nothing. Each request is judged by the decisions before it,
whether they are durable or not, so there is no "pending" state: Kafka answers
CONCURRENT_TRANSACTIONS while it writes, Onceflow only for a PREPARE that it could not finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onceflow.txn.decisions import (
    Answered,
    Decision,
    Finish,
    Persist,
    Rejected,
    Result,
    TransactionLimits,
)
from onceflow.txn.ending import COMPLETED, NewProducerId, end, fence, finish
from onceflow.txn.fencing import code_for, stranger
from onceflow.txn.initialising import ProducerIdRequest, init_producer_id
from onceflow.txn.state import NONE, TransactionMetadata, TransactionState, moved
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode, ProducerIdAndEpoch

__all__ = [
    "Answered",
    "Decision",
    "Finish",
    "ProducerIdAndEpoch",
    "ProducerIdRequest",
    "TransactionLimits",
    "NewProducerId",
    "Rejected",
    "Result",
    "TransactionState",
    "TopicPartition",
    "TransactionMetadata",
    "Persist",
    "add_partitions",
    "code_for",
    "end",
    "init_producer_id",
    "is_expired",
    "resume",
    "time_out",
    "verify",
]


def add_partitions(
    transaction: TransactionMetadata | None,
    identity: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    *,
    now_ms: int,
    limits: TransactionLimits,
    client_version: int = 0,
) -> Decision:
    """Adds partitions to the transaction; the first ones begin it. A `client_version` of 2 means
    that Produce and TxnOffsetCommit add them implicitly."""
    refusal = _refusal(transaction, identity)
    if transaction is None or refusal is not None:
        return Rejected(refusal or ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    wanted = frozenset(partitions)
    if transaction.state is TransactionState.ONGOING and wanted <= transaction.partitions:
        return Answered(Result())
    together = transaction.partitions | wanted
    if len(together) > limits.max_partitions_per_transaction:
        return Rejected(ErrorCode.POLICY_VIOLATION)
    ongoing = moved(
        transaction,
        TransactionState.ONGOING,
        partitions=together,
        started_ms=now_ms if transaction.is_idle else transaction.started_ms,
        updated_ms=now_ms,
        # A client that adds partitions has received its last answer: from here on only a zombie
        # would repeat the request before this one.
        last_epoch=NONE,
        client_version=client_version,
    )
    return Persist(ongoing, Result())


def verify(
    transaction: TransactionMetadata | None,
    identity: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
) -> Mapping[TopicPartition, ErrorCode]:
    """Whether the producer's open transaction has these partitions. A partition asks this before it
    appends a batch of the transaction."""
    refusal = _refusal(transaction, identity)
    if transaction is None or refusal is not None:
        return dict.fromkeys(partitions, refusal or ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    return {
        each: ErrorCode.NONE if each in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for each in partitions
    }


def _refusal(
    transaction: TransactionMetadata | None, identity: ProducerIdAndEpoch
) -> ErrorCode | None:
    """Why this producer may not add to the transaction."""
    code = stranger(transaction, identity)
    if transaction is None or code is not None:
        return code
    if transaction.is_kept:
        # The client came back to end a prepared transaction; TRANSACTION_ABORTABLE would advise it
        # to abort.
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.state in COMPLETED else None


def time_out(
    transaction: TransactionMetadata,
    now_ms: int,
    *,
    new_producer_id: NewProducerId,
) -> Finish | None:
    """Aborts and fences a transaction whose timeout has passed; None for one that has no timeout.
    `timeouts.Deadlines` decides when it has passed: `now_ms` is the wall clock, which may jump."""
    if transaction.state is not TransactionState.ONGOING or transaction.is_two_phase:
        return None
    return fence(
        transaction,
        now_ms=now_ms,
        new_producer_id=new_producer_id,
    )


def is_expired(transaction: TransactionMetadata, age_ms: int, expiration_ms: int) -> bool:
    """Whether an id has been idle long enough for a tombstone. `age_ms` is the time since its
    `updated_ms`."""
    return transaction.is_idle and age_ms >= expiration_ms


def resume(transaction: TransactionMetadata, now_ms: int) -> Finish | None:
    """What a start still has to do for a transaction that it found decided; None if nothing. Its
    `prepare` is the record that was found."""
    # Never decide anew here: some markers of the first decision may be in the log already.
    return finish(transaction, now_ms) if transaction.state in COMPLETED else None
