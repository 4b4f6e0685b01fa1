"""How transactions end without any network: unclear answers, refusals, calls that are cut short."""

from __future__ import annotations

import pytest

from onceflow.client.codec.transactions import InitProducerIdRequest, ProducerIdentity
from onceflow.client.errors.requests import (
    AbortableError,
    BrokerError,
    FatalProducerError,
    Fenced,
    UnknownOutcome,
)
from onceflow.client.transactions.states import ProducerState, TransactionEvent, WrongState
from onceflow.wire.error_codes import ErrorCode as E
from tests.unit.client.transactions.scripted_coordinator import (
    BILLS,
    DONE,
    GROUP,
    OFFSETS,
    ORDERS,
    Bench,
    bumped,
    code,
    described,
    each,
    ends_in,
    inits_in,
    lost,
    unreachable,
)

# --- unclear ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_without_an_answer_is_unclear_and_can_only_be_resolved(version: int) -> None:
    bench = Bench(version)
    machine = bench.in_transaction()
    with pytest.raises(UnknownOutcome) as problem:
        bench.run_out(machine.commit(), lost())
    assert problem.value.outcome == "unknown"
    assert bench.is_in(ProducerState.UNCLEAR_COMMIT)
    for call in (machine.abort, machine.commit, lambda: machine.init(version)):
        with pytest.raises(UnknownOutcome):
            bench.run(call())
    with pytest.raises(UnknownOutcome):
        machine.begin()
    assert len(set(ends_in(bench.requests))) == 1
    with pytest.raises(UnknownOutcome):
        bench.run_out(machine.resolve(), code(E.CONCURRENT_TRANSACTIONS))
    bench.run(machine.resolve(), bumped(1), *([bumped(1)] if version == 1 else []))
    assert bench.is_in(ProducerState.READY)
    assert len(set(ends_in(bench.requests))) == 1
    assert machine.identity.producer_epoch == 1, "never two transactions on a doubtful epoch"


def test_a_commit_that_never_left_was_not_done_and_may_be_aborted() -> None:
    bench = Bench()
    machine = bench.in_transaction()
    with pytest.raises(AbortableError) as problem:
        bench.run_out(machine.commit(), unreachable())
    assert problem.value.outcome == "not applied"
    bench.run(machine.abort(), bumped(1))
    assert bench.is_in(ProducerState.READY)


def test_an_abort_without_an_answer_is_asked_for_again() -> None:
    bench = Bench()
    machine = bench.in_transaction()
    with pytest.raises(AbortableError):
        bench.run_out(machine.abort(), lost())
    assert bench.is_in(ProducerState.ABORTABLE_ERROR)
    with pytest.raises(AbortableError):
        bench.run(machine.commit())
    bench.run(machine.abort(), bumped(1))
    assert machine.identity.producer_epoch == 1


def test_a_call_that_is_cut_short_counts_as_an_answer_that_was_lost() -> None:
    bench = Bench()
    init = bench.machine.init(2)
    next(init)
    init.close()
    assert bench.is_in(ProducerState.UNINITIALIZED)
    machine = bench.in_transaction()
    offsets = machine.commit_offsets(GROUP, OFFSETS)
    next(offsets)
    offsets.close()
    with pytest.raises(AbortableError, match="cut short"):
        bench.run(machine.commit())
    abort = machine.abort()
    next(abort)
    abort.close()
    bench.run(machine.abort(), bumped(1))
    machine.begin()
    assert machine.may_send(ORDERS)
    commit = machine.commit()
    next(commit)
    commit.close()
    assert bench.is_in(ProducerState.UNCLEAR_COMMIT)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("event", [TransactionEvent.DROP, TransactionEvent.FENCED])
def test_offsets_that_are_cut_short_while_their_transaction_is_over_already_do_not_complain(
    version: int, event: TransactionEvent
) -> None:
    """What is raised there would be raised in the place of a cancellation."""
    bench = Bench(version)
    machine = bench.in_transaction()
    offsets = machine.commit_offsets(GROUP, OFFSETS)
    next(offsets)
    if event is TransactionEvent.DROP:
        machine.refuse_sends(TransactionEvent.ABORT)
    else:
        machine.failed(Fenced("by another producer"))
    before = machine.state, machine.error
    offsets.close()
    assert (machine.state, machine.error) == before


