"""The fold over a partition's batches: transactions, stability, expiry, the log's start."""

from __future__ import annotations

import pytest

from onceflow.errors import InvariantViolated
from onceflow.producers.aborted import Aborted
from onceflow.producers.state import WrittenBatch, judge
from onceflow.producers.table import OngoingTransaction, ProducerTable
from onceflow.records.batch import BatchHeader
from onceflow.wire.error_codes import ErrorCode
from tests.unit.producers.handmade_log import OTHER, PRODUCER, Log, data_batch, header


def stable(log: Log) -> int:
    """All that was appended is durable."""
    return log.table.last_stable_offset(log.end)


def test_batches_without_a_producer_leave_no_trace() -> None:
    log = Log()
    log.data(-1, -1, 5, epoch=-1)
    assert list(log.table.producers()) == []
    assert stable(log) == 5


def test_a_transaction_opens_with_its_first_batch_and_ends_with_its_marker() -> None:
    log = Log()
    log.data(PRODUCER, 0, 3)
    assert not log.table.is_open(PRODUCER, 0)
    log.data(PRODUCER, 3, 2, transactional=True, timestamp=5000)
    log.data(PRODUCER, 5, 2, transactional=True, timestamp=6000)
    assert log.table.is_open(PRODUCER, 0)
    assert not log.table.is_open(PRODUCER, 1)
    assert not log.table.is_open(OTHER, 0)
    assert log.table.open_transactions() == [OngoingTransaction(PRODUCER, 0, 3, 6000, -1)]
    assert stable(log) == 3
    log.commit(PRODUCER, coordinator_epoch=4)
    assert not log.table.is_open(PRODUCER, 0)
    assert log.table.open_transactions() == []
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert producer.coordinator_epoch == 4
    assert stable(log) == log.end


def test_an_open_transaction_of_an_older_epoch_is_not_this_one() -> None:
    log = Log()
    log.begin(PRODUCER, epoch=3)
    assert not log.table.is_open(PRODUCER, 4)
    assert not log.table.is_open(PRODUCER, 2)


def test_the_earliest_unfinished_transaction_bounds_what_is_stable() -> None:
    log = Log()
    first = log.begin(PRODUCER)
    second = log.begin(OTHER)
    third = log.begin(9)
    assert stable(log) == first
    log.commit(OTHER)
    assert stable(log) == first
    log.commit(PRODUCER)
    assert stable(log) == third
    assert [entry.first_offset for entry in log.table.open_transactions()] == [third]
    log.commit(9)
    assert stable(log) == log.end
    assert second < third


def test_a_transaction_is_unstable_until_its_marker_is_durable() -> None:
    log = Log()
    first = log.begin(PRODUCER)
    at = log.commit(PRODUCER)
    log.data(-1, -1, epoch=-1)
    assert log.table.last_stable_offset(0) == 0
    assert log.table.last_stable_offset(first + 1) == first
    assert log.table.first_unstable_offset(at) == first
    assert log.table.last_stable_offset(at) == first
    assert log.table.first_unstable_offset(at + 1) is None
    assert log.table.last_stable_offset(at + 1) == at + 1
    assert log.table.last_stable_offset(log.end) == log.end


def test_of_several_markers_that_are_not_durable_the_earliest_transaction_counts() -> None:
    log = Log()
    first = log.begin(PRODUCER)
    second = log.begin(OTHER)
    other_marker = log.commit(OTHER)
    marker = log.commit(PRODUCER)
    third = log.begin(OTHER, 1)
    assert log.table.last_stable_offset(other_marker) == first
    assert log.table.last_stable_offset(other_marker + 1) == first
    assert log.table.last_stable_offset(marker + 1) == third
    assert log.table.first_unstable_offset(log.end) == third
    assert first < second < third


def test_a_later_transaction_that_is_not_durable_holds_back_behind_an_earlier_one_that_is() -> None:
    log = Log()
    log.begin(PRODUCER)
    marker = log.commit(PRODUCER)
    second = log.begin(OTHER)
    log.commit(OTHER)
    assert log.table.last_stable_offset(marker + 1) == second
    assert log.table.last_stable_offset(second + 1) == second


