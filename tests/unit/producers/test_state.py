"""The judgement of a producer's batches and of markers, rule by rule."""

from __future__ import annotations

import pytest

from onceflow.producers.state import (
    ProducerMemory,
    WrittenBatch,
    judge,
    judge_marker,
    judge_offsets,
)
from onceflow.records.batch import BatchHeader
from onceflow.wire.error_codes import ErrorCode
from tests.unit.producers.handmade_log import PRODUCER, Log, header

LAST_SEQUENCE = 2**31 - 1
NONE = ErrorCode.NONE
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
WRONG_STATE = ErrorCode.INVALID_TXN_STATE
OLD_COORDINATOR = ErrorCode.TRANSACTION_COORDINATOR_FENCED


def known(log: Log) -> ProducerMemory:
    producer = log.table.find(PRODUCER)
    assert producer is not None
    return producer


def wrote_ten() -> ProducerMemory:
    """Sequences 0 to 9 at epoch 5, offsets 0 to 9."""
    log = Log()
    log.data(PRODUCER, 0, 10, epoch=5)
    return known(log)


def marked() -> ProducerMemory:
    """Only a marker of epoch 5 was ever seen."""
    log = Log()
    log.commit(PRODUCER, epoch=5)
    return known(log)


def in_transaction() -> ProducerMemory:
    log = Log()
    log.data(PRODUCER, 0, 10, epoch=5, transactional=True)
    return known(log)


def at_the_wrap() -> ProducerMemory:
    log = Log()
    log.data(PRODUCER, LAST_SEQUENCE - 9, 10, epoch=5)
    return known(log)


@pytest.mark.parametrize(
    ("producer", "batch", "expected"),
    [
        (wrote_ten(), header(10, 3, epoch=5), NONE),
        (wrote_ten(), header(11, 3, epoch=5), OUT_OF_ORDER),
        (wrote_ten(), header(9, 3, epoch=5), OUT_OF_ORDER),
        # the same first sequence but another range is no repeat
        (wrote_ten(), header(0, 9, epoch=5), OUT_OF_ORDER),
        (wrote_ten(), header(0, 11, epoch=5), OUT_OF_ORDER),
        (wrote_ten(), header(1, 9, epoch=5), OUT_OF_ORDER),
        # the epoch comes before the sequence, and an older epoch has no repeats
        (wrote_ten(), header(0, 10, epoch=4), FENCED),
        (wrote_ten(), header(10, 1, epoch=4), FENCED),
        (wrote_ten(), header(99, 1, epoch=4), FENCED),
        # a new epoch starts at 0
        (wrote_ten(), header(0, 10, epoch=6), NONE),
        (wrote_ten(), header(10, 1, epoch=6), OUT_OF_ORDER),
        (wrote_ten(), header(1, 1, epoch=7), OUT_OF_ORDER),
        # a marker alone says nothing about sequences, so the first is 0
        (marked(), header(0, 1, epoch=5), NONE),
        (marked(), header(1, 1, epoch=5), OUT_OF_ORDER),
        (marked(), header(0, 1, epoch=6), NONE),
        (marked(), header(0, 1, epoch=4), FENCED),
        # inside a transaction
        (in_transaction(), header(10, 1, epoch=5, transactional=True), NONE),
        (in_transaction(), header(10, 1, epoch=5), WRONG_STATE),
        (in_transaction(), header(0, 1, epoch=6), WRONG_STATE),
        (in_transaction(), header(11, 1, epoch=5), OUT_OF_ORDER),
        (in_transaction(), header(10, 1, epoch=4), FENCED),
        # outside one: whether the partition belongs to it is not asked here
        (wrote_ten(), header(10, 1, epoch=5, transactional=True), NONE),
        # behind the largest sequence comes 0
        (at_the_wrap(), header(0, 1, epoch=5), NONE),
        (at_the_wrap(), header(1, 1, epoch=5), OUT_OF_ORDER),
        (at_the_wrap(), header(LAST_SEQUENCE, 1, epoch=5), OUT_OF_ORDER),
        # nothing is known, perhaps because it was forgotten
        (None, header(0), NONE),
        (None, header(12345, epoch=9), NONE),
    ],
)
@pytest.mark.parametrize("from_zero", [False, True])
def test_a_batch_is_judged(
    producer: ProducerMemory | None, batch: BatchHeader, expected: ErrorCode, from_zero: bool
) -> None:
    if producer is None and from_zero and batch.base_sequence:
        expected = OUT_OF_ORDER
    assert judge(producer, batch, from_zero=from_zero) is expected


def test_a_repeat_is_answered_with_the_first_offsets_and_timestamp() -> None:
    log = Log()
    log.data(8, 0, 100)
    log.data(PRODUCER, 0, 10, timestamp=77)
    log.data(PRODUCER, 10, 5, timestamp=88)
    producer = known(log)
    assert judge(producer, header(0, 10), from_zero=False) == WrittenBatch(0, 9, 100, 109, 77)
    assert judge(producer, header(10, 5), from_zero=False) == WrittenBatch(10, 14, 110, 114, 88)


