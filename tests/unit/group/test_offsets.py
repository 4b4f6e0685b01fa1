"""Committed offsets: who may commit, what readers see, what is deleted and what expires."""

from __future__ import annotations

import pytest

from onceflow.errors import StoreBusy
from onceflow.group.events import CommitRequest, MemberIdentity, OffsetEntry, OffsetQuery
from onceflow.group.offsets import is_metadata_too_long
from onceflow.group.state import GroupState, Protocol
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode
from tests.unit.group.coordinator_under_test import Asked, Bench, subscription

NONE = (ErrorCode.NONE,)
DAY_S = 86_400


# --- who may commit ---------------------------------------------------------------------------


def test_anybody_commits_to_a_group_that_nobody_is_in() -> None:
    bench = Bench()
    assert bench.fetch() is None
    assert bench.commit(5).answer == NONE
    assert bench.fetch() == 5
    assert bench.state() is GroupState.EMPTY
    assert bench.group.protocol_type is None
    assert bench.commit(6, member_id="whoever").answer == NONE
    assert bench.commit(7, group_id="").answer == NONE
    assert bench.fetch(group_id="") == 7


def test_members_commit_in_their_generation() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    assert bench.commit(5, member_id=member_id, generation=1).answer == NONE
    illegal = bench.commit(6, member_id=member_id, generation=0)
    assert illegal.answer == (ErrorCode.ILLEGAL_GENERATION,)
    stranger = bench.commit(6, member_id="stranger", generation=1)
    assert stranger.answer == (ErrorCode.UNKNOWN_MEMBER_ID,)
    assert bench.commit(6).answer == (ErrorCode.UNKNOWN_MEMBER_ID,)
    no_generation = bench.commit(6, member_id=member_id)
    assert no_generation.answer == (ErrorCode.ILLEGAL_GENERATION,)
    assert bench.fetch() == 5


def test_members_commit_while_others_join_but_not_while_the_leader_assigns() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.new_member()
    assert bench.commit(5, member_id=member_id, generation=1).answer == NONE
    bench.join(member_id)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    refused = bench.commit(6, member_id=member_id, generation=2)
    assert refused.answer == (ErrorCode.REBALANCE_IN_PROGRESS,)


@pytest.mark.parametrize(
    ("version", "code"),
    [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)],
)
def test_a_generation_of_an_unknown_group_is_refused(version: int, code: ErrorCode) -> None:
    bench = Bench()
    refused = bench.commit(5, member_id="m", generation=1, version=version)
    assert refused.answer == (code,)
    assert bench.groups.find("g") is None


def test_a_generation_of_an_empty_group_is_refused() -> None:
    bench = Bench()
    bench.commit(5)
    refused = bench.commit(6, member_id="m", generation=1)
    assert refused.answer == (ErrorCode.UNKNOWN_MEMBER_ID,)


def test_each_entry_has_its_own_answer() -> None:
    bench = Bench()
    entries = (
        OffsetEntry("orders", 0, 1, 3, "m"),
        OffsetEntry("orders", 4, 1, -1, None),
        OffsetEntry("nowhere", 0, 1, -1, None),
        OffsetEntry("clicks", 1, 2, -1, "x" * 4097),
        OffsetEntry("clicks", 0, 3, -1, None),
    )
    request = CommitRequest("g", MemberIdentity("", None), -1, 9, entries)
    assert Asked(bench.groups.commit(request)).answer == (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
    )
    (clicks, orders) = bench.fetch_all()
    assert clicks[0] == "clicks"
    assert [(each[0], each[1].offset if each[1] else None) for each in clicks[1]] == [(0, 3)]
    value = orders[1][0][1]
    assert value is not None
    assert (value.offset, value.leader_epoch, value.metadata) == (1, 3, "m")
    assert value.commit_timestamp_ms == bench.clock.wall_ms()


