"""SyncGroup, Heartbeat, LeaveGroup and sessions, rule by rule."""

from __future__ import annotations

import pytest

from onceflow.errors import DiskFull, StoreBusy, StoreFailed
from onceflow.group.events import SyncResult
from onceflow.group.state import GroupState
from onceflow.wire.error_codes import ErrorCode
from tests.unit.group.coordinator_under_test import Asked, Bench


def completing(bench: Bench, members: int = 2) -> list[str]:
    """A group whose generation has formed and whose members have not synced; the leader first."""
    asked = [bench.new_member()[1] for _ in range(members)]
    while any(each.waits for each in asked):
        bench.advance(3)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    return [each.answer.member_id for each in asked]


# --- SyncGroup --------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    waiting = bench.sync(follower, 1)
    assert waiting.waits
    led = bench.sync(leader, 1, {leader: b"L", follower: b"F", "stranger": b"S"})
    assert (led.answer.error, led.answer.assignment) == (ErrorCode.NONE, b"L")
    assert (waiting.answer.error, waiting.answer.assignment) == (ErrorCode.NONE, b"F")
    assert (led.answer.protocol_type, led.answer.protocol_name) == ("consumer", "range")
    assert bench.sync(follower, 1).answer.assignment == b"F"


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    bench.sync(leader, 1, {leader: b"L"})
    assert bench.sync(follower, 1).answer.assignment == b""


def test_the_assignment_is_given_out_when_it_is_durable() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    bench.log.is_holding = True
    asked = [bench.sync(follower, 1), bench.sync(leader, 1, {follower: b"F"})]
    assert all(each.waits for each in asked)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    bench.log.release()
    assert asked[0].answer.assignment == b"F"
    assert bench.state() is GroupState.STABLE


