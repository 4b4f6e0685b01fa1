"""The table of errors: what is tried again, what aborts, what ends a producer, what is unknown."""

from __future__ import annotations

import pickle

import pytest

from onceflow.client.errors.requests import (
    AbortableError,
    Action,
    AuthenticationFailed,
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    CrossedFork,
    DeliveryFailed,
    FatalProducerError,
    Fenced,
    NotKafka,
    RequestTimedOut,
    TopicNotFound,
    TransactionAborted,
    UnknownOutcome,
    action_for,
    producer_error,
)
from onceflow.client.errors.table import action, outcome_of
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode

TRANSACTIONAL = (
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.INIT_PRODUCER_ID,
)


@pytest.mark.parametrize("api", TRANSACTIONAL)
@pytest.mark.parametrize("code", [3, 5, 6, 7, 13, 14, 15, 16, 19, 20, 51, 56])
def test_what_a_transaction_tries_again_with_the_same_bytes(api: ApiKey, code: int) -> None:
    expected = Action.REFRESH if code in (3, 5, 6, 13, 15, 16, 56) else Action.RETRY
    assert action(code, api) is expected
    assert action(code, api, aborting=True) is expected


@pytest.mark.parametrize(
    ("api", "codes", "expected"),
    [
        (ApiKey.PRODUCE, (45, 47, 48, 49, 90, 120, 10, 29, 59, 87), Action.ABORT),
        (ApiKey.PRODUCE, (31, 53, 35), Action.FATAL),
        (ApiKey.PRODUCE, (46,), Action.DONE),
        (ApiKey.TXN_OFFSET_COMMIT, (22, 25, 82, 69, 113, 30, 12, 47, 48, 90, 120), Action.ABORT),
        (ApiKey.TXN_OFFSET_COMMIT, (49, 53), Action.FATAL),
        (ApiKey.TXN_OFFSET_COMMIT, (100,), Action.REFRESH),
        (ApiKey.DELETE_GROUPS, (68, 69, 134), Action.FAIL),
        (ApiKey.ADD_PARTITIONS_TO_TXN, (47, 48, 49, 90, 53), Action.FATAL),
        (ApiKey.ADD_PARTITIONS_TO_TXN, (29, 55, 120), Action.ABORT),
        (ApiKey.ADD_OFFSETS_TO_TXN, (47, 48, 49, 90, 53), Action.FATAL),
        (ApiKey.ADD_OFFSETS_TO_TXN, (30, 120), Action.ABORT),
        (ApiKey.END_TXN, (47, 90, 49, 53, -1), Action.FATAL),
        (ApiKey.END_TXN, (48, 120), Action.ABORT),
        (ApiKey.INIT_PRODUCER_ID, (47, 48, 49, 90), Action.FATAL),
        (ApiKey.INIT_PRODUCER_ID, (31, 50, 53), Action.FAIL),
        (ApiKey.OFFSET_FETCH, (88,), Action.RETRY),
        (ApiKey.CREATE_TOPICS, (36, 44, -1), Action.FAIL),
        (ApiKey.FETCH, (1, 29), Action.FAIL),
        (ApiKey.FETCH, (74, 100), Action.REFRESH),
    ],
)
def test_the_table(api: ApiKey, codes: tuple[int, ...], expected: Action) -> None:
    for code in codes:
        assert action(code, api) is expected, (code, api)


def test_what_an_abort_cannot_settle_is_the_end() -> None:
    assert action(48, ApiKey.END_TXN, aborting=True) is Action.FATAL
    assert action(120, ApiKey.END_TXN, aborting=True) is Action.FATAL
    assert action(51, ApiKey.END_TXN, aborting=True) is Action.RETRY


@pytest.mark.parametrize(
    ("code", "api", "expected"),
    [
        (7, ApiKey.PRODUCE, "unknown"),
        (20, ApiKey.PRODUCE, "unknown"),
        (6, ApiKey.PRODUCE, "unknown"),
        (16, ApiKey.END_TXN, "unknown"),
        (-1, ApiKey.CREATE_TOPICS, "unknown"),
        (19, ApiKey.PRODUCE, "not applied"),
        (51, ApiKey.END_TXN, "not applied"),
        (7, ApiKey.FETCH, "not applied"),
        (87, ApiKey.PRODUCE, "not applied"),
    ],
)
def test_whether_it_may_have_happened_all_the_same(code: int, api: ApiKey, expected: str) -> None:
    assert outcome_of(code, api) == expected
    assert BrokerError(code, api.name, "it").outcome == expected


def test_a_code_that_only_newer_brokers_know_keeps_its_number() -> None:
    error = BrokerError(999, "PRODUCE", "partition a-0")
    assert (error.code, error.name) == (999, "ERROR_999")
    assert error.action is Action.ABORT


@pytest.mark.parametrize(
    ("error", "expected", "outcome"),
    [
        (BrokerUnreachable("x"), Action.REFRESH, "not applied"),
        (ConnectionLost("x"), Action.REFRESH, "unknown"),
        (ConnectionLost("x", outcome="not applied"), Action.REFRESH, "not applied"),
        (RequestTimedOut("x"), Action.REFRESH, "unknown"),
        (CrossedFork("x"), Action.REFRESH, "not applied"),
        (NotKafka("x"), Action.FAIL, "not applied"),
        (AuthenticationFailed("x"), Action.FAIL, "not applied"),
        (TransactionAborted("x"), Action.ABORT, "not applied"),
        (Fenced("x"), Action.FATAL, "not applied"),
        (UnknownOutcome("x"), Action.FAIL, "unknown"),
        (DeliveryFailed("x", outcome="unknown"), Action.FAIL, "unknown"),
    ],
)
def test_every_error_says_what_is_known_and_what_to_do(
    error: ClientError, expected: Action, outcome: str
) -> None:
    assert action_for(error) is expected
    assert error.outcome == outcome
    assert error.advice


@pytest.mark.parametrize(
    ("code", "api", "aborting", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, ApiKey.END_TXN, False, Fenced),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ApiKey.INIT_PRODUCER_ID, False, Fenced),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ApiKey.PRODUCE, False, AbortableError),
        (ErrorCode.INVALID_TXN_STATE, ApiKey.END_TXN, False, AbortableError),
        (ErrorCode.INVALID_TXN_STATE, ApiKey.END_TXN, True, FatalProducerError),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ApiKey.END_TXN, False, FatalProducerError),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ApiKey.END_TXN, False, BrokerError),
    ],
)
def test_what_a_transactional_producer_raises(
    code: ErrorCode, api: ApiKey, aborting: bool, kind: type[ClientError]
) -> None:
    refused = BrokerError(code, api.name, "transactional id 't'")
    raised = producer_error(refused, aborting=aborting)
    assert type(raised) is kind
    assert code.name in str(raised)


def test_errors_reach_another_process_as_they_are() -> None:
    for error in (
        BrokerError(ErrorCode.REQUEST_TIMED_OUT, "PRODUCE", "partition a-0", "too slow"),
        TopicNotFound("ordesr", ["orders"]),
        ConnectionLost("gone", outcome="not applied"),
        UnknownOutcome.of_commit("t", 30, "dead"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert copy.__dict__ == error.__dict__
        assert copy.outcome == error.outcome
