"""The states of a session, and what becomes of one whose transaction was aborted."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onceflow.client.consumer.fetched import FETCHED_SCHEMA, Record
from onceflow.client.errors.consumer import CommitFailed, RebalanceInProgress
from onceflow.client.errors.requests import AbortableError, BrokerError, TransactionAborted
from onceflow.client.session.batch import Batch
from onceflow.client.session.states import (
    STAGES,
    AbortVerdict,
    SessionStage,
    SessionStep,
    WrongStep,
    after,
    judge,
    refusal_in,
)
from onceflow.client.session.transaction import dead_letter_headers
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode


def test_a_batch_at_work_is_committed_only_by_who_asks_for_the_next() -> None:
    leading_there = [
        (stage, step)
        for stage, steps in STAGES.items()
        for step in steps
        if step is SessionStep.COMMITTED
    ]
    assert leading_there == [(SessionStage.FINISHED, SessionStep.COMMITTED)]
    assert [
        (stage, step)
        for stage, steps in STAGES.items()
        for step, reached in steps.items()
        if reached is SessionStage.FINISHED
    ] == [(SessionStage.AT_WORK, SessionStep.ASKED)]


def test_every_stage_can_be_left_and_reached() -> None:
    assert set(STAGES) == set(SessionStage)
    assert {reached for steps in STAGES.values() for reached in steps.values()} == set(SessionStage)


def test_what_the_table_lacks_is_refused_in_words() -> None:
    with pytest.raises(WrongStep, match="a batch was handed out: the session is not running"):
        after(SessionStage.CLOSED, SessionStep.GIVEN)


def caused(code: ErrorCode, api: str = "PRODUCE") -> AbortableError:
    error = AbortableError("aborted")
    error.__cause__ = BrokerError(code, api, "something")
    return error


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (CommitFailed("out"), AbortVerdict.POLL),
        (RebalanceInProgress("out"), AbortVerdict.POLL),
        (caused(ErrorCode.ILLEGAL_GENERATION, "TXN_OFFSET_COMMIT"), AbortVerdict.POLL),
        (caused(ErrorCode.UNKNOWN_MEMBER_ID, "TXN_OFFSET_COMMIT"), AbortVerdict.POLL),
        (caused(ErrorCode.FENCED_INSTANCE_ID, "TXN_OFFSET_COMMIT"), AbortVerdict.POLL),
        (caused(ErrorCode.GROUP_ID_NOT_FOUND, "TXN_OFFSET_COMMIT"), AbortVerdict.POLL),
        (caused(ErrorCode.STALE_MEMBER_EPOCH, "TXN_OFFSET_COMMIT"), AbortVerdict.POLL),
        (caused(ErrorCode.TOPIC_AUTHORIZATION_FAILED), AbortVerdict.RAISE),
        (caused(ErrorCode.MESSAGE_TOO_LARGE), AbortVerdict.RAISE),
        (caused(ErrorCode.INVALID_RECORD), AbortVerdict.RAISE),
        (caused(ErrorCode.TRANSACTION_ABORTABLE), AbortVerdict.REPEAT),
        (caused(ErrorCode.INVALID_PRODUCER_EPOCH), AbortVerdict.REPEAT),
        (caused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), AbortVerdict.REPEAT),
        (TransactionAborted("not acknowledged in time"), AbortVerdict.REPEAT),
    ],
)
def test_what_an_abort_means(error: Exception, verdict: AbortVerdict) -> None:
    assert judge(error) is verdict


def test_what_the_broker_said_is_found_behind_what_was_made_of_it() -> None:
    outer = AbortableError("outer")
    outer.__cause__ = caused(ErrorCode.INVALID_RECORD)
    found = refusal_in(outer)
    assert found is not None
    assert found.code == ErrorCode.INVALID_RECORD
    assert refusal_in(AbortableError("nobody said anything")) is None


RECORD = Record("orders", 3, 41, 0, 0, b"key", b"value", (("trace", b"1"),))


class Odd(Exception):
    """Of this module."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no number"), [("error", b"no number"), ("error.class", b"ValueError")]),
        ("no number", [("error", b"no number")]),
        (KeyError(), [("error", b"KeyError"), ("error.class", b"KeyError")]),
        (Odd("odd"), [("error", b"odd"), ("error.class", f"{__name__}.Odd".encode())]),
    ],
)
def test_dead_letters_say_why_and_where_from(
    error: BaseException | str, told: list[tuple[str, bytes]]
) -> None:
    source = [("source.topic", b"orders"), ("source.partition", b"3"), ("source.offset", b"41")]
    assert list(dead_letter_headers(RECORD, error)) == told + source


def columns(topic: str, partition: int, offsets: list[int]) -> pa.RecordBatch:
    count = len(offsets)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([None] * count, pa.binary()),
            pa.array([b"%d" % offset for offset in offsets], pa.binary()),
            pa.array([topic] * count, pa.string()),
            pa.array([partition] * count, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([0] * count, FETCHED_SCHEMA.field("timestamp").type),
            pa.array([0] * count, pa.int32()),
            pa.array([[]] * count, FETCHED_SCHEMA.field("headers").type),
        ],
        schema=FETCHED_SCHEMA,
    )


def test_a_batch_is_records_and_columns() -> None:
    parts = [columns("a", 0, [5, 6]), columns("a", 1, [9]), columns("a", 0, [8])]
    batch = Batch(pa.Table.from_batches(parts))
    assert len(batch) == 4
    read = [(record.partition, record.offset, record.value) for record in batch]
    assert read == [(0, 5, b"5"), (0, 6, b"6"), (1, 9, b"9"), (0, 8, b"8")]
    assert list(batch) == list(batch)
    assert batch.table().column("offset").to_pylist() == [5, 6, 9, 8]
    assert batch.firsts() == {TopicPartition("a", 0): 5, TopicPartition("a", 1): 9}
    assert repr(batch) == "<Batch of 4 records: a-0 from 5, a-1 from 9>"
