"""What the coordinator decides about each request: pure functions of the state and the request.

Nothing is written or remembered here. A request is judged against what was decided before it, so
that there is nothing "pending": where Kafka answers CONCURRENT_TRANSACTIONS because it is still
writing, that is answered only for a PREPARE that could not be finished.
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
    """Takes partitions into the transaction, which begins with the first. A `client_version` of 2
    is a client that lets Produce and TxnOffsetCommit add them."""
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
        # Whoever begins a transaction has had the answer to what it asked for before.
        last_epoch=NONE,
        client_version=client_version,
    )
    return Persist(ongoing, Result())


def verify(
    transaction: TransactionMetadata | None,
    identity: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
) -> Mapping[TopicPartition, ErrorCode]:
    """Whether the producer's open transaction has these partitions: what is to be asked before it
    may append to one."""
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
        # Its client has come back to end it; to be told to abort would be the wrong advice.
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.state in COMPLETED else None


def time_out(
    transaction: TransactionMetadata,
    now_ms: int,
    *,
    new_producer_id: NewProducerId,
) -> Finish | None:
    """Aborts and fences a transaction whose time is up; None where no time can end it. That it is
    up is for `timeouts.Deadlines` to say: the wall clock, which is `now_ms`, may jump."""
    if transaction.state is not TransactionState.ONGOING or transaction.is_two_phase:
        return None
    return fence(
        transaction,
        now_ms=now_ms,
        new_producer_id=new_producer_id,
    )


def is_expired(transaction: TransactionMetadata, age_ms: int, expiration_ms: int) -> bool:
    """Whether an id has been idle for so long that it is to be forgotten, with a tombstone.
    `age_ms` is how long ago its `updated_ms` was."""
    return transaction.is_idle and age_ms >= expiration_ms


def resume(transaction: TransactionMetadata, now_ms: int) -> Finish | None:
    """What is left to do for a transaction found at start: the same decision, never another. Its
    `prepare` is what was found."""
    return finish(transaction, now_ms) if transaction.state in COMPLETED else None
