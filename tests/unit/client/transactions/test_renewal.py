"""A producer that rested takes its next epoch only when nobody else has its transactional id: to
ask for one is enough to abort what a successor has open."""

from __future__ import annotations

from contextlib import suppress

import pytest

from onceflow.client.codec.transactions import (
    DescribeTransaction,
    InitProducerIdRequest,
    read_answer,
)
from onceflow.client.errors.requests import (
    AbortableError,
    ApiNotServed,
    BrokerError,
    ClientError,
    FatalProducerError,
    Fenced,
)
from onceflow.client.transactions.machine import RENEWED_AFTER_S
from onceflow.client.transactions.retrier import Reply
from onceflow.client.transactions.states import ProducerState
from onceflow.wire.error_codes import ErrorCode as E
from tests.unit.client.transactions.scripted_coordinator import (
    DONE,
    ORDERS,
    Bench,
    bumped,
    code,
    described,
    lost,
    unreachable,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])
NOT_SERVED = ApiNotServed("the broker offers no version at all of DESCRIBE_TRANSACTIONS")
UNTOLD: list[Reply] = [NOT_SERVED, code(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]


def rested(version: int) -> Bench:
    """(7, epoch 0), without a transaction for more than an hour."""
    bench = Bench(version)
    bench.ready()
    bench.clock.now += RENEWED_AFTER_S + 1
    assert bench.machine.needs_renewal
    return bench


def used_up(*, rests: bool) -> Bench:
    """The older protocol after an abort, for which no next epoch was asked for yet."""
    bench = Bench(1)
    machine = bench.in_transaction()
    replies: list[Reply] = [DONE, *[unreachable()] * 1000]
    end = machine.abort()
    step = next(end)
    with suppress(StopIteration):
        for reply in replies:
            bench.clock.now += step.pause_s + 0.1
            step = end.send(reply)
    assert bench.is_in(ProducerState.USED_UP)
    if rests:
        bench.clock.now += RENEWED_AFTER_S + 1
    return bench


@VERSIONS
@pytest.mark.parametrize(
    "said",
    [
        described(0, "Empty"),
        described(0, "CompleteAbort"),
        described(0, "PrepareCommit"),
        code(E.TRANSACTIONAL_ID_NOT_FOUND),
    ],
)
def test_it_goes_on_when_nobody_else_has_the_id(version: int, said: Reply) -> None:
    bench = rested(version)
    bench.run(bench.machine.renew(), said, bumped(1))
    assert bench.kinds() == ["DescribeTransaction", "InitProducerIdRequest"]
    assert (bench.machine.identity.producer_epoch, bench.machine.state) == (1, ProducerState.READY)
    assert not bench.machine.needs_renewal


@VERSIONS
@pytest.mark.parametrize(
    "said",
    [
        described(1, "Ongoing"),
        described(1, "CompleteCommit"),
        described(0, "Ongoing"),
        described(0, "Empty", producer_id=8),
        described(0, "PrepareEpochFence"),
    ],
)
def test_it_leaves_a_successor_alone(version: int, said: Reply) -> None:
    bench = rested(version)
    with pytest.raises(Fenced, match="another producer"):
        bench.run(bench.machine.renew(), said)
    assert bench.kinds() == ["DescribeTransaction"]
    assert bench.is_in(ProducerState.FATAL_ERROR)


@pytest.mark.parametrize("said", UNTOLD)
def test_it_keeps_its_epoch_where_nobody_can_tell(said: Reply) -> None:
    bench = rested(2)
    bench.run(bench.machine.renew(), said)
    assert bench.kinds() == ["DescribeTransaction"]
    assert not bench.machine.needs_renewal, "or it would be asked for ever"
    bench.machine.begin()


def test_it_is_asked_again_when_nobody_answered() -> None:
    bench = rested(2)
    for _ in range(2):
        with pytest.raises(ClientError):
            bench.run_out(bench.machine.renew(), lost())
        assert bench.is_in(ProducerState.READY)
        assert bench.machine.needs_renewal
    operation = bench.machine.renew()
    next(operation)
    operation.close()
    assert bench.is_in(ProducerState.READY)
    assert bench.machine.needs_renewal
    assert set(bench.kinds()) == {"DescribeTransaction"}


def test_a_renewal_whose_answer_was_lost_is_no_successor() -> None:
    bench = rested(2)
    operation = bench.machine.renew()
    next(operation)
    assert isinstance(operation.send(described(0)).request, InitProducerIdRequest)
    operation.close()
    bench.run(bench.machine.renew(), described(1, "Empty"), bumped(1))
    assert bench.machine.identity.producer_epoch == 1


def test_one_that_follows_a_lost_renewal_is_left_alone() -> None:
    for said in (described(1, "Ongoing"), described(2, "Empty")):
        bench = rested(2)
        operation = bench.machine.renew()
        next(operation)
        operation.send(described(0))
        operation.close()
        bench.asked.clear()
        with pytest.raises(Fenced):
            bench.run(bench.machine.renew(), said)
        assert bench.kinds() == ["DescribeTransaction"]


@pytest.mark.parametrize("rests", [False, True])
def test_an_epoch_that_is_used_up_is_asked_about_too(rests: bool) -> None:
    bench = used_up(rests=rests)
    bench.asked.clear()
    with pytest.raises(Fenced):
        bench.run(bench.machine.renew(), described(1, "Ongoing"))
    assert bench.kinds() == ["DescribeTransaction"]
    # A late copy of what joined may have opened a transaction under it, which is to be ended.
    for said in (described(0, "CompleteAbort"), described(0, "Ongoing")):
        bench = used_up(rests=rests)
        bench.run(bench.machine.renew(), said, bumped(1))
        assert bench.is_in(ProducerState.READY)


@pytest.mark.parametrize("said", UNTOLD)
def test_a_used_up_epoch_where_nobody_can_tell(said: Reply) -> None:
    """Right after the end it is this producer's; after an hour nobody knows whose."""
    bench = used_up(rests=False)
    bench.run(bench.machine.renew(), said, bumped(1))
    assert bench.is_in(ProducerState.READY)
    bench = used_up(rests=True)
    bench.asked.clear()
    with pytest.raises(FatalProducerError, match="not known which producer"):
        bench.run(bench.machine.renew(), said)
    assert bench.kinds() == ["DescribeTransaction"]


def test_an_answer_about_nothing_means_that_there_is_no_such_id() -> None:
    request = DescribeTransaction(Bench().machine.identity)
    answer = read_answer(request, 0, memoryview(b"\0\0\0\0\x01\0"))
    assert answer.code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert BrokerError(answer.code, request.api.name, "").outcome == "not applied"


# --- ids that brokers forget sooner ---------------------------------------------------------------

UNKNOWN = BrokerError(E.INVALID_PRODUCER_ID_MAPPING, "PRODUCE", "partition orders-0")


def sending() -> Bench:
    """A batch is under way, and nobody else writes."""
    bench = Bench(2)
    bench.ready().begin()
    assert bench.machine.may_send(ORDERS)
    return bench


def test_one_that_brokers_do_not_know_is_renewed_if_nothing_can_be_anywhere() -> None:
    bench = sending()
    machine = bench.machine
    assert isinstance(machine.failed(UNKNOWN), AbortableError)
    bench.asked.clear()
    bench.run(machine.abort())
    assert (machine.state, machine.needs_renewal, machine.error) == (
        ProducerState.READY,
        True,
        None,
    )
    bench.run(machine.renew(), code(E.TRANSACTIONAL_ID_NOT_FOUND), bumped(0, producer_id=8))
    assert bench.kinds() == ["DescribeTransaction", "InitProducerIdRequest"]
    assert not bench.machine.needs_renewal


def test_where_anything_may_have_been_taken_the_coordinator_has_the_last_word() -> None:
    for is_late in (False, True):
        bench = sending()
        machine = bench.machine
        if is_late:
            machine.failed(UNKNOWN)
        machine.taken()
        if not is_late:
            machine.failed(UNKNOWN)
        with pytest.raises(FatalProducerError):
            bench.run(machine.abort(), code(E.INVALID_PRODUCER_ID_MAPPING))


def test_who_writes_for_it_is_not_known_to_have_failed() -> None:
    bench = Bench(2)
    machine = bench.in_transaction()
    assert isinstance(machine.failed(UNKNOWN), AbortableError)
    with pytest.raises(FatalProducerError):
        bench.run(machine.abort(), code(E.INVALID_PRODUCER_ID_MAPPING))


@pytest.mark.parametrize("said", UNTOLD)
def test_one_that_brokers_do_not_know_ends_where_nobody_can_tell_whose_the_id_is(
    said: Reply,
) -> None:
    bench = sending()
    machine = bench.machine
    machine.failed(UNKNOWN)
    bench.run(machine.abort())
    with pytest.raises(FatalProducerError, match="not known which producer"):
        bench.run(machine.renew(), said)
