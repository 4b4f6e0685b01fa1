"""What is logged of transactions: how each began and ended, and what keeps one from ending."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from onceflow.client.codec import Identity
from onceflow.client.events import TRANSACTIONS
from onceflow.client.transactions.states import Event


class _Entry(NamedTuple):
    level: int
    event: str
    message: str


_OF: Final = "a transaction of %(transactional_id)r "
_ENTRIES: Final[Mapping[Event, _Entry]] = {
    Event.IDENTIFIED: _Entry(
        logging.INFO,
        "initialized",
        "%(transactional_id)r is taken over: producer id %(producer_id)d, epoch %(epoch)d",
    ),
    Event.BEGIN: _Entry(logging.DEBUG, "begun", _OF + "has begun"),
    Event.PREPARE: _Entry(logging.DEBUG, "prepared", _OF + "is prepared"),
    Event.COMMITTED: _Entry(logging.DEBUG, "committed", _OF + "is committed"),
    Event.ABORTED: _Entry(logging.INFO, "aborted", _OF + "is aborted"),
    Event.TROUBLE: _Entry(logging.INFO, "doomed", _OF + "can only be aborted: %(reason)s"),
    Event.GAVE_UP: _Entry(logging.WARNING, "unknown", "%(reason)s"),
    Event.RESOLVE: _Entry(logging.INFO, "resolved", _OF + "was in doubt, and is committed"),
    Event.ABORT_FAILED: _Entry(logging.WARNING, "unended", _OF + "is still open: %(reason)s"),
    Event.FENCED: _Entry(
        logging.ERROR, "fenced", "the producer of %(transactional_id)r has to stop: %(reason)s"
    ),
}


def told(event: Event, identity: Identity, reason: object = None) -> None:
    """Says what has happened to a transaction, or to who makes them."""
    level, name, message = _ENTRIES[event]
    fields = {
        "transactional_id": identity.transactional_id,
        "producer_id": identity.producer_id,
        "epoch": identity.producer_epoch,
    }
    if reason is not None:
        fields["reason"] = str(reason)
    TRANSACTIONS.tell(level, name, message, **fields)
