"""How a transaction ends: the PREPARE that decides it and the COMPLETE that follows it. The tables
say how EndTxn answers a commit and an abort in each state.

From transaction version 2 on, every end gives the client a new epoch, or a new producer id when no
epoch is left. The markers carry the epoch above the transaction's, so partitions refuse its late
batches. A prepared transaction that was kept has two identities: its own, which the markers build
on, and that of the client that came back to end it.

From EndTxn version 5 on, each transaction has its own epoch, so an EndTxn shows whether it means
the open transaction or the one before, whose answer was lost. It counts as a repeat only if it
carries exactly the identity that asked for the last end. Kafka compares the epoch alone, and may
report to a zombie that it committed what its successor did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, TypeAlias

from onceflow.errors import InvariantViolated
from onceflow.txn.decisions import Answered, Decision, Finish, Rejected, Result
from onceflow.txn.fencing import stranger
from onceflow.txn.state import NONE, TransactionMetadata, TransactionState, moved
from onceflow.wire import LAST_EPOCH, TRANSACTION_V2, ErrorCode, ProducerIdAndEpoch

NewProducerId = Callable[[], int]

COMPLETED: Final[Mapping[TransactionState, TransactionState]] = MappingProxyType(
    {
        TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
        TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
    }
)


def following(identity: ProducerIdAndEpoch, new_producer_id: NewProducerId) -> ProducerIdAndEpoch:
    """The identity that follows this one."""
    if identity.is_exhausted:
        return ProducerIdAndEpoch(new_producer_id(), 0)
    return ProducerIdAndEpoch(identity.producer_id, identity.epoch + 1)


def end_with_new_epoch(
    transaction: TransactionMetadata, commit: bool, *, now_ms: int, new_producer_id: NewProducerId
) -> Finish:
    """Ends it as transaction version 2 does: the client goes on with the identity in the answer."""
    client = transaction.client
    after = following(client, new_producer_id)
    kept = transaction.is_kept
    prepare = moved(
        transaction,
        _prepare_state(commit),
        # The markers carry this epoch. If it were that of the records, a partition would accept a
        # delayed batch of this transaction behind its marker, as part of the next one.
        epoch=min(transaction.epoch + 1, LAST_EPOCH),
        # By this a repeated EndTxn is recognised; without it a lost answer fences the client.
        last_epoch=client.epoch,
        previous_producer_id=client.producer_id if kept else NONE,
        next_producer_id=after.producer_id if kept or client.is_exhausted else NONE,
        next_producer_epoch=after.epoch if kept else NONE,
        started_ms=now_ms if transaction.is_idle else transaction.started_ms,
        updated_ms=now_ms,
        client_version=TRANSACTION_V2,
    )
    return finish(prepare, now_ms)


def end_with_same_epoch(transaction: TransactionMetadata, commit: bool, *, now_ms: int) -> Finish:
    """Ends it as older versions do: the client keeps its identity. Markers of a kept transaction
    still carry the next epoch, which fences the producers that had it before."""
    prepare = moved(
        transaction,
        _prepare_state(commit),
        epoch=min(transaction.epoch + transaction.is_kept, LAST_EPOCH),
        last_epoch=NONE,
        updated_ms=now_ms,
        client_version=0,
    )
    return finish(prepare, now_ms)


def fence(
    transaction: TransactionMetadata, *, now_ms: int, new_producer_id: NewProducerId
) -> Finish:
    """Aborts a transaction that its client did not end, and fences that client with a new epoch. A
    client of version 2 can come back: the answer shows it what happened."""
    fenced = moved(transaction, TransactionState.PREPARE_EPOCH_FENCE)
    return end_with_new_epoch(fenced, commit=False, now_ms=now_ms, new_producer_id=new_producer_id)


def finish(prepare: TransactionMetadata, now_ms: int) -> Finish:
    """What a PREPARE leads to, whether just decided or found at start."""
    client = prepare.client
    asked = prepare.previous_producer_id
    if asked == NONE and client.producer_id != prepare.producer_id:
        asked = prepare.producer_id
    complete = moved(
        prepare,
        COMPLETED[prepare.state],
        producer_id=client.producer_id,
        epoch=client.epoch,
        previous_producer_id=asked,
        next_producer_id=NONE,
        next_producer_epoch=NONE,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
    return Finish(
        prepare,
        complete,
        prepare.state is TransactionState.PREPARE_COMMIT,
        tuple(sorted(prepare.partitions)),
        Result(*client),
    )


def answered_with(finishing: Finish, code: ErrorCode) -> Finish:
    """The same ending, with an error as its answer that makes the client ask again."""
    return replace(finishing, result=Result(error=code))


def _prepare_state(commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT


FIRST_WITH_NEW_EPOCH: Final = 5


class EndStep(Enum):
    """What an EndTxn does where it is not refused."""

    END = auto()
    NOTHING = auto()
    """An earlier request has ended it in this way."""


EndOutcome: TypeAlias = ErrorCode | EndStep

_COMMIT, _ABORT = True, False
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED

SAME_EPOCH: Final[Mapping[tuple[TransactionState, bool], EndOutcome]] = MappingProxyType(
    {
        (TransactionState.EMPTY, _ABORT): _INVALID,
        (TransactionState.EMPTY, _COMMIT): _INVALID,
        (TransactionState.ONGOING, _ABORT): EndStep.END,
        (TransactionState.ONGOING, _COMMIT): EndStep.END,
        (TransactionState.PREPARE_COMMIT, _ABORT): _INVALID,
        (TransactionState.PREPARE_COMMIT, _COMMIT): _BUSY,
        (TransactionState.PREPARE_ABORT, _ABORT): _BUSY,
        (TransactionState.PREPARE_ABORT, _COMMIT): _INVALID,
        (TransactionState.COMPLETE_COMMIT, _ABORT): _INVALID,
        (TransactionState.COMPLETE_COMMIT, _COMMIT): EndStep.NOTHING,
        (TransactionState.COMPLETE_ABORT, _ABORT): EndStep.NOTHING,
        (TransactionState.COMPLETE_ABORT, _COMMIT): _INVALID,
    }
)
"""Up to EndTxn version 4."""

CURRENT: Final[Mapping[tuple[TransactionState, bool], EndOutcome]] = MappingProxyType(
    {
        (TransactionState.EMPTY, _ABORT): EndStep.END,
        (TransactionState.EMPTY, _COMMIT): _INVALID,
        (TransactionState.ONGOING, _ABORT): EndStep.END,
        (TransactionState.ONGOING, _COMMIT): EndStep.END,
        # The client already uses its new identity, so it means its next transaction: a commit here
        # must not be answered as that of the last one.
        (TransactionState.PREPARE_COMMIT, _ABORT): _BUSY,
        (TransactionState.PREPARE_COMMIT, _COMMIT): _BUSY,
        (TransactionState.PREPARE_ABORT, _ABORT): _BUSY,
        (TransactionState.PREPARE_ABORT, _COMMIT): _BUSY,
        (TransactionState.COMPLETE_COMMIT, _ABORT): EndStep.END,
        (TransactionState.COMPLETE_COMMIT, _COMMIT): _INVALID,
        (TransactionState.COMPLETE_ABORT, _ABORT): EndStep.END,
        (TransactionState.COMPLETE_ABORT, _COMMIT): _INVALID,
    }
)
"""From EndTxn version 5 on, with the newest identity of the transactional id."""

REPEATED: Final[Mapping[tuple[TransactionState, bool], EndOutcome]] = MappingProxyType(
    {
        (TransactionState.EMPTY, _ABORT): _FENCED,
        (TransactionState.EMPTY, _COMMIT): _FENCED,
        (TransactionState.ONGOING, _ABORT): _FENCED,
        (TransactionState.ONGOING, _COMMIT): _FENCED,
        (TransactionState.PREPARE_COMMIT, _ABORT): _INVALID,
        (TransactionState.PREPARE_COMMIT, _COMMIT): _BUSY,
        (TransactionState.PREPARE_ABORT, _ABORT): _BUSY,
        (TransactionState.PREPARE_ABORT, _COMMIT): _INVALID,
        (TransactionState.COMPLETE_COMMIT, _ABORT): _INVALID,
        (TransactionState.COMPLETE_COMMIT, _COMMIT): EndStep.NOTHING,
        (TransactionState.COMPLETE_ABORT, _ABORT): EndStep.NOTHING,
        # The coordinator aborted at the timeout. INVALID_TXN_STATE would be fatal to the client.
        (TransactionState.COMPLETE_ABORT, _COMMIT): _FENCED,
    }
)
"""From EndTxn version 5 on, with the identity that asked for the last change."""


def end(
    transaction: TransactionMetadata | None,
    identity: ProducerIdAndEpoch,
    commit: bool,
    *,
    version: int,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> Decision:
    """Commits or aborts. `version` is that of EndTxn; from 5 on the answer carries an identity."""
    if version >= FIRST_WITH_NEW_EPOCH:
        return _end_with_new_epoch(transaction, identity, commit, now_ms, new_producer_id)
    refusal = stranger(transaction, identity)
    if transaction is None or refusal is not None:
        return Rejected(refusal or ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    outcome = _outcome(SAME_EPOCH, transaction, commit)
    if isinstance(outcome, ErrorCode):
        return Rejected(outcome)
    if outcome is EndStep.NOTHING:
        return Answered(Result(*transaction.client))
    return end_with_same_epoch(transaction, commit, now_ms=now_ms)


def _end_with_new_epoch(
    transaction: TransactionMetadata | None,
    identity: ProducerIdAndEpoch,
    commit: bool,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> Decision:
    refusal = stranger(transaction, identity)
    if transaction is None:
        return Rejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # First the repeat: its identity is no longer the current one, and `stranger` would fence it.
    if identity == transaction.previous:
        outcome = _outcome(REPEATED, transaction, commit)
    elif refusal is not None:
        outcome = refusal
    else:
        outcome = _outcome(CURRENT, transaction, commit)
    if isinstance(outcome, ErrorCode):
        return Rejected(outcome)
    if outcome is EndStep.NOTHING:
        return Answered(Result(*transaction.client))
    return end_with_new_epoch(transaction, commit, now_ms=now_ms, new_producer_id=new_producer_id)


def _outcome(
    table: Mapping[tuple[TransactionState, bool], EndOutcome],
    transaction: TransactionMetadata,
    commit: bool,
) -> EndOutcome:
    outcome = table.get((transaction.state, commit))
    if outcome is None:
        raise InvariantViolated(
            f"transactional id {transaction.transactional_id!r} is held in state "
            f"{transaction.state.title}, which is only passed through"
        )
    return outcome
