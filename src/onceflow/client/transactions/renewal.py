"""Whose a transactional id is, before a producer that rested takes its next epoch.

InitProducerId is no harmless question, though it names the epoch that it follows: while a
transaction is open, Apache Kafka aborts that one first and looks at the epoch afterwards. A
producer that was replaced while it slept would so end the work of its successor, and with the older
protocol fence it for good. DescribeTransactions changes nothing, so it is asked first.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from onceflow.client.codec import Identity
from onceflow.client.errors import BrokerError
from onceflow.client.transactions.asking import Asked
from onceflow.wire import ErrorCode

_OPEN: Final = "Ongoing"
_NOTHING_OPEN: Final = (
    "Empty",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
"""As coordinators say it. What is being ended was open; InitProducerId then waits."""


class Owner(Enum):
    """Who has a transactional id."""

    SELF = "the producer that asks: it may take the next epoch"
    OTHER = "another producer, by all that can be seen: leave it alone"
    NOT_TOLD = "the broker has no answer to that, or none for this user"
    NOT_ANSWERED = "no answer came in time"


def owner(mine: Identity, asked: Asked, *, is_used_up: bool, has_asked: bool) -> Owner:
    """By the answer to DescribeTransactions.

    `is_used_up`: a late copy of what this producer asked for may have opened a transaction under
    its own epoch. `has_asked`: it asked for its next epoch already, and may have been given it.
    """
    error, said = asked.error, asked.answer
    if error is not None:
        is_forgotten = isinstance(error, BrokerError) and (
            error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        )
        if is_forgotten:
            return Owner.SELF
        return Owner.NOT_TOLD if asked.is_refusal else Owner.NOT_ANSWERED
    _, producer_id, epoch = mine
    is_closed = said.transaction_state in _NOTHING_OPEN
    if (said.producer_id, said.producer_epoch) == (producer_id, epoch):
        is_own = is_closed or (is_used_up and said.transaction_state == _OPEN)
    else:
        # Of the next epoch the coordinator knows who asked for it, and refuses all others; as long
        # as nothing is open, that does no harm.
        given = (producer_id, epoch + 1)
        is_own = has_asked and is_closed and (said.producer_id, said.producer_epoch) == given
    return Owner.SELF if is_own else Owner.OTHER
