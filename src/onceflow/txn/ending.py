"""EndTxn: which answer each state has for a commit and an abort, as tables.

From version 5 on, each transaction has an epoch of its own, so that an EndTxn tells whether it is
for the transaction that is open or for the one before it, whose answer was lost. It is taken for a
repetition only when it carries the very identity that asked for the last end: Kafka goes by the
number alone and may tell a zombie that it committed what its successor did.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, TypeAlias

from onceflow.errors import InvariantViolated
from onceflow.txn.decisions import Answered, Decision, Refused, Result
from onceflow.txn.fencing import stranger
from onceflow.txn.finishing import NewProducerId, end_with_new_epoch, end_with_same_epoch
from onceflow.txn.state import Identity, State, Transaction
from onceflow.wire import ErrorCode

FIRST_WITH_NEW_EPOCH: Final = 5


class Step(Enum):
    """What is done where nothing is refused."""

    END = auto()
    NOTHING = auto()
    """It was ended in this way before."""


Outcome: TypeAlias = ErrorCode | Step

_COMMIT, _ABORT = True, False
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED

SAME_EPOCH: Final[Mapping[tuple[State, bool], Outcome]] = MappingProxyType(
    {
        (State.EMPTY, _ABORT): _INVALID,
        (State.EMPTY, _COMMIT): _INVALID,
        (State.ONGOING, _ABORT): Step.END,
        (State.ONGOING, _COMMIT): Step.END,
        (State.PREPARE_COMMIT, _ABORT): _INVALID,
        (State.PREPARE_COMMIT, _COMMIT): _BUSY,
        (State.PREPARE_ABORT, _ABORT): _BUSY,
        (State.PREPARE_ABORT, _COMMIT): _INVALID,
        (State.COMPLETE_COMMIT, _ABORT): _INVALID,
        (State.COMPLETE_COMMIT, _COMMIT): Step.NOTHING,
        (State.COMPLETE_ABORT, _ABORT): Step.NOTHING,
        (State.COMPLETE_ABORT, _COMMIT): _INVALID,
    }
)
"""Up to version 4."""

CURRENT: Final[Mapping[tuple[State, bool], Outcome]] = MappingProxyType(
    {
        (State.EMPTY, _ABORT): Step.END,
        (State.EMPTY, _COMMIT): _INVALID,
        (State.ONGOING, _ABORT): Step.END,
        (State.ONGOING, _COMMIT): Step.END,
        # The client knows its new identity already, and only its next transaction is meant.
        (State.PREPARE_COMMIT, _ABORT): _BUSY,
        (State.PREPARE_COMMIT, _COMMIT): _BUSY,
        (State.PREPARE_ABORT, _ABORT): _BUSY,
        (State.PREPARE_ABORT, _COMMIT): _BUSY,
        (State.COMPLETE_COMMIT, _ABORT): Step.END,
        (State.COMPLETE_COMMIT, _COMMIT): _INVALID,
        (State.COMPLETE_ABORT, _ABORT): Step.END,
        (State.COMPLETE_ABORT, _COMMIT): _INVALID,
    }
)
"""From version 5 on, with the identity that the coordinator gave out last."""

REPEATED: Final[Mapping[tuple[State, bool], Outcome]] = MappingProxyType(
    {
        (State.EMPTY, _ABORT): _FENCED,
        (State.EMPTY, _COMMIT): _FENCED,
        (State.ONGOING, _ABORT): _FENCED,
        (State.ONGOING, _COMMIT): _FENCED,
        (State.PREPARE_COMMIT, _ABORT): _INVALID,
        (State.PREPARE_COMMIT, _COMMIT): _BUSY,
        (State.PREPARE_ABORT, _ABORT): _BUSY,
        (State.PREPARE_ABORT, _COMMIT): _INVALID,
        (State.COMPLETE_COMMIT, _ABORT): _INVALID,
        (State.COMPLETE_COMMIT, _COMMIT): Step.NOTHING,
        (State.COMPLETE_ABORT, _ABORT): Step.NOTHING,
        # The coordinator aborted when the time was up; INVALID_TXN_STATE would end the client.
        (State.COMPLETE_ABORT, _COMMIT): _FENCED,
    }
)
"""From version 5 on, with the identity that asked for the last change."""


def end(
    transaction: Transaction | None,
    identity: Identity,
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
        return Refused(refusal or ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    outcome = _outcome(SAME_EPOCH, transaction, commit)
    if isinstance(outcome, ErrorCode):
        return Refused(outcome)
    if outcome is Step.NOTHING:
        return Answered(Result(*transaction.client))
    return end_with_same_epoch(transaction, commit, now_ms=now_ms)


def _end_with_new_epoch(
    transaction: Transaction | None,
    identity: Identity,
    commit: bool,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> Decision:
    refusal = stranger(transaction, identity)
    if transaction is None:
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if identity == transaction.previous:
        outcome = _outcome(REPEATED, transaction, commit)
    elif refusal is not None:
        outcome = refusal
    else:
        outcome = _outcome(CURRENT, transaction, commit)
    if isinstance(outcome, ErrorCode):
        return Refused(outcome)
    if outcome is Step.NOTHING:
        return Answered(Result(*transaction.client))
    return end_with_new_epoch(transaction, commit, now_ms=now_ms, new_producer_id=new_producer_id)


def _outcome(
    table: Mapping[tuple[State, bool], Outcome], transaction: Transaction, commit: bool
) -> Outcome:
    outcome = table.get((transaction.state, commit))
    if outcome is None:
        raise InvariantViolated(
            f"transactional id {transaction.transactional_id!r} is held in state "
            f"{transaction.state.title}, which is only passed through"
        )
    return outcome
