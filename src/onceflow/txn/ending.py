"""How a transaction ends: the PREPARE that decides it and the COMPLETE that follows; and EndTxn:
which answer each state has for a commit and an abort, as tables.

From transaction version 2 on every end takes the client to a new epoch, or to a new producer id
when no epoch is left, and the markers carry the epoch above the transaction's, so that nothing of
it that comes late is accepted. A prepared transaction that was kept has two identities: its own,
which the markers follow on, and the one of the client that came back to end it.

From EndTxn version 5 on, each transaction has an epoch of its own, so that an EndTxn tells whether
it is for the transaction that is open or for the one before it, whose answer was lost. It is taken
for a repetition only when it carries the very identity that asked for the last end: Kafka goes by
the number alone and may tell a zombie that it committed what its successor did.
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
    """The identity that a client has after this one."""
    if identity.is_exhausted:
        return ProducerIdAndEpoch(new_producer_id(), 0)
    return ProducerIdAndEpoch(identity.producer_id, identity.epoch + 1)


def end_with_new_epoch(
    transaction: TransactionMetadata, commit: bool, *, now_ms: int, new_producer_id: NewProducerId
) -> Finish:
    """As version 2 ends: the client goes on under the identity that is answered."""
    client = transaction.client
    after = following(client, new_producer_id)
    kept = transaction.is_kept
    prepare = moved(
        transaction,
        _prepare_state(commit),
        epoch=min(transaction.epoch + 1, LAST_EPOCH),
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
    """As the older versions end: the client keeps the identity that it has. The markers of a kept
    transaction carry the next epoch all the same, for those that had it before."""
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
    """Aborts for a client that does not ask for it, and puts it out with a new epoch. One that
    speaks version 2 can come back: it can tell from the answer what happened."""
    fenced = moved(transaction, TransactionState.PREPARE_EPOCH_FENCE)
    return end_with_new_epoch(fenced, commit=False, now_ms=now_ms, new_producer_id=new_producer_id)


def finish(prepare: TransactionMetadata, now_ms: int) -> Finish:
    """What a PREPARE leads to, when it has just been decided or was found at start."""
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
    """The same, but the client is told to ask again."""
    return replace(finishing, result=Result(error=code))


def _prepare_state(commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT


FIRST_WITH_NEW_EPOCH: Final = 5


class EndStep(Enum):
    """What is done where nothing is refused."""

    END = auto()
    NOTHING = auto()
    """It was ended in this way before."""


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
"""Up to version 4."""

CURRENT: Final[Mapping[tuple[TransactionState, bool], EndOutcome]] = MappingProxyType(
    {
        (TransactionState.EMPTY, _ABORT): EndStep.END,
        (TransactionState.EMPTY, _COMMIT): _INVALID,
        (TransactionState.ONGOING, _ABORT): EndStep.END,
        (TransactionState.ONGOING, _COMMIT): EndStep.END,
        # The client knows its new identity already, and only its next transaction is meant.
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
"""From version 5 on, with the identity that the coordinator gave out last."""

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
        # The coordinator aborted when the time was up; INVALID_TXN_STATE would end the client.
        (TransactionState.COMPLETE_ABORT, _COMMIT): _FENCED,
    }
)
"""From version 5 on, with the identity that asked for the last change."""


def end(
    transaction: TransactionMetadata | None,
    identity: ProducerIdAndEpoch,
    commit: bool,
    *,
    version: int,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> Decision:
    """Commits or aborts. `version` is that of EndTxn; from 5 on the answer has an identity."""
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