def test_a_group_is_not_asked_about_topics_that_are_not_there() -> None:
    bench = Bench()
    bench.stable()
    refused = bench.commit(5, topic="nowhere")
    assert refused.answer == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)


def test_metadata_is_measured_in_utf16_units() -> None:
    assert not is_metadata_too_long(None, 4)
    assert not is_metadata_too_long("abcd", 4)
    assert is_metadata_too_long("abcde", 4)
    assert not is_metadata_too_long("😀😀", 4)
    assert is_metadata_too_long("😀😀x", 4)
    assert not is_metadata_too_long("ééé", 4)


# --- durability -------------------------------------------------------------------------------


def test_a_commit_is_seen_and_answered_when_it_is_durable() -> None:
    bench = Bench()
    bench.commit(1)
    bench.log.is_holding = True
    second, third = bench.commit(2), bench.commit(3)
    assert second.waits
    assert bench.fetch() == 1
    bench.log.release(1)
    assert second.answer == NONE
    assert third.waits
    assert bench.fetch() == 2
    bench.log.release()
    assert bench.fetch() == 3


def test_a_reader_that_wants_stable_offsets_waits_for_commits_on_their_way() -> None:
    bench = Bench()
    bench.commit(1)
    bench.log.is_holding = True
    bench.commit(2)
    query = OffsetQuery("g", (("orders", (0,)),))
    reading = Asked(bench.groups.fetch([query], require_stable=True))
    bench.commit(3)
    assert reading.waits
    bench.log.release(1)
    found = reading.answer[0][0][1][0][1]
    assert found is not None
    assert found.offset == 2


def test_a_commit_that_fails_leaves_no_trace() -> None:
    bench = Bench()
    bench.log.failure = StoreBusy("full")
    assert bench.commit(1).answer == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert bench.groups.find("g") is None
    bench.log.failure = None
    bench.commit(1)
    bench.log.failure = StoreBusy("full")
    assert bench.commit(2).answer == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert bench.fetch() == 1
    assert bench.state() is GroupState.EMPTY


def test_a_commit_that_fails_does_not_take_a_joining_clients_group_away() -> None:
    bench = Bench()
    member_id = bench.join().answer.member_id
    bench.log.failure = StoreBusy("full")
    bench.commit(1)
    assert bench.join(member_id).waits


def test_a_commit_that_is_refused_at_once_does_not_disturb_those_on_their_way() -> None:
    bench = Bench()
    bench.log.is_holding = True
    first = bench.commit(1)
    bench.log.is_holding = False
    bench.log.failure = StoreBusy("full")
    assert bench.commit(2).answer == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    bench.log.failure = None
    bench.log.release()
    assert first.answer == NONE
    assert bench.fetch() == 1


def test_a_name_that_does_not_fit_into_a_record_is_refused() -> None:
    bench = Bench()
    refused = bench.commit(1, group_id="g" * 40_000)
    assert refused.answer == (ErrorCode.UNKNOWN_SERVER_ERROR,)


# --- deletion ---------------------------------------------------------------------------------


def delete(bench: Bench, *places: tuple[str, int]) -> tuple[ErrorCode, tuple[ErrorCode, ...]]:
    asked = bench.groups.delete_offsets("g", [TopicPartition(*place) for place in places])
    outcome = Asked(asked).answer
    return outcome.error, outcome.errors


def test_offsets_of_an_empty_group_are_deleted() -> None:
    bench = Bench()
    bench.commit(1)
    bench.commit(2, partition=1)
    error, errors = delete(bench, ("orders", 0), ("clicks", 0), ("nowhere", 0))
    assert error is ErrorCode.NONE
    assert errors == (*NONE, *NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert bench.fetch() is None
    assert bench.fetch(partition=1) == 2


def test_a_deletion_also_deletes_a_commit_that_is_on_its_way() -> None:
    bench = Bench()
    bench.log.is_holding = True
    bench.commit(1)
    asked = Asked(bench.groups.delete_offsets("g", [TopicPartition("orders", 0)]))
    assert asked.waits
    bench.log.release()
    assert bench.fetch() is None
    assert Bench(bench.log).fetch() is None


def test_offsets_of_topics_that_are_read_are_not_deleted() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.commit(1, member_id=member_id, generation=1)
    bench.commit(2, member_id=member_id, generation=1, topic="clicks")
    _, errors = delete(bench, ("orders", 0), ("clicks", 0))
    assert errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE)
    assert bench.fetch() == 1
    assert bench.fetch("clicks") is None


