"""EndTxn: every row of its tables, and the ways in which an end can come twice, late or never."""

from __future__ import annotations

import pytest

from onceflow.errors import InvariantViolated
from onceflow.txn.ending import CURRENT, REPEATED, SAME_EPOCH
from onceflow.txn.machine import Finish, Result, TransactionState, end, resume
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.txn.transactional_id import A0, A1, B0, TV1, TV2, Coordinator, held

ME = ProducerIdAndEpoch(42, 5)
BEFORE = ProducerIdAndEpoch(42, 4)
COMMIT, ABORT = True, False
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
FENCED = ErrorCode.PRODUCER_FENCED
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
HELD = [
    each
    for each in TransactionState
    if each not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]

# --- the older protocol -----------------------------------------------------------------------

OLDER = [
    (TransactionState.EMPTY, ABORT, INVALID),
    (TransactionState.EMPTY, COMMIT, INVALID),
    (TransactionState.ONGOING, ABORT, "ends"),
    (TransactionState.ONGOING, COMMIT, "ends"),
    (TransactionState.PREPARE_COMMIT, ABORT, INVALID),
    (TransactionState.PREPARE_COMMIT, COMMIT, BUSY),
    (TransactionState.PREPARE_ABORT, ABORT, BUSY),
    (TransactionState.PREPARE_ABORT, COMMIT, INVALID),
    (TransactionState.COMPLETE_COMMIT, ABORT, INVALID),
    (TransactionState.COMPLETE_COMMIT, COMMIT, "nothing"),
    (TransactionState.COMPLETE_ABORT, ABORT, "nothing"),
    (TransactionState.COMPLETE_ABORT, COMMIT, INVALID),
]


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(("state", "commit", "outcome"), OLDER)
def test_the_older_protocol(
    version: int, state: TransactionState, commit: bool, outcome: ErrorCode | str
) -> None:
    coordinator = Coordinator(held(state, started_ms=900))
    answer = coordinator.end(ME, commit, version)
    assert answer == (outcome if isinstance(outcome, ErrorCode) else Result(*ME))
    if outcome != "ends":
        assert coordinator.written == []
        return
    prepare, complete = coordinator.written
    assert prepare.state is (
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    )
    assert complete.state is (
        TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    )
    assert prepare.epoch == complete.epoch == 5
    assert prepare.partitions == {A0}
    assert complete.partitions == frozenset()
    assert prepare.started_ms == complete.started_ms == 900
    assert prepare.updated_ms == complete.updated_ms == 2_000
    assert complete.client_version == 0


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("state", HELD)
@pytest.mark.parametrize(
    ("identity", "code"),
    [
        (ProducerIdAndEpoch(42, 3), FENCED),
        (ProducerIdAndEpoch(42, 6), FENCED),
        (ProducerIdAndEpoch(7, 5), UNKNOWN),
    ],
)
def test_others_are_refused_in_every_state(
    version: int, state: TransactionState, identity: ProducerIdAndEpoch, code: ErrorCode
) -> None:
    coordinator = Coordinator(held(state))
    for commit in (COMMIT, ABORT):
        assert coordinator.end(identity, commit, version) == code
    assert coordinator.held == held(state)


@pytest.mark.parametrize("version", [TV1, TV2])
def test_an_id_that_is_not_known(version: int) -> None:
    assert Coordinator().end(ME, COMMIT, version) == UNKNOWN


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("state", [TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE])
def test_states_that_are_only_passed_through_are_a_defect(
    version: int, state: TransactionState
) -> None:
    with pytest.raises(InvariantViolated, match="only passed through"):
        Coordinator(held(state)).end(ME, ABORT, version)


def test_the_tables_have_a_row_for_every_state_that_is_held() -> None:
    rows = {(state, commit) for state in HELD for commit in (COMMIT, ABORT)}
    assert set(SAME_EPOCH) == set(CURRENT) == set(REPEATED) == rows


# --- an epoch for each transaction ------------------------------------------------------------