def test_stability_never_goes_back_and_says_so() -> None:
    log = Log()
    log.begin(PRODUCER, 0, 10)
    log.commit(PRODUCER)
    log.begin(PRODUCER, 10)
    log.commit(PRODUCER)
    log.table.settle(11)
    assert log.table.last_stable_offset(5) == 5, "a question changes nothing"
    log.table._ended_markers.insert(0, 4)
    log.table._ended_starts.insert(0, 4)
    with pytest.raises(InvariantViolated, match="the last stable offset never goes back: 5"):
        log.table.settle(5)


def test_a_marker_without_a_transaction_moves_only_epochs_and_time() -> None:
    log = Log()
    log.finish(PRODUCER, commit=False, epoch=3, coordinator_epoch=2, timestamp=9000)
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert (producer.epoch, producer.coordinator_epoch, producer.last_timestamp) == (3, 2, 9000)
    assert len(log.table.aborted) == 0
    assert log.table.first_unstable_offset(0) is None


def test_a_marker_of_an_older_coordinator_in_the_log_is_taken_as_it_is() -> None:
    log = Log()
    log.begin(PRODUCER)
    log.commit(PRODUCER, coordinator_epoch=5)
    log.begin(PRODUCER, 1)
    log.commit(PRODUCER, coordinator_epoch=4)
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert producer.coordinator_epoch == 4
    assert stable(log) == log.end


def test_aborted_transactions_are_listed_with_what_was_stable_then() -> None:
    log = Log()
    first = log.begin(PRODUCER)
    second = log.begin(OTHER)
    second_marker = log.abort(OTHER)
    first_marker = log.abort(PRODUCER)
    committed = log.begin(9)
    log.commit(9)
    assert list(log.table.aborted) == [
        Aborted(OTHER, second, second_marker, first),
        Aborted(PRODUCER, first, first_marker, first_marker + 1),
    ]
    assert committed > first_marker


def test_offset_commits_of_a_transaction_open_it_without_a_sequence() -> None:
    log = Log()
    log.data(PRODUCER, -1, 2, transactional=True)
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert not producer.window
    assert log.table.is_open(PRODUCER, 0)
    log.commit(PRODUCER)
    assert stable(log) == log.end


def test_an_emptied_batch_keeps_its_sequences_and_begins_nothing() -> None:
    log = Log()
    log.data(PRODUCER, 4, 3, transactional=True, emptied=True)
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert list(producer.window) == [WrittenBatch(4, 6, 0, 2, 1000)]
    assert log.table.open_transactions() == []
    assert judge(producer, header(7), from_zero=False) is ErrorCode.NONE
    assert stable(log) == log.end


def test_an_emptied_marker_keeps_the_epoch_and_ends_what_is_open() -> None:
    log = Log()
    log.commit(PRODUCER, epoch=2, coordinator_epoch=6)
    log.begin(PRODUCER, epoch=2)
    log.append(data_batch(PRODUCER, -1, epoch=3, transactional=True, emptied=True, control=True))
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert (producer.epoch, producer.coordinator_epoch) == (3, 6)
    assert len(log.table.aborted) == 0
    assert stable(log) == log.end


def test_a_control_batch_of_an_unknown_type_changes_nothing() -> None:
    log = Log()
    log.begin(PRODUCER)
    before = log.table.to_bytes(0)
    unknown = data_batch(PRODUCER, -1, epoch=9, control=True, transactional=True).assign(1, 0)
    log.table.apply(unknown.header, None)
    assert log.table.to_bytes(0) == before


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    log = Log()
    log.data(PRODUCER, 0, 10)
    log.data(PRODUCER, 0, 2, epoch=1)
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert list(producer.window) == [WrittenBatch(0, 1, 10, 11, 1000)]


@pytest.mark.parametrize("timestamp", [-(2**63), -1, 1000, 10**12, 2**63 - 1])
def test_silent_producers_are_forgotten_whatever_their_records_say(timestamp: int) -> None:
    log = Log()
    log.data(PRODUCER, 0, timestamp=timestamp)
    assert log.table.expire(5000, 1000) == 0, "it may have written a moment ago"
    assert log.table.expire(5999, 1000) == 0
    log.data(OTHER, 0, timestamp=timestamp)
    assert log.table.expire(6000, 1000) == 1
    assert log.table.find(PRODUCER) is None
    assert log.table.find(OTHER) is not None


