"""Every edge of the transaction's table: those that are there are taken, all others refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from itertools import product

import pytest

from onceflow.errors import InvariantViolated
from onceflow.txn.state import LEGAL, NEVER_MS, TransactionMetadata, TransactionState, moved
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.txn.transactional_id import held

# Target, sources: as the protocol has them.
TABLE = {
    "Empty": "Empty CompleteCommit CompleteAbort",
    "Ongoing": "Ongoing Empty CompleteCommit CompleteAbort",
    "PrepareCommit": "Ongoing",
    "PrepareAbort": "Ongoing PrepareEpochFence Empty CompleteCommit CompleteAbort",
    "CompleteCommit": "PrepareCommit",
    "CompleteAbort": "PrepareAbort",
    "PrepareEpochFence": "Ongoing",
    "Dead": "Empty CompleteCommit CompleteAbort",
}


def test_names_and_numbers_are_kafkas() -> None:
    assert {each.title: each.value for each in TransactionState} == {
        "Empty": 0,
        "Ongoing": 1,
        "PrepareCommit": 2,
        "PrepareAbort": 3,
        "CompleteCommit": 4,
        "CompleteAbort": 5,
        "Dead": 6,
        "PrepareEpochFence": 7,
    }


@pytest.mark.parametrize(
    ("source", "target"),
    list(product(TransactionState, TransactionState)),
    ids=lambda each: each.title,
)
def test_every_pair_of_states(source: TransactionState, target: TransactionState) -> None:
    before = held(source)
    if source.title in TABLE[target.title].split():
        after = moved(before, target, updated_ms=3_000)
        assert after == replace(before, state=target, updated_ms=3_000)
    else:
        with pytest.raises(InvariantViolated, match=f"from {source.title} to {target.title}"):
            moved(before, target)
    assert before == held(source)


def test_the_table_and_a_transaction_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        LEGAL[TransactionState.EMPTY] = frozenset()  # type: ignore[index]  # that it cannot is the test
    with pytest.raises(FrozenInstanceError):
        held(TransactionState.EMPTY).epoch = 9  # type: ignore[misc]  # that it cannot is the test


@pytest.mark.parametrize(
    "identity", [{"epoch": 4}, {"epoch": 32_768}, {"producer_id": -1}, {"epoch": -1}]
)
def test_an_identity_that_is_none_or_goes_back_is_refused(identity: dict[str, int]) -> None:
    with pytest.raises(InvariantViolated, match="producer 42 at epoch 5 cannot become"):
        moved(held(TransactionState.EMPTY), TransactionState.EMPTY, **identity)


def test_a_new_producer_id_may_start_over_and_the_old_one_is_remembered_once() -> None:
    rotated = moved(
        held(TransactionState.EMPTY), TransactionState.EMPTY, producer_id=43, epoch=0, last_epoch=5
    )
    assert rotated.previous_producer_id == 42
    assert rotated.previous == ProducerIdAndEpoch(42, 5)
    assert moved(rotated, TransactionState.ONGOING).previous_producer_id == -1


def test_what_a_state_says_about_itself() -> None:
    idle = {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
    assert {each for each in TransactionState if held(each).is_idle} == idle
    assert held(TransactionState.EMPTY).client == ProducerIdAndEpoch(42, 5)
    assert held(TransactionState.EMPTY).previous is None
    overflowing = held(TransactionState.PREPARE_COMMIT, epoch=32_767, next_producer_id=43)
    assert overflowing.client == ProducerIdAndEpoch(43, 0)
    never = TransactionMetadata("orders", 42, 0, NEVER_MS, TransactionState.ONGOING, 0)
    assert never.is_two_phase
    assert not never.is_kept
