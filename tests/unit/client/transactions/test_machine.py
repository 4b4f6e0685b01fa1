"""A transactional producer without any network: both protocols, every kind of end."""

from __future__ import annotations

import pytest

from onceflow.client.codec.transactions import (
    AddOffsets,
    AddPartitions,
    EndTxn,
    InitProducerIdRequest,
    ProducerIdentity,
    TxnOffsetCommit,
)
from onceflow.client.codec.versions import VersionRange
from onceflow.client.errors.requests import AbortableError, BrokerError, Fenced
from onceflow.client.transactions.retrier import Reply
from onceflow.client.transactions.states import (
    EDGES,
    ProducerState,
    TransactionEvent,
    WrongState,
    after,
)
from onceflow.wire.error_codes import ErrorCode as E
from tests.unit.client.transactions.scripted_coordinator import (
    BILLS,
    DONE,
    GIVEN,
    GROUP,
    MOVED,
    OFFSETS,
    ORDERS,
    WAITS,
    Bench,
    bumped,
    code,
    each,
    ends_in,
    inits_in,
    lost,
)

# --- the table ----------------------------------------------------------------------------------


def test_every_state_can_be_reached_and_every_step_that_is_not_in_the_table_is_refused() -> None:
    assert EDGES.keys() == set(ProducerState)
    reached = {ProducerState.UNINITIALIZED} | {
        to for edges in EDGES.values() for to in edges.values()
    }
    assert reached == set(ProducerState)
    for state in ProducerState:
        for event in set(TransactionEvent) - EDGES[state].keys():
            with pytest.raises(WrongState, match=event.value):
                after(state, event)


def test_no_call_undoes_a_commit_and_an_unclear_one_can_only_be_resolved() -> None:
    assert TransactionEvent.ABORT not in EDGES[ProducerState.COMMITTING]
    assert EDGES[ProducerState.UNCLEAR_COMMIT] == {
        TransactionEvent.RESOLVE: ProducerState.COMMITTING
    }
    assert not EDGES[ProducerState.FATAL_ERROR]


def test_calls_in_the_wrong_order_say_what_to_call() -> None:
    bench = Bench()
    machine = bench.machine
    with pytest.raises(WrongState, match="call init_transactions"):
        machine.begin()
    bench.ready()
    with pytest.raises(WrongState, match="call begin_transaction"):
        bench.run(machine.commit())
    assert not machine.may_send(ORDERS)
    machine.begin()
    with pytest.raises(WrongState, match="commit or abort it"):
        machine.begin()
    assert not bench.asked


# --- the protocol of today ----------------------------------------------------------------------


def test_a_transaction_of_today_takes_one_request_and_brings_a_new_epoch() -> None:
    bench = Bench()
    machine = bench.machine
    bench.run(machine.init(2), GIVEN)
    assert bench.requests == [InitProducerIdRequest(ProducerIdentity("payments"), 60_000)]
    machine.begin()
    assert machine.may_send(ORDERS)
    bench.run(machine.commit(), bumped(1))
    assert bench.requests[1:] == [
        EndTxn(ProducerIdentity("payments", 7, 0), True, VersionRange(5, 5))
    ]
    assert machine.identity == ProducerIdentity("payments", 7, 1)
    machine.begin()
    assert machine.may_send(BILLS)
    bench.run(machine.abort(), bumped(0, producer_id=8))
    assert machine.identity == ProducerIdentity("payments", 8, 0), "of the end of epochs"
    assert bench.is_in(ProducerState.READY)


def test_offsets_of_today_take_one_request() -> None:
    bench = Bench()
    machine = bench.ready()
    machine.begin()
    bench.run(machine.commit_offsets(GROUP, OFFSETS), each([ORDERS], 0))
    bench.run(machine.commit(), bumped(1))
    offsets, end = bench.requests
    assert isinstance(offsets, TxnOffsetCommit)
    assert isinstance(end, EndTxn)
    assert offsets.versions == VersionRange(5, 5)
    assert bench.asked[0].group_id == "readers"
    assert bench.asked[1].group_id is None


@pytest.mark.parametrize("version", [1, 2])
def test_an_empty_transaction_asks_nothing(version: int) -> None:
    bench = Bench(version)
    machine = bench.ready()
    for end in (machine.commit, machine.abort):
        machine.begin()
        bench.run(machine.commit_offsets(GROUP, {}))
        bench.run(end())
    assert not bench.asked
    assert bench.is_in(ProducerState.READY)


# --- the older protocol -------------------------------------------------------------------------


def test_in_the_older_protocol_everything_joins_first_and_the_epoch_stays() -> None:
    bench = Bench(1)
    machine = bench.ready()
    machine.begin()
    assert not machine.may_send(ORDERS)
    bench.run(machine.join([ORDERS, BILLS, ORDERS]), each([ORDERS, BILLS], 0))
    assert machine.may_send(BILLS)
    bench.run(machine.join([ORDERS]))
    bench.run(machine.commit_offsets(GROUP, OFFSETS), DONE, each([ORDERS], 0))
    bench.run(machine.commit_offsets(GROUP, OFFSETS), each([ORDERS], 0))
    bench.run(machine.commit(), DONE)
    who = ProducerIdentity("payments", 7, 0)
    assert bench.requests == [
        AddPartitions(who, (ORDERS, BILLS)),
        AddOffsets(who, "readers"),
        *[TxnOffsetCommit(who, GROUP, ((ORDERS, OFFSETS[ORDERS]),), VersionRange(3, 4))] * 2,
        EndTxn(who, True, VersionRange(3, 4)),
    ]
    assert (machine.identity, machine.state) == (who, ProducerState.READY)


