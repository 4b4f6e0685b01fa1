"""How a transaction ends: the PREPARE that decides it and the COMPLETE that follows.

From version 2 on every end takes the client to a new epoch, or to a new producer id when no epoch
is left, and the markers carry the epoch above the transaction's, so that nothing of it that comes
late is accepted. A prepared transaction that was kept has two identities: its own, which the
markers follow on, and the one of the client that came back to end it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from onceflow.txn.decisions import Finish, Result
from onceflow.txn.state import LARGEST_EPOCH, NONE, Identity, State, Transaction, moved
from onceflow.wire import ErrorCode

NewProducerId = Callable[[], int]

COMPLETED: Final[Mapping[State, State]] = MappingProxyType(
    {
        State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
        State.PREPARE_ABORT: State.COMPLETE_ABORT,
    }
)


def following(identity: Identity, new_producer_id: NewProducerId) -> Identity:
    """The identity that a client has after this one."""
    if identity.is_exhausted:
        return Identity(new_producer_id(), 0)
    return Identity(identity.producer_id, identity.epoch + 1)


def end_with_new_epoch(
    transaction: Transaction, commit: bool, *, now_ms: int, new_producer_id: NewProducerId
) -> Finish:
    """As version 2 ends: the client goes on under the identity that is answered."""
    client = transaction.client
    after = following(client, new_producer_id)
    kept = transaction.is_kept
    prepare = moved(
        transaction,
        _prepare_state(commit),
        epoch=min(transaction.epoch + 1, LARGEST_EPOCH),
        last_epoch=client.epoch,
        previous_producer_id=client.producer_id if kept else NONE,
        next_producer_id=after.producer_id if kept or client.is_exhausted else NONE,
        next_producer_epoch=after.epoch if kept else NONE,
        started_ms=now_ms if transaction.is_idle else transaction.started_ms,
        updated_ms=now_ms,
        client_version=2,
    )
    return finish(prepare, now_ms)


def end_with_same_epoch(transaction: Transaction, commit: bool, *, now_ms: int) -> Finish:
    """As the older versions end: the client keeps the identity that it has. The markers of a kept
    transaction carry the next epoch all the same, for those that had it before."""
    prepare = moved(
        transaction,
        _prepare_state(commit),
        epoch=min(transaction.epoch + transaction.is_kept, LARGEST_EPOCH),
        last_epoch=NONE,
        updated_ms=now_ms,
        client_version=0,
    )
    return finish(prepare, now_ms)


def fence(transaction: Transaction, *, now_ms: int, new_producer_id: NewProducerId) -> Finish:
    """Aborts for a client that does not ask for it, and puts it out with a new epoch. One that
    speaks version 2 can come back: it can tell from the answer what happened."""
    fenced = moved(transaction, State.PREPARE_EPOCH_FENCE)
    return end_with_new_epoch(fenced, commit=False, now_ms=now_ms, new_producer_id=new_producer_id)


def finish(prepare: Transaction, now_ms: int) -> Finish:
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
        prepare.state is State.PREPARE_COMMIT,
        tuple(sorted(prepare.partitions)),
        Result(*client),
    )


def answered_with(finishing: Finish, code: ErrorCode) -> Finish:
    """The same, but the client is told to ask again."""
    return replace(finishing, result=Result(error=code))


def _prepare_state(commit: bool) -> State:
    return State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
