"""The states of a transactional producer and all transitions between them, in one table.

A call for which the table has no transition raises `WrongState`. The table shows the most important
rule: from `COMMITTING` only a refusal by the coordinator leads to `ABORTING`. A commit whose
response was lost may have succeeded; it is sent again, and never followed by an abort.
A second table says what happens to a `send`: a transaction that is about to end takes no more
records, or a late one would go into the next transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from onceflow.client.errors import ProducerError


class WrongState(ProducerError):
    """A call that is not possible in this state, such as a commit without a transaction."""

    advice = "call the producer's methods in the order that the message names"


class ProducerState(Enum):
    """The states of a transactional producer, in words for its user."""

    UNINITIALIZED = "has no epoch yet: call init_transactions"
    INITIALIZING = "waits for its epoch"
    READY = "has no transaction open: call begin_transaction"
    USED_UP = "has an epoch that must not be used again: begin_transaction takes the next one"
    IN_TRANSACTION = "has a transaction open: commit or abort it"
    FLUSHING = "waits for what was sent, to commit or prepare it"
    DROPPING = "gives up what was sent, to abort it"
    PREPARED = "has a prepared transaction: complete it"
    COMMITTING = "waits for the answer to a commit"
    ABORTING = "waits for the answer to an abort"
    ABORTABLE_ERROR = "has a transaction that can only be aborted: call abort_transaction"
    UNCLEAR_COMMIT = "does not know whether its commit was done: resolve it, or close the producer"
    FATAL_ERROR = "can do nothing more: close it"


class TransactionEvent(Enum):
    """The events: calls of the application, responses of brokers, timeouts."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND = "send"
    JOIN = "a partition joins the transaction"
    FLUSH = "all is being sent that is to be committed or prepared"
    DROP = "nothing of the transaction is wanted any more"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    RESOLVE = "resolve"
    IDENTIFIED = "an epoch was given"
    KEPT = "an epoch was given, and a prepared transaction with it"
    INIT_FAILED = "no epoch was given"
    NOT_RENEWED = "no further epoch was given, the one before may still do"
    STILL_USED_UP = "no further epoch was given, the one before must not be used again"
    COMMITTED = "the commit was answered"
    GAVE_UP = "the commit was not answered in time"
    ABORTED = "the abort was answered"
    ABORT_FAILED = "the abort was not answered in time"
    RENEW = "the transaction has ended, its epoch must not be used again"
    TROUBLE = "a part of the transaction failed"
    FENCED = "the broker refuses this producer"


_S, _E = ProducerState, TransactionEvent

EDGES: Final[Mapping[ProducerState, Mapping[TransactionEvent, ProducerState]]] = {
    _S.UNINITIALIZED: {_E.INIT: _S.INITIALIZING},
    _S.INITIALIZING: {
        _E.IDENTIFIED: _S.READY,
        _E.KEPT: _S.PREPARED,
        _E.INIT_FAILED: _S.UNINITIALIZED,
        _E.NOT_RENEWED: _S.READY,
        _E.STILL_USED_UP: _S.USED_UP,
        _E.FENCED: _S.FATAL_ERROR,
    },
    _S.READY: {
        _E.BEGIN: _S.IN_TRANSACTION,
        _E.INIT: _S.INITIALIZING,
        _E.FENCED: _S.FATAL_ERROR,
    },
    # It keeps its identity: an InitProducerId without it could fence a newer owner.
    _S.USED_UP: {_E.INIT: _S.INITIALIZING},
    _S.IN_TRANSACTION: {
        _E.SEND: _S.IN_TRANSACTION,
        _E.JOIN: _S.IN_TRANSACTION,
        _E.FLUSH: _S.FLUSHING,
        _E.DROP: _S.DROPPING,
        _E.PREPARE: _S.PREPARED,
        _E.COMMIT: _S.COMMITTING,
        _E.ABORT: _S.ABORTING,
        _E.TROUBLE: _S.ABORTABLE_ERROR,
        _E.FENCED: _S.FATAL_ERROR,
    },
    # What is gathered is still sent, and may still be dropped: no EndTxn was sent.
    _S.FLUSHING: {
        _E.JOIN: _S.FLUSHING,
        _E.DROP: _S.DROPPING,
        _E.PREPARE: _S.PREPARED,
        _E.COMMIT: _S.COMMITTING,
        _E.ABORT: _S.ABORTING,
        _E.TROUBLE: _S.ABORTABLE_ERROR,
        _E.FENCED: _S.FATAL_ERROR,
    },
    _S.DROPPING: {_E.DROP: _S.DROPPING, _E.ABORT: _S.ABORTING, _E.FENCED: _S.FATAL_ERROR},
    # Nothing joins it any more, and only the program that prepared it knows how it ends.
    _S.PREPARED: {
        _E.COMMIT: _S.COMMITTING,
        _E.ABORT: _S.ABORTING,
        _E.FENCED: _S.FATAL_ERROR,
    },
    _S.COMMITTING: {
        _E.COMMITTED: _S.READY,
        _E.RENEW: _S.INITIALIZING,
        _E.GAVE_UP: _S.UNCLEAR_COMMIT,
        # Only when no copy of the commit is in doubt.
        _E.TROUBLE: _S.ABORTABLE_ERROR,
        _E.FENCED: _S.FATAL_ERROR,
    },
    _S.UNCLEAR_COMMIT: {_E.RESOLVE: _S.COMMITTING},
    _S.ABORTABLE_ERROR: {
        _E.DROP: _S.DROPPING,
        _E.ABORT: _S.ABORTING,
        _E.TROUBLE: _S.ABORTABLE_ERROR,
        _E.FENCED: _S.FATAL_ERROR,
    },
    _S.ABORTING: {
        _E.ABORTED: _S.READY,
        _E.RENEW: _S.INITIALIZING,
        _E.ABORT_FAILED: _S.ABORTABLE_ERROR,
        _E.FENCED: _S.FATAL_ERROR,
    },
    _S.FATAL_ERROR: {},
}


class Meets(Enum):
    """What happens to a record that the application sends in a transaction."""

    OPEN = "it is part of the transaction"
    COMMIT = "it comes too late for a transaction that is being committed"
    ABORT = "it comes too late for a transaction that is being aborted"
    NONE = "there is no transaction that could take it"


SENDS: Final[Mapping[ProducerState, Meets]] = {
    _S.UNINITIALIZED: Meets.NONE,
    _S.INITIALIZING: Meets.NONE,
    _S.READY: Meets.NONE,
    _S.USED_UP: Meets.NONE,
    _S.IN_TRANSACTION: Meets.OPEN,
    _S.FLUSHING: Meets.COMMIT,
    _S.PREPARED: Meets.NONE,
    _S.COMMITTING: Meets.COMMIT,
    _S.UNCLEAR_COMMIT: Meets.COMMIT,
    _S.DROPPING: Meets.ABORT,
    _S.ABORTING: Meets.ABORT,
    _S.ABORTABLE_ERROR: Meets.ABORT,
    _S.FATAL_ERROR: Meets.NONE,
}
"""No `send` waits for the end: a record too late for one transaction must not join the next."""


def after(state: ProducerState, event: TransactionEvent) -> ProducerState:
    """The state that follows; raises `WrongState` when the table has none."""
    found = EDGES[state].get(event)
    if found is None:
        raise WrongState(f"{event.value}: the producer {state.value}")
    return found
