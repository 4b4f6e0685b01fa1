"""A transactional producer without any network: what to ask next, and what the answers mean.

Each method that needs brokers is a generator. It yields a `RequestAttempt`: after a pause, and
after finding the coordinator anew if it says so, send that request. It is sent the
`TransactionResponse`, or the `ClientError` for which there is none, and returns or raises what the
application gets. The driver runs one at a time; closing one before its end counts as a response
that was lost.

Both protocols are spoken. Since `transaction.version` 2 every transaction has an epoch of its own,
which the answer to its end brings; before, transactions share one, and a copy of an EndTxn that is
still under way could end the next one, a copy of a TxnOffsetCommit set its offsets back: so after
any doubt, and after every abort, the older protocol goes on with a new epoch. Whenever (producer
id, epoch) changes, sequences restart at 0; as long as it does not, they go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from onceflow.client.codec import (
    TWO_PHASE,
    AddOffsets,
    AddPartitions,
    DescribeTransaction,
    EndTxn,
    GroupMember,
    InitProducerIdRequest,
    OffsetToCommit,
    ProducerIdentity,
    TransactionRequest,
    TransactionResponse,
    TxnOffsetCommit,
    versions_for,
)
from onceflow.client.errors import (
    AbortableError,
    Action,
    ApiNotServed,
    BrokerError,
    ClientError,
    FatalProducerError,
    Fenced,
    Outcome,
    TwoPhaseNotServed,
    UnknownOutcome,
    action_for,
    producer_error,
)
from onceflow.client.events import TRANSACTIONS
from onceflow.client.net import TRANSACTIONAL, RetryPolicy
from onceflow.client.prepared import PreparedTransaction
from onceflow.client.transactions.retrier import (
    Operation,
    RequestOutcome,
    RequestRetrier,
    code_of,
    is_worth_it,
)
from onceflow.client.transactions.states import ProducerState, TransactionEvent, WrongState, after
from onceflow.runtime import Clock, Rand
from onceflow.types import TopicPartition
from onceflow.wire import TRANSACTION_V2, ApiKey, ErrorCode

_OPEN: Final = "Ongoing"
_NOTHING_OPEN: Final = (
    "Empty",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
"""As coordinators say it. What is being ended was open; InitProducerId then waits."""


class TransactionalIdOwner(Enum):
    """Who has a transactional id."""

    SELF = "the producer that asks: it may take the next epoch"
    OTHER = "another producer, by all that can be seen: leave it alone"
    NOT_TOLD = "the broker has no answer to that, or none for this user"
    NOT_ANSWERED = "no answer came in time"


def owner(
    mine: ProducerIdentity, asked: RequestOutcome, *, is_used_up: bool, has_asked: bool
) -> TransactionalIdOwner:
    """Who has the transactional id, by the response to DescribeTransactions; asked before a
    producer that rested takes its next epoch.

    InitProducerId is no harmless question, though it names the epoch that it follows: while a
    transaction is open, Apache Kafka aborts that one first and looks at the epoch afterwards. A
    producer that was replaced while it slept would so end the work of its successor, and with the
    older protocol fence it for good. DescribeTransactions changes nothing, so it is asked first.

    `is_used_up`: a late copy of what this producer asked for may have opened a transaction under
    its own epoch. `has_asked`: it asked for its next epoch already, and may have been given it.
    """
    error, said = asked.error, asked.answer
    if error is not None:
        is_forgotten = isinstance(error, BrokerError) and (
            error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        )
        if is_forgotten:
            return TransactionalIdOwner.SELF
        return (
            TransactionalIdOwner.NOT_TOLD if asked.is_refusal else TransactionalIdOwner.NOT_ANSWERED
        )
    _, producer_id, epoch = mine
    is_closed = said.transaction_state in _NOTHING_OPEN
    if (said.producer_id, said.producer_epoch) == (producer_id, epoch):
        is_own = is_closed or (is_used_up and said.transaction_state == _OPEN)
    else:
        # Of the next epoch the coordinator knows who asked for it, and refuses all others; as long
        # as nothing is open, that does no harm.
        given = (producer_id, epoch + 1)
        is_own = has_asked and is_closed and (said.producer_id, said.producer_epoch) == given
    return TransactionalIdOwner.SELF if is_own else TransactionalIdOwner.OTHER


class _Entry(NamedTuple):
    level: int
    event: str
    message: str


_OF: Final = "a transaction of %(transactional_id)r "
_ENTRIES: Final[Mapping[TransactionEvent, _Entry]] = {
    TransactionEvent.IDENTIFIED: _Entry(
        logging.INFO,
        "initialized",
        "%(transactional_id)r is taken over: producer id %(producer_id)d, epoch %(epoch)d",
    ),
    TransactionEvent.BEGIN: _Entry(logging.DEBUG, "begun", _OF + "has begun"),
    TransactionEvent.PREPARE: _Entry(logging.DEBUG, "prepared", _OF + "is prepared"),
    TransactionEvent.COMMITTED: _Entry(logging.DEBUG, "committed", _OF + "is committed"),
    TransactionEvent.ABORTED: _Entry(logging.INFO, "aborted", _OF + "is aborted"),
    TransactionEvent.TROUBLE: _Entry(
        logging.INFO, "doomed", _OF + "can only be aborted: %(reason)s"
    ),
    TransactionEvent.GAVE_UP: _Entry(logging.WARNING, "unknown", "%(reason)s"),
    TransactionEvent.RESOLVE: _Entry(
        logging.INFO, "resolved", _OF + "was in doubt, and is committed"
    ),
    TransactionEvent.ABORT_FAILED: _Entry(
        logging.WARNING, "unended", _OF + "is still open: %(reason)s"
    ),
    TransactionEvent.FENCED: _Entry(
        logging.ERROR, "fenced", "the producer of %(transactional_id)r has to stop: %(reason)s"
    ),
}


def log_transaction(
    event: TransactionEvent, identity: ProducerIdentity, reason: object = None
) -> None:
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


SENDING: Final = (ProducerState.IN_TRANSACTION, ProducerState.FLUSHING, ProducerState.DROPPING)
"""What was gathered for the transaction may go to brokers, and what they have not answered again:
its sequences would have a gap else."""
RENEWED_AFTER_S: Final = 3_600.0
"""Brokers forget a transactional id that is not used, by default after a week."""
_COMMITTABLE: Final = (ProducerState.IN_TRANSACTION, ProducerState.FLUSHING)
_EPOCH_GONE: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class TransactionMachine:
    """One transactional id. `state`, `identity`, `error` (why nothing but an abort, or nothing at
    all, is possible), `partitions` (those of the open transaction) and `number` (which of its
    transactions that is: what is asked for one must not happen in another) are to be read only."""

    def __init__(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        clock: Clock,
        rand: Rand,
        policy: RetryPolicy = TRANSACTIONAL,
        two_phase: bool = False,
        number: int = 0,
    ) -> None:
        self.state = ProducerState.UNINITIALIZED
        self.identity = ProducerIdentity(transactional_id)
        self.transaction_version = 0
        self.timeout_ms = timeout_ms
        self.error: ClientError | None = None
        self.partitions: set[TopicPartition] = set()
        self.number = number
        self.prepared = PreparedTransaction()
        self._two_phase = two_phase
        self._has_begun = False
        """A broker may know of the open transaction: it takes an EndTxn to end it."""
        self._is_adopted = False
        self._may_be_taken = False
        """Something of the open transaction was acknowledged, or perhaps taken."""
        self._is_forgotten = False
        """The first answer of a transaction was that nobody knows this producer."""
        self._has_copies = False
        """A copy of something that was asked in the open transaction may still be under way."""
        self._used_at = (0.0, 0)
        """When the transactional id was last used, by both clocks: one of them may have stood."""
        self._may_have_next_epoch = False
        """It was asked for, and nobody has heard an answer."""
        self._groups: set[str] = set()
        self._groups_with_copies: set[str] = set()
        self._clock = clock
        self._asker = RequestRetrier(clock, rand, policy)

    def adopt(
        self,
        identity: ProducerIdentity,
        transaction_version: int,
        partitions: Iterable[TopicPartition] = (),
    ) -> None:
        """Goes on with a transaction that somebody else has begun; only once, and first of all."""
        for event in (TransactionEvent.INIT, TransactionEvent.IDENTIFIED, TransactionEvent.BEGIN):
            self._move(event)
        self.identity = identity
        self.transaction_version = transaction_version
        self.partitions = set(partitions)
        self._has_begun = self._is_adopted = True

    @property
    def has_own_epochs(self) -> bool:
        """Whether every transaction has its own epoch: the newer protocol."""
        return self.transaction_version >= TRANSACTION_V2

    @property
    def needs_renewal(self) -> bool:
        """Whether no transaction is open, and `renew` comes before the next: a copy of the end of
        the last one may still be under way, or brokers have forgotten the transactional id, or may
        have: that one was long ago."""
        is_due = self._is_forgotten or self._has_rested()
        return self.state is ProducerState.USED_UP or (self.state is ProducerState.READY and is_due)

    def _has_rested(self) -> bool:
        """Brokers may not know the transactional id any more, and others may have it."""
        mono, wall_ms = self._used_at
        unused_s = max(self._clock.monotonic() - mono, (self._clock.wall_ms() - wall_ms) / 1000)
        return unused_s > RENEWED_AFTER_S

    def _is_used(self) -> None:
        self._used_at = self._clock.monotonic(), self._clock.wall_ms()

    # --- calls without brokers ------------------------------------------------------------------

    def begin(self) -> None:
        """Opens a transaction; brokers hear of it when something joins."""
        self._move(TransactionEvent.BEGIN)
        self.number += 1
        log_transaction(TransactionEvent.BEGIN, self.identity)
        self.partitions.clear()
        self._groups.clear()
        self._groups_with_copies.clear()
        self._has_begun = self._is_adopted = self._has_copies = self._may_be_taken = False

    def taken(self) -> None:
        """A broker has acknowledged records of the open transaction, or perhaps has them."""
        self._may_be_taken = True

    def retire(self) -> int:
        """Another machine takes its place: what was asked for in a transaction of this one is over.
        The number from which that one counts, or theirs could be taken for each other."""
        self.number += 1
        return self.number

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether a batch may go to this partition now: its request is taken for sent. False: it
        has to `join` first, or there is no transaction to send in."""
        if self.state not in SENDING:
            return False
        if self.has_own_epochs:
            self._has_begun = True
            self.partitions.add(partition)
        return partition in self.partitions

    def failed(self, error: ClientError) -> ClientError:
        """Something that was sent in the transaction failed for good; what the user gets."""
        if self.state not in (*_COMMITTABLE, ProducerState.ABORTABLE_ERROR):
            return error
        if self._is_unknown(error):
            self._is_forgotten = True
            return self._fail(
                TransactionEvent.TROUBLE, AbortableError(str(error), outcome="not applied")
            )
        found = producer_error(error) if isinstance(error, BrokerError) else error
        if action_for(found) is Action.FATAL:
            return self._fail(TransactionEvent.FENCED, found)
        if not isinstance(found, AbortableError):
            found = AbortableError(str(error), outcome=error.outcome)
        return self._fail(TransactionEvent.TROUBLE, found)

    def _is_unknown(self, error: ClientError) -> bool:
        """Whether brokers do not know this producer, and nothing of the transaction can be
        anywhere: they forget an id after a time that is theirs to choose, and only while nothing is
        open under it. Where anything may have been taken, somebody else has ended that since."""
        is_unknown = code_of(error) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return is_unknown and not (self._may_be_taken or self._is_adopted)

    def refuse_sends(self, event: TransactionEvent) -> None:
        """`event`, an end that was asked for, follows when all that was sent has an outcome;
        nothing is sent any more. Raises what the end itself would."""
        if self.state is ProducerState.UNCLEAR_COMMIT and event is TransactionEvent.COMMIT:
            return  # it is asked about again
        if event is TransactionEvent.PREPARE and not self._two_phase:
            raise WrongState("prepare_transaction: transaction.two.phase.commit.enable is not set")
        self._after(event)
        if event is TransactionEvent.ABORT:
            if self.state is not ProducerState.PREPARED:
                self._move(TransactionEvent.DROP)
        elif self.state is ProducerState.IN_TRANSACTION:
            self._move(TransactionEvent.FLUSH)

    def prepare(self) -> PreparedTransaction:
        """Nothing joins the transaction any more; its name, by which it can be completed."""
        self._move(TransactionEvent.PREPARE)
        _, *name = self.identity
        self.prepared = PreparedTransaction(*name)
        log_transaction(TransactionEvent.PREPARE, self.identity)
        return self.prepared

    # --- calls that ask brokers -----------------------------------------------------------------

    def init(self, transaction_version: int, *, keep_prepared: bool = False) -> Operation[None]:
        """A new epoch; whatever was open before is aborted, or with `keep_prepared` is this
        producer's to end. `transaction_version` is what the brokers have finalized."""
        if keep_prepared and not self._two_phase:
            raise WrongState("keep_prepared: transaction.two.phase.commit.enable is not set")
        self._move(TransactionEvent.INIT)
        self.transaction_version = transaction_version
        if self._two_phase and not self.has_own_epochs:
            self._move(TransactionEvent.INIT_FAILED)
            raise TwoPhaseNotServed("two-phase commits need transaction.version 2")
        anyone = ProducerIdentity(self.identity.transactional_id)
        error = yield from self._identify(anyone, keep_prepared=keep_prepared)
        if error is not None:
            raise error

    def renew(self) -> Operation[None]:
        """The next epoch of the same producer, while no transaction is open (`needs_renewal`).
        `Fenced` when another producer has the transactional id, which is left alone. When nobody
        answers it is as before, and can be renewed again: to take the id over, as `init` does,
        would fence that other one. Where nobody can say who has the id, an epoch that may still do
        is kept."""
        is_used_up, has_rested = self.state is ProducerState.USED_UP, self._has_rested()
        failed = TransactionEvent.STILL_USED_UP if is_used_up else TransactionEvent.NOT_RENEWED
        self._move(TransactionEvent.INIT)
        asked = yield from self._describe(failed)
        found = owner(
            self.identity, asked, is_used_up=is_used_up, has_asked=self._may_have_next_epoch
        )
        if found is TransactionalIdOwner.NOT_ANSWERED and asked.error is not None:
            self._move(failed)
            raise asked.error
        if found is TransactionalIdOwner.OTHER:
            raise self._fail(TransactionEvent.FENCED, Fenced(self._taken_over(asked.answer)))
        if found is TransactionalIdOwner.NOT_TOLD and not (is_used_up or self._is_forgotten):
            self._is_used()
            self._move(failed)
            return
        if found is TransactionalIdOwner.NOT_TOLD and (has_rested or self._is_forgotten):
            message = f"nobody can say who has {self.identity} by now: {asked.error}"
            raise self._fail(TransactionEvent.FENCED, FatalProducerError(message))
        error = yield from self._identify(self.identity, failed=failed)
        if error is not None:
            raise error

    def _describe(self, failed: TransactionEvent) -> Operation[RequestOutcome]:
        try:
            return (yield from self._asker.ask(DescribeTransaction(self.identity)))
        except GeneratorExit:
            self._move(failed)
            raise

    def _taken_over(self, said: TransactionResponse) -> str:
        return (
            f"transaction of {self.identity}: another producer with the same transactional id has "
            f"taken over (now it is {said.producer_id}, epoch {said.producer_epoch}: "
            f"{said.transaction_state})"
        )

    def join(self, partitions: Iterable[TopicPartition]) -> Operation[None]:
        """Makes the partitions part of the transaction, so that batches may be sent to them."""
        return self._join(self.number, partitions)

    def _join(self, number: int, partitions: Iterable[TopicPartition]) -> Operation[None]:
        self._check_number(number)
        self._move(TransactionEvent.JOIN)
        new = tuple(each for each in dict.fromkeys(partitions) if each not in self.partitions)
        if self.has_own_epochs or not new:
            self.partitions.update(new)
            self._has_begun = self._has_begun or bool(new)
            self._may_be_taken = self._may_be_taken or bool(new)  # of what others write
            return
        asked = yield from self._asked_in_transaction(AddPartitions(self.identity, new))
        added = {each for each, code in asked.answer.partitions if not code}
        self.partitions |= added
        self._has_begun = self._has_begun or bool(added)
        self._may_be_taken = self._may_be_taken or bool(added)
        if asked.error is not None:
            raise self.failed(_after(asked.error)) from asked.error

    def commit_offsets(
        self, member: GroupMember, offsets: Mapping[TopicPartition, OffsetToCommit]
    ) -> Operation[None]:
        """Offsets that hold if the transaction is committed. Raises `AbortableError` when a late
        copy of an earlier call could set them back."""
        self._move(TransactionEvent.SEND)
        return self._commit_offsets(self.number, member, offsets)

    def _commit_offsets(
        self, number: int, member: GroupMember, offsets: Mapping[TopicPartition, OffsetToCommit]
    ) -> Operation[None]:
        self._check_number(number)
        self._move(TransactionEvent.SEND)
        if not offsets:
            return
        if member.group_id in self._groups_with_copies:
            message = f"a copy of earlier offsets of group {member.group_id!r} may be under way"
            raise self._fail(TransactionEvent.TROUBLE, AbortableError(message))
        if not self.has_own_epochs and member.group_id not in self._groups:
            joining = AddOffsets(self.identity, member.group_id)
            yield from self._ask_in_transaction(joining)
            self._groups.add(member.group_id)
        self._has_begun = True
        versions = versions_for(ApiKey.TXN_OFFSET_COMMIT, self.transaction_version)
        pairs = tuple(offsets.items())
        request = TxnOffsetCommit(self.identity, member, pairs, versions)
        if (yield from self._ask_in_transaction(request)):
            self._groups_with_copies.add(member.group_id)

    def commit(self) -> Operation[None]:
        """Everything that was sent becomes visible at once. Raises `AbortableError` when the
        transaction cannot be committed, `UnknownOutcome` when no answer came in time."""
        return self._commit_open(self.number)

    def _commit_open(self, number: int) -> Operation[None]:
        self._check_number(number)
        self._move(TransactionEvent.COMMIT)
        if not self._has_begun:
            self._move(TransactionEvent.COMMITTED)
            log_transaction(TransactionEvent.COMMITTED, self.identity)
            return
        yield from self._commit(was_doubtful=False)

    def resolve(self) -> Operation[None]:
        """Asks again about a commit that was not answered: returns if it was done."""
        return self._resolve(self.number)

    def _resolve(self, number: int) -> Operation[None]:
        self._check_number(number)
        self._move(TransactionEvent.RESOLVE)
        yield from self._commit(was_doubtful=True)

    def abort(self) -> Operation[None]:
        """Nothing that was sent will be seen."""
        return self._abort_open(self.number)

    def _abort_open(self, number: int) -> Operation[None]:
        self._check_number(number)
        self._move(TransactionEvent.ABORT)
        is_nowhere = self._is_forgotten and not self._may_be_taken
        if is_nowhere or not self._has_begun:
            self.error = None
            self._move(TransactionEvent.ABORTED)
            log_transaction(TransactionEvent.ABORTED, self.identity)
            return
        request = self._end(committed=False)
        try:
            asked = yield from self._asker.ask(request)
        except GeneratorExit:
            self._fail(TransactionEvent.ABORT_FAILED, AbortableError("an abort was cut short"))
            raise
        refusal = asked.error
        if code_of(refusal) == ErrorCode.INVALID_TXN_STATE and self._may_be_empty():
            refusal = None
        if refusal is None:
            yield from self._ended(
                asked.answer, TransactionEvent.ABORTED, renew=not self.has_own_epochs
            )
            return
        if asked.is_refusal and isinstance(refusal, BrokerError):
            raise self._fail(
                TransactionEvent.FENCED, producer_error(refusal, aborting=True)
            ) from refusal
        raise self._fail(
            TransactionEvent.ABORT_FAILED,
            AbortableError(f"the abort was not answered: {refusal}", outcome=refusal.outcome),
        ) from refusal

    def _may_be_empty(self) -> bool:
        """Whether nothing is known to have joined: then the coordinator knows of no transaction to
        abort. The new epoch of the older protocol makes sure that nothing will."""
        is_known = self._is_adopted or self.partitions or self._groups
        return not self.has_own_epochs and not is_known

    # --- ends -----------------------------------------------------------------------------------

    def _end(self, *, committed: bool) -> EndTxn:
        versions = versions_for(ApiKey.END_TXN, self.transaction_version)
        return EndTxn(self.identity, committed, versions)

    def _commit(self, *, was_doubtful: bool) -> Operation[None]:
        began = self._clock.monotonic()
        try:
            asked = yield from self._asker.ask(self._end(committed=True))
        except GeneratorExit:
            waited = self._clock.monotonic() - began
            self._fail(TransactionEvent.GAVE_UP, self._unknown(waited, "it was cut short"))
            raise
        asked = asked._replace(is_doubtful=asked.is_doubtful or was_doubtful)
        if asked.error is None:
            # Under the same epoch a late copy would be taken for a part of the next transaction.
            renew = (asked.is_doubtful or self._has_copies) and not self.has_own_epochs
            if asked.is_doubtful:
                log_transaction(TransactionEvent.RESOLVE, self.identity)
            yield from self._ended(asked.answer, TransactionEvent.COMMITTED, renew=renew)
            return
        waited = self._clock.monotonic() - began
        raise self._not_committed(asked, asked.error, waited) from asked.error

    def _not_committed(
        self, asked: RequestOutcome, error: ClientError, waited_s: float
    ) -> ClientError:
        if not asked.is_refusal or not isinstance(error, BrokerError):
            if asked.is_doubtful:
                return self._fail(TransactionEvent.GAVE_UP, self._unknown(waited_s, error))
            return self._fail(
                TransactionEvent.TROUBLE, AbortableError(f"the commit was not taken: {error}")
            )
        # With a copy in doubt, that one may have been taken before another producer came.
        outcome: Outcome = "unknown" if asked.is_doubtful else "not applied"
        may_have_timed_out = self.has_own_epochs and not self._two_phase
        if error.code in _EPOCH_GONE and may_have_timed_out and not asked.is_doubtful:
            # It timed out, or another producer took over: the abort will tell.
            return self._fail(TransactionEvent.TROUBLE, AbortableError(str(error)))
        found = producer_error(error)
        if isinstance(found, AbortableError):
            return self._fail(TransactionEvent.TROUBLE, found)
        found.outcome = outcome
        return self._fail(TransactionEvent.FENCED, found)

    def _unknown(self, waited_s: float, cause: object) -> UnknownOutcome:
        name = self.identity.transactional_id
        return UnknownOutcome.of_commit(name, round(waited_s, 3), cause)

    def _ended(
        self, answer: TransactionResponse, event: TransactionEvent, *, renew: bool
    ) -> Operation[None]:
        """The transaction has ended. A new epoch that cannot be had is no failure of its end: the
        next call says so."""
        log_transaction(event, self.identity)
        self._adopt(answer)
        self._is_used()
        self.error = None
        self._has_begun = False
        self.prepared = PreparedTransaction()
        if not renew:
            self._move(event)
            return
        self._move(TransactionEvent.RENEW)
        yield from self._identify(self.identity, failed=TransactionEvent.STILL_USED_UP)

    # --- asking ---------------------------------------------------------------------------------

    def _identify(
        self,
        known: ProducerIdentity,
        *,
        keep_prepared: bool = False,
        failed: TransactionEvent = TransactionEvent.INIT_FAILED,
    ) -> Operation[ClientError | None]:
        request = InitProducerIdRequest(known, self.timeout_ms)
        if self._two_phase:
            request = replace(request, versions=TWO_PHASE, keeps_prepared=keep_prepared)
        try:
            asked = yield from self._asker.ask(request)
        except GeneratorExit:
            self._may_have_next_epoch = True
            self._move(failed)
            raise
        if asked.error is None:
            self._may_have_next_epoch = self._is_forgotten = False
            self._adopt(asked.answer)
            self._is_used()
            self.prepared = asked.answer.prepared
            self._has_begun = self._is_adopted = bool(self.prepared)
            self._move(TransactionEvent.KEPT if self.prepared else TransactionEvent.IDENTIFIED)
            return None
        self._may_have_next_epoch = self._may_have_next_epoch or asked.is_doubtful
        error = asked.error
        if self._two_phase and isinstance(error, ApiNotServed):
            error = TwoPhaseNotServed(str(error))
        if asked.is_refusal and isinstance(error, BrokerError):
            found = producer_error(error)
            if action_for(found) is Action.FATAL:
                return self._fail(TransactionEvent.FENCED, found)
        self._move(failed)
        return error

    def _adopt(self, answer: TransactionResponse) -> None:
        if answer.producer_id >= 0:
            self.identity = self.identity._replace(
                producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
            )

    def _ask_in_transaction(self, request: TransactionRequest) -> Operation[bool]:
        """Whether a copy of what was done may still be under way."""
        asked = yield from self._asked_in_transaction(request)
        self._has_begun = self._has_begun or asked.error is None
        self._may_be_taken = self._may_be_taken or asked.error is None
        if asked.error is not None:
            raise self.failed(_after(asked.error)) from asked.error
        return asked.is_doubtful

    def _asked_in_transaction(self, request: TransactionRequest) -> Operation[RequestOutcome]:
        """Of what is in doubt the coordinator may know, and a copy of it may come late."""
        is_doubtful = True
        try:
            asked = yield from self._asker.ask(request)
            is_doubtful = asked.is_doubtful
            return asked
        except GeneratorExit:
            # Nobody could say whether a commit would have it in it. An end that was asked for
            # meanwhile goes its way: who was cancelled has to see that, and no other error.
            self.failed(AbortableError(f"{request.api.name} was cut short"))
            raise
        finally:
            self._has_begun = self._has_begun or is_doubtful
            self._has_copies = self._has_copies or is_doubtful
            self._may_be_taken = self._may_be_taken or is_doubtful

    # --- the table ------------------------------------------------------------------------------

    def _check_number(self, number: int) -> None:
        """Operations wait for their turn, and their transaction does not wait for them."""
        if number != self.number:
            raise WrongState("send: the transaction that this was for is over")

    def _move(self, event: TransactionEvent) -> None:
        self.state = self._after(event)

    def _after(self, event: TransactionEvent) -> ProducerState:
        try:
            return after(self.state, event)
        except WrongState as wrong:
            if self.error is None:
                raise
            raise copy(self.error) from wrong  # its traceback is of another call

    def _fail(self, event: TransactionEvent, error: ClientError) -> ClientError:
        is_later = self.state is ProducerState.ABORTABLE_ERROR and event is TransactionEvent.TROUBLE
        self._move(event)
        if not is_later:  # what came first is more likely to be the reason
            self.error = error
            log_transaction(event, self.identity, error)
        return error


def _after(error: ClientError) -> ClientError:
    """What is left of an error when its time is up: nobody asks again."""
    if is_worth_it(error):
        return AbortableError(f"not done in time: {error}", outcome=error.outcome)
    return error
