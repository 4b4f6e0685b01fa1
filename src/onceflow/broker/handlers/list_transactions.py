"""ListTransactions, versions 0-2: the transactional ids, by state, producer, age and name.

Version 1 adds the age: transactions that began more than so many milliseconds ago, and as in Apache
Kafka also the ids that never began one. Version 2 adds a pattern that the whole id has to match, a
regular expression of RE2 as in Apache Kafka: one that takes for ever cannot be written in it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import (
    ListTransactionsResponse,
    TransactionState as ListedTransaction,
)

from onceflow.broker.requests import Answer, RequestContext, once_each
from onceflow.runtime import loading
from onceflow.txn import TransactionMetadata, TransactionState
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

Matches: TypeAlias = Callable[[str], object | None]
_BY_LABEL = {state.title: state for state in TransactionState}


def handle(
    node: Node, client: RequestContext, request: ListTransactionsRequest
) -> Answer[ListTransactionsResponse]:
    """Filters all that there are; answers when what it has seen is durable."""
    matches = _compiled(request.transactional_id_pattern)
    if matches is None:
        return _response(ErrorCode.INVALID_REGULAR_EXPRESSION, (), ())
    named = once_each(request.state_filters)
    unknown = tuple(each for each in named if each not in _BY_LABEL)
    if named and len(unknown) == len(named):
        return _response(ErrorCode.NONE, unknown, ())
    is_wanted = _filter(request, matches, node.clock.wall_ms())
    response = _response(
        ErrorCode.NONE,
        unknown,
        tuple(
            ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.title,
            )
            for each in node.transactions.all()
            if is_wanted(each)
        ),
    )
    return node.transactions.once_durable(node.transactions.all(), response)


def _compiled(pattern: str | None) -> Matches | None:
    """None for a text that is no pattern."""
    with loading:
        import re2  # which few ask for

    options = re2.Options()
    options.log_errors = False  # the client gets them
    try:
        matches: Matches = re2.compile(pattern or "(?s).*", options).fullmatch
    except re2.error:
        return None
    return matches


def _filter(
    request: ListTransactionsRequest, matches: Matches, now_ms: int
) -> Callable[[TransactionMetadata], bool]:
    states = {_BY_LABEL[each] for each in request.state_filters if each in _BY_LABEL}
    producers = set(request.producer_id_filters)

    def is_wanted(transaction: TransactionMetadata) -> bool:
        return (
            (not states or transaction.state in states)
            and (not producers or transaction.producer_id in producers)
            and (
                request.duration_filter < 0
                or transaction.started_ms < now_ms - request.duration_filter
            )
            and matches(transaction.transactional_id) is not None
        )

    return is_wanted


def _response(
    error: ErrorCode, unknown: tuple[str, ...], states: tuple[ListedTransaction, ...]
) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        throttle_time=timedelta(0),
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=states,
    )
