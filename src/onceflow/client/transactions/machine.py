"""A transactional producer without a network: which request comes next, and what responses mean.

Each method that needs the coordinator is a generator. It yields a `RequestAttempt`, which tells the
driver to send a request, after a pause, and after looking up the coordinator if the attempt says
so. The driver sends back the `TransactionResponse`, or the `ClientError` if there was none; the
generator returns or raises what the application gets. The driver runs one generator at a time.
Closing one before its end means the same as losing the response.

The machine follows both protocols. From `transaction.version` 2 on every transaction has its own
epoch, which comes with the response to EndTxn. In the older protocol transactions share an epoch: a
delayed copy of an EndTxn could end the next transaction, and a delayed copy of a TxnOffsetCommit
could set its offsets back. So there, after every abort and after every unknown outcome, the machine
asks for a new epoch, which fences such copies. Sequence numbers restart at 0 whenever the producer
id or the epoch changes, and only then.
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
"""The coordinator's states without an open transaction. PrepareCommit and PrepareAbort are among
them: InitProducerId waits until such a transaction has ended."""


class TransactionalIdOwner(Enum):
    """Which producer a transactional id belongs to now."""

    SELF = "the producer that asks: it may take the next epoch"
    OTHER = "another producer, as far as the broker says: leave it alone"
    NOT_TOLD = "the broker has no answer to that, or none for this user"
    NOT_ANSWERED = "no answer came in time"


def owner(
    mine: ProducerIdentity, asked: RequestOutcome, *, is_used_up: bool, has_asked: bool
) -> TransactionalIdOwner:
    """Which producer owns the transactional id, by the response to DescribeTransactions. A producer
    that was idle for long sends that request before it takes its next epoch.

    InitProducerId is not safe for that, although it names the expected epoch: when a transaction is
    open, Apache Kafka aborts it first and checks the epoch afterwards. A producer that was replaced
    while it slept would abort its successor's transaction, and in the older protocol even fence the
    successor. DescribeTransactions changes nothing.

    `is_used_up`: a delayed copy of this producer's own request may have opened a transaction under
    its own epoch. `has_asked`: the producer has already asked for its next epoch, and the
    coordinator may have assigned it.
    """
    error, described = asked.error, asked.answer
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
    is_closed = described.transaction_state in _NOTHING_OPEN
    current = (described.producer_id, described.producer_epoch)
    if current == (producer_id, epoch):
        is_own = is_closed or (is_used_up and described.transaction_state == _OPEN)
    else:
        # If this producer asked for the next epoch, that may be the one: the coordinator knows
        # which producer asked for it and refuses others. With nothing open, asking does no harm.
        is_own = has_asked and is_closed and current == (producer_id, epoch + 1)
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
    """Logs what has happened to a transaction or to its producer."""
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
"""The states in which batches of the transaction may be sent. DROPPING is among them: a batch that
has a sequence number and no acknowledgement is sent again, or the sequence would have a gap."""
RENEWED_AFTER_S: Final = 3_600.0
"""Brokers expire an unused transactional id, by default after a week."""
_COMMITTABLE: Final = (ProducerState.IN_TRANSACTION, ProducerState.FLUSHING)
_EPOCH_GONE: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class TransactionMachine:
    """The state of one transactional id.

    Other classes only read `state`, `identity`, `error` (why the transaction can only be aborted,
    or the producer do nothing more), `partitions` (those of the open transaction) and `number`.
    `number` counts the transactions: an operation that was begun for one must not act on the next.
    """

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
        """The coordinator may know of the open transaction: only an EndTxn ends it."""
        self._is_adopted = False
        self._may_be_taken = False
        """A broker has written something of the open transaction, or may have."""
        self._is_forgotten = False
        """The first response in a transaction was that the broker does not know the producer."""
        self._has_copies = False
        """A copy of a request of the open transaction may still arrive at the coordinator."""
        self._used_at = (0.0, 0)
        """When the transactional id was last used, by both clocks: the monotonic one may stand
        still while the machine sleeps, and the wall clock may be set back."""
        self._may_have_next_epoch = False
        """The next epoch was requested, and no response came."""
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
        """Continues a transaction that another process has begun. Call it once, before all else."""
        for event in (TransactionEvent.INIT, TransactionEvent.IDENTIFIED, TransactionEvent.BEGIN):
            self._move(event)
        self.identity = identity
        self.transaction_version = transaction_version
        self.partitions = set(partitions)
        self._has_begun = self._is_adopted = True

    @property
    def has_own_epochs(self) -> bool:
        """Whether every transaction has its own epoch, as in the newer protocol."""
        return self.transaction_version >= TRANSACTION_V2

    @property
    def needs_renewal(self) -> bool:
        """Whether `renew` has to come before the next transaction: a copy of the last EndTxn may
        still arrive, or brokers have expired the transactional id, or may have, after a long time
        without a transaction. False while a transaction is open."""
        is_due = self._is_forgotten or self._has_rested()
        return self.state is ProducerState.USED_UP or (self.state is ProducerState.READY and is_due)

    def _has_rested(self) -> bool:
        """The id was unused for so long that brokers may have expired it, or another producer may
        have taken it over."""
        mono, wall_ms = self._used_at
        unused_s = max(self._clock.monotonic() - mono, (self._clock.wall_ms() - wall_ms) / 1000)
        return unused_s > RENEWED_AFTER_S

    def _is_used(self) -> None:
        self._used_at = self._clock.monotonic(), self._clock.wall_ms()

    # --- calls without brokers ------------------------------------------------------------------

    def begin(self) -> None:
        """Opens a transaction; the coordinator learns of it when a partition or group joins."""
        self._move(TransactionEvent.BEGIN)
        self.number += 1
        log_transaction(TransactionEvent.BEGIN, self.identity)
        self.partitions.clear()
        self._groups.clear()
        self._groups_with_copies.clear()
        self._has_begun = self._is_adopted = self._has_copies = self._may_be_taken = False

    def taken(self) -> None:
        """A leader has acknowledged records of the open transaction, or may have written them."""
        self._may_be_taken = True

    def retire(self) -> int:
        """Ends this machine, which another one replaces: operations that wait for their turn fail.
        Returns the number from which the next machine counts, so that no operation of this one can
        pass for one of the next."""
        self.number += 1
        return self.number

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether a batch may go to this partition now; if so, the machine takes it for sent. False
        when the partition has to `join` first, or no transaction is open."""
        if self.state not in SENDING:
            return False
        if self.has_own_epochs:
            # The leader adds the partition when the batch arrives. Noted before the batch is sent,
            # as no response may ever come: the transaction would then be left open.
            self._has_begun = True
            self.partitions.add(partition)
        return partition in self.partitions

    def failed(self, error: ClientError) -> ClientError:
        """A request of the transaction has failed for good. Returns the error that the application
        gets."""
        if self.state not in (*_COMMITTABLE, ProducerState.ABORTABLE_ERROR):
            return error
        if self._is_unknown(error):
            self._is_forgotten = True
            return self._fail(
                TransactionEvent.TROUBLE, AbortableError(str(error), outcome="not applied")
            )
        failure = producer_error(error) if isinstance(error, BrokerError) else error
        if action_for(failure) is Action.FATAL:
            return self._fail(TransactionEvent.FENCED, failure)
        if not isinstance(failure, AbortableError):
            failure = AbortableError(str(error), outcome=error.outcome)
        return self._fail(TransactionEvent.TROUBLE, failure)

    def _is_unknown(self, error: ClientError) -> bool:
        """Whether the broker does not know this producer and cannot have written anything of the
        transaction. Brokers expire an id only while it has no open transaction. So when something
        was written and the id is unknown, another producer has ended the transaction since: that
        one may have been committed or aborted, and must not be taken for empty."""
        is_unknown = code_of(error) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return is_unknown and not (self._may_be_taken or self._is_adopted)

    def refuse_sends(self, event: TransactionEvent) -> None:
        """Refuses new records from now on: the requested end, `event`, follows when all records
        sent so far have an outcome. Raises what the end itself would."""
        if self.state is ProducerState.UNCLEAR_COMMIT and event is TransactionEvent.COMMIT:
            return  # the same commit is sent again
        if event is TransactionEvent.PREPARE and not self._two_phase:
            raise WrongState("prepare_transaction: transaction.two.phase.commit.enable is not set")
        self._after(event)
        if event is TransactionEvent.ABORT:
            if self.state is not ProducerState.PREPARED:
                self._move(TransactionEvent.DROP)
        elif self.state is ProducerState.IN_TRANSACTION:
            self._move(TransactionEvent.FLUSH)

    def prepare(self) -> PreparedTransaction:
        """Closes the transaction to new records; returns its name, by which it can be completed."""
        self._move(TransactionEvent.PREPARE)
        _, *name = self.identity
        self.prepared = PreparedTransaction(*name)
        log_transaction(TransactionEvent.PREPARE, self.identity)
        return self.prepared

    # --- calls that ask brokers -----------------------------------------------------------------

    def init(self, transaction_version: int, *, keep_prepared: bool = False) -> Operation[None]:
        """Gets a new epoch. The coordinator aborts a transaction that was left open, or hands it to
        this producer with `keep_prepared`. `transaction_version` is the level that the cluster has
        finalized."""
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
        """Gets the next epoch for the same producer while no transaction is open (`needs_renewal`).

        Never takes the id over, as `init` does: that would fence another producer that has it, and
        that one may be the successor of this one. Raises `Fenced` when another producer has the id.
        When the coordinator does not answer, nothing has changed and `renew` can be called again.
        When it cannot say which producer has the id, the current epoch is kept if it may still be
        good."""
        is_used_up, has_rested = self.state is ProducerState.USED_UP, self._has_rested()
        failed = TransactionEvent.STILL_USED_UP if is_used_up else TransactionEvent.NOT_RENEWED
        self._move(TransactionEvent.INIT)
        asked = yield from self._describe(failed)
        holder = owner(
            self.identity, asked, is_used_up=is_used_up, has_asked=self._may_have_next_epoch
        )
        if holder is TransactionalIdOwner.NOT_ANSWERED and asked.error is not None:
            self._move(failed)
            raise asked.error
        if holder is TransactionalIdOwner.OTHER:
            raise self._fail(TransactionEvent.FENCED, Fenced(self._taken_over(asked.answer)))
        if holder is TransactionalIdOwner.NOT_TOLD and not (is_used_up or self._is_forgotten):
            self._is_used()
            self._move(failed)
            return
        if holder is TransactionalIdOwner.NOT_TOLD and (has_rested or self._is_forgotten):
            message = f"it is not known which producer has {self.identity} by now: {asked.error}"
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

    def _taken_over(self, described: TransactionResponse) -> str:
        return (
            f"transaction of {self.identity}: another producer with the same transactional id has "
            f"taken over (now it is {described.producer_id}, epoch {described.producer_epoch}: "
            f"{described.transaction_state})"
        )

    def join(self, partitions: Iterable[TopicPartition]) -> Operation[None]:
        """Adds the partitions to the transaction, so that batches may be sent to them."""
        return self._join(self.number, partitions)

    def _join(self, number: int, partitions: Iterable[TopicPartition]) -> Operation[None]:
        self._check_number(number)
        self._move(TransactionEvent.JOIN)
        new = tuple(each for each in dict.fromkeys(partitions) if each not in self.partitions)
        if self.has_own_epochs or not new:
            self.partitions.update(new)
            self._has_begun = self._has_begun or bool(new)
            # Another process may write to them under this epoch.
            self._may_be_taken = self._may_be_taken or bool(new)
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
        """Commits a group's offsets as part of the transaction. Raises `AbortableError` when a
        delayed copy of an earlier request could set them back."""
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
            # The coordinator takes the last one to arrive. If that is the delayed copy, the commit
            # sets the group back, and records are read twice.
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
        """Commits the transaction. Raises `AbortableError` when it cannot be committed, and
        `UnknownOutcome` when no response came in time."""
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
        """Sends a commit again that was not answered; returns when the transaction is committed."""
        return self._resolve(self.number)

    def _resolve(self, number: int) -> Operation[None]:
        self._check_number(number)
        self._move(TransactionEvent.RESOLVE)
        yield from self._commit(was_doubtful=True)

    def abort(self) -> Operation[None]:
        """Aborts the transaction."""
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
        """Whether perhaps nothing has joined the transaction: then the coordinator has none to
        abort, and refuses the EndTxn. The new epoch that follows in the older protocol fences a
        request that could still open one."""
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
            # Under the same epoch a delayed copy would act on the next transaction.
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
        # If an earlier attempt got no response, it may have committed before this one was refused.
        outcome: Outcome = "unknown" if asked.is_doubtful else "not applied"
        may_have_timed_out = self.has_own_epochs and not self._two_phase
        if error.code in _EPOCH_GONE and may_have_timed_out and not asked.is_doubtful:
            # The transaction timed out, or another producer took over; the abort finds out which.
            return self._fail(TransactionEvent.TROUBLE, AbortableError(str(error)))
        failure = producer_error(error)
        if isinstance(failure, AbortableError):
            return self._fail(TransactionEvent.TROUBLE, failure)
        failure.outcome = outcome
        return self._fail(TransactionEvent.FENCED, failure)

    def _unknown(self, waited_s: float, cause: object) -> UnknownOutcome:
        name = self.identity.transactional_id
        return UnknownOutcome.of_commit(name, round(waited_s, 3), cause)

    def _ended(
        self, answer: TransactionResponse, event: TransactionEvent, *, renew: bool
    ) -> Operation[None]:
        """The transaction has ended. If the new epoch that has to follow cannot be had, the end was
        still a success: the next call asks again and raises."""
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
            failure = producer_error(error)
            if action_for(failure) is Action.FATAL:
                return self._fail(TransactionEvent.FENCED, failure)
        self._move(failed)
        return error

    def _adopt(self, answer: TransactionResponse) -> None:
        if answer.producer_id >= 0:
            self.identity = self.identity._replace(
                producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
            )

    def _ask_in_transaction(self, request: TransactionRequest) -> Operation[bool]:
        """Whether a copy of the request may still arrive at the coordinator."""
        asked = yield from self._asked_in_transaction(request)
        self._has_begun = self._has_begun or asked.error is None
        self._may_be_taken = self._may_be_taken or asked.error is None
        if asked.error is not None:
            raise self.failed(_after(asked.error)) from asked.error
        return asked.is_doubtful

    def _asked_in_transaction(self, request: TransactionRequest) -> Operation[RequestOutcome]:
        """Sends a request of the open transaction. If its outcome stays unknown, the coordinator
        may have carried it out, and a copy may arrive later: the flags say so."""
        is_doubtful = True
        try:
            asked = yield from self._asker.ask(request)
            is_doubtful = asked.is_doubtful
            return asked
        except GeneratorExit:
            # A commit could not know whether it includes this request: the transaction must be
            # aborted. The error is not raised, as a cancelled caller has to see the cancellation.
            self.failed(AbortableError(f"{request.api.name} was cut short"))
            raise
        finally:
            self._has_begun = self._has_begun or is_doubtful
            self._has_copies = self._has_copies or is_doubtful
            self._may_be_taken = self._may_be_taken or is_doubtful

    # --- the table ------------------------------------------------------------------------------

    def _check_number(self, number: int) -> None:
        """Raises when the transaction of this operation ended while it waited for its turn."""
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
        if not is_later:  # the first error is more likely to be the cause
            self.error = error
            log_transaction(event, self.identity, error)
        return error


def _after(error: ClientError) -> ClientError:
    """The error when time is up: one that was worth a retry becomes an `AbortableError`."""
    if is_worth_it(error):
        return AbortableError(f"not done in time: {error}", outcome=error.outcome)
    return error