@pytest.mark.parametrize("is_group", [False, True])
def test_what_is_cut_short_while_it_joins_may_be_known_to_the_coordinator(is_group: bool) -> None:
    """It may take effect later: neither can it be committed, nor is nothing to be aborted."""
    bench = Bench(1)
    machine = bench.ready()
    machine.begin()
    joining = machine.commit_offsets(GROUP, OFFSETS) if is_group else machine.join([ORDERS])
    next(joining)
    joining.close()
    with pytest.raises(AbortableError, match="cut short"):
        bench.run(machine.commit())
    bench.run(machine.abort(), code(E.INVALID_TXN_STATE), bumped(1))
    assert ends_in(bench.requests)
    assert inits_in(bench.requests)


def is_renewed_first(bench: Bench) -> bool:
    return bench.machine.needs_renewal


def cut_short_in_its_renewal(bench: Bench, *, committed: bool) -> None:
    """The older protocol goes on with a new epoch after an abort, and after a doubt."""
    machine = bench.in_transaction()
    end = machine.commit() if committed else machine.abort()
    next(end)
    if committed:
        end.send(lost())
    ask = end.send(DONE)
    assert isinstance(ask.request, InitProducerIdRequest)
    end.close()


@pytest.mark.parametrize("committed", [False, True])
def test_an_end_that_is_cut_short_in_its_renewal_keeps_its_identity(committed: bool) -> None:
    bench = Bench(1)
    machine = bench.machine
    cut_short_in_its_renewal(bench, committed=committed)
    assert bench.is_in(ProducerState.USED_UP)
    with pytest.raises(WrongState, match="must not be used again"):
        machine.begin()  # a late copy of the end would end this one
    assert is_renewed_first(bench)
    before = machine.identity
    for _ in range(2):
        with pytest.raises(BrokerError):
            bench.run_out(machine.renew(), code(E.COORDINATOR_LOAD_IN_PROGRESS))
        assert bench.is_in(ProducerState.USED_UP)
    bench.asked.clear()
    bench.run(machine.renew(), described(before.producer_epoch), bumped(1))
    assert [each.identity for each in inits_in(bench.requests)] == [before]
    assert not is_renewed_first(bench)
    machine.begin()


@pytest.mark.parametrize("committed", [False, True])
def test_who_is_fenced_in_a_renewal_does_not_fight(committed: bool) -> None:
    bench = Bench(1)
    cut_short_in_its_renewal(bench, committed=committed)
    with pytest.raises(Fenced):
        bench.run(bench.machine.renew(), described(1), code(E.PRODUCER_FENCED))
    assert bench.is_in(ProducerState.FATAL_ERROR)


# --- refusals -----------------------------------------------------------------------------------


def test_a_commit_after_the_coordinator_has_aborted_leads_to_an_abort_that_brings_the_epoch() -> (
    None
):
    bench = Bench()
    machine = bench.in_transaction()
    with pytest.raises(AbortableError):
        bench.run(machine.commit(), code(E.INVALID_TXN_STATE))
    bench.run(machine.abort(), bumped(1))
    assert (machine.identity.producer_epoch, machine.state) == (1, ProducerState.READY)


@pytest.mark.parametrize("refusal", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH])
def test_the_abort_tells_a_timeout_from_another_producer(refusal: int) -> None:
    for answer in (bumped(1), code(E.PRODUCER_FENCED)):
        bench = Bench()
        machine = bench.in_transaction()
        with pytest.raises(AbortableError):
            bench.run(machine.commit(), code(refusal))
        if answer.code:
            with pytest.raises(Fenced):
                bench.run(machine.abort(), answer)
            with pytest.raises(Fenced):
                bench.run(machine.abort())
            assert not inits_in(bench.requests), "an Init would disturb the other one"
        else:
            bench.run(machine.abort(), answer)
            assert bench.is_in(ProducerState.READY)