def test_a_subscription_that_cannot_be_read_protects_every_topic() -> None:
    bench = Bench()
    bench.join(version=3, protocols=(Protocol("range", b"\x00"),))
    bench.advance(3)
    _, errors = delete(bench, ("clicks", 0))
    assert errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_offsets_cannot_be_deleted_under_members_that_are_not_consumers() -> None:
    bench = Bench()
    bench.join(version=3, protocol_type="connect")
    bench.advance(3)
    assert delete(bench, ("orders", 0)) == (ErrorCode.NON_EMPTY_GROUP, ())


def test_offsets_of_no_group_cannot_be_deleted() -> None:
    assert delete(Bench(), ("orders", 0)) == (ErrorCode.GROUP_ID_NOT_FOUND, ())
    outcome = Bench().groups.delete_offsets("", [TopicPartition("orders", 0)])
    assert Asked(outcome).answer.error is ErrorCode.INVALID_GROUP_ID


def test_the_offsets_of_a_deleted_topic_go_with_it() -> None:
    bench = Bench()
    bench.commit(1)
    bench.commit(2, topic="clicks")
    bench.commit(3, group_id="other")
    bench.log.is_holding = True
    bench.commit(4, group_id="third")
    bench.groups.topic_deleted("orders")
    bench.log.release()
    assert bench.fetch() is None
    assert bench.fetch("clicks") == 2
    assert bench.fetch(group_id="other") is None
    assert bench.fetch(group_id="third") is None


# --- whole groups -----------------------------------------------------------------------------


def delete_groups(bench: Bench, *ids: str) -> tuple[ErrorCode, ...]:
    return Asked(bench.groups.delete_groups(ids)).answer


def test_empty_groups_are_deleted_with_their_offsets() -> None:
    bench = Bench()
    bench.commit(1)
    bench.commit(2, group_id="other")
    found = delete_groups(bench, "g", "nobody", "g")
    not_found = ErrorCode.GROUP_ID_NOT_FOUND
    assert found == (ErrorCode.NONE, not_found, not_found)
    assert bench.groups.find("g") is None
    assert bench.fetch() is None
    after = Bench(bench.log)
    assert [group.group_id for group in after.groups.all_groups()] == ["other"]


def test_a_group_with_members_is_not_deleted() -> None:
    bench = Bench()
    bench.stable()
    assert delete_groups(bench, "g") == (ErrorCode.NON_EMPTY_GROUP,)


def test_a_deletion_that_fails_leaves_the_group() -> None:
    bench = Bench()
    bench.commit(1)
    bench.log.failure = StoreBusy("full")
    assert delete_groups(bench, "g") == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert bench.fetch() == 1
    assert bench.state() is GroupState.EMPTY


def test_a_group_may_come_to_be_again_while_the_old_one_is_being_deleted() -> None:
    bench = Bench(group_initial_rebalance_delay_ms=20_000)
    bench.commit(1)
    bench.join(session_ms=6_000)  # This id is void with the group, and so is its session.
    bench.log.is_holding = True
    deleting = Asked(bench.groups.delete_groups(["g"]))
    joined = bench.join(version=3)
    bench.log.is_holding = False
    bench.log.release()
    assert deleting.answer == NONE
    bench.advance(19)
    assert joined.waits
    bench.advance(1)
    assert joined.answer.generation == 1
    assert bench.fetch() is None


