"""InitProducerId: who gets which identity, and who is fenced."""

from __future__ import annotations

import pytest

from onceflow.txn.machine import (
    Answered,
    ProducerIdRequest,
    Rejected,
    Result,
    TransactionLimits,
    TransactionState,
    init_producer_id,
)
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.txn.transactional_id import A0, TIMEOUT_MS, TV1, Coordinator, held

ME = ProducerIdAndEpoch(42, 5)
IDLE = [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT]


def decide(request: ProducerIdRequest, limits: TransactionLimits | None = None) -> object:
    return init_producer_id(
        None, request, now_ms=0, limits=limits or TransactionLimits(), new_producer_id=lambda: 100
    )


# --- what no state could make good ------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ProducerIdRequest("orders", 1, producer_id=4), ErrorCode.INVALID_REQUEST),
        (ProducerIdRequest("orders", 1, epoch=4), ErrorCode.INVALID_REQUEST),
        (ProducerIdRequest(None, 1, epoch=4), ErrorCode.INVALID_REQUEST),
        (ProducerIdRequest("", 1), ErrorCode.INVALID_REQUEST),
        (ProducerIdRequest("orders", 0), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (ProducerIdRequest("orders", -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (ProducerIdRequest("orders", 900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (
            ProducerIdRequest("orders", 1, enable_2pc=True),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (ProducerIdRequest("orders", 1, keep_prepared_txn=True), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_request_that_fits_no_state(request_: ProducerIdRequest, code: ErrorCode) -> None:
    assert decide(request_) == Rejected(code)


def test_without_a_transactional_id_every_request_gets_a_new_producer_id() -> None:
    assert decide(ProducerIdRequest(None, 2**31 - 1)) == Answered(Result(100, 0))


def test_the_longest_timeout_is_allowed() -> None:
    assert not isinstance(decide(ProducerIdRequest("orders", 900_000)), Rejected)


# --- a new id ---------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [None, ProducerIdAndEpoch(7, 3)])
def test_an_unknown_id_begins_at_epoch_0(expected: ProducerIdAndEpoch | None) -> None:
    """Also for a producer whose id was forgotten."""
    coordinator = Coordinator()
    assert coordinator.init(expected) == Result(100, 0)
    assert coordinator.held.state is TransactionState.EMPTY
    assert coordinator.held.timeout_ms == TIMEOUT_MS
    assert coordinator.held.started_ms == -1
    assert coordinator.held.updated_ms == 2_000


# --- nothing open -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", IDLE)
def test_a_new_producer_gets_the_next_epoch_and_its_timeout(state: TransactionState) -> None:
    coordinator = Coordinator(held(state, started_ms=900, last_epoch=4))
    assert coordinator.init(timeout_ms=1_234) == Result(42, 6)
    after = coordinator.held
    assert (after.state, after.timeout_ms, after.started_ms) == (TransactionState.EMPTY, 1_234, -1)
    assert after.last_epoch == -1
    assert coordinator.init(ME) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", IDLE)
def test_a_producer_that_goes_on_gets_the_next_epoch_and_may_repeat_itself(
    state: TransactionState,
) -> None:
    coordinator = Coordinator(held(state))
    assert coordinator.init(ME) == Result(42, 6)
    assert coordinator.held.last_epoch == 5
    for _ in range(3):
        assert coordinator.init(ME) == Result(42, 6)
        assert coordinator.written == []


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize(
    "other", [ProducerIdAndEpoch(42, 4), ProducerIdAndEpoch(42, 6), ProducerIdAndEpoch(41, 5)]
)
def test_any_other_identity_is_fenced(state: TransactionState, other: ProducerIdAndEpoch) -> None:
    coordinator = Coordinator(held(state))
    assert coordinator.init(other) == ErrorCode.PRODUCER_FENCED
    assert coordinator.written == []


def test_a_repetition_with_another_timeout_is_written_and_may_be_repeated() -> None:
    coordinator = Coordinator(held(TransactionState.EMPTY, epoch=32_766))
    for timeout_ms in (1_000, 2_000, 3_000):
        assert coordinator.init(ProducerIdAndEpoch(42, 32_766), timeout_ms) == Result(100, 0)
        assert coordinator.held.timeout_ms == timeout_ms


def test_a_lost_answer_to_endtxn_is_made_good_by_init_producer_id() -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING))
    coordinator.end(ME, commit=True)
    assert coordinator.init(ME) == Result(42, 6)
    assert coordinator.held.state is TransactionState.EMPTY


# --- something open or being ended ------------------------------------------------------------


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
@pytest.mark.parametrize("expected", [None, ME])
def test_while_a_transaction_is_being_ended(
    state: TransactionState, expected: ProducerIdAndEpoch | None
) -> None:
    coordinator = Coordinator(held(state))
    assert coordinator.init(expected) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.init(ProducerIdAndEpoch(9, 5)) == ErrorCode.PRODUCER_FENCED
    assert coordinator.written == []


def test_an_open_transaction_is_aborted_first_with_exactly_one_new_epoch() -> None:
    """KAFKA-19367."""
    coordinator = Coordinator(held(TransactionState.ONGOING, started_ms=900, client_version=2))
    assert coordinator.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    prepare, complete = coordinator.written
    assert (prepare.state, prepare.epoch, prepare.last_epoch) == (
        TransactionState.PREPARE_ABORT,
        6,
        5,
    )
    assert prepare.partitions == {A0}
    assert (complete.state, complete.epoch) == (TransactionState.COMPLETE_ABORT, 6)
    assert (complete.started_ms, complete.partitions) == (900, frozenset())
    assert coordinator.init() == Result(42, 7)
    assert coordinator.end(ME, commit=False) == ErrorCode.PRODUCER_FENCED


def test_a_fence_that_was_not_written_does_not_use_up_epochs() -> None:
    """KAFKA-9666: decisions change nothing, so that one which is not persisted never was."""
    coordinator = Coordinator(held(TransactionState.ONGOING))
    before = coordinator.held
    for _ in range(5):
        coordinator.transaction = before
        coordinator.init()
        assert coordinator.held.epoch == 6


def test_the_producer_itself_may_reopen_after_its_transaction_was_fenced() -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING))
    assert coordinator.init(ME) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.init(ME) == Result(42, 6)


@pytest.mark.parametrize(
    "zombie", [ProducerIdAndEpoch(42, 4), ProducerIdAndEpoch(42, 6), ProducerIdAndEpoch(7, 5)]
)
def test_a_zombie_cannot_end_the_transaction_of_its_successor(zombie: ProducerIdAndEpoch) -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING))
    assert coordinator.init(zombie) == ErrorCode.PRODUCER_FENCED
    assert coordinator.held == held(TransactionState.ONGOING)


# --- no epoch left ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize("epoch", [32_766, 32_767])
def test_a_new_producer_id_when_no_epoch_is_left(state: TransactionState, epoch: int) -> None:
    coordinator = Coordinator(held(state, epoch=epoch))
    assert coordinator.init() == Result(100, 0)
    assert coordinator.held.last_epoch == -1
    assert coordinator.init(ProducerIdAndEpoch(42, epoch)) == ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_that_a_client_is_given() -> None:
    coordinator = Coordinator(held(TransactionState.EMPTY, epoch=32_765))
    last = ProducerIdAndEpoch(42, 32_765)
    assert coordinator.init(last) == Result(42, 32_766)
    assert coordinator.init(last) == Result(42, 32_766)
    assert coordinator.init(ProducerIdAndEpoch(42, 32_766)) == Result(100, 0)


@pytest.mark.parametrize("epoch", [5, 32_766])
def test_a_repetition_after_a_restart_is_not_fenced(epoch: int) -> None:
    """KAFKA-20357 and KAFKA-20310."""
    coordinator = Coordinator(held(TransactionState.EMPTY, epoch=epoch))
    given = coordinator.init(ProducerIdAndEpoch(42, epoch))
    coordinator.restart()
    assert coordinator.init(ProducerIdAndEpoch(42, epoch)) == given
    coordinator.restart()
    assert coordinator.init(ProducerIdAndEpoch(42, epoch)) == given


@pytest.mark.parametrize("epoch", [32_766, 32_767])
def test_an_open_transaction_at_the_last_epoch_is_fenced_and_the_id_replaced(epoch: int) -> None:
    """KAFKA-20090: it must not get stuck at 32767."""
    coordinator = Coordinator(held(TransactionState.ONGOING, epoch=epoch))
    assert coordinator.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.written[0].epoch == 32_767
    assert coordinator.written[0].producer_id == 42
    assert coordinator.init() == Result(100, 1)


def test_a_transaction_of_the_older_protocol_keeps_the_identity() -> None:
    coordinator = Coordinator()
    coordinator.init()
    me = ProducerIdAndEpoch(100, 0)
    for commit in (True, False):
        coordinator.add(me, A0, client_version=0)
        assert coordinator.end(me, commit, TV1) == Result(*me)
        assert coordinator.held.client == me
    assert coordinator.init() == Result(100, 1)