def test_a_fence_after_a_lost_answer_leaves_the_outcome_open() -> None:
    bench = Bench()
    machine = bench.in_transaction()
    with pytest.raises(Fenced) as problem:
        bench.run(machine.commit(), lost(), code(E.PRODUCER_FENCED))
    assert problem.value.outcome == "unknown"
    assert bench.is_in(ProducerState.FATAL_ERROR)


def test_the_older_protocol_cannot_tell_and_stops() -> None:
    bench = Bench(1)
    machine = bench.in_transaction()
    with pytest.raises(Fenced) as problem:
        bench.run(machine.commit(), code(E.PRODUCER_FENCED))
    assert problem.value.outcome == "not applied"
    with pytest.raises(Fenced):
        bench.run(machine.init(1))


def test_of_several_partitions_the_worst_error_counts() -> None:
    bench = Bench(1)
    machine = bench.ready()
    machine.begin()
    mixed = each([ORDERS], E.CONCURRENT_TRANSACTIONS).partitions
    mixed += each([BILLS], E.TOPIC_AUTHORIZATION_FAILED).partitions
    with pytest.raises(AbortableError, match="bills-3"):
        bench.run(machine.join([ORDERS, BILLS]), DONE._replace(partitions=mixed))


def test_partitions_that_did_join_are_kept_when_another_has_to_wait() -> None:
    bench = Bench(1)
    machine = bench.ready()
    machine.begin()
    waits = each([ORDERS], E.CONCURRENT_TRANSACTIONS)
    bench.run(machine.join([ORDERS]), waits, each([ORDERS], 0))
    assert machine.partitions == {ORDERS}


@pytest.mark.parametrize(
    ("number", "state", "kind"),
    [
        (E.INVALID_PRODUCER_EPOCH, ProducerState.ABORTABLE_ERROR, AbortableError),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, ProducerState.ABORTABLE_ERROR, AbortableError),
        (E.MESSAGE_TOO_LARGE, ProducerState.ABORTABLE_ERROR, AbortableError),
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ProducerState.FATAL_ERROR, FatalProducerError),
    ],
)
def test_a_refused_batch_is_judged_by_the_table(
    number: int, state: ProducerState, kind: type[Exception]
) -> None:
    bench = Bench()
    machine = bench.in_transaction()
    error = machine.failed(BrokerError(number, "PRODUCE", "partition orders-0"))
    assert isinstance(error, kind)
    assert bench.is_in(state)
    with pytest.raises(kind):
        bench.run(machine.commit())


def test_offsets_that_are_not_taken_in_time_lead_to_an_abort() -> None:
    bench = Bench()
    machine = bench.ready()
    machine.begin()
    with pytest.raises(AbortableError, match="not done in time"):
        bench.run_out(
            machine.commit_offsets(GROUP, OFFSETS), each([ORDERS], E.UNKNOWN_TOPIC_OR_PARTITION)
        )
    bench.run(machine.abort(), bumped(1))


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_of_what_somebody_has_committed_is_an_error(version: int) -> None:
    bench = Bench(version)
    machine = bench.in_transaction()
    with pytest.raises(FatalProducerError):
        bench.run(machine.abort(), code(E.INVALID_TXN_STATE))
    bench = Bench(version)
    bench.machine.adopt(ProducerIdentity("payments", 7, 4), version)
    with pytest.raises(FatalProducerError):
        bench.run(bench.machine.abort(), code(E.INVALID_TXN_STATE))


def test_a_transaction_that_was_begun_elsewhere_can_be_finished() -> None:
    bench = Bench()
    machine = bench.machine
    machine.adopt(ProducerIdentity("payments", 7, 4), 2, [ORDERS])
    bench.run(machine.commit(), bumped(5))
    assert ends_in(bench.requests)[0].identity == ProducerIdentity("payments", 7, 4)
    machine.begin()
    assert machine.identity.producer_epoch == 5
