"""Offsets inside transactions: who may commit them, and whom the answer comes from."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from onceflow.group.events import MemberIdentity, OffsetEntry, TxnCommitRequest
from onceflow.group.state import GroupState
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.group.coordinator_under_test import Admission, Asked, Bench

NONE = (ErrorCode.NONE,)


class Fenced(NamedTuple):
    """What a client of a stable group of one says about itself."""

    member: str
    generation: int
    code: ErrorCode


RIGHT, STRANGER, NOBODY = "its member", "stranger", ""


@pytest.mark.parametrize(
    "said",
    [
        Fenced(RIGHT, 1, ErrorCode.NONE),
        Fenced(RIGHT, 0, ErrorCode.ILLEGAL_GENERATION),
        Fenced(RIGHT, 2, ErrorCode.ILLEGAL_GENERATION),
        Fenced(RIGHT, -1, ErrorCode.ILLEGAL_GENERATION),
        Fenced(STRANGER, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        Fenced(STRANGER, -1, ErrorCode.UNKNOWN_MEMBER_ID),
        Fenced(NOBODY, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        Fenced(NOBODY, -1, ErrorCode.NONE),
    ],
    ids=str,
)
def test_who_names_itself_must_be_right(said: Fenced) -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    name = member_id if said.member == RIGHT else said.member
    asked = bench.txn_commit(5, member_id=name, generation=said.generation)
    assert asked.answer == (said.code,)
    bench.end(commit=True)
    assert bench.fetch() == (None if said.code else 5)


@pytest.mark.parametrize(
    ("instance", "member", "code"),
    [
        ("i0", RIGHT, ErrorCode.NONE),
        ("i0", STRANGER, ErrorCode.FENCED_INSTANCE_ID),
        ("i0", NOBODY, ErrorCode.FENCED_INSTANCE_ID),
        ("i9", RIGHT, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_static_member_must_be_the_present_one(
    instance: str, member: str, code: ErrorCode
) -> None:
    bench = Bench()
    (member_id,) = bench.stable(instances=True)
    name = member_id if member == RIGHT else member
    asked = bench.txn_commit(5, member_id=name, generation=1, instance=instance)
    assert asked.answer == (code,)


def test_an_instance_alone_is_a_claim_too() -> None:
    bench = Bench()
    bench.stable(instances=True)
    assert bench.txn_commit(5, instance="i0").answer == (ErrorCode.FENCED_INSTANCE_ID,)


@pytest.mark.parametrize(
    ("member", "generation", "code"),
    [
        ("", -1, ErrorCode.NONE),
        ("m", -1, ErrorCode.NONE),
        ("m", 0, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 0, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_nobody_has_a_generation_in_an_empty_group(
    member: str, generation: int, code: ErrorCode
) -> None:
    bench = Bench()
    bench.commit(1)
    assert bench.txn_commit(5, member_id=member, generation=generation).answer == (code,)


def test_a_generation_of_an_unknown_group_is_refused() -> None:
    bench = Bench()
    asked = bench.txn_commit(5, member_id="m", generation=0)
    assert asked.answer == (ErrorCode.ILLEGAL_GENERATION,)
    assert bench.groups.find("g") is None
    assert bench.txn_commit(5, member_id="m").answer == NONE
    assert bench.state() is GroupState.EMPTY


def test_a_rebalance_is_no_obstacle() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.new_member()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert bench.txn_commit(5, member_id=member_id, generation=1).answer == NONE
    bench.join(member_id)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    assert bench.txn_commit(6, member_id=member_id, generation=2).answer == NONE
    zombie = bench.txn_commit(7, member_id=member_id, generation=1)
    assert zombie.answer == (ErrorCode.ILLEGAL_GENERATION,)


def test_a_transactional_commit_is_no_sign_of_life() -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    bench.advance(9)
    bench.txn_commit(5, member_id=member_id, generation=1)
    bench.advance(2)
    assert member_id not in bench.group.members


def test_a_group_needs_a_name() -> None:
    assert Bench().txn_commit(5, group_id="").answer == (ErrorCode.INVALID_GROUP_ID,)


def test_what_the_transaction_coordinator_refuses_is_not_written() -> None:
    bench = Bench()
    refused = bench.txn_commit(5, verified=ErrorCode.INVALID_PRODUCER_EPOCH)
    assert refused.answer == (ErrorCode.INVALID_PRODUCER_EPOCH,)
    assert not bench.log.batches
    assert bench.groups.find("g") is None


def test_the_transaction_coordinator_is_asked_before_the_group() -> None:
    bench = Bench()
    refused = bench.txn_commit(5, generation=3, verified=ErrorCode.CONCURRENT_TRANSACTIONS)
    assert refused.answer == (ErrorCode.CONCURRENT_TRANSACTIONS,)


def test_nobody_is_asked_about_topics_that_are_not_there() -> None:
    bench = Bench()
    asked = bench.txn_commit(5, topic="nowhere", verified=ErrorCode.CONCURRENT_TRANSACTIONS)
    assert asked.answer == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)


def test_each_entry_has_its_own_answer() -> None:
    bench = Bench()
    entries = (
        OffsetEntry("orders", 0, 1, 3, "m"),
        OffsetEntry("orders", 4, 1, -1, None),
        OffsetEntry("clicks", 1, 2, -1, "x" * 4097),
        OffsetEntry("clicks", 0, 3, -1, None),
    )
    request = TxnCommitRequest(
        "t", "g", MemberIdentity("", None), -1, ProducerIdAndEpoch(7, 0), entries
    )
    assert Asked(bench.groups.txn_commit(request, Admission())).answer == (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
    )
    bench.end(commit=True)
    assert bench.fetch("clicks") == 3
    value = bench.ask().answer.value
    assert value is not None
    assert (value.offset, value.leader_epoch, value.metadata) == (1, 3, "m")
    assert value.commit_timestamp_ms == bench.clock.wall_ms()
