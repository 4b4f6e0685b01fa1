"""Answers that wait for the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onceflow.broker.requests.client import Hangup
from onceflow.broker.requests.promise import Answer, Promise
from onceflow.log import Ticket

T = TypeVar("T")


def once_durable(tickets: Sequence[Ticket], answer: Callable[[Exception | None], T]) -> Answer[T]:
    """What `answer` makes of the outcome, when all tickets are done or the first has failed."""
    if len(tickets) == 1 and not tickets[0].done:  # as for most requests
        only: Promise[T] = Promise()
        tickets[0].add_done_callback(lambda error: only.resolve(answer(error)))
        return only
    # Requests that touch many partitions share few groups of the journal.
    distinct = dict.fromkeys(tickets)
    for ticket in distinct:
        if ticket.error is not None:  # a later append of the same request broke the disk
            return answer(ticket.error)
    open_tickets = [ticket for ticket in distinct if not ticket.done]
    if not open_tickets:
        return answer(None)
    promise: Promise[T] = Promise()

    def done(error: Exception | None) -> None:
        if promise.is_resolved:
            return
        if error is not None or all(ticket.done for ticket in open_tickets):
            promise.resolve(answer(error))

    for ticket in open_tickets:
        ticket.add_done_callback(done)
    return promise


def or_hang_up(tickets: Sequence[Ticket], response: T) -> Answer[T]:
    """The response, once it is true. If the disk fails before, nobody knows whether it ever will
    be, and no code of the protocol says that: the connection ends without an answer."""
    outcome = once_durable(tickets, lambda error: error)
    if not isinstance(outcome, Promise):
        if outcome is not None:
            raise Hangup(f"the outcome of a request is not known: {outcome}") from outcome
        return response
    answer: Promise[T] = Promise()

    def settled(error: Exception | None) -> None:
        if error is None:  # else the broker stops, and hangs up on everybody
            answer.resolve(response)

    outcome.then(settled)
    return answer