NEWER = [
    # state, abort again, abort now, commit again, commit now
    (TransactionState.EMPTY, FENCED, "ends", FENCED, INVALID),
    (TransactionState.ONGOING, FENCED, "ends", FENCED, "ends"),
    (TransactionState.PREPARE_COMMIT, INVALID, BUSY, BUSY, BUSY),
    (TransactionState.PREPARE_ABORT, BUSY, BUSY, INVALID, BUSY),
    (TransactionState.COMPLETE_COMMIT, INVALID, "ends", "nothing", INVALID),
    (TransactionState.COMPLETE_ABORT, "nothing", "ends", FENCED, INVALID),
]
ROWS = [
    (state, identity, commit, outcome)
    for state, *outcomes in NEWER
    for (commit, identity), outcome in zip(
        [(ABORT, BEFORE), (ABORT, ME), (COMMIT, BEFORE), (COMMIT, ME)], outcomes, strict=True
    )
]


@pytest.mark.parametrize(("state", "identity", "commit", "outcome"), ROWS)
def test_an_epoch_for_each_transaction(
    state: TransactionState, identity: ProducerIdAndEpoch, commit: bool, outcome: ErrorCode | str
) -> None:
    coordinator = Coordinator(held(state, last_epoch=4, started_ms=900))
    answer = coordinator.end(identity, commit)
    expected = {"ends": Result(42, 6), "nothing": Result(42, 5)}
    assert answer == (outcome if isinstance(outcome, ErrorCode) else expected[outcome])
    if outcome != "ends":
        assert coordinator.written == []
        return
    prepare, complete = coordinator.written
    assert (prepare.epoch, prepare.last_epoch, prepare.client_version) == (6, 5, 2)
    assert (complete.epoch, complete.last_epoch, complete.client_version) == (6, 5, 2)
    assert prepare.started_ms == (900 if state is TransactionState.ONGOING else 2_000)
    assert complete.state is (
        TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    )


def test_markers_go_to_every_partition_in_one_order_with_the_epoch_of_the_prepare() -> None:
    decision = end(
        held(TransactionState.ONGOING, partitions=frozenset({B0, A1, A0})),
        ME,
        COMMIT,
        version=TV2,
        now_ms=0,
        new_producer_id=lambda: 100,
    )
    assert isinstance(decision, Finish)
    assert decision.partitions == (A0, A1, B0)
    assert (decision.prepare.producer_id, decision.prepare.epoch) == (42, 6)
    assert decision.commit


# --- once more, late, or after a crash --------------------------------------------------------


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("epoch", [5, 32_766])
def test_an_end_that_is_repeated_gets_the_same_answer_also_after_a_restart(
    commit: bool, version: int, epoch: int
) -> None:
    me = ProducerIdAndEpoch(42, epoch)
    coordinator = Coordinator(held(TransactionState.ONGOING, epoch=epoch))
    first = coordinator.end(me, commit, version)
    assert isinstance(first, Result)
    for _ in range(2):
        assert coordinator.end(me, commit, version) == first
        assert coordinator.written == []
        coordinator.restart()


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_a_decision_is_not_reversed_by_asking_for_the_other(version: int, commit: bool) -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING))
    coordinator.end(ME, commit, version)
    done = coordinator.held
    assert coordinator.end(ME, not commit, version) in (INVALID, FENCED)
    assert coordinator.held == done


@pytest.mark.parametrize("late", [COMMIT, ABORT])
@pytest.mark.parametrize("in_time", [COMMIT, ABORT])
def test_a_late_endtxn_does_not_end_the_next_transaction(late: bool, in_time: bool) -> None:
    """KAFKA-17754, as far as the protocol can tell: with an epoch for each transaction."""
    coordinator = Coordinator(held(TransactionState.ONGOING))
    answer = coordinator.end(ME, in_time)
    assert isinstance(answer, Result)
    coordinator.add(ProducerIdAndEpoch(answer.producer_id, answer.epoch), A0)
    assert coordinator.end(ME, late) == FENCED
    assert coordinator.held.state is TransactionState.ONGOING


@pytest.mark.parametrize("epoch", [5, 32_766])
def test_a_commit_that_meets_an_abort_by_timeout_is_fenced_not_invalid(epoch: int) -> None:
    """KAFKA-20785: INVALID_TXN_STATE is the end of a client, PRODUCER_FENCED is not."""
    me = ProducerIdAndEpoch(42, epoch)
    coordinator = Coordinator(held(TransactionState.ONGOING, epoch=epoch))
    coordinator.time_out()
    assert coordinator.end(me, COMMIT) == FENCED
    assert coordinator.end(me, ABORT) == Result(*coordinator.held.client)


