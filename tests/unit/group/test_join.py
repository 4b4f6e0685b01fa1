"""JoinGroup and the way to a generation, rule by rule."""

from __future__ import annotations

import pytest

from onceflow.errors import InvariantViolated
from onceflow.group.state import TRANSITIONS, Group, GroupState, Protocol
from onceflow.wire.error_codes import ErrorCode
from tests.unit.group.coordinator_under_test import RANGE, Bench, subscription


def test_a_new_dynamic_client_is_told_its_id_and_then_joins() -> None:
    bench = Bench()
    first = bench.join().answer
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("client-")
    assert first.generation == -1
    joined = bench.join(first.member_id)
    assert joined.waits
    bench.advance(3)
    assert joined.answer.error is ErrorCode.NONE
    assert joined.answer.generation == 1
    assert joined.answer.leader == joined.answer.member_id == first.member_id
    assert joined.answer.protocol_type == "consumer"
    assert joined.answer.protocol_name == "range"
    assert [each.member_id for each in joined.answer.members] == [first.member_id]
    assert joined.answer.members[0].metadata == subscription("orders")


def test_an_old_client_joins_at_once() -> None:
    bench = Bench()
    joined = bench.join(version=3)
    bench.advance(3)
    assert joined.answer.error is ErrorCode.NONE
    assert joined.answer.generation == 1


def test_an_id_that_is_not_used_expires_with_the_session() -> None:
    bench = Bench()
    member_id = bench.join(session_ms=6_000).answer.member_id
    bench.advance(5.9)
    assert member_id in bench.group.pending
    bench.advance(0.2)
    assert member_id not in bench.group.pending
    assert bench.join(member_id).answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_holds_a_rebalance_up_until_it_expires() -> None:
    bench = Bench()
    (leader,) = bench.stable()
    bench.join(session_ms=6_000)
    rejoined = bench.join(leader)
    assert rejoined.waits
    bench.advance(6)
    assert rejoined.answer.generation == 2


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeouts_have_limits(session_ms: int) -> None:
    answer = Bench().join(session_ms=session_ms).answer
    assert answer.error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_has_a_name() -> None:
    assert Bench().join(group_id="").answer.error is ErrorCode.INVALID_GROUP_ID


def test_a_member_of_no_group_is_unknown() -> None:
    bench = Bench()
    answer = bench.join("somebody").answer
    assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.member_id == "somebody"
    assert bench.groups.find("g") is None


# --- the first generation ---------------------------------------------------------------------


def test_the_first_generation_waits_longer_while_members_come() -> None:
    bench = Bench()
    _, first = bench.new_member()
    bench.advance(2)
    _, second = bench.new_member()
    bench.advance(2)
    assert first.waits
    assert second.waits
    bench.advance(2)
    assert first.answer.generation == second.answer.generation == 1
    assert {first.answer.leader, second.answer.leader} == {first.answer.member_id}
    assert len(first.answer.members) == 2
    assert second.answer.members == ()


def test_the_first_generation_does_not_wait_longer_than_the_rebalance_timeout() -> None:
    bench = Bench()
    asked = [bench.new_member(rebalance_ms=7_000)[1]]
    for _ in range(6):
        bench.advance(1)
        asked.append(bench.new_member(rebalance_ms=7_000)[1])
    bench.advance(0.9)
    assert all(each.waits for each in asked)
    bench.advance(0.2)
    assert not any(each.waits for each in asked)


def test_the_wait_for_an_earlier_first_generation_does_not_count() -> None:
    bench = Bench()
    ids = [bench.new_member(rebalance_ms=3_000)[0] for _ in range(2)]
    bench.advance(3)
    bench.leave(*ids)
    assert bench.state() is GroupState.EMPTY
    _, joined = bench.new_member()
    bench.advance(3)
    assert joined.answer.generation == 3


def test_members_that_leave_before_the_first_generation_leave_it_empty() -> None:
    bench = Bench()
    member_id, joined = bench.new_member()
    assert bench.leave(member_id) == (ErrorCode.NONE,)
    assert joined.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    bench.advance(3)
    assert bench.state() is GroupState.EMPTY
    assert bench.group.generation == 1


def test_a_new_member_that_never_hears_an_answer_is_given_up() -> None:
    bench = Bench(group_initial_rebalance_delay_ms=600_000)
    _, joined = bench.new_member(rebalance_ms=900_000)
    bench.advance(299)
    assert joined.waits
    bench.advance(2)
    assert joined.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.state() is GroupState.EMPTY


# --- later generations ------------------------------------------------------------------------


def test_a_member_more_calls_everybody_to_join() -> None:
    bench = Bench()
    (leader,) = bench.stable()
    _, joined = bench.new_member()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert bench.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = bench.join(leader)
    assert rejoined.answer.generation == joined.answer.generation == 2
    assert rejoined.answer.leader == leader
    assert len(rejoined.answer.members) == 2


