"""Two-phase commit: a prepared transaction outlives its client; only the next one may end it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onceflow.txn.machine import (
    ProducerIdRequest,
    Result,
    TransactionLimits,
    TransactionState,
    init_producer_id,
    resume,
    time_out,
    verify,
)
from onceflow.txn.state import NEVER_MS
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.txn.transactional_id import A0, A1, TV1, TV2, Coordinator, held

ME = ProducerIdAndEpoch(42, 5)
KEEP: dict[str, Any] = {"enable_2pc": True, "keep_prepared_txn": True}
FENCED = ErrorCode.PRODUCER_FENCED


def prepared(epoch: int = 5) -> Coordinator:
    """A producer has flushed all it has, told its coordinator, and died."""
    ongoing = held(TransactionState.EMPTY, epoch=epoch)
    coordinator = Coordinator(ongoing, TransactionLimits(two_phase_commit_enabled=True))
    coordinator.init(ProducerIdAndEpoch(42, epoch), enable_2pc=True)
    coordinator.add(coordinator.held.client, A0, A1)
    return coordinator


def test_its_timeout_is_never_and_what_the_client_asked_for_does_not_matter() -> None:
    limits = TransactionLimits(max_timeout_ms=10, two_phase_commit_enabled=True)
    coordinator = Coordinator(limits=limits)
    for timeout_ms in (0, 11, 2**31 - 1):
        assert isinstance(coordinator.init(timeout_ms=timeout_ms, enable_2pc=True), Result)
        assert coordinator.held.timeout_ms == NEVER_MS
    assert coordinator.init(timeout_ms=11) == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_no_time_ends_it_also_after_a_restart() -> None:
    coordinator = prepared()
    coordinator.restart()
    assert coordinator.held.is_two_phase
    timed_out = time_out(
        coordinator.held,
        2**60,
        new_producer_id=coordinator.new_producer_id,
    )
    assert timed_out is None


def test_with_nothing_open_there_is_nothing_to_keep() -> None:
    coordinator = Coordinator(
        held(TransactionState.COMPLETE_COMMIT), TransactionLimits(two_phase_commit_enabled=True)
    )
    assert coordinator.init(**KEEP) == Result(42, 6)
    assert coordinator.held.state is TransactionState.EMPTY


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("with_restarts", [True, False])
def test_the_next_client_ends_what_was_kept(commit: bool, with_restarts: bool) -> None:
    coordinator = prepared()
    for epoch in (7, 8, 9):  # a client that dies again and again
        assert coordinator.init(**KEEP) == Result(42, epoch, 42, 6)
        if with_restarts:
            coordinator.restart()
    assert coordinator.held.partitions == {A0, A1}
    assert coordinator.end(ProducerIdAndEpoch(42, 9), commit) == Result(42, 10)
    prepare, complete = coordinator.written
    assert (prepare.producer_id, prepare.epoch) == (42, 7)  # above the transaction's own
    assert (complete.producer_id, complete.epoch) == (42, 10)
    if with_restarts:
        coordinator.restart()
    assert coordinator.end(ProducerIdAndEpoch(42, 9), commit) == Result(42, 10)
    coordinator.add(ProducerIdAndEpoch(42, 10), A0)
    assert coordinator.end(ProducerIdAndEpoch(42, 9), commit) == FENCED


def test_incarnations_before_it_are_fenced() -> None:
    coordinator = prepared()
    coordinator.init(**KEEP)
    coordinator.init(**KEEP)
    before = coordinator.held
    for zombie in (ProducerIdAndEpoch(42, 6), ProducerIdAndEpoch(42, 7)):
        for commit in (True, False):
            for version in (TV1, TV2):
                assert coordinator.end(zombie, commit, version) == FENCED
        assert coordinator.add(zombie, A0) == FENCED
        assert coordinator.init(zombie) == FENCED
        assert coordinator.init(zombie, **KEEP) == FENCED
        assert verify(before, zombie, [A0]) == {A0: FENCED}
    assert coordinator.held == before


def test_the_client_that_came_back_may_only_end_it() -> None:
    """And is not advised to abort it, which TRANSACTION_ABORTABLE would be."""
    coordinator = prepared()
    coordinator.init(**KEEP)
    me = coordinator.held.client
    assert coordinator.add(me, A0) == ErrorCode.INVALID_TXN_STATE
    assert verify(coordinator.held, me, [A0]) == {A0: ErrorCode.INVALID_TXN_STATE}


def test_a_client_that_names_itself_may_repeat_the_request() -> None:
    coordinator = prepared()
    me = coordinator.held.client
    first = coordinator.init(me, **KEEP)
    coordinator.restart()
    assert coordinator.init(me, **KEEP) == first == Result(42, 7, 42, 6)
    assert coordinator.end(me, commit=True) == FENCED


def test_without_asking_to_keep_it_the_transaction_is_aborted() -> None:
    coordinator = prepared()
    coordinator.init(**KEEP)
    assert coordinator.init(enable_2pc=True) == ErrorCode.CONCURRENT_TRANSACTIONS
    prepare, complete = coordinator.written
    assert (prepare.state, prepare.epoch) == (TransactionState.PREPARE_ABORT, 7)
    assert (complete.state, complete.epoch) == (TransactionState.COMPLETE_ABORT, 8)
    assert coordinator.init(enable_2pc=True) == Result(42, 9)


def test_a_transaction_that_may_time_out_can_be_kept_and_made_one_that_may_not() -> None:
    coordinator = Coordinator(
        held(TransactionState.ONGOING), TransactionLimits(two_phase_commit_enabled=True)
    )
    assert coordinator.init(keep_prepared_txn=True) == Result(42, 6, 42, 5)
    for request, is_two_phase in ({}, False), (KEEP, True), ({}, True):
        coordinator.init(**request | {"keep_prepared_txn": True})
        assert coordinator.held.is_two_phase is is_two_phase


def test_one_that_is_kept_but_not_two_phase_still_times_out() -> None:
    coordinator = Coordinator(
        held(TransactionState.ONGOING), TransactionLimits(two_phase_commit_enabled=True)
    )
    coordinator.init(keep_prepared_txn=True)
    coordinator.time_out()
    prepare, complete = coordinator.written
    assert (prepare.epoch, complete.epoch) == (6, 7)
    assert coordinator.end(ProducerIdAndEpoch(42, 6), commit=True) == FENCED


def test_a_client_of_the_older_protocol_keeps_the_identity_that_it_was_given() -> None:
    coordinator = prepared()
    coordinator.init(**KEEP)
    me = ProducerIdAndEpoch(42, 7)
    assert coordinator.end(me, True, TV1) == Result(*me)
    assert coordinator.written[0].epoch == 7  # its markers fence who had it before all the same
    assert coordinator.end(me, True, TV1) == Result(*me)
    assert coordinator.held.client == me
    assert coordinator.end(ProducerIdAndEpoch(42, 6), True, TV1) == FENCED


def test_after_that_end_nobody_is_taken_for_who_he_was_before_it() -> None:
    coordinator = prepared()
    before = coordinator.held.client
    coordinator.init(before, **KEEP)
    coordinator.end(ProducerIdAndEpoch(42, 7), True, TV1)
    assert coordinator.end(before, True, TV2) == FENCED
    assert coordinator.init(before) == FENCED


# --- no epoch left ----------------------------------------------------------------------------


def test_the_client_gets_another_producer_id_and_the_transaction_keeps_its_own() -> None:
    coordinator = prepared(epoch=32_764)  # open at 32765
    assert coordinator.init(**KEEP) == Result(42, 32_766, 42, 32_765)
    assert coordinator.init(**KEEP) == Result(100, 0, 42, 32_765)
    assert coordinator.init(**KEEP) == Result(100, 1, 42, 32_765)
    coordinator.restart()
    assert coordinator.end(ProducerIdAndEpoch(42, 32_766), commit=False) == FENCED
    assert coordinator.end(ProducerIdAndEpoch(100, 1), commit=True) == Result(100, 2)
    assert (coordinator.written[0].producer_id, coordinator.written[0].epoch) == (42, 32_766)
    coordinator.restart()
    assert coordinator.end(ProducerIdAndEpoch(100, 1), commit=True) == Result(100, 2)


@pytest.mark.parametrize("through_prepare", [True, False])
def test_three_producer_ids_at_once(through_prepare: bool) -> None:
    """The transaction's, the client's that ends it, and the one that the client has after it."""
    coordinator = prepared(epoch=32_764)
    coordinator.init(**KEEP)
    coordinator.init(**KEEP)
    exhausted = ProducerIdAndEpoch(100, 32_766)
    coordinator.transaction = replace(coordinator.held, next_producer_epoch=exhausted.epoch)
    assert coordinator.end(exhausted, commit=True) == Result(101, 0)
    prepare, complete = coordinator.written
    assert (prepare.producer_id, prepare.previous_producer_id, prepare.next_producer_id) == (
        42,
        100,
        101,
    )
    if through_prepare:
        coordinator.transaction = prepare
        coordinator.restart()
        finish = resume(coordinator.held, 2_000)
        assert finish is not None
        assert finish.complete == complete
        assert coordinator.end(exhausted, commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
        coordinator.transaction = finish.complete
    assert coordinator.end(exhausted, commit=True) == Result(101, 0)


def test_while_being_ended_it_is_not_kept() -> None:
    for state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
        decision = init_producer_id(
            held(state),
            ProducerIdRequest("orders", 1, enable_2pc=True, keep_prepared_txn=True),
            now_ms=0,
            limits=TransactionLimits(two_phase_commit_enabled=True),
            new_producer_id=lambda: 100,
        )
        assert getattr(decision, "code", None) is ErrorCode.CONCURRENT_TRANSACTIONS