# --- expiry -----------------------------------------------------------------------------------


def test_offsets_without_members_expire_from_their_commit_and_the_group_with_the_last() -> None:
    bench = Bench()
    bench.commit(1)
    bench.advance(DAY_S)
    bench.commit(2, partition=1)
    bench.advance(6 * DAY_S)
    assert bench.fetch() is None
    assert bench.fetch(partition=1) == 2
    assert bench.groups.find("g") is not None
    bench.advance(DAY_S)
    assert bench.groups.find("g") is None
    assert list(Bench(bench.log).groups.all_groups()) == []


def test_offsets_of_an_empty_group_expire_from_when_it_became_empty() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.commit(1, member_id=member_id, generation=1)
    for _ in range(2 * DAY_S // 9):
        bench.advance(9)
        bench.heartbeat(member_id, 1)
    bench.leave(member_id)
    bench.advance(6.9 * DAY_S)
    assert bench.fetch() == 1
    bench.advance(0.2 * DAY_S)
    assert bench.fetch() is None
    assert bench.groups.find("g") is None


def test_of_a_group_with_members_only_topics_that_it_does_not_read_expire() -> None:
    bench = Bench(offsets_retention_minutes=20)
    (member_id,) = bench.stable()
    bench.commit(1, member_id=member_id, generation=1)
    bench.commit(2, member_id=member_id, generation=1, topic="clicks")
    for _ in range(400):
        bench.advance(9)
        bench.heartbeat(member_id, 1)
    assert bench.fetch() == 1
    assert bench.fetch("clicks") is None


def test_nothing_expires_during_a_rebalance_or_under_other_members() -> None:
    bench = Bench(offsets_retention_minutes=20)
    bench.commit(1, group_id="other")
    bench.commit(2, topic="clicks")
    joined = bench.join(version=3, protocol_type="connect", protocols=(Protocol("p", b""),))
    bench.advance(3)
    bench.complete([joined.answer.member_id])
    for _ in range(400):
        bench.advance(9)
        bench.heartbeat(joined.answer.member_id, 1)
    assert bench.fetch(group_id="other") is None
    assert bench.fetch("clicks") == 2


def test_a_group_that_nothing_is_kept_for_goes() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.leave(member_id)
    assert bench.state() is GroupState.EMPTY
    bench.advance(600)
    assert bench.groups.find("g") is None


def test_subscriptions_of_all_members_count() -> None:
    bench = Bench()
    bench.join(version=3, protocols=(Protocol("range", subscription("orders")),))
    bench.join(version=3, protocols=(Protocol("range", subscription("clicks")),))
    bench.advance(6)
    assert bench.group.subscribed_topics == frozenset({"orders", "clicks"})


@pytest.mark.parametrize("jump_days", [30, -30])
def test_a_jump_of_the_wall_clock_makes_no_offset_older(jump_days: int) -> None:
    bench = Bench()
    bench.commit(1)
    bench.clock.wall_offset_ms += jump_days * DAY_S * 1000
    bench.commit(2, group_id="behind")
    bench.advance(DAY_S)
    bench.clock.wall_offset_ms -= jump_days * DAY_S * 1000
    bench.advance(5 * DAY_S)
    assert bench.fetch() == 1
    assert bench.groups.find("behind") is not None
    bench.advance(1.1 * DAY_S)
    assert bench.fetch() is None


def test_very_many_groups_are_looked_at_in_turns() -> None:
    bench = Bench(offsets_retention_minutes=60)
    for number in range(1000):
        bench.commit(1, group_id=f"group-{number}")
    bench.advance(3599)
    left = []
    for _ in range(4):  # the check is due at the full hour, and takes four turns
        bench.advance_to_next_call()
        left.append(sum(1 for _ in bench.groups.all_groups()))
    assert left == [744, 488, 232, 0]
    bench.commit(1)
    bench.advance(3600 + 600)
    assert bench.fetch() is None, "the next check comes as ever"
