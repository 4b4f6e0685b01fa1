"""What can go wrong between a client and a broker, and what is done about it.

Every error says what happened, whether it is known what became of the request (`outcome`), and what
to do (`advice`). One table, `action`, decides for each error code of each API whether it is tried
again, aborts a transaction or ends a producer; nothing else looks at codes to decide that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias

from onceflow.client.errors.table import EXPLANATIONS, Action as Action, action, outcome_of
from onceflow.errors import OnceflowError
from onceflow.settings import did_you_mean
from onceflow.wire import ApiKey, ErrorCode, error_code

Outcome: TypeAlias = Literal["not applied", "unknown"]
"""Of a request: it did not happen, or the client does not know whether it did."""


class ClientError(OnceflowError):
    """Root of what talking to a broker raises."""

    outcome: Outcome = "not applied"
    advice: str = "correct what the message says, then call again"

    def __init__(
        self, message: str, *, outcome: Outcome | None = None, advice: str | None = None
    ) -> None:
        super().__init__(message)
        if outcome is not None:
            self.outcome = outcome
        if advice is not None:
            self.advice = advice


# --- connections --------------------------------------------------------------------------------


class BrokerUnreachable(ClientError):
    """No connection could be opened: wrong host, closed port, unknown name."""

    advice = "check the address and that the broker runs, then call again"


class NotKafka(ClientError):
    """Something answers at that address, and it is not a Kafka broker that we can talk to."""

    advice = "check the address, and whether that port wants TLS or a login (security.protocol)"


class ConnectionLost(ClientError):
    """The broker closed the connection before it answered."""

    outcome = "unknown"
    advice = "call again where doing it twice does no harm"


class ConnectionClosed(ClientError):
    """The connection was closed on this side."""

    outcome = "unknown"
    advice = "open another one"


class CrossedFork(ClientError):
    """A connection was used in a process that was forked off after it had been opened."""

    advice = "open connections in the process that uses them; a Cluster does so by itself"


class RequestTimedOut(ClientError):
    """The broker did not answer in time."""

    outcome: Outcome = "unknown"
    advice = "call again where doing it twice does no harm"


class AnswerMalformed(ClientError):
    """The broker's answer contradicts the protocol."""

    outcome = "unknown"
    advice = "look at the broker: this is a defect, there or here"


class ApiNotServed(ClientError):
    """The broker does not offer an API in a version that this client speaks."""

    advice = "use a broker of another version"


class TwoPhaseNotServed(ClientError):
    """The broker does not take part in two-phase commits."""

    advice = (
        "set transaction.two.phase.commit.enable on the broker (Apache Kafka offers it only with "
        "unstable.api.versions.enable, and to users with the right TWO_PHASE_COMMIT), or leave it "
        "out of the producer's settings"
    )


class TlsFailed(ClientError):
    """No encrypted connection could be agreed on: a certificate is not trusted, or there is no TLS
    at that port."""

    advice = "check ssl.cafile, the names in the broker's certificate, and security.protocol"


class AuthenticationFailed(ClientError):
    """The broker refuses the login, or could not prove that it knows the password too."""

    advice = "check sasl.mechanism, sasl.username and sasl.password"


# --- what there is not --------------------------------------------------------------------------


class GroupNotFound(ClientError):
    """There is no such consumer group."""


class GroupNotEmpty(ClientError):
    """The group has members, and what was asked for can be done only when it has none."""


class NoSuchPartition(ClientError):
    """The topic is there, the partition is not."""


class TopicNotFound(ClientError):
    """There is no such topic."""

    advice = "create the topic, or correct its name"

    def __init__(self, topic: str, known: Sequence[str] = ()) -> None:
        super().__init__(f"there is no topic {topic!r}{did_you_mean(topic, known, most=3)}")
        self.topic = topic

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args), self.__dict__


class TopicNameInvalid(TopicNotFound):
    """No topic can have that name."""

    advice = "correct the name of the topic"

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        allowed = "1 to 249 letters of ASCII, digits, '.', '_' and '-', and neither '.' nor '..'"
        self.args = (f"{topic!r} cannot be the name of a topic: that is {allowed}",)


