"""Transactions for a blocking application: begins one, hands it to workers, commits or aborts it;
or ends one that another process has begun.

The state machine of the async producer decides which request comes next and what a response means;
this module only sends them, over blocking sockets. For one thread of one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from onceflow.client.codec import (
    GROUP,
    TRANSACTION,
    GroupMember,
    OffsetToCommit,
    ProducerIdentity,
    offset_fetch_request,
    read_answer,
)
from onceflow.client.errors import BrokerError, ClientError, CrossedFork
from onceflow.client.settings import ProducerSettings
from onceflow.client.transactions import (
    Claim,
    OpenTransaction,
    Operation,
    ProducerState,
    Reply,
    RequestAttempt,
    T,
    TransactionMachine,
)
from onceflow.client.worker.cluster import BlockingCluster, not_sent
from onceflow.errors import InvalidSetting
from onceflow.runtime import Clock, Rand, RealClock, RealRand
from onceflow.types import TopicPartition

_NOTHING: Final = -1


class TransactionClient:
    """Needs `transactional.id` in its settings. After any doubt call `init`, then
    `committed_offsets`, then decide; never the other way round: until `init` has fenced it, another
    producer with this id may still commit."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        clock: Clock | None = None,
        rand: Rand | None = None,
    ) -> None:
        if settings.transactional_id is None:
            raise InvalidSetting("transactional.id is not set; transactions need one")
        self._settings = settings
        self._clock = clock or RealClock()
        self._rand = rand or RealRand()
        self._cluster = BlockingCluster(
            settings.bootstrap_servers, settings, self._clock, self._rand
        )
        self._machine = TransactionMachine(
            settings.transactional_id,
            timeout_ms=settings.transaction_timeout_ms,
            clock=self._clock,
            rand=self._rand,
            policy=settings.transactional_retry,
        )
        self._pid = os.getpid()
        self._handed_out: ProducerIdentity | None = None

    @classmethod
    def of(
        cls,
        transaction: OpenTransaction,
        settings: ProducerSettings | None = None,
        *,
        clock: Clock | None = None,
        rand: Rand | None = None,
    ) -> Self:
        """For a transaction that another process began; `settings` give the timeouts and the
        login."""
        mine = replace(
            settings or ProducerSettings.of(),
            bootstrap_servers=transaction.bootstrap,
            transactional_id=transaction.transactional_id,
            transaction_timeout_ms=transaction.timeout_ms,
        )
        made = cls(mine, clock=clock, rand=rand)
        made._machine.adopt(
            transaction.identity, transaction.transaction_version, transaction.partitions
        )
        made._handed_out = transaction.identity
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; an open transaction stays open for the process that it was handed
        to."""
        self._cluster.close()

    @property
    def state(self) -> ProducerState:
        return self._machine.state

    @property
    def identity(self) -> ProducerIdentity:
        return self._machine.identity

    # --- transactions ---------------------------------------------------------------------------

    def init(self) -> ProducerIdentity:
        """Gets a new epoch: aborts an open transaction and fences other producers with this id."""
        self._check_process()
        version = self._cluster.trying(
            lambda deadline, _: self._cluster.transaction_version(deadline),
            self._settings.transactional_retry,
        )
        self._drive(self._machine.init(version))
        return self.identity

    @property
    def needs_renewal(self) -> bool:
        """Whether `renew` must come before `begin`: the coordinator may have forgotten the
        transactional id, or a copy of the last EndTxn may still be in flight."""
        return self._machine.needs_renewal

    def renew(self) -> None:
        """The next epoch of the same driver; raises `Fenced` when another has the id."""
        self._drive(self._machine.renew())

    def begin(self, partitions: Iterable[TopicPartition] = ()) -> OpenTransaction:
        """Opens a transaction for writers of these partitions, each from sequence 0.

        For that the transaction needs an epoch of its own. The end of the previous transaction
        brings it; in the older protocol this asks for one.
        """
        if self._handed_out == self.identity:
            self.init()
        self._machine.begin()
        self._handed_out = self.identity
        claimed = tuple(dict.fromkeys(partitions))
        self._drive(self._machine.join(claimed))
        claims = map(Claim, claimed)
        return OpenTransaction.of(self._machine, self._settings.bootstrap_servers, claims)

    def commit_offsets(
        self, member: GroupMember | str, offsets: Mapping[TopicPartition, OffsetToCommit]
    ) -> None:
        """Adds a group's offsets to the transaction: they are committed with it."""
        whose = GroupMember(member) if isinstance(member, str) else member
        self._drive(self._machine.commit_offsets(whose, offsets))

    def commit(self) -> None:
        """Raises `AbortableError`, `Fenced`, or `UnknownOutcome` when no answer came in time."""
        self._drive(self._machine.commit())

    def resolve(self) -> None:
        """After `UnknownOutcome`: asks again; returns if the commit was done."""
        self._drive(self._machine.resolve())

    def abort(self) -> None:
        """Raises `Fenced` when another producer owns the transactional id by now."""
        self._drive(self._machine.abort())

    def committed_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, require_stable: bool = True
    ) -> dict[TopicPartition, OffsetToCommit | None]:
        """A group's committed offsets; None for a partition without one. `require_stable` waits
        until no open transaction has offsets there."""
        wanted = tuple(partitions)
        topics: dict[str, list[int]] = {}
        for topic, number in wanted:
            topics.setdefault(topic, []).append(number)
        request = offset_fetch_request(group_id, topics, require_stable=require_stable)

        def attempt(deadline: float, refind: bool) -> dict[TopicPartition, OffsetToCommit | None]:
            connection = self._cluster.coordinator(GROUP, group_id, deadline, refind=refind)
            found = self._cluster.ask(connection, request, deadline)
            codes = (found.error, *(code for code, _ in found.offsets.values()))
            if worst := next(filter(None, codes), 0):
                raise BrokerError(worst, request.api.name, f"offsets of group {group_id!r}")
            kept = {each: offset for each, (_, offset) in found.offsets.items()}
            return {
                each: kept[each] if each in kept and kept[each].offset != _NOTHING else None
                for each in wanted
            }

        return self._cluster.trying(attempt, self._settings.transactional_retry)

    # --- asking ---------------------------------------------------------------------------------

    def _drive(self, operation: Operation[T]) -> T:
        # As `transactions.driver` does in an event loop: what is asked, and what an answer means,
        # is the machine's business in both.
        self._check_process()
        try:
            step = next(operation)
            while True:
                step = operation.send(self._perform(step))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            operation.close()

    def _perform(self, step: RequestAttempt) -> Reply:
        time.sleep(step.pause_s)
        request, cluster = step.request, self._cluster
        group_id = step.group_id
        kind = TRANSACTION if group_id is None else GROUP
        name = request.identity.transactional_id if group_id is None else group_id
        try:
            connection = cluster.coordinator(kind, name, step.deadline, refind=step.refind)
            version = connection.version_of(request.api, request.versions)
        except ClientError as error:
            return not_sent(error)
        # From here on an error leaves open whether the coordinator has applied the request.
        try:
            body = (request.body(version),)
            answer = connection.exchange(request.api, version, body, cluster.soon(step.deadline))
            return connection.understood(request.api, lambda: read_answer(request, version, answer))
        except ClientError as error:
            return error

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise CrossedFork(
                f"transactions of {self.identity.transactional_id!r} are driven by process "
                f"{self._pid}; hand an OpenTransaction to other processes"
            )
