"""Static members: they keep their place, and an older process of the same name is fenced."""

from __future__ import annotations

from onceflow.errors import StoreBusy
from onceflow.group.state import GroupState, Protocol
from onceflow.wire.error_codes import ErrorCode
from tests.unit.group.coordinator_under_test import Bench


def test_a_static_member_joins_without_asking_for_its_id() -> None:
    bench = Bench()
    joined = bench.join(instance="i0")
    bench.advance(3)
    assert joined.answer.error is ErrorCode.NONE
    assert joined.answer.member_id.startswith("i0-")
    assert joined.answer.members[0].group_instance_id == "i0"


def test_a_restarted_follower_goes_on_in_its_place_without_a_rebalance() -> None:
    bench = Bench()
    leader, follower = bench.stable(2, instances=True)
    again = bench.join(instance="i1").answer
    assert (again.error, again.generation, again.leader) == (ErrorCode.NONE, 1, leader)
    assert again.member_id != follower
    assert again.member_id.startswith("i1-")
    assert not again.skip_assignment
    assert again.members == ()
    assert bench.state() is GroupState.STABLE
    assert bench.sync(again.member_id, 1, instance="i1").answer.assignment == follower.encode()
    assert bench.heartbeat(again.member_id, 1, "i1") is ErrorCode.NONE


def test_a_restarted_leader_is_told_to_skip_the_assignment() -> None:
    bench = Bench()
    leader, follower = bench.stable(2, instances=True)
    again = bench.join(instance="i0").answer
    assert again.skip_assignment
    assert again.leader == again.member_id != leader
    assert {each.member_id for each in again.members} == {again.member_id, follower}
    assert bench.state() is GroupState.STABLE


def test_a_restarted_leader_that_cannot_skip_is_not_told_that_it_leads() -> None:
    bench = Bench()
    leader, _ = bench.stable(2, instances=True)
    again = bench.join(instance="i0", version=8).answer
    assert not again.skip_assignment
    assert again.leader == leader != again.member_id
    assert again.members == ()


def test_the_older_process_is_fenced() -> None:
    bench = Bench()
    _, follower = bench.stable(2, instances=True)
    bench.join(instance="i1")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert bench.heartbeat(follower, 1, "i1") is fenced
    assert bench.sync(follower, 1, instance="i1").answer.error is fenced
    assert bench.join(follower, instance="i1").answer.error is fenced
    assert bench.leave((follower, "i1")) == (fenced,)
    commit = bench.commit(1, member_id=follower, generation=1, instance="i1")
    assert commit.answer == (fenced,)
    assert bench.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_of_the_older_process_that_wait_are_fenced() -> None:
    bench = Bench()
    leader, follower = bench.stable(2, instances=True)
    waiting = bench.join(leader, instance="i0")
    again = bench.join(instance="i0")
    assert waiting.answer.error is ErrorCode.FENCED_INSTANCE_ID
    assert waiting.answer.member_id == leader
    bench.join(follower, instance="i1")
    assert again.answer.generation == 2


def test_a_replacement_counts_when_it_is_durable() -> None:
    bench = Bench()
    _, follower = bench.stable(2, instances=True)
    bench.log.is_holding = True
    again = bench.join(instance="i1")
    assert again.waits
    bench.log.release()
    assert again.answer.error is ErrorCode.NONE
    after = Bench(bench.log)
    assert again.answer.member_id in after.group.members
    assert follower not in after.group.members


def test_a_replacement_that_cannot_be_written_is_taken_back() -> None:
    bench = Bench()
    _, follower = bench.stable(2, instances=True)
    bench.log.failure = StoreBusy("full")
    again = bench.join(instance="i1").answer
    assert again.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert again.member_id == ""
    bench.log.failure = None
    assert bench.heartbeat(follower, 1, "i1") is ErrorCode.NONE
    assert bench.group.members[follower].assignment == follower.encode()


def test_a_rebalance_in_between_answers_the_replacement() -> None:
    bench = Bench()
    leader, _ = bench.stable(2, instances=True)
    bench.log.is_holding = True
    again = bench.join(instance="i1")
    rejoined = bench.join(leader, instance="i0")
    assert again.answer.generation == rejoined.answer.generation == 2
    bench.log.release()
    assert bench.state() is GroupState.COMPLETING_REBALANCE


def test_a_replacement_goes_on_waiting_for_a_rebalance_in_between() -> None:
    bench = Bench()
    bench.stable(3, instances=True)
    bench.log.is_holding = True
    again = bench.join(instance="i1")
    bench.leave_without_waiting(("", "i2"))
    bench.log.release()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert again.waits
    assert bench.join(bench.group.static_members["i0"], instance="i0").answer.generation == 2
    assert again.answer.generation == 2