def test_who_does_not_come_in_time_is_dropped() -> None:
    bench = Bench()
    leader, laggard = bench.stable(2)
    bench.join(leader)
    for _ in range(12):
        bench.advance(4.9)
        bench.heartbeat(laggard, 1)
        bench.heartbeat(leader, 1)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    bench.advance(1.5)
    assert list(bench.group.members) == [leader]
    assert bench.group.generation == 2
    assert bench.heartbeat(laggard, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_come_is_replaced() -> None:
    bench = Bench()
    leader, follower = bench.stable(2)
    changed = (Protocol("range", subscription("orders", "clicks")),)
    joined = bench.join(follower, protocols=changed)
    bench.advance(10.1)  # The old leader's session ends first.
    assert joined.answer.leader == follower
    assert leader not in bench.group.members


def test_a_follower_that_joins_unchanged_is_told_the_current_generation() -> None:
    bench = Bench()
    leader, follower = bench.stable(2)
    again = bench.join(follower).answer
    assert (again.error, again.generation, again.leader) == (ErrorCode.NONE, 1, leader)
    assert again.members == ()
    assert bench.state() is GroupState.STABLE


def test_a_follower_that_changed_its_metadata_starts_a_rebalance() -> None:
    bench = Bench()
    _, follower = bench.stable(2)
    changed = (Protocol("range", subscription("clicks")),)
    assert bench.join(follower, protocols=changed).waits
    assert bench.state() is GroupState.PREPARING_REBALANCE


def test_a_leader_that_joins_starts_a_rebalance() -> None:
    bench = Bench()
    leader, _ = bench.stable(2)
    assert bench.join(leader).waits
    assert bench.state() is GroupState.PREPARING_REBALANCE


def test_a_join_that_is_repeated_during_the_sync_is_answered_again() -> None:
    bench = Bench()
    member_id, joined = bench.new_member()
    bench.advance(3)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    assert bench.join(member_id).answer == joined.answer


def test_metadata_that_changes_during_the_sync_starts_over() -> None:
    bench = Bench()
    member_id, _ = bench.new_member()
    bench.advance(3)
    again = bench.join(member_id, protocols=(Protocol("range", b"other"),))
    assert again.answer.generation == 2


def test_the_newer_of_two_joins_of_a_member_counts() -> None:
    bench = Bench()
    leader, follower = bench.stable(2)
    older = bench.join(leader)
    newer = bench.join(leader)
    assert older.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert newer.waits
    bench.join(follower)
    assert newer.answer.error is ErrorCode.NONE


# --- protocols --------------------------------------------------------------------------------


def test_the_protocol_with_most_votes_that_all_support_is_selected() -> None:
    def named(*names: str) -> tuple[Protocol, ...]:
        return tuple(Protocol(name, b"") for name in names)

    bench = Bench()
    asked = [
        bench.join(version=3, protocols=named("a", "b", "c")),
        bench.join(version=3, protocols=named("b", "c")),
        bench.join(version=3, protocols=named("d", "c", "b")),
    ]
    bench.advance(6)
    assert {each.answer.protocol_name for each in asked} == {"b"}


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [
        ("connect", RANGE),
        ("consumer", (Protocol("roundrobin", b""),)),
        ("consumer", ()),
    ],
)
def test_who_shares_no_protocol_is_not_let_in(
    protocol_type: str, protocols: tuple[Protocol, ...]
) -> None:
    bench = Bench()
    bench.stable()
    answer = bench.join(protocol_type=protocol_type, protocols=protocols).answer
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.state() is GroupState.STABLE


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", RANGE), ("consumer", ())])
def test_a_first_member_names_a_protocol(
    protocol_type: str, protocols: tuple[Protocol, ...]
) -> None:
    answer = Bench().join(protocol_type=protocol_type, protocols=protocols).answer
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_may_change_its_protocol_type() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.leave(member_id)
    assert bench.state() is GroupState.EMPTY
    bench.join(version=3, protocol_type="connect")
    bench.advance(3)
    assert bench.group.protocol_type == "connect"


# --- size -------------------------------------------------------------------------------------


def test_a_full_group_turns_clients_away() -> None:
    bench = Bench(group_max_size=2)
    leader, _ = bench.stable(2)
    assert bench.join().answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.state() is GroupState.STABLE
    bench.join(leader)
    assert bench.join(version=3).waits  # During a rebalance those who have come count.


def test_a_group_that_is_read_back_too_large_loses_its_last() -> None:
    before = Bench()
    first, second, third = before.stable(3)
    bench = Bench(before.log, group_max_size=2)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    asked = [bench.join(first), bench.join(second)]
    assert bench.join(third).answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [each.answer.generation for each in asked] == [2, 2]


# --- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize("start", GroupState)
@pytest.mark.parametrize("end", GroupState)
def test_only_the_ways_of_the_table_are_open(start: GroupState, end: GroupState) -> None:
    group = Group("g", state=start)
    if end in TRANSITIONS[start]:
        group.transition(end, 5)
        assert (group.previous_state, group.state, group.state_since_ms) == (start, end, 5)
    else:
        with pytest.raises(InvariantViolated, match="groups-follow-the-state-table"):
            group.transition(end, 5)
        assert group.state is start
