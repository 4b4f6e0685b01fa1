"""Sends a request to a coordinator until it answers, without any network: pauses, doubts, and when
to stop.

It is the same request each time, so that the coordinator recognises a copy that it has already
carried out. Every error is judged by the one table; the retrier remembers whether a copy may have
taken effect.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from onceflow.client.codec import TransactionRequest, TransactionResponse, TxnOffsetCommit
from onceflow.client.errors import Action, BrokerError, ClientError, action, action_for
from onceflow.client.events import TRANSACTIONS
from onceflow.client.net import Backoff, RetryPolicy, Trying, is_worth_it
from onceflow.runtime import Clock, Rand
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

T = TypeVar("T")

_BY_SEVERITY: Final = (
    Action.FATAL,
    Action.ABORT,
    Action.FAIL,
    Action.REFRESH,
    Action.RETRY,
    Action.DONE,
)
_SOON_S: Final = (0.0003, 0.001)
_AT_ONCE: Final = 2
"""Times that are asked again without a pause: the question takes as long as one, and timers of an
event loop are no finer than a millisecond."""
_SOON_STEPS: Final = 5
_SOON_TRIES: Final = 20
"""The end of the transaction before takes a millisecond or some: asking so often for it is cheap,
but not for ever, and less and less often up to this many steps."""


class RequestAttempt(NamedTuple):
    """Wait `pause_s`, find the coordinator anew if `refind`, then send the request. What is not
    answered at `deadline` (of the monotonic clock) is a `RequestTimedOut`."""

    request: TransactionRequest
    pause_s: float
    refind: bool
    deadline: float

    @property
    def group_id(self) -> str | None:
        """Whose coordinator is asked; None: the transaction's."""
        request = self.request
        return request.member.group_id if isinstance(request, TxnOffsetCommit) else None


Reply: TypeAlias = TransactionResponse | ClientError
Operation: TypeAlias = Generator[RequestAttempt, Reply, T]


class RequestOutcome(NamedTuple):
    """How asking ended: with an answer that is no error, or with an error."""

    answer: TransactionResponse
    error: ClientError | None
    is_refusal: bool
    """Asking again would not help; else time was up."""
    is_doubtful: bool
    """A copy of the request may have taken effect, or may still do so."""


class RequestRetrier:
    """Retries by one policy and one clock."""

    __slots__ = ("_clock", "_policy", "_rand")

    def __init__(self, clock: Clock, rand: Rand, policy: RetryPolicy) -> None:
        self._clock = clock
        self._rand = rand
        self._policy = policy

    def ask(self, request: TransactionRequest) -> Operation[RequestOutcome]:
        """Asks until there is an answer, a refusal, or no time left."""
        began = self._clock.monotonic()
        deadline = began + self._policy.total_s
        trying = Trying(TRANSACTIONS)
        backoff = Backoff(self._policy, self._rand)
        is_doubtful, tries, pause_s, refind = False, 0, 0.0, False
        while True:
            reply = yield RequestAttempt(request, pause_s, refind, deadline)
            tries += 1
            answer = reply if isinstance(reply, TransactionResponse) else TransactionResponse()
            error = _error_in(request, reply)
            if error is None:
                return RequestOutcome(answer, None, False, is_doubtful)
            is_doubtful = is_doubtful or error.outcome == "unknown"
            if not is_worth_it(error):
                return RequestOutcome(answer, error, True, is_doubtful)
            soon = code_of(error) == ErrorCode.CONCURRENT_TRANSACTIONS and tries <= _SOON_TRIES
            steps = min(max(tries - _AT_ONCE, 0), _SOON_STEPS)
            pause_s = self._rand.uniform(*_SOON_S) * steps if soon else backoff.next_s()
            now = self._clock.monotonic()
            if now + pause_s >= deadline:
                return RequestOutcome(answer, error, False, is_doubtful)
            trying.again(error, pause_s, now - began)
            refind = action_for(error) is Action.REFRESH


def code_of(error: ClientError | None) -> int | None:
    """The broker's code, if it is the broker's error."""
    return error.code if isinstance(error, BrokerError) else None


def _error_in(request: TransactionRequest, reply: Reply) -> ClientError | None:
    """Of several partitions the worst error: one that ends the transaction hides those that only
    take time."""
    if isinstance(reply, ClientError):
        return reply
    refused: dict[TopicPartition, int] = {each: code for each, code in reply.partitions if code}
    codes = set(refused.values()) or {reply.code} - {0}
    if not codes:
        return None
    # Of partitions that were refused because of another one in the same request.
    codes = codes - {ErrorCode.OPERATION_NOT_ATTEMPTED} or codes
    worst = min(codes, key=lambda code: _BY_SEVERITY.index(action(code, request.api)))
    named = [str(partition) for partition, code in refused.items() if code == worst]
    subject = ", ".join((f"transaction of {request.identity.transactional_id!r}", *named))
    return BrokerError(worst, request.api.name, subject)
