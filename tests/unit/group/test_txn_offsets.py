"""Offsets inside transactions: when they count, who sees them, and what ends them."""

from __future__ import annotations

from onceflow.errors import StoreBusy
from onceflow.group.events import OffsetQuery
from onceflow.group.offsets import FoundOffset
from onceflow.group.state import GroupState
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode
from tests.unit.group.coordinator_under_test import Asked, Bench

NONE = (ErrorCode.NONE,)
UNSTABLE = FoundOffset(0, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
ORDERS = TopicPartition("orders", 0)
DAY_S = 86_400


def restarted(bench: Bench) -> Bench:
    return Bench(bench.log.copy())


# --- markers ----------------------------------------------------------------------------------


def test_an_offset_counts_when_its_transaction_is_committed() -> None:
    bench = Bench()
    bench.commit(1)
    assert bench.txn_commit(2).answer == NONE
    assert bench.fetch() == 1
    assert bench.ask().answer == UNSTABLE
    bench.end(commit=True)
    assert bench.fetch() == bench.fetch(require_stable=True) == 2


def test_an_offset_of_an_aborted_transaction_is_dropped() -> None:
    bench = Bench()
    bench.commit(1)
    bench.txn_commit(2)
    bench.end(commit=False)
    assert bench.fetch(require_stable=True) == 1
    bench.end(commit=True)
    assert bench.fetch() == 1


def test_the_last_offset_of_a_transaction_counts() -> None:
    bench = Bench()
    bench.txn_commit(1)
    bench.txn_commit(2)
    bench.end(commit=True)
    assert bench.fetch() == 2


def test_a_marker_ends_its_own_producers_transaction_only() -> None:
    bench = Bench()
    bench.txn_commit(1, producer_id=7)
    bench.txn_commit(2, producer_id=8, partition=1)
    bench.end(commit=True, producer_id=7)
    assert bench.fetch(require_stable=True) == 1
    assert bench.ask(partition=1).answer.error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    bench.end(commit=False, producer_id=8)
    assert bench.fetch(partition=1, require_stable=True) is None


def test_an_offset_is_unstable_while_any_transaction_may_change_it() -> None:
    bench = Bench()
    bench.txn_commit(1, producer_id=7)
    bench.txn_commit(2, producer_id=8)
    bench.end(commit=True, producer_id=7)
    assert bench.ask().answer == UNSTABLE
    assert bench.fetch() == 1
    bench.end(commit=False, producer_id=8)
    assert bench.fetch(require_stable=True) == 1


def test_a_marker_decides_in_its_own_partition_of_the_log_only() -> None:
    bench = Bench()
    groups = ("g", "h")
    assert len({bench.groups.partition_for(each) for each in groups}) == 2
    for group_id in groups:
        bench.txn_commit(5, group_id=group_id)
    bench.end(commit=True, group_id="g")
    assert bench.fetch(group_id="g", require_stable=True) == 5
    assert bench.ask(group_id="h").answer == UNSTABLE
    bench.end(commit=True, group_id="h")
    assert bench.fetch(group_id="h", require_stable=True) == 5


def test_a_marker_of_a_producer_that_wrote_nothing_changes_nothing() -> None:
    bench = Bench()
    bench.txn_commit(1)
    bench.end(commit=True, producer_id=99)
    assert bench.ask().answer == UNSTABLE


# --- the order of the log ---------------------------------------------------------------------


def test_a_plain_commit_behind_a_transactional_one_wins() -> None:
    bench = Bench()
    bench.txn_commit(5)
    bench.commit(3)
    assert bench.fetch() == 3
    bench.end(commit=True)
    assert bench.fetch() == 3
    assert restarted(bench).fetch() == 3


def test_a_plain_commit_before_a_transactional_one_does_not() -> None:
    bench = Bench()
    bench.commit(9)
    bench.txn_commit(5)
    bench.end(commit=True)
    assert bench.fetch() == 5


def test_of_two_transactions_the_later_record_wins_whoever_is_decided_last() -> None:
    bench = Bench()
    bench.txn_commit(1, producer_id=7)
    bench.txn_commit(2, producer_id=8)
    bench.end(commit=True, producer_id=8)
    bench.end(commit=True, producer_id=7)
    assert bench.fetch() == 2
    assert restarted(bench).fetch() == 2


def test_where_a_record_stands_is_known_after_a_restart_too() -> None:
    before = Bench()
    before.txn_commit(5)
    before.commit(3)
    bench = restarted(before)
    bench.end(commit=True)
    assert bench.fetch() == 3


# --- durability -------------------------------------------------------------------------------


def test_a_transactional_commit_is_answered_when_it_is_durable() -> None:
    bench = Bench()
    bench.log.is_holding = True
    asked = bench.txn_commit(1)
    assert asked.waits
    bench.log.release()
    assert asked.answer == NONE


def test_a_commit_is_unstable_from_when_it_was_admitted() -> None:
    bench = Bench()
    bench.commit(1)
    bench.log.is_holding = True
    bench.txn_commit(2)
    reading = bench.ask()
    assert bench.fetch() == 1
    bench.log.release()
    assert reading.answer == UNSTABLE


def test_an_offset_is_seen_when_its_marker_is_durable() -> None:
    bench = Bench()
    bench.commit(1)
    bench.txn_commit(2)
    bench.log.is_holding = True
    bench.end(commit=True)
    assert bench.fetch() == 1
    reading = bench.ask()
    assert reading.waits
    bench.log.release()
    value = reading.answer.value
    assert value is not None
    assert value.offset == 2


def test_a_crash_before_the_marker_is_durable_leaves_the_offset_pending() -> None:
    before = Bench()
    before.txn_commit(2)
    before.log.is_holding = True
    before.end(commit=True)
    bench = restarted(before)
    assert bench.ask().answer == UNSTABLE
    bench.end(commit=True)
    assert bench.fetch(require_stable=True) == 2


def test_a_transactional_commit_that_is_refused_leaves_no_trace() -> None:
    bench = Bench()
    bench.log.failure = StoreBusy("full")
    assert bench.txn_commit(1).answer == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert bench.groups.find("g") is None
    bench.log.failure = None
    assert bench.fetch(require_stable=True) is None
    bench.end(commit=True)
    assert bench.fetch() is None


def test_all_offsets_of_a_group_are_those_that_are_committed() -> None:
    bench = Bench()
    bench.commit(1)
    bench.commit(2, partition=1)
    bench.txn_commit(3)
    bench.txn_commit(4, topic="clicks")
    answer = bench.groups.fetch([OffsetQuery("g", None)], require_stable=True)
    (((topic, (first, second)),),) = Asked(answer).answer
    assert topic == "orders"
    assert first == UNSTABLE
    assert second.error is ErrorCode.NONE
    assert second.value is not None
    assert second.value.offset == 2


# --- deletion and expiry ----------------------------------------------------------------------


def test_deleting_an_offset_ends_what_transactions_would_commit() -> None:
    bench = Bench()
    bench.txn_commit(5, producer_id=7)
    bench.txn_commit(6, producer_id=8)
    bench.txn_commit(7, producer_id=8, partition=1)
    asked = Asked(bench.groups.delete_offsets("g", [ORDERS]))
    assert asked.answer.errors == NONE
    assert bench.fetch(require_stable=True) is None
    bench.end(commit=True, producer_id=7)
    bench.end(commit=True, producer_id=8)
    for each in (bench, restarted(bench)):
        assert each.fetch(require_stable=True) is None
        assert each.fetch(partition=1, require_stable=True) == 7


def test_a_deletion_reaches_a_transactional_commit_that_is_on_its_way() -> None:
    bench = Bench()
    bench.log.is_holding = True
    bench.txn_commit(5)
    bench.groups.delete_offsets("g", [ORDERS])
    bench.end(commit=True)
    bench.log.release()
    assert bench.fetch() is None


def test_after_a_deletion_the_transaction_may_commit_anew() -> None:
    bench = Bench()
    bench.txn_commit(5)
    bench.groups.delete_offsets("g", [ORDERS])
    bench.txn_commit(6)
    bench.end(commit=True)
    assert bench.fetch() == 6


def test_deleting_a_topic_ends_what_transactions_would_commit() -> None:
    bench = Bench()
    bench.txn_commit(5)
    bench.txn_commit(6, topic="clicks")
    bench.groups.topic_deleted("orders")
    bench.end(commit=True)
    assert bench.fetch() is None
    assert bench.fetch("clicks") == 6


def test_deleting_a_group_ends_what_transactions_would_commit() -> None:
    bench = Bench()
    bench.commit(1)
    bench.txn_commit(5)
    bench.txn_commit(6, partition=1)
    assert Asked(bench.groups.delete_groups(["g"])).answer == NONE
    assert bench.groups.find("g") is None
    bench.end(commit=True)
    for each in (bench, restarted(bench)):
        assert each.fetch(require_stable=True) is None
        assert each.fetch(partition=1, require_stable=True) is None


def test_an_offset_that_a_transaction_may_change_does_not_expire() -> None:
    bench = Bench()
    bench.commit(1)
    bench.commit(2, partition=1)
    bench.txn_commit(5)
    bench.advance(8 * DAY_S)
    assert bench.fetch() == 1
    assert bench.fetch(partition=1) is None
    bench.end(commit=False)
    bench.advance(600)
    assert bench.fetch() is None
    assert bench.groups.find("g") is None


def test_a_group_that_a_transaction_commits_to_is_not_forgotten() -> None:
    before = Bench()
    before.txn_commit(5)
    before.advance(8 * DAY_S)
    for bench in (before, restarted(before)):
        assert bench.state() is GroupState.EMPTY
        bench.advance(600)
        assert bench.state() is GroupState.EMPTY
        bench.end(commit=False)
        bench.advance(600)
        assert bench.groups.find("g") is None


def test_a_commit_that_fails_does_not_take_a_pending_groups_place_away() -> None:
    bench = Bench()
    bench.txn_commit(5)
    bench.log.failure = StoreBusy("full")
    bench.commit(1)
    assert bench.state() is GroupState.EMPTY
