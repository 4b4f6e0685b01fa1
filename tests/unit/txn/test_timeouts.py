"""When transactions are due, and what a clock that is set does about it: nothing."""

from __future__ import annotations

import pytest

from onceflow.txn.machine import TransactionState, is_expired, time_out
from onceflow.txn.timeouts import Deadlines, remaining_ms
from tests.unit.txn.transactional_id import A0, Coordinator, held


def test_what_is_due_is_told_once_and_in_order() -> None:
    deadlines = Deadlines()
    for name, deadline in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 2.0)):
        deadlines.started(name, 0, deadline)
    assert deadlines.next_deadline() == 1.0
    assert deadlines.due(0.999) == []
    assert deadlines.due(2.0) == ["a", "b", "d"]
    assert deadlines.due(2.0) == []
    assert deadlines.next_deadline() == 3.0
    assert len(deadlines) == 1


def test_what_has_ended_is_not_due() -> None:
    deadlines = Deadlines()
    deadlines.started("a", 0, 1.0)
    deadlines.started("b", 0, 2.0)
    deadlines.ended("a")
    deadlines.ended("a")
    deadlines.ended("never begun")
    assert deadlines.next_deadline() == 2.0
    assert deadlines.due(9.0) == ["b"]
    assert deadlines.next_deadline() is None


def test_the_first_deadline_of_a_transaction_stands() -> None:
    deadlines = Deadlines()
    deadlines.started("a", 5, 1.0)
    deadlines.started("a", 5, 7.0)
    assert deadlines.due(1.0) == ["a"]


@pytest.mark.parametrize("epoch", [5, 6])
def test_the_next_transaction_has_a_deadline_of_its_own(epoch: int) -> None:
    """Also one with the same epoch, as older clients have."""
    deadlines = Deadlines()
    deadlines.started("a", 5, 1.0)
    deadlines.ended("a")
    deadlines.started("a", epoch, 7.0)
    assert deadlines.due(6.9) == []
    assert deadlines.due(7.0) == ["a"]


def test_another_epoch_replaces_the_deadline() -> None:
    deadlines = Deadlines()
    deadlines.started("a", 5, 1.0)
    deadlines.started("a", 6, 7.0)
    assert deadlines.due(1.0) == []
    assert deadlines.due(7.0) == ["a"]


def test_transactions_that_came_and_went_leave_nothing_behind() -> None:
    deadlines = Deadlines()
    deadlines.started("stays", 0, 10_000.0)
    for number in range(10_000):
        deadlines.started("busy", number, float(number))
        deadlines.ended("busy")
    assert len(deadlines._heap) < 100
    assert deadlines.due(10_000.0) == ["stays"]


@pytest.mark.parametrize(
    ("now_ms", "left"),
    [
        (1_000, 60_000),
        (31_000, 30_000),
        (61_000, 0),
        (4_000_000, 0),  # the clock went an hour ahead, or the broker was away for long
        (-3_600_000, 60_000),  # an hour back
    ],
)
def test_what_is_left_after_a_restart(now_ms: int, left: int) -> None:
    assert remaining_ms(held(TransactionState.ONGOING, started_ms=1_000), now_ms) == left


# --- the end of a transaction whose time is up ------------------------------------------------


def test_it_is_aborted_and_its_producer_fenced() -> None:
    finish = time_out(
        held(TransactionState.ONGOING, started_ms=900),
        2_000,
        new_producer_id=lambda: 100,
    )
    assert finish is not None
    assert not finish.commit
    assert finish.partitions == (A0,)
    assert (finish.prepare.epoch, finish.complete.epoch) == (6, 6)
    assert finish.complete.state is TransactionState.COMPLETE_ABORT
    assert finish.complete.last_epoch == 5
    assert finish.complete.client_version == 2


@pytest.mark.parametrize(
    "state", [each for each in TransactionState if each is not TransactionState.ONGOING]
)
def test_what_is_not_open_does_not_time_out(state: TransactionState) -> None:
    """A commit that was decided first stays one."""
    coordinator = Coordinator(held(state))
    coordinator.time_out()
    assert coordinator.held == held(state)


# --- ids that nobody uses ---------------------------------------------------------------------


@pytest.mark.parametrize("state", list(TransactionState))
def test_only_idle_ids_are_forgotten_and_only_when_the_time_is_up(state: TransactionState) -> None:
    idle = state in (
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    )
    assert not is_expired(held(state), 499, 500)
    assert is_expired(held(state), 500, 500) is idle