# --- what a broker says -------------------------------------------------------------------------


class BrokerError(ClientError):
    """A broker refused, with an error code of the protocol."""

    def __init__(self, code: int, api: str, subject: str, message: str | None = None) -> None:
        self.code = int(code)
        found = error_code(self.code)
        self.name = found.name if found == self.code else f"ERROR_{self.code}"
        self.api = api
        explanation = message or EXPLANATIONS.get(found, f"the broker refused {api}")
        super().__init__(
            f"{subject}: {explanation.rstrip('.')} ({self.name})",
            outcome=outcome_of(self.code, _key(api)),
            advice=self.action.advice,
        )

    @property
    def action(self) -> Action:
        """What the table says."""
        return action(self.code, _key(self.api))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args), self.__dict__


def _revive(kind: type[ClientError], args: tuple[Any, ...]) -> ClientError:
    """An error as it was pickled: the text is made once, where the error was."""
    return kind.__new__(kind, *args)


def _key(api: str) -> ApiKey | None:
    return ApiKey.__members__.get(api)


# --- producers ----------------------------------------------------------------------------------


class ProducerError(ClientError):
    """Root of what sending raises."""


class DeliveryFailed(ProducerError):
    """Records were not acknowledged; `outcome` says whether they may be in the log all the same."""

    advice = "send them again; with outcome 'unknown' that may write them twice"


class BufferFull(ProducerError):
    """No room for another record (buffer.memory) within max.block.ms; it was not accepted."""

    advice = "send more slowly, or give buffer.memory or max.block.ms more"


class AbortableError(ProducerError):
    """The transaction cannot be committed any more; the producer can go on after aborting it."""

    advice = "abort the transaction, then do its work again in a new one"


class TransactionAborted(AbortableError):
    """The transaction was aborted: nothing of it will ever be seen by readers of committed data."""

    advice = "do the transaction's work again in a new one"


class FatalProducerError(ProducerError):
    """This producer can do nothing more."""

    advice = "close the producer; a new one may go on"


class Fenced(FatalProducerError):
    """Another producer with the same transactional id has taken over."""

    advice = "stop: the newer producer does the work now"


class UnknownOutcome(ProducerError):
    """It is not known whether a transaction was committed: no answer came in time."""

    outcome = "unknown"
    advice = (
        "do not abort and do not send again: start a producer with the same transactional id, "
        "then look at what was committed"
    )

    @classmethod
    def of_commit(cls, transactional_id: str, waited_s: float, cause: object) -> Self:
        """For a commit that was sent, and asked about again, without an answer."""
        return cls(
            f"the commit of a transaction of {transactional_id!r} was not answered within "
            f"{waited_s:g} s ({cause})"
        )


# --- decisions ----------------------------------------------------------------------------------

LOST = (BrokerUnreachable, ConnectionLost, RequestTimedOut, CrossedFork)
"""Errors of the connection: another one may do better."""

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


def action_for(error: ClientError) -> Action:
    """What the table says about an error."""
    if isinstance(error, LOST):
        return Action.REFRESH
    if isinstance(error, BrokerError):
        return error.action
    if isinstance(error, AbortableError):
        return Action.ABORT
    if isinstance(error, FatalProducerError):
        return Action.FATAL
    return Action.FAIL


def producer_error(error: BrokerError, *, aborting: bool = False) -> ClientError:
    """What the user of a transactional producer gets to see for a refusal; raise it `from` that.

    `aborting`: the refusal answers an attempt to abort, after which nothing is left to try.
    """
    decision = action(error.code, _key(error.api), aborting=aborting)
    if decision is Action.FATAL:
        kind = Fenced if error.code in _FENCED else FatalProducerError
        return kind(str(error), outcome=error.outcome)
    if decision is Action.ABORT:
        return AbortableError(str(error), outcome=error.outcome)
    return error
