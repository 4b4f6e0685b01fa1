"""Adding partitions to a transaction, asking whether they are in it, and codes by version."""

from __future__ import annotations

import pytest

from onceflow.records.partitioning import coordinator_partition
from onceflow.txn.fencing import KNOWN_FROM
from onceflow.txn.machine import Result, TransactionLimits, TransactionState, code_for, verify
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.txn.transactional_id import A0, A1, B0, Coordinator, held

ME = ProducerIdAndEpoch(42, 5)
OFFSETS = TopicPartition("__consumer_offsets", 7)
REFUSALS = [
    (None, ME, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (TransactionState.ONGOING, ProducerIdAndEpoch(7, 5), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (TransactionState.ONGOING, ProducerIdAndEpoch(42, 4), ErrorCode.PRODUCER_FENCED),
    (TransactionState.EMPTY, ProducerIdAndEpoch(42, 6), ErrorCode.PRODUCER_FENCED),
    (TransactionState.PREPARE_COMMIT, ME, ErrorCode.CONCURRENT_TRANSACTIONS),
    (TransactionState.PREPARE_ABORT, ME, ErrorCode.CONCURRENT_TRANSACTIONS),
    (TransactionState.PREPARE_ABORT, ProducerIdAndEpoch(42, 4), ErrorCode.PRODUCER_FENCED),
]


@pytest.mark.parametrize(("state", "identity", "code"), REFUSALS)
def test_who_may_not_add_may_not_append_either(
    state: TransactionState | None, identity: ProducerIdAndEpoch, code: ErrorCode
) -> None:
    transaction = None if state is None else held(state)
    coordinator = Coordinator(transaction)
    assert coordinator.add(identity, A0) == code
    assert verify(transaction, identity, [A0, B0]) == {A0: code, B0: code}
    assert coordinator.written == []


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
)
@pytest.mark.parametrize("client_version", [0, 2])
def test_the_first_partition_begins_the_transaction(
    state: TransactionState, client_version: int
) -> None:
    coordinator = Coordinator(held(state, started_ms=7, last_epoch=4))
    assert coordinator.add(ME, A0, A1, client_version=client_version) == Result()
    after = coordinator.held
    assert after.state is TransactionState.ONGOING
    assert after.partitions == {A0, A1}
    assert (after.started_ms, after.updated_ms) == (2_000, 2_000)
    assert (after.client, after.client_version) == (ME, client_version)
    assert after.previous is None


def test_later_ones_join_it_and_do_not_move_its_start() -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING, started_ms=900))
    assert coordinator.add(ME, A1, OFFSETS) == Result()
    assert coordinator.held.partitions == {A0, A1, OFFSETS}
    assert coordinator.held.started_ms == 900


def test_what_is_in_it_already_is_not_written_again() -> None:
    coordinator = Coordinator(held(TransactionState.ONGOING, partitions=frozenset({A0, A1})))
    coordinator.now_ms = 9_000
    assert coordinator.add(ME, A1) == Result()
    assert coordinator.written == []


def test_too_many_partitions_are_refused_and_change_nothing() -> None:
    coordinator = Coordinator(
        held(TransactionState.ONGOING), TransactionLimits(max_partitions_per_transaction=2)
    )
    assert coordinator.add(ME, A1, B0) == ErrorCode.POLICY_VIOLATION
    assert coordinator.held.partitions == {A0}
    assert coordinator.add(ME, A1) == Result()
    assert coordinator.add(ME, A0, A1) == Result()


def test_a_partition_that_was_not_added_must_not_be_appended_to() -> None:
    assert verify(held(TransactionState.ONGOING), ME, [A0, A1]) == {
        A0: ErrorCode.NONE,
        A1: ErrorCode.TRANSACTION_ABORTABLE,
    }


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
)
def test_without_a_transaction_nothing_may_be_appended(state: TransactionState) -> None:
    assert verify(held(state), ME, [A0]) == {A0: ErrorCode.TRANSACTION_ABORTABLE}


# --- codes by version -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "since"),
    [
        (ApiKey.INIT_PRODUCER_ID, 4),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 2),
        (ApiKey.ADD_OFFSETS_TO_TXN, 2),
        (ApiKey.END_TXN, 2),
        (ApiKey.PRODUCE, 99),
        (ApiKey.TXN_OFFSET_COMMIT, 99),
        (ApiKey.WRITE_TXN_MARKERS, 99),
    ],
)
def test_fenced_is_told_as_an_invalid_epoch_to_older_clients(api: ApiKey, since: int) -> None:
    for version in range(14):
        told = code_for(ErrorCode.PRODUCER_FENCED, api, version)
        older = version < since
        assert told is (ErrorCode.INVALID_PRODUCER_EPOCH if older else ErrorCode.PRODUCER_FENCED)


@pytest.mark.parametrize(
    ("code", "api", "version", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, ApiKey.PRODUCE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ApiKey.PRODUCE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ApiKey.PRODUCE, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ApiKey.PRODUCE, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, ApiKey.TXN_OFFSET_COMMIT, 3, ErrorCode.INVALID_TXN_STATE),
        (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ApiKey.TXN_OFFSET_COMMIT,
            1,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ApiKey.END_TXN, 0, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_what_a_version_does_not_know_is_told_in_other_words(
    code: ErrorCode, api: ApiKey, version: int, told: ErrorCode
) -> None:
    assert code_for(code, api, version) is told


def test_no_error_is_never_told_as_one() -> None:
    assert {code for _, code in KNOWN_FROM} & {ErrorCode.NONE} == set()
    assert ErrorCode.NONE not in {told for _, told in KNOWN_FROM.values()}


# --- placement --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transactional_id", "partition"),
    # As Apache Kafka places them; Java's hash of the last is negative.
    [("g", 3), ("orders-7", 5), ("group-a", 47), ("my-transactional-id", 46)],
)
def test_ids_are_placed_as_kafka_does(transactional_id: str, partition: int) -> None:
    assert coordinator_partition(transactional_id, 50) == partition