def test_in_the_older_protocol_an_abort_is_followed_by_a_new_epoch() -> None:
    bench = Bench(1)
    machine = bench.in_transaction()
    bench.run(machine.abort(), DONE, code(E.CONCURRENT_TRANSACTIONS), bumped(1))
    assert bench.kinds() == ["EndTxn", "InitProducerIdRequest", "InitProducerIdRequest"]
    assert inits_in(bench.requests)[0].identity == ProducerIdentity("payments", 7, 0)
    assert (machine.identity.producer_epoch, machine.state) == (1, ProducerState.READY)


@pytest.mark.parametrize("doubt", [lost(), code(E.NOT_COORDINATOR)])
def test_in_the_older_protocol_a_commit_in_doubt_is_followed_by_a_new_epoch(doubt: Reply) -> None:
    bench = Bench(1)
    machine = bench.in_transaction()
    bench.run(machine.commit(), doubt, DONE, bumped(1))
    assert bench.kinds() == ["EndTxn", "EndTxn", "InitProducerIdRequest"]
    assert machine.identity.producer_epoch == 1
    machine.begin()
    bench.run(machine.join([BILLS]), each([BILLS], 0))
    bench.run(machine.commit(), code(E.CONCURRENT_TRANSACTIONS), DONE)
    assert machine.identity.producer_epoch == 1, "a refusal is no doubt"


def test_a_commit_stays_done_when_the_new_epoch_after_it_cannot_be_had() -> None:
    bench = Bench(1)
    machine = bench.in_transaction()
    bench.run(machine.commit(), lost(), DONE, code(E.PRODUCER_FENCED))
    with pytest.raises(Fenced):
        machine.begin()


def test_in_the_older_protocol_an_abort_of_what_never_joined_is_no_error() -> None:
    bench = Bench(1)
    machine = bench.ready()
    machine.begin()
    with pytest.raises(AbortableError):
        bench.run(machine.join([ORDERS]), lost(), each([ORDERS], E.TOPIC_AUTHORIZATION_FAILED))
    bench.run(machine.abort(), code(E.INVALID_TXN_STATE), bumped(1))
    assert bench.is_in(ProducerState.READY)
    machine.begin()
    with pytest.raises(AbortableError):
        bench.run(machine.join([ORDERS]), each([ORDERS], E.TOPIC_AUTHORIZATION_FAILED))
    bench.run(machine.abort())


# --- patience -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_an_end_is_asked_for_in_the_same_words_until_it_is_answered(version: int) -> None:
    bench = Bench(version)
    machine = bench.in_transaction()
    doubts = [bumped(1)] if version == 1 else []
    bench.run(machine.commit(), *WAITS, *MOVED, bumped(1), *doubts)
    ends = ends_in(bench.requests)
    assert len(ends) == 7
    assert len(set(ends)) == 1
    assert [ask.refind for ask in bench.asked[:7]] == [False] * 3 + [True] * 4
    assert bench.is_in(ProducerState.READY)


def test_pauses_are_short_after_a_transaction_that_is_ending_and_grow_otherwise() -> None:
    bench = Bench()
    machine = bench.in_transaction()
    bench.run(machine.commit(), *[code(E.CONCURRENT_TRANSACTIONS)] * 10, bumped(1))
    pauses = [ask.pause_s for ask in bench.asked[1:]]
    assert pauses[:2] == [0.0, 0.0]
    assert 0.0003 <= pauses[2] <= 0.001
    assert all(0.0015 <= pause_s <= 0.005 for pause_s in pauses[6:])
    machine.begin()
    assert machine.may_send(ORDERS)
    bench.asked.clear()
    bench.run(machine.commit(), *[code(E.COORDINATOR_LOAD_IN_PROGRESS)] * 9, bumped(2))
    pauses = [ask.pause_s for ask in bench.asked[1:]]
    assert 0.004 <= pauses[0] <= 0.006
    assert 0.08 <= pauses[-1] <= 0.12


def test_no_epoch_in_time_can_be_asked_for_again() -> None:
    bench = Bench()
    with pytest.raises(BrokerError, match="CONCURRENT_TRANSACTIONS"):
        bench.run_out(bench.machine.init(2), code(E.CONCURRENT_TRANSACTIONS))
    assert bench.is_in(ProducerState.UNINITIALIZED)
    bench.ready()


def test_a_refused_epoch_says_why_and_a_fenced_producer_stops() -> None:
    bench = Bench()
    with pytest.raises(BrokerError, match="INVALID_TRANSACTION_TIMEOUT"):
        bench.run(bench.machine.init(2), code(E.INVALID_TRANSACTION_TIMEOUT))
    assert bench.is_in(ProducerState.UNINITIALIZED)
    with pytest.raises(Fenced):
        bench.run(bench.machine.init(2), code(E.PRODUCER_FENCED))
    with pytest.raises(Fenced):
        bench.run(bench.machine.init(2))
