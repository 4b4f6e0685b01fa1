"""Answers that wait for the disk: when all is durable, or at the first failure."""

from __future__ import annotations

import pytest

from onceflow.broker.requests.answers import AnswerPromise, once_durable, or_hang_up
from onceflow.broker.requests.client import Hangup
from onceflow.errors import StoreFailed
from onceflow.log.journal.journal import Ticket

FAILURE = StoreFailed("the disk is gone")


def text(error: Exception | None) -> str:
    return "durable" if error is None else str(error)


def done(error: Exception | None = None) -> Ticket:
    ticket = Ticket()
    ticket.complete(error)
    return ticket


def test_nothing_to_wait_for_is_answered_at_once() -> None:
    assert once_durable([], text) == "durable"
    assert once_durable([done(), done()], text) == "durable"


def test_the_last_ticket_decides() -> None:
    first, second = Ticket(), Ticket()
    answer = once_durable([first, second, first], text)
    assert isinstance(answer, AnswerPromise)
    first.complete()
    assert not answer.is_resolved
    second.complete()
    got: list[str] = []
    answer.then(got.append)
    assert got == ["durable"]


def test_the_first_failure_decides() -> None:
    first, second = Ticket(), Ticket()
    answer = once_durable([first, second], text)
    assert isinstance(answer, AnswerPromise)
    second.complete(FAILURE)
    first.complete(FAILURE)
    got: list[str] = []
    answer.then(got.append)
    assert got == [str(FAILURE)]


def test_a_ticket_that_has_failed_already_is_not_taken_for_durable() -> None:
    assert once_durable([done(FAILURE), done()], text) == str(FAILURE)
    assert once_durable([Ticket(), done(FAILURE)], text) == str(FAILURE)


def test_an_unknown_outcome_is_never_answered_as_success() -> None:
    ticket = Ticket()
    answer = or_hang_up([ticket], "made")
    assert isinstance(answer, AnswerPromise)
    ticket.complete(FAILURE)
    assert not answer.is_resolved
    with pytest.raises(Hangup, match="not known"):
        or_hang_up([done(FAILURE)], "made")


def test_a_known_outcome_is_answered() -> None:
    ticket = Ticket()
    answer = or_hang_up([ticket], "made")
    assert isinstance(answer, AnswerPromise)
    ticket.complete()
    got: list[str] = []
    answer.then(got.append)
    assert got == ["made"]
    assert or_hang_up([done()], "made") == "made"