def test_a_member_that_is_replaced_before_it_synced_is_waited_for_under_its_new_id() -> None:
    bench = Bench()
    asked = [bench.join(instance="i0"), bench.join(instance="i1")]
    bench.advance(6)
    leader = asked[0].answer.member_id
    bench.sync(leader, 1, {leader: b"L"}, instance="i0")
    assert bench.state() is GroupState.STABLE
    again = bench.join(instance="i1").answer.member_id
    bench.sync(again, 1, instance="i1")
    for _ in range(20):
        bench.advance(5)
        bench.heartbeat(leader, 1, "i0")
        bench.heartbeat(again, 1, "i1")
    assert bench.state() is GroupState.STABLE


def test_a_replacement_before_the_first_generation_waits_like_any_member() -> None:
    bench = Bench(group_initial_rebalance_delay_ms=400_000)
    older = bench.join(instance="i0", rebalance_ms=900_000)
    newer = bench.join(instance="i0", rebalance_ms=900_000)
    assert older.answer.error is ErrorCode.FENCED_INSTANCE_ID
    bench.advance(399)  # Longer than its session, and than a new member is waited for.
    assert newer.waits
    bench.advance(2)
    assert newer.answer.generation == 1


def test_a_replacement_with_other_protocols_starts_a_rebalance() -> None:
    def named(*names: str) -> tuple[Protocol, ...]:
        return tuple(Protocol(name, b"") for name in names)

    bench = Bench()
    asked = bench.join(instance="i0", protocols=named("a", "b"))
    bench.advance(3)
    bench.complete([asked.answer.member_id])
    again = bench.join(instance="i0", protocols=named("b"))
    assert again.answer.generation == 2
    assert bench.group.protocol_name == "b"


def test_a_replacement_during_the_sync_starts_over() -> None:
    bench = Bench()
    asked = [bench.join(instance="i0"), bench.join(instance="i1")]
    bench.advance(6)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    waiting = bench.sync(asked[1].answer.member_id, 1, instance="i1")
    again = bench.join(instance="i1")
    assert waiting.answer.error is ErrorCode.FENCED_INSTANCE_ID
    assert bench.state() is GroupState.PREPARING_REBALANCE
    bench.join(asked[0].answer.member_id, instance="i0")
    assert again.answer.generation == 2


def test_static_members_keep_their_place_in_a_rebalance_they_miss() -> None:
    bench = Bench()
    first, second = bench.stable(2, instances=True)
    joined = bench.join(first, instance="i0", session_ms=120_000)
    for _ in range(11):
        bench.advance(5)
        bench.heartbeat(second, 1, "i1")
    bench.advance(5.1)
    assert joined.answer.generation == 2
    assert second in bench.group.members


def test_a_rebalance_that_nobody_comes_to_waits_for_the_sessions_to_end() -> None:
    bench = Bench()
    first, second = bench.stable(2, instances=True)
    bench.leave((second, "i1"))
    assert bench.state() is GroupState.PREPARING_REBALANCE
    for _ in range(13):
        bench.advance(5)
        bench.heartbeat(first, 1, "i0")
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert first in bench.group.members
    bench.advance(60)
    assert bench.state() is GroupState.EMPTY


def test_an_administrator_removes_a_static_member_by_its_name() -> None:
    bench = Bench()
    first, second = bench.stable(2, instances=True)
    left = bench.leave(("", "i1"), ("", "i9"), ("", None))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert left == (ErrorCode.NONE, unknown, unknown)
    assert second not in bench.group.members
    assert bench.join(first, instance="i0").answer.generation == 2


def test_a_static_member_that_stays_away_is_dropped_after_its_session() -> None:
    bench = Bench()
    first, second = bench.stable(2, instances=True)
    bench.advance(6)
    bench.heartbeat(first, 1, "i0")
    bench.advance(6)
    assert second not in bench.group.members
    again = bench.join(instance="i1")
    bench.join(first, instance="i0")
    assert again.answer.generation == 2


def test_a_static_member_that_is_told_to_join_again_has_a_session_to_do_so() -> None:
    bench = Bench()
    asked = [bench.join(instance=f"i{number}") for number in range(2)]
    bench.advance(6)
    leader, follower = (each.answer.member_id for each in asked)
    waiting = bench.sync(follower, 1, instance="i1")
    for _ in range(3):
        bench.advance(5)  # Longer than the follower's session, which does not end while it waits.
        bench.heartbeat(leader, 1, "i0")
    bench.join(leader, instance="i0", protocols=(Protocol("range", b"other"),))
    assert waiting.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    bench.advance(9.9)
    assert follower in bench.group.members
    bench.advance(0.2)
    assert follower not in bench.group.members
