"""Whatever clients, zombies, late requests, timeouts and restarts do in whatever order: what the
coordinator promises about a transactional id holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onceflow.txn.machine import (
    Answered,
    Decision,
    Finish,
    Persist,
    ProducerIdRequest,
    Rejected,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
    add_partitions,
    end,
    init_producer_id,
    resume,
    time_out,
    verify,
)
from onceflow.txn.records import decode_value, encode_value
from onceflow.txn.state import LEGAL
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.doses import examples

NAME = "orders"
PARTITIONS = [TopicPartition("a", number) for number in range(4)]
CLIENTS = st.integers(0, 1)
LIMITS = TransactionLimits(two_phase_commit_enabled=True, max_partitions_per_transaction=3)


@dataclass
class Client:
    """A producer, which believes to be somebody and to have a transaction open."""

    identity: ProducerIdAndEpoch | None = None
    transaction: int | None = None
    """The model's number of the transaction that it works on."""
    version: int = 5
    told: dict[int, bool] = field(default_factory=dict)
    """What it was told became of its transactions."""


@dataclass(frozen=True)
class Late:
    """A copy of an EndTxn that is still on its way."""

    identity: ProducerIdAndEpoch
    commit: bool
    version: int
    transaction: int


class Coordinator(RuleBasedStateMachine):
    """The state under test, and what is known about it from outside."""

    @initialize(epoch=st.sampled_from([0, 7, 32_763, 32_766]))
    def begin(self, epoch: int) -> None:
        self.held = TransactionMetadata(NAME, 1, epoch, 60_000, TransactionState.EMPTY, 0)
        self.clients = [Client(), Client()]
        self.late: list[Late] = []
        self.now_ms = 0
        self.newest_id = 1
        self.epochs: dict[int, int] = {1: epoch}
        self.given: set[ProducerIdAndEpoch] = set()
        self.number = 0
        self.outcome: dict[int, bool] = {}
        self.a_client_starts(0, version=5, keep=False, two=False)

    # --- what can happen ----------------------------------------------------------------------

    @rule(at=CLIENTS, version=st.sampled_from([4, 5]), keep=st.booleans(), two=st.booleans())
    def a_client_starts(self, at: int, version: int, keep: bool, two: bool) -> None:
        client = self.clients[at] = Client(version=version)
        decision = self.init(None, keep_prepared_txn=keep, enable_2pc=two)
        if isinstance(decision, Finish):
            assert decision.result.error is ErrorCode.CONCURRENT_TRANSACTIONS
            decision = self.init(None, keep_prepared_txn=keep, enable_2pc=two)
        assert isinstance(decision, Persist)
        client.identity = self.give(decision)
        if decision.result.ongoing_producer_id >= 0:
            client.transaction = self.number

    @rule(at=CLIENTS, keep=st.booleans())
    def a_client_goes_on_after_an_error(self, at: int, keep: bool) -> None:
        client = self.clients[at]
        if client.identity is None:
            return
        before = self.held
        decision = self.init(client.identity, keep_prepared_txn=keep)
        if isinstance(decision, Finish):
            assert client.identity == before.client, "a zombie ended a transaction"
        elif isinstance(decision, Persist | Answered):
            assert client.identity in (before.client, before.previous)
            is_new = client.identity == before.client
            client.identity = self.give(decision, is_new)
        # Who asks to keep what is open is told whether anything is: the end of it may have been one
        # whose answer was lost.
        if not isinstance(decision, Rejected) and decision.result.ongoing_producer_id < 0:
            client.transaction = None

    @rule(at=CLIENTS, count=st.integers(1, 4))
    def a_client_adds(self, at: int, count: int) -> None:
        client = self.clients[at]
        if client.identity is None:
            return
        before = self.held
        decision = self.add(client.identity, count, 2 if client.version >= 5 else 0)
        if not isinstance(decision, Rejected):
            assert before.client == client.identity
            self.number += before.is_idle
            client.transaction = self.number

    @rule(at=CLIENTS, commit=st.booleans(), is_late=st.booleans())
    def a_client_runs_a_transaction(self, at: int, commit: bool, is_late: bool) -> None:
        self.a_client_adds(at, count=2)
        if is_late:
            self.time_is_up()
        self.a_client_ends(at, commit, is_copied=True, is_heard=True)

    @rule(at=CLIENTS, commit=st.booleans(), is_copied=st.booleans(), is_heard=st.booleans())
    def a_client_ends(self, at: int, commit: bool, is_copied: bool, is_heard: bool) -> None:
        client = self.clients[at]
        if client.identity is None:
            return
        mine = client.transaction
        if is_copied and mine is not None:
            self.late.append(Late(client.identity, commit, client.version, mine))
        decision = self.end(client.identity, commit, client.version)
        if isinstance(decision, Rejected) or not is_heard:
            return
        if mine is not None:
            assert self.outcome[mine] is commit, "told what did not happen"
        if client.version >= 5:
            client.identity = self.give(decision, isinstance(decision, Finish))
        client.transaction = None

    @rule(data=st.data())
    def a_late_copy_arrives(self, data: st.DataObject) -> None:
        if not self.late:
            return
        late = data.draw(st.sampled_from(self.late))
        if late.version < 5:
            # Nobody can tell it from a new one: what the older protocol does not promise.
            return
        is_open = self.held.state is TransactionState.ONGOING
        if isinstance(self.end(late.identity, late.commit, late.version), Finish) and is_open:
            assert late.transaction == self.number, "a late EndTxn ended another transaction"

    @rule(data=st.data(), commit=st.booleans(), version=st.sampled_from([4, 5]))
    def a_zombie_wakes_up(self, data: st.DataObject, commit: bool, version: int) -> None:
        zombies = sorted(self.given - {self.held.client})
        if not zombies:
            return
        zombie = data.draw(st.sampled_from(zombies))
        before = self.held
        assert isinstance(self.add(zombie, 1, 2), Rejected)
        answer = self.end(zombie, commit, version)
        assert isinstance(answer, Rejected | Answered)
        if isinstance(answer, Answered):
            assert zombie == before.previous, "told that it had ended what another did"
        assert self.held == before

    @rule()
    def time_is_up(self) -> None:
        before = self.held
        decision = time_out(before, self.tick(), new_producer_id=self.new_id)
        assert (decision is None) == (
            before.state is not TransactionState.ONGOING or before.is_two_phase
        )
        if decision is not None:
            self.apply(decision)

    @rule()
    def the_broker_restarts(self) -> None:
        assert decode_value(NAME, encode_value(self.held)) == self.held

    @rule(at=CLIENTS, commit=st.booleans())
    def the_broker_dies_between_prepare_and_complete(self, at: int, commit: bool) -> None:
        identity = self.clients[at].identity
        if identity is None:
            return
        decision = self.end(identity, commit, self.clients[at].version)
        if not isinstance(decision, Finish):
            return
        found = decode_value(NAME, encode_value(decision.prepare))
        for asked in (commit, not commit):  # nobody changes what is decided
            answer = end(
                found,
                identity,
                asked,
                version=self.clients[at].version,
                now_ms=self.now_ms,
                new_producer_id=self.new_id,
            )
            assert isinstance(answer, Rejected)
        again = resume(found, decision.complete.updated_ms)
        assert again is not None
        assert (again.complete, again.commit) == (decision.complete, decision.commit)
        assert again.partitions == decision.partitions

    # --- how it is done -----------------------------------------------------------------------

    def init(self, expected: ProducerIdAndEpoch | None, **fields: Any) -> Decision:
        request = ProducerIdRequest(NAME, 60_000, *(expected or (-1, -1)), **fields)
        return self.apply(
            init_producer_id(
                self.held,
                request,
                now_ms=self.tick(),
                limits=LIMITS,
                new_producer_id=self.new_id,
            )
        )

    def add(self, identity: ProducerIdAndEpoch, count: int, client_version: int) -> Decision:
        return self.apply(
            add_partitions(
                self.held,
                identity,
                PARTITIONS[:count],
                now_ms=self.tick(),
                limits=LIMITS,
                client_version=client_version,
            )
        )

    def give(self, decision: Decision, is_new: bool = True) -> ProducerIdAndEpoch:
        """The identity that a client is told; a new one was never anybody's."""
        assert not isinstance(decision, Rejected)
        identity = ProducerIdAndEpoch(*decision.result[:2])
        assert identity.epoch < 32_767
        assert not is_new or identity not in self.given, "two with one identity"
        self.given.add(identity)
        return identity

    def end(self, identity: ProducerIdAndEpoch, commit: bool, version: int) -> Decision:
        return self.apply(
            end(
                self.held,
                identity,
                commit,
                version=version,
                now_ms=self.tick(),
                new_producer_id=self.new_id,
            )
        )

    def apply(self, decision: Decision) -> Decision:
        if isinstance(decision, Persist):
            self.move(decision.transaction)
        elif isinstance(decision, Finish):
            if self.held.state is TransactionState.ONGOING:
                assert self.number not in self.outcome, "decided twice"
                self.outcome[self.number] = decision.commit
                assert set(decision.partitions) == self.held.partitions
                assert decision.prepare.producer_id == self.held.producer_id
                fences = decision.prepare.client_version == 2 or self.held.is_kept
                assert decision.prepare.epoch == self.held.epoch + fences
            self.move(decision.prepare)
            self.move(decision.complete)
            assert decision.commit is (decision.complete.state is TransactionState.COMPLETE_COMMIT)
        return decision

    def move(self, after: TransactionMetadata) -> None:
        assert self.held.state in LEGAL[after.state]
        for identity in (ProducerIdAndEpoch(after.producer_id, after.epoch), after.client):
            assert identity.epoch >= self.epochs.get(identity.producer_id, 0), "an epoch went back"
        self.epochs[after.producer_id] = after.epoch
        self.held = after

    def new_id(self) -> int:
        self.newest_id += 1
        return self.newest_id

    def tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def only_one_identity_is_listened_to(self) -> None:
        current = self.held.client
        for client in self.clients:
            if client.identity is not None and client.identity != current:
                codes = set(verify(self.held, client.identity, PARTITIONS).values())
                assert codes <= {
                    ErrorCode.PRODUCER_FENCED,
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                }

    @invariant()
    def a_transaction_has_partitions_and_a_beginning_exactly_while_it_is_open(self) -> None:
        is_open = self.held.state is TransactionState.ONGOING
        assert bool(self.held.partitions) is is_open
        assert not is_open or self.held.started_ms > 0


Coordinator.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestCoordinator: Callable[[], object] = Coordinator.TestCase
