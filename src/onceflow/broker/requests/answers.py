"""Answers that come later: what a handler returns when it has to wait, above all for the disk.

A promise is resolved once, with a value, and calls back at once, on the loop's own thread. Futures
of asyncio would do as well, but cost a turn of the loop for every request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar, cast

from onceflow.broker.requests.client import Hangup
from onceflow.errors import InvariantViolated
from onceflow.log import Ticket

T = TypeVar("T")
R = TypeVar("R")

_UNRESOLVED = object()


class AnswerPromise(Generic[T]):
    """The owner of the wait resolves it; a single reader gets the answer through `then`."""

    __slots__ = ("_callback", "_on_abandoned", "_value")

    def __init__(self, on_abandoned: Callable[[], None] | None = None) -> None:
        """`on_abandoned` lets the owner stop waiting when the client is gone."""
        self._value: object = _UNRESOLVED
        self._callback: Callable[[T], None] | None = None
        self._on_abandoned = on_abandoned

    @property
    def is_resolved(self) -> bool:
        return self._value is not _UNRESOLVED

    def resolve(self, value: T) -> None:
        """Gives the answer, once."""
        if self._value is not _UNRESOLVED:
            raise InvariantViolated("a-request-is-answered-once: a promise was resolved twice")
        self._value = value
        self._on_abandoned = None  # its owner most often knows the promise: no ring is left
        if self._callback is not None:
            self._callback(value)

    def abandon(self) -> None:
        """Says that the client is gone."""
        on_abandoned, self._on_abandoned = self._on_abandoned, None
        if on_abandoned is not None and self._value is _UNRESOLVED:
            on_abandoned()

    def then(self, callback: Callable[[T], None]) -> None:
        """Calls back with the answer: now if it is there, else when it comes."""
        if self._callback is not None:
            raise InvariantViolated("a-promise-has-one-asker: a second one came")
        self._callback = callback
        if self._value is not _UNRESOLVED:
            callback(cast(T, self._value))  # a T, once it is not the sentinel


class OrderedPromise(AnswerPromise[T]):
    """A promise for a request that has not taken effect yet. The connection reads the client's next
    request only when this one has, or they would change places. It is durable much later."""

    __slots__ = ("_on_effect", "has_taken_effect")

    def __init__(self) -> None:
        super().__init__()
        self._on_effect: Callable[[], None] | None = None
        self.has_taken_effect = False

    def take_effect(self, answer: Answer[T]) -> None:
        """The request has done what it was to do; `answer` is that of the promise."""
        self.has_taken_effect = True
        if isinstance(answer, AnswerPromise):
            answer.then(self.resolve)
        else:
            self.resolve(answer)
        if self._on_effect is not None:
            self._on_effect()

    def on_effect(self, callback: Callable[[], None]) -> None:
        """Calls back when it has taken effect."""
        self._on_effect = callback


Answer: TypeAlias = T | AnswerPromise[T]
"""What a handler returns: the answer, or the promise of one."""


def then(answer: Answer[T], change: Callable[[T], R]) -> Answer[R]:
    """Applies `change` to an answer: now, or when it comes."""
    if not isinstance(answer, AnswerPromise):
        return change(answer)
    changed: AnswerPromise[R] = AnswerPromise()
    answer.then(lambda value: changed.resolve(change(value)))
    return changed


def once_durable(tickets: Sequence[Ticket], answer: Callable[[Exception | None], T]) -> Answer[T]:
    """What `answer` makes of the outcome, when all tickets are done or the first has failed."""
    if len(tickets) == 1 and not tickets[0].done:  # as for most requests
        only: AnswerPromise[T] = AnswerPromise()
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
    promise: AnswerPromise[T] = AnswerPromise()

    def done(error: Exception | None) -> None:
        if promise.is_resolved:
            return
        if error is not None or all(ticket.done for ticket in open_tickets):
            promise.resolve(answer(error))

    for ticket in open_tickets:
        ticket.add_done_callback(done)
    return promise


def or_hang_up(tickets: Sequence[Ticket], response: T) -> Answer[T]:
    """The response, once all tickets are durable. If the disk fails before, it is not known whether
    they are, and no error code says that, so the connection ends without an answer. With an error
    the client would take for undone what the next start may find in the log."""
    outcome = once_durable(tickets, lambda error: error)
    if not isinstance(outcome, AnswerPromise):
        if outcome is not None:
            raise Hangup(f"the outcome of a request is not known: {outcome}") from outcome
        return response
    answer: AnswerPromise[T] = AnswerPromise()

    def settled(error: Exception | None) -> None:
        if error is None:  # else the broker stops, and hangs up on everybody
            answer.resolve(response)

    outcome.then(settled)
    return answer