def test_a_leader_that_repeats_itself_changes_nothing() -> None:
    bench = Bench()
    (leader,) = completing(bench, 1)
    bench.log.is_holding = True
    older = bench.sync(leader, 1, {leader: b"1"})
    newer = bench.sync(leader, 1, {leader: b"2"})
    assert bench.log.held == 1
    bench.log.release()
    assert older.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert newer.answer.assignment == b"1"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreBusy("full"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (DiskFull("full"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (StoreFailed("dead"), ErrorCode.NOT_COORDINATOR),
        (RuntimeError("what"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_written_is_an_error_for_all(
    failure: Exception, code: ErrorCode
) -> None:
    bench = Bench()
    leader, follower = completing(bench)
    asked = [bench.sync(follower, 1)]
    bench.log.failure = failure
    asked.append(bench.sync(leader, 1, {follower: b"F"}))
    assert {each.answer.error for each in asked} == {code}
    assert {each.answer.assignment for each in asked} == {b""}
    assert bench.state() is GroupState.PREPARING_REBALANCE


def test_an_assignment_that_becomes_durable_after_a_new_rebalance_does_not_count() -> None:
    bench = Bench()
    leader, _ = completing(bench)
    bench.log.is_holding = True
    synced = bench.sync(leader, 1, {leader: b"old"})
    bench.new_member()
    assert synced.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    bench.log.release()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert bench.group.members[leader].assignment == b""


def test_sync_is_for_members_of_this_generation_with_this_protocol() -> None:
    bench = Bench()
    leader, follower = completing(bench)

    def refused(asked: Asked[SyncResult]) -> ErrorCode:
        return asked.answer.error

    assert refused(bench.sync("stranger", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(bench.sync(leader, 0)) is ErrorCode.ILLEGAL_GENERATION
    wrong_name = bench.sync(leader, 1, protocol=("consumer", "sticky"))
    assert refused(wrong_name) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong_type = bench.sync(leader, 1, protocol=("connect", "range"))
    assert refused(wrong_type) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refused(bench.sync(leader, 1, instance="i")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.sync(follower, 1, protocol=("consumer", "range")).waits
    bench.new_member()
    assert refused(bench.sync(leader, 1)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert refused(Bench().sync(leader, 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_sync_in_time_is_dropped() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    bench.sync(leader, 1, {leader: b"L"})
    assert bench.state() is GroupState.STABLE
    for _ in range(14):
        bench.advance(4)
        bench.heartbeat(leader, 1)
        bench.heartbeat(follower, 1)
    assert bench.state() is GroupState.STABLE
    bench.advance(4.1)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert list(bench.group.members) == [leader]


def test_a_leader_that_does_not_sync_is_dropped_and_the_others_join_again() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    waiting = bench.sync(follower, 1)
    for _ in range(15):
        bench.advance(4)
        bench.heartbeat(leader, 1)
    bench.advance(0.1)
    assert waiting.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.join(follower).answer.leader == follower


def test_an_assignment_of_an_older_generation_does_not_count() -> None:
    bench = Bench()
    (leader,) = completing(bench, 1)
    bench.log.is_holding = True
    bench.sync(leader, 1, {leader: b"1"})
    _, joined = bench.new_member()
    bench.join(leader)
    assert joined.answer.generation == 2
    follower = bench.sync(joined.answer.member_id, 2)
    bench.log.release()
    assert follower.waits
    assert bench.state() is GroupState.COMPLETING_REBALANCE


def test_the_time_to_sync_ends_with_the_generation() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    bench.sync(leader, 1, {leader: b"L"})
    bench.advance(5)
    bench.heartbeat(follower, 1)
    bench.join(leader)
    for _ in range(11):
        bench.advance(5)
        bench.heartbeat(follower, 1)
    bench.advance(0.5)  # The time to sync of the first generation is over, that to join is not.
    assert follower in bench.group.members
    assert bench.state() is GroupState.PREPARING_REBALANCE


# --- Heartbeat and sessions -------------------------------------------------------------------


def test_heartbeats_keep_a_member_alive() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    for _ in range(10):
        bench.advance(9.9)
        assert bench.heartbeat(member_id, 1) is ErrorCode.NONE
    bench.advance(10.1)
    assert bench.heartbeat(member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.state() is GroupState.EMPTY


def test_a_heartbeat_of_the_wrong_generation_is_refused() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    assert bench.heartbeat(member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    assert bench.heartbeat("stranger", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert Bench().heartbeat(member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_count_while_the_generation_is_completed() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    assert bench.heartbeat(leader, 1) is ErrorCode.NONE
    assert bench.heartbeat(follower, 1) is ErrorCode.NONE


def test_a_member_that_waits_for_an_answer_does_not_expire() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    waiting = bench.sync(follower, 1)
    for _ in range(8):
        bench.advance(5)
        bench.heartbeat(leader, 1)
    assert waiting.waits
    assert follower in bench.group.members


def test_a_session_starts_anew_with_the_answer() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    waiting = bench.sync(follower, 1)
    bench.advance(8)
    bench.heartbeat(leader, 1)
    bench.advance(8)
    bench.sync(leader, 1, {follower: b"F"})
    assert waiting.answer.assignment == b"F"
    bench.advance(9.9)
    assert follower in bench.group.members
    bench.advance(0.2)
    assert follower not in bench.group.members


def test_a_commit_is_a_sign_of_life() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    for number in range(4):
        bench.advance(8)
        done = bench.commit(number, member_id=member_id, generation=1)
        assert done.answer == (ErrorCode.NONE,)
    assert bench.state() is GroupState.STABLE


def test_a_dead_member_calls_the_others_to_join() -> None:
    bench = Bench()
    leader, follower = bench.stable(2)
    bench.advance(6)
    bench.heartbeat(leader, 1)
    bench.advance(6)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert follower not in bench.group.members
    assert bench.join(leader).answer.generation == 2


# --- LeaveGroup -------------------------------------------------------------------------------


def test_leaving_calls_the_others_to_join() -> None:
    bench = Bench()
    leader, follower = bench.stable(2)
    assert bench.leave(follower) == (ErrorCode.NONE,)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert bench.join(leader).answer.generation == 2


def test_the_last_to_leave_leaves_an_empty_group_once_that_is_durable() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.log.is_holding = True
    asked = bench.leave_without_waiting(member_id)
    assert asked.waits
    bench.log.release()
    assert asked.answer.errors == (ErrorCode.NONE,)
    assert bench.state() is GroupState.EMPTY
    assert bench.group.generation == 2
    assert bench.group.protocol_name is None


def test_each_of_several_has_its_own_answer() -> None:
    bench = Bench()
    leader, follower = bench.stable(2)
    left = bench.leave("stranger", follower, leader)
    assert left == (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.NONE)
    assert bench.state() is GroupState.EMPTY
    assert Bench().leave("a", "b") == (ErrorCode.UNKNOWN_MEMBER_ID,) * 2


def test_an_id_that_was_only_handed_out_can_leave() -> None:
    bench = Bench()
    (leader,) = bench.stable()
    pending = bench.join().answer.member_id
    rejoined = bench.join(leader)
    assert rejoined.waits
    assert bench.leave(pending) == (ErrorCode.NONE,)
    assert rejoined.answer.generation == 2


def test_requests_that_wait_are_answered_when_their_member_leaves() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    waiting = bench.sync(follower, 1)
    bench.leave(follower)
    assert waiting.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    joined = bench.join(leader)
    assert joined.answer.generation == 2


# --- the end ----------------------------------------------------------------------------------


def test_closing_answers_everybody_and_lets_nobody_in() -> None:
    bench = Bench()
    leader, follower = completing(bench)
    waiting = bench.sync(follower, 1)
    bench.join(group_id="other")
    bench.groups.close()
    assert waiting.answer.error is ErrorCode.NOT_COORDINATOR
    assert bench.heartbeat(leader, 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.join().answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.sync(leader, 1).answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.commit(1).answer == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    bench.advance(3_600)
    assert list(bench.groups.all_groups()) == []
