"""The machine of a group's member: each event in each state, and what errors do to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.client.codec.transactions import GroupMember
from onceflow.client.errors.consumer import FencedMember
from onceflow.client.errors.requests import Action, BrokerError, ClientError, ConnectionLost
from onceflow.client.group.member import (
    MEMBER_STATES,
    ImpossibleEvent,
    MemberEvent,
    MemberMachine,
    Membership,
    MemberState,
)
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode

MEMBER = Membership("m-1", 4)


def refusal(code: ErrorCode, api: ApiKey = ApiKey.HEARTBEAT) -> BrokerError:
    return BrokerError(code, api.name, "group 'g'")


def unjoined() -> MemberMachine:
    return MemberMachine("g", "instance")


def joining() -> MemberMachine:
    machine = unjoined()
    machine.asked()
    return machine


def syncing() -> MemberMachine:
    machine = joining()
    machine.joined(MEMBER)
    return machine


def stable() -> MemberMachine:
    machine = syncing()
    machine.synced()
    return machine


def stale() -> MemberMachine:
    machine = stable()
    machine.outdated()
    return machine


def fenced() -> MemberMachine:
    machine = stable()
    machine.refused(refusal(ErrorCode.FENCED_INSTANCE_ID), MEMBER)
    return machine


ALL = {
    MemberState.UNJOINED: unjoined,
    MemberState.JOINING: joining,
    MemberState.SYNCING: syncing,
    MemberState.STABLE: stable,
    MemberState.STALE: stale,
    MemberState.FENCED: fenced,
}
Make = Callable[[], MemberMachine]


def test_every_state_can_be_reached_and_left_as_the_table_says() -> None:
    for state, make in ALL.items():
        assert make().state is state
    assert {state for state, _ in MEMBER_STATES} == set(MemberState)
    # Whatever happens, a member can be told that it is out.
    for state in MemberState:
        for event in (MemberEvent.FORGOTTEN, MemberEvent.LEFT, MemberEvent.FENCED):
            assert (state, event) in MEMBER_STATES


def test_what_is_in_no_table_is_a_defect() -> None:
    with pytest.raises(ImpossibleEvent, match="has received its assignment"):
        unjoined().synced()


def test_a_member_commits_as_who_it_is() -> None:
    machine = stable()
    assert machine.metadata == GroupMember("g", 4, "m-1", "instance")
    assert machine.may_commit
    assert not unjoined().may_commit
    assert not fenced().may_commit


@pytest.mark.parametrize(
    ("make", "beats"),
    [(unjoined, False), (joining, False), (syncing, True), (stable, True), (stale, True)],
)
def test_hearts_beat_while_the_broker_waits_for_it(make: Make, beats: bool) -> None:
    assert make().beats is beats


def test_the_group_is_handing_out_anew() -> None:
    machine = stable()
    machine.refused(refusal(ErrorCode.REBALANCE_IN_PROGRESS), MEMBER)
    assert (machine.state, machine.must_join) == (MemberState.STALE, True)
    # Until it joins it holds what it has, and may commit it.
    assert (machine.has_lost, machine.may_commit, machine.membership) == (False, True, MEMBER)


@pytest.mark.parametrize("make", [stable, stale])
@pytest.mark.parametrize(
    ("code", "member_id"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "m-1")],
)
def test_a_member_that_was_forgotten_has_lost_all(
    make: Make, code: ErrorCode, member_id: str
) -> None:
    machine = make()
    machine.refused(refusal(code), MEMBER)
    assert (machine.state, machine.has_lost) == (MemberState.UNJOINED, True)
    assert machine.membership == Membership(member_id, -1)
    assert not machine.may_commit
    assert code.name in machine.why_out


def test_a_fenced_one_stays_so() -> None:
    machine = fenced()
    assert (machine.has_lost, machine.must_join) == (True, False)
    assert isinstance(machine.failure, FencedMember)
    machine.outdated()
    machine.left("closed")
    assert machine.state is MemberState.FENCED


def test_answers_for_an_older_membership_change_nothing() -> None:
    machine = stable()
    machine.refused(refusal(ErrorCode.UNKNOWN_MEMBER_ID), Membership("m-1", 3))
    assert machine.state is MemberState.STABLE


@pytest.mark.parametrize("make", [joining, syncing])
def test_whoever_joins_does_not_listen_to_heartbeats(make: Make) -> None:
    machine = make()
    before = machine.state
    machine.refused(refusal(ErrorCode.UNKNOWN_MEMBER_ID), machine.membership)
    machine.outdated()
    assert (machine.state, machine.has_lost) == (before, False)


def test_errors_that_say_nothing_of_the_membership_leave_it_alone() -> None:
    machine = stable()
    for error in (ConnectionLost("gone"), refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)):
        machine.refused(error, MEMBER)
        assert machine.state is MemberState.STABLE


@pytest.mark.parametrize(
    ("error", "state", "action"),
    [
        (ConnectionLost("gone"), MemberState.STALE, Action.REFRESH),
        (refusal(ErrorCode.NOT_COORDINATOR, ApiKey.SYNC_GROUP), MemberState.STALE, Action.REFRESH),
        (
            refusal(ErrorCode.REBALANCE_IN_PROGRESS, ApiKey.SYNC_GROUP),
            MemberState.STALE,
            Action.REJOIN,
        ),
        (
            refusal(ErrorCode.UNKNOWN_MEMBER_ID, ApiKey.JOIN_GROUP),
            MemberState.UNJOINED,
            Action.JOIN_ANEW,
        ),
        (
            refusal(ErrorCode.ILLEGAL_GENERATION, ApiKey.SYNC_GROUP),
            MemberState.UNJOINED,
            Action.CATCH_UP,
        ),
        (
            refusal(ErrorCode.FENCED_INSTANCE_ID, ApiKey.JOIN_GROUP),
            MemberState.FENCED,
            Action.FATAL,
        ),
        (
            refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ApiKey.JOIN_GROUP),
            MemberState.STALE,
            Action.FAIL,
        ),
    ],
)
@pytest.mark.parametrize("make", [joining, syncing])
def test_a_join_that_comes_to_nothing(
    make: Make, error: ClientError, state: MemberState, action: Action
) -> None:
    machine = make()
    assert machine.join_refused(error) is action
    assert machine.state is state
    assert machine.has_lost is (state is not MemberState.STALE)


def test_the_id_that_the_broker_chose_is_used_at_once() -> None:
    machine = joining()
    machine.named("m-2")
    assert machine.metadata == GroupMember("g", -1, "m-2", "instance")
    machine.joined(Membership("m-2", 1))
    assert machine.membership == Membership("m-2", 1)
    machine.synced()
    machine.left("nobody polled")
    assert (machine.membership, machine.why_out) == (Membership(), "nobody polled")
