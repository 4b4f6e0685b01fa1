"""InitProducerId: a producer gets a new identity, which fences every producer with the old one.

A producer that recovers from an error names the identity it has. If that identity has been
replaced, the coordinator refuses at once. Kafka first aborts the transaction that the successor has
open; a zombie must never do that to a prepared transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceflow.txn.decisions import Answered, Decision, Persist, Rejected, Result, TransactionLimits
from onceflow.txn.ending import COMPLETED, NewProducerId, answered_with, fence, following
from onceflow.txn.state import NEVER_MS, NONE, TransactionMetadata, TransactionState, moved
from onceflow.wire import ErrorCode, ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class ProducerIdRequest:
    """An InitProducerId request."""

    transactional_id: str | None
    timeout_ms: int
    producer_id: int = NONE
    epoch: int = NONE
    enable_2pc: bool = False
    keep_prepared_txn: bool = False

    @property
    def expected(self) -> ProducerIdAndEpoch | None:
        """The identity that the producer has, if it is not new."""
        return (
            None if self.producer_id == NONE else ProducerIdAndEpoch(self.producer_id, self.epoch)
        )


def init_producer_id(
    transaction: TransactionMetadata | None,
    request: ProducerIdRequest,
    *,
    now_ms: int,
    limits: TransactionLimits,
    new_producer_id: NewProducerId,
) -> Decision:
    """Gives a producer its identity, and aborts what its predecessor left open."""
    refusal = _unfit(request, limits)
    if refusal is not None:
        return Rejected(refusal)
    if request.transactional_id is None:
        return Answered(Result(new_producer_id(), 0))
    timeout_ms = NEVER_MS if request.enable_2pc else request.timeout_ms
    if transaction is None:
        return _created(request.transactional_id, timeout_ms, now_ms, new_producer_id())
    if _is_stranger(transaction, request.expected):
        return Rejected(ErrorCode.PRODUCER_FENCED)
    if transaction.state in COMPLETED:
        # The outcome is decided, only markers are missing: to fence now would decide a second time,
        # and perhaps abort what PREPARE_COMMIT has promised. The client asks again.
        return Rejected(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.is_idle:
        return _next_identity(transaction, request.expected, timeout_ms, now_ms, new_producer_id)
    # Before `fence`: this flag is all that keeps a prepared transaction from being aborted.
    if request.keep_prepared_txn:
        return _kept(transaction, request, now_ms, new_producer_id)
    if request.expected not in (None, transaction.client):
        return Rejected(ErrorCode.PRODUCER_FENCED)
    fenced = fence(
        transaction,
        now_ms=now_ms,
        new_producer_id=new_producer_id,
    )
    return answered_with(fenced, ErrorCode.CONCURRENT_TRANSACTIONS)


def _unfit(request: ProducerIdRequest, limits: TransactionLimits) -> ErrorCode | None:
    """Why this request is invalid in every state of the transactional id."""
    if (request.producer_id == NONE) != (request.epoch == NONE):
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is None:
        return None
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if request.enable_2pc and not limits.two_phase_commit_enabled:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if request.keep_prepared_txn and not limits.two_phase_commit_enabled:
        return ErrorCode.UNSUPPORTED_VERSION
    if not request.enable_2pc and not 0 < request.timeout_ms <= limits.max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return None


def _is_stranger(transaction: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> bool:
    """Whether the producer names a producer id that this transactional id does not know."""
    known = {transaction.producer_id, transaction.client.producer_id}
    if transaction.previous is not None:
        known.add(transaction.previous.producer_id)
    return expected is not None and expected.producer_id not in known


def _created(transactional_id: str, timeout_ms: int, now_ms: int, producer_id: int) -> Persist:
    created = TransactionMetadata(
        transactional_id, producer_id, 0, timeout_ms, TransactionState.EMPTY, now_ms
    )
    return Persist(created, Result(producer_id, 0))


def _next_identity(
    transaction: TransactionMetadata,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> Decision:
    """With no transaction open: the next epoch, or the same one again for a repeated request."""
    current = transaction.client
    # First the repeat: its identity is already the previous one, so the check below would fence a
    # client that merely lost the answer.
    if expected is not None and expected == transaction.previous:
        return _repeated(transaction, timeout_ms, now_ms)
    if expected not in (None, current):
        return Rejected(ErrorCode.PRODUCER_FENCED)
    given = following(current, new_producer_id)
    emptied = moved(
        transaction,
        TransactionState.EMPTY,
        producer_id=given.producer_id,
        epoch=given.epoch,
        last_epoch=NONE if expected is None else current.epoch,
        timeout_ms=timeout_ms,
        started_ms=NONE,
        updated_ms=now_ms,
    )
    return Persist(emptied, Result(*given))


def _repeated(transaction: TransactionMetadata, timeout_ms: int, now_ms: int) -> Decision:
    result = Result(*transaction.client)
    if transaction.state is TransactionState.EMPTY and transaction.timeout_ms == timeout_ms:
        return Answered(result)
    emptied = moved(
        transaction,
        TransactionState.EMPTY,
        # Kept, so that the request can be repeated once more.
        previous_producer_id=transaction.previous_producer_id,
        timeout_ms=timeout_ms,
        started_ms=NONE,
        updated_ms=now_ms,
    )
    return Persist(emptied, result)


def _kept(
    transaction: TransactionMetadata,
    request: ProducerIdRequest,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> Decision:
    """The open transaction stays as it is, for a new client that may only end it."""
    current, expected = transaction.client, request.expected
    ongoing = (transaction.producer_id, transaction.epoch)
    if expected is not None and expected == transaction.previous:
        return Answered(Result(*current, *ongoing))
    if expected not in (None, current):
        return Rejected(ErrorCode.PRODUCER_FENCED)
    given = following(current, new_producer_id)
    kept = moved(
        transaction,
        TransactionState.ONGOING,
        next_producer_id=given.producer_id,
        next_producer_epoch=given.epoch,
        previous_producer_id=current.producer_id,
        last_epoch=NONE if expected is None else current.epoch,
        # A prepared transaction never gets a timeout: only its application may decide it.
        timeout_ms=NEVER_MS if request.enable_2pc else transaction.timeout_ms,
        updated_ms=now_ms,
    )
    return Persist(kept, Result(*given, *ongoing))