def test_silence_is_measured_from_the_look_after_the_last_batch() -> None:
    """So never too short; too long by at most the time between two looks."""
    log = Log()
    for now in range(0, 10_000, 500):
        log.data(PRODUCER, now)
        assert log.table.expire(now, 600) == 0
    assert log.table.expire(10_000, 600) == 0
    assert log.table.expire(10_100, 600) == 1


def test_some_producers_are_looked_at_and_the_others_later() -> None:
    log = Log()
    for producer_id in range(4):
        log.data(producer_id, 0)
    assert log.table.expire(0, 1000, [0, 1]) == 0
    assert log.table.expire(900, 1000, [2, 3, 77]) == 0
    assert log.table.expire(1000, 1000, [0, 2, 77]) == 1
    assert set(log.table.ids()) == {1, 2, 3}


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    log = Log()
    log.begin(PRODUCER)
    log.table.expire(0, 1)
    assert log.table.expire(10**15, 1) == 0
    log.commit(PRODUCER)
    assert log.table.expire(10**15, 1) == 0, "the marker is a sign of life"
    assert log.table.expire(10**15 + 1, 1) == 1
    assert stable(log) == log.end


def test_a_marker_is_a_sign_of_life() -> None:
    log = Log()
    log.begin(PRODUCER)
    log.table.expire(0, 1000)
    log.finish(PRODUCER, commit=True, timestamp=-1)
    assert log.table.expire(1000, 1000) == 0
    assert log.table.expire(1999, 1000) == 0
    assert log.table.expire(2000, 1000) == 1


def test_what_has_ended_is_not_kept_when_nobody_reads() -> None:
    log = Log()
    for number in range(1000):
        log.begin(PRODUCER, number)
        log.finish(PRODUCER, commit=number % 2 == 0)
        log.table.settle_if_many(max(log.end - 6, 0))  # the newest markers are on their way
        assert len(log.table._ended_markers) == len(log.table._ended_starts) <= 33


def test_the_start_of_the_log_moves_past_part_of_a_transaction() -> None:
    log = Log()
    log.begin(PRODUCER, 0, 10)
    log.begin(OTHER, 0, 10)
    log.data(-1, -1, 10, epoch=-1)
    log.table.start_moved(5)
    assert stable(log) == 5
    assert log.table.first_unstable_offset(log.end) == 5
    log.table.start_moved(25)
    assert stable(log) == 25
    repeat = judge(log.table.find(PRODUCER), header(0, 10, transactional=True), from_zero=False)
    assert isinstance(repeat, WrittenBatch)
    log.commit(PRODUCER)
    assert stable(log) == 25
    log.abort(OTHER)
    assert stable(log) == log.end
    # the abort is still news to whoever reads between the start and the marker
    assert log.table.aborted.between(25, log.end) == ((OTHER, 10),)


def test_aborted_transactions_below_the_start_go() -> None:
    log = Log()
    log.begin(PRODUCER)
    gone = log.abort(PRODUCER)
    log.begin(PRODUCER, 1)
    kept = log.abort(PRODUCER)
    log.table.start_moved(gone)
    assert len(log.table.aborted) == 2
    log.table.start_moved(gone + 1)
    assert [entry.last_offset for entry in log.table.aborted] == [kept]


def test_many_transactions_cost_the_next_one_nothing_that_grows() -> None:
    table = ProducerTable()
    for producer_id in range(2000):
        table.apply(_begin(producer_id, producer_id), None)
    assert table.last_stable_offset(2000) == 0
    log = Log()
    log.table, log.end = table, 2000
    for producer_id in range(2000):
        log.commit(producer_id)
        expected = producer_id + 1 if producer_id < 1999 else log.end
        assert stable(log) == expected


def _begin(producer_id: int, offset: int) -> BatchHeader:
    return data_batch(producer_id, 0, transactional=True).assign(offset, 0).header
