"""What a refusal means for a writer: another try, or the end of its attempt."""

from __future__ import annotations

from typing import Final

from onceflow.client.errors import AbortableError, Action, BrokerError, ClientError, action_for
from onceflow.client.transactions import OpenTransaction, is_worth_it
from onceflow.wire import ErrorCode as E

_ENDS: Final = frozenset(
    {
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        E.INVALID_PRODUCER_EPOCH,
        E.INVALID_TXN_STATE,
        E.INVALID_PRODUCER_ID_MAPPING,
        E.PRODUCER_FENCED,
        E.TRANSACTION_ABORTABLE,
    }
)


class AttemptEnded(AbortableError):
    """The transaction is not this attempt's any more: it timed out, was taken over, or another
    attempt has written to the same partition. Nothing is written again within this epoch."""

    advice = "let the one who began the transaction abort it; then do all of its work in a new one"


def graver(one: ClientError | None, other: ClientError | None) -> ClientError | None:
    """Of two, the one that asks for new leaders counts."""
    is_worse = other is not None and (one is None or action_for(other) is Action.REFRESH)
    return other if is_worse else one


def worth_trying(error: ClientError) -> ClientError:
    """The error, to be tried again later; raises it when that would be in vain."""
    if not is_worth_it(error):
        raise error
    return error


def for_good(error: BrokerError, transaction: OpenTransaction) -> ClientError:
    """What a refusal means that no other try would change."""
    if error.code in _ENDS:
        return AttemptEnded(f"{error}, in the transaction of {transaction.identity}")
    return AbortableError(str(error), outcome=error.outcome)