def test_under_the_older_protocol_a_timeout_fences_too() -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING))
    coordinator.time_out()
    assert coordinator.end(ME, COMMIT, TV1) == FENCED
    assert coordinator.end(ME, ABORT, TV1) == FENCED


def test_aborting_nothing_right_after_an_end_does_not_fence_oneself() -> None:
    """KAFKA-18464."""
    coordinator = Coordinator(held(TransactionState.ONGOING))
    coordinator.end(ME, COMMIT)
    prepare, complete = coordinator.written
    coordinator.transaction = prepare
    assert coordinator.end(ProducerIdAndEpoch(42, 6), ABORT) == BUSY
    coordinator.transaction = complete
    assert coordinator.end(ProducerIdAndEpoch(42, 6), ABORT) == Result(42, 7)
    assert coordinator.end(ProducerIdAndEpoch(42, 7), ABORT) == Result(42, 8)


def test_a_zombie_is_not_told_that_it_committed_what_its_successor_did() -> None:
    """The successor speaks the older protocol, so that its epoch is the zombie's plus one."""
    zombie = ProducerIdAndEpoch(42, 5)
    coordinator = Coordinator(held(TransactionState.EMPTY))
    assert coordinator.init() == Result(42, 6)
    coordinator.add(ProducerIdAndEpoch(42, 6), A0, client_version=0)
    coordinator.end(ProducerIdAndEpoch(42, 6), COMMIT, TV1)
    for commit in (COMMIT, ABORT):
        assert coordinator.end(zombie, commit) == FENCED


# --- no epoch left ----------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_the_last_epoch_leads_to_a_new_producer_id(commit: bool) -> None:
    """KAFKA-18660: both the answer and its repetition have the new one."""
    me = ProducerIdAndEpoch(42, 32_766)
    coordinator = Coordinator(held(TransactionState.ONGOING, epoch=32_766))
    assert coordinator.end(me, commit) == Result(100, 0)
    prepare, complete = coordinator.written
    assert (prepare.producer_id, prepare.epoch) == (42, 32_767)
    assert (prepare.next_producer_id, prepare.last_epoch) == (100, 32_766)
    assert (complete.producer_id, complete.epoch, complete.next_producer_id) == (100, 0, -1)
    assert (complete.previous_producer_id, complete.last_epoch) == (42, 32_766)
    assert coordinator.end(me, commit) == Result(100, 0)
    coordinator.transaction = prepare
    assert coordinator.end(me, commit) == BUSY
    assert coordinator.end(ProducerIdAndEpoch(100, 0), ABORT) == BUSY


def test_the_new_producer_id_goes_on_and_the_old_one_is_fenced() -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING, epoch=32_766))
    coordinator.end(ProducerIdAndEpoch(42, 32_766), COMMIT)
    coordinator.add(ProducerIdAndEpoch(100, 0), A0)
    assert coordinator.end(ProducerIdAndEpoch(42, 32_766), COMMIT) == UNKNOWN
    assert coordinator.end(ProducerIdAndEpoch(100, 0), COMMIT) == Result(100, 1)


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
)
def test_aborting_nothing_at_the_last_epoch(state: TransactionState) -> None:
    coordinator = Coordinator(held(state, epoch=32_766))
    assert coordinator.end(ProducerIdAndEpoch(42, 32_766), ABORT) == Result(100, 0)


# --- found at start ---------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("epoch", [5, 32_766])
def test_a_prepare_found_at_start_comes_to_the_same_end(
    commit: bool, version: int, epoch: int
) -> None:
    coordinator = Coordinator(
        held(TransactionState.ONGOING, epoch=epoch, partitions=frozenset({B0, A0}))
    )
    coordinator.end(ProducerIdAndEpoch(42, epoch), commit, version)
    prepare, complete = coordinator.written
    coordinator.transaction = prepare
    coordinator.restart()
    finish = resume(coordinator.held, 2_000)
    assert finish is not None
    assert finish.prepare == prepare
    assert finish.complete == complete
    assert (finish.commit, finish.partitions) == (commit, (A0, B0))


@pytest.mark.parametrize(
    "state",
    [
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    ],
)
def test_nothing_else_is_ended_at_start(state: TransactionState) -> None:
    assert resume(held(state), 2_000) is None