def test_a_repeat_inside_an_open_transaction_is_a_repeat_even_if_not_transactional() -> None:
    assert judge(in_transaction(), header(0, 10, epoch=5), from_zero=False) == WrittenBatch(
        0, 9, 0, 9, 1000
    )


def test_exactly_the_last_five_batches_are_remembered() -> None:
    log = Log()
    for number in range(6):
        log.data(PRODUCER, 10 * number, 10)
    producer = known(log)
    assert judge(producer, header(0, 10), from_zero=False) is OUT_OF_ORDER
    for number in range(1, 6):
        repeat = judge(producer, header(10 * number, 10), from_zero=False)
        assert isinstance(repeat, WrittenBatch)
        assert repeat.first_offset == 10 * number
    assert judge(producer, header(60, 10), from_zero=False) is NONE


def test_a_batch_across_the_wrap_is_followed_and_recognised() -> None:
    log = Log()
    log.data(PRODUCER, LAST_SEQUENCE - 1, 5)
    producer = known(log)
    assert producer.last_sequence == 2
    assert judge(producer, header(3), from_zero=False) is NONE
    assert judge(producer, header(2), from_zero=False) is OUT_OF_ORDER
    repeat = judge(producer, header(LAST_SEQUENCE - 1, 5), from_zero=False)
    assert repeat == WrittenBatch(LAST_SEQUENCE - 1, 2, 0, 4, 1000)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_of_the_same_epoch_keeps_the_window(commit: bool) -> None:
    log = Log()
    first = log.begin(PRODUCER, 0, 10)
    log.finish(PRODUCER, commit=commit)
    repeat = judge(known(log), header(0, 10, transactional=True), from_zero=False)
    assert isinstance(repeat, WrittenBatch)
    assert repeat.first_offset == first
    assert judge(known(log), header(10, transactional=True), from_zero=False) is NONE
    assert judge(known(log), header(0, transactional=True), from_zero=False) is OUT_OF_ORDER


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_of_a_higher_epoch_clears_the_window(commit: bool) -> None:
    log = Log()
    log.begin(PRODUCER, 0, 10)
    log.finish(PRODUCER, commit=commit, epoch=1)
    producer = known(log)
    assert not producer.window
    assert judge(producer, header(0, 10, transactional=True), from_zero=False) is FENCED
    assert judge(producer, header(0, 10, epoch=1, transactional=True), from_zero=False) is NONE
    assert judge(producer, header(10, epoch=1, transactional=True), from_zero=False) is OUT_OF_ORDER


@pytest.mark.parametrize(
    ("producer", "epoch", "expected"),
    [(None, 0, NONE), (wrote_ten(), 4, FENCED), (wrote_ten(), 5, NONE), (wrote_ten(), 6, NONE)],
)
def test_offset_commits_are_judged_by_epoch_alone(
    producer: ProducerMemory | None, epoch: int, expected: ErrorCode
) -> None:
    assert judge_offsets(producer, epoch) is expected


def producer_at(epoch: int, *, is_open: bool, coordinator_epoch: int = 3) -> ProducerMemory:
    return ProducerMemory(epoch, 1000, coordinator_epoch, 10 if is_open else None)


@pytest.mark.parametrize(
    ("producer", "epoch", "coordinator_epoch", "old", "new"),
    [
        (None, 0, 0, NONE, NONE),
        (producer_at(5, is_open=True), 4, 3, FENCED, FENCED),
        (producer_at(5, is_open=True), 5, 3, NONE, FENCED),
        (producer_at(5, is_open=True), 6, 3, NONE, NONE),
        (producer_at(5, is_open=False), 4, 3, FENCED, FENCED),
        (producer_at(5, is_open=False), 5, 3, NONE, NONE),
        (producer_at(5, is_open=False), 6, 3, NONE, NONE),
        # there is no epoch above the last one
        (producer_at(32767, is_open=True), 32767, 3, NONE, NONE),
        (producer_at(32766, is_open=True), 32766, 3, NONE, FENCED),
        # an older coordinator; the producer's epoch comes first
        (producer_at(5, is_open=True), 6, 2, OLD_COORDINATOR, OLD_COORDINATOR),
        (producer_at(5, is_open=False), 5, 2, OLD_COORDINATOR, OLD_COORDINATOR),
        (producer_at(5, is_open=True), 4, 2, FENCED, FENCED),
        (producer_at(5, is_open=True), 6, 4, NONE, NONE),
        (producer_at(5, is_open=True, coordinator_epoch=-1), 6, 0, NONE, NONE),
    ],
)
def test_a_marker_is_judged(
    producer: ProducerMemory | None,
    epoch: int,
    coordinator_epoch: int,
    old: ErrorCode,
    new: ErrorCode,
) -> None:
    for version, expected in ((0, old), (1, old), (2, new)):
        code = judge_marker(producer, epoch, coordinator_epoch, transaction_version=version)
        assert code is expected
