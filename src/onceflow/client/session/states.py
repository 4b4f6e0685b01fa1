"""A session without any network: its states, and what an aborted transaction means for it.

One table of states; from `AT_WORK` no way leads to a commit but over `ASKED`: the caller is done
with a batch only when it asks for the next one, or leaves the session without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from onceflow.client.errors import BrokerError, CommitFailed
from onceflow.client.session.errors import SessionError
from onceflow.wire import ErrorCode as E


class SessionStage(Enum):
    """Where a session is."""

    IDLE = "has no transaction open"
    AT_WORK = "has handed out a batch, and waits until the caller is done with it"
    FINISHED = "has a transaction open whose batches are done"
    CLOSED = "is not running: use it in `async with`"


class SessionStep(Enum):
    """What happens to it."""

    STARTED = "it was started"
    GIVEN = "a batch was handed out"
    ASKED = "the next batch was asked for, or the session was left without an error"
    COMMITTED = "the transaction was committed"
    ABORTED = "the transaction was aborted"
    CLOSED = "it was closed"


class WrongStep(SessionError):
    """The session cannot do this in the state that it is in."""

    advice = "use it inside `async with Session(...)`, in one task"


_G, _P = SessionStage, SessionStep
STAGES: Final[Mapping[SessionStage, Mapping[SessionStep, SessionStage]]] = {
    _G.IDLE: {_P.GIVEN: _G.AT_WORK, _P.CLOSED: _G.CLOSED},
    _G.AT_WORK: {_P.ASKED: _G.FINISHED, _P.ABORTED: _G.IDLE},
    # Several batches share a transaction while `commit.interval.ms` lasts.
    _G.FINISHED: {_P.GIVEN: _G.AT_WORK, _P.COMMITTED: _G.IDLE, _P.ABORTED: _G.IDLE},
    _G.CLOSED: {_P.STARTED: _G.IDLE},
}


def after(stage: SessionStage, step: SessionStep) -> SessionStage:
    """The stage that follows; raises `WrongStep` when the table has none."""
    found = STAGES[stage].get(step)
    if found is None:
        raise WrongStep(f"{step.value}: the session {stage.value}")
    return found


class AbortVerdict(Enum):
    """What is done after a transaction had to be aborted."""

    POLL = "the member is out of date: polling joins again, and others may have its partitions now"
    REPEAT = "do the work again after a pause, but not for ever"
    RAISE = "raise it to the user: the work would fail in the same way again"


_OUT_OF_DATE: Final = frozenset(
    {
        E.ILLEGAL_GENERATION,
        E.UNKNOWN_MEMBER_ID,
        E.REBALANCE_IN_PROGRESS,
        E.GROUP_ID_NOT_FOUND,
        E.STALE_MEMBER_EPOCH,
        # The next poll says that this one is for good.
        E.FENCED_INSTANCE_ID,
    }
)
_THE_SAME_AGAIN: Final = frozenset(
    {
        E.MESSAGE_TOO_LARGE,
        E.OFFSET_METADATA_TOO_LARGE,
        E.INVALID_TOPIC_EXCEPTION,
        E.RECORD_LIST_TOO_LARGE,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.GROUP_AUTHORIZATION_FAILED,
        E.INVALID_TIMESTAMP,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        E.POLICY_VIOLATION,
        E.UNSUPPORTED_COMPRESSION_TYPE,
        E.INVALID_RECORD,
    }
)


def refusal_in(error: BaseException) -> BrokerError | None:
    """What a broker said first of all, if the error comes of that."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, BrokerError):
        found = found.__cause__
    return found


def judge(error: BaseException) -> AbortVerdict:
    """Of the reason for which a transaction had to be aborted."""
    if isinstance(error, CommitFailed):
        return AbortVerdict.POLL
    refusal = refusal_in(error)
    code = None if refusal is None else refusal.code
    if code in _OUT_OF_DATE:
        return AbortVerdict.POLL
    return AbortVerdict.RAISE if code in _THE_SAME_AGAIN else AbortVerdict.REPEAT
