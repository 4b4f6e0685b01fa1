"""Who gets which partitions: known answers, those of another client, and what always holds."""

from __future__ import annotations

import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from onceflow.client.assignors.assignors import ASSIGNORS, assign_range, assign_roundrobin
from onceflow.client.assignors.member_subscription import Assignments, MemberSubscription
from onceflow.client.assignors.sticky import cooperative_sticky, sticky, valid_owners
from onceflow.types import TopicPartition

with warnings.catch_warnings():
    # It reads its message schemas, while it is imported, by a function that Python deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor


def want(
    name: str, *topics: str, owned: str = "", generation: int = -1, instance: str | None = None
) -> MemberSubscription:
    return MemberSubscription(name, frozenset(topics), places(owned), generation, instance)


def places(text: str) -> tuple[TopicPartition, ...]:
    """`a0 a1` for partitions 0 and 1 of topic a."""
    return tuple(TopicPartition(each[0], int(each[1:])) for each in text.split())


def shown(given_out: Assignments) -> dict[str, str]:
    return {
        name: " ".join(f"{each.topic}{each.partition}" for each in sorted(found))
        for name, found in given_out.items()
    }


# --- known answers, from the documentation and the tests of Kafka's own assignors ----------------


def test_range_gives_neighbours_topic_by_topic() -> None:
    both = [want("C0", "x", "y"), want("C1", "x", "y")]
    assert shown(assign_range({"x": 3, "y": 3}, both)) == {"C0": "x0 x1 y0 y1", "C1": "x2 y2"}
    assert shown(assign_range({"x": 1}, both)) == {"C0": "x0", "C1": ""}
    mixed = [want("C0", "x"), want("C1", "x", "y"), want("C2", "x")]
    assert shown(assign_range({"x": 3, "y": 2}, mixed)) == {
        "C0": "x0",
        "C1": "x1 y0 y1",
        "C2": "x2",
    }


def test_roundrobin_goes_on_over_topics() -> None:
    both = [want("C0", "x", "y"), want("C1", "x", "y")]
    answer = {"C0": "x0 x2 y1", "C1": "x1 y0 y2"}
    assert shown(assign_roundrobin({"x": 3, "y": 3}, both)) == answer
    uneven = [want("C0", "x"), want("C1", "x", "y"), want("C2", "x", "y", "z")]
    answer = {"C0": "x0", "C1": "y0", "C2": "y1 z0 z1 z2"}
    assert shown(assign_roundrobin({"x": 1, "y": 2, "z": 3}, uneven)) == answer


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_members_come_first_by_the_name_that_they_keep(name: str) -> None:
    assign = ASSIGNORS[name].assign
    before = [want("zz", "x", instance="1"), want("aa", "x", instance="2"), want("bb", "x")]
    after = [want("cc", "x", instance="1"), want("dd", "x", instance="2"), want("bb", "x")]
    assert list(shown(assign({"x": 3}, before)).values()) == ["x0", "x1", "x2"]
    assert list(shown(assign({"x": 3}, after)).values()) == ["x0", "x1", "x2"]


def test_topics_that_nobody_has_made_yet_are_left_out() -> None:
    for assignor in ASSIGNORS.values():
        found = assignor.assign({"x": 1}, [want("a", "x", "later"), want("b", "later")])
        assert shown(found) == {"a": "x0", "b": ""}


def test_sticky_shares_evenly_at_first() -> None:
    both = [want("C0", "x", "y"), want("C1", "x", "y")]
    answer = {"C0": "x0 x2 y1", "C1": "x1 y0 y2"}
    assert shown(cooperative_sticky({"x": 3, "y": 3}, both)) == answer


def test_what_changes_hands_is_free_for_one_round() -> None:
    first = [want("a", "x", owned="x0 x1 x2", generation=1), want("b", "x")]
    assert shown(cooperative_sticky({"x": 3}, first)) == {"a": "x0 x1", "b": ""}
    second = [want("a", "x", owned="x0 x1", generation=2), want("b", "x", generation=2)]
    assert shown(cooperative_sticky({"x": 3}, second)) == {"a": "x0 x1", "b": "x2"}


def test_of_two_who_claim_a_partition_the_newer_one_has_it() -> None:
    claims = [
        want("late", "x", owned="x0 x1", generation=3),
        want("now", "x", owned="x0", generation=5),
    ]
    assert valid_owners({"x": 2}, claims) == {
        TopicPartition("x", 0): "now",
        TopicPartition("x", 1): "late",
    }
    assert shown(cooperative_sticky({"x": 2}, claims)) == {"late": "x1", "now": "x0"}
    twins = [want("a", "x", owned="x0", generation=4), want("b", "x", owned="x0", generation=4)]
    assert valid_owners({"x": 1}, twins) == {}
    # Both have to hear that they lost it before one of them gets it.
    assert shown(cooperative_sticky({"x": 1}, twins)) == {"a": "", "b": ""}


def test_what_is_gone_or_not_wanted_any_more_is_nobodys() -> None:
    members = [want("a", "y", owned="x0 y7 y0", generation=1)]
    assert valid_owners({"x": 1, "y": 2}, members) == {TopicPartition("y", 0): "a"}


def test_topics_that_few_want_go_to_those() -> None:
    members = [want("a", "x", "y"), want("b", "x"), want("c", "x")]
    assert shown(cooperative_sticky({"x": 2, "y": 2}, members)) == {
        "a": "y0 y1",
        "b": "x0",
        "c": "x1",
    }


# --- the answers of another client ---------------------------------------------------------------


MEMBERS = st.lists(
    st.tuples(
        st.text("abcdef", min_size=1, max_size=4), st.frozensets(st.sampled_from("xyz"), min_size=1)
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda member: member[0],
)
COUNTS = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in "xyz"})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (assign_range, RangePartitionAssignor()),
        # It fails where members want different topics.
        (assign_roundrobin, RoundRobinPartitionAssignor()),
    ],
)
@given(counts=COUNTS, members=MEMBERS)
def test_others_answer_alike(
    ours: Any, theirs: Any, counts: dict[str, int], members: list[tuple[str, frozenset[str]]]
) -> None:
    if ours is assign_roundrobin:
        members = [(name, members[0][1]) for name, _ in members]
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(counts[topic])))
    their_members = [
        SimpleNamespace(
            member_id=name, group_instance_id=None, metadata=SimpleNamespace(topics=sorted(topics))
        )
        for name, topics in members
    ]
    expected = {
        name: sorted(
            TopicPartition(topic, number)
            for topic, numbers in assignment.assigned_partitions
            for number in numbers
        )
        for name, assignment in theirs.assign(cluster, their_members).items()
    }
    found = ours(counts, [want(name, *topics) for name, topics in members])
    assert {name: sorted(each) for name, each in found.items()} == expected


# --- what always holds ---------------------------------------------------------------------------


def check_all_once(
    counts: dict[str, int], members: list[MemberSubscription], found: Assignments
) -> None:
    wanted = {topic for member in members for topic in member.topics}
    everything = [TopicPartition(t, n) for t in wanted for n in range(counts[t])]
    assert Counter(each for mine in found.values() for each in mine) == Counter(everything)
    for member in members:
        assert {each.topic for each in found[member.member_id]} <= member.topics


def check_even(members: list[MemberSubscription], found: Assignments) -> None:
    """Who has two more than another has nothing that the other one wants."""
    for poor in members:
        for rich in members:
            mine, theirs = found[poor.member_id], found[rich.member_id]
            if len(theirs) - len(mine) >= 2:
                assert not [each for each in theirs if each.topic in poor.topics]


@given(counts=COUNTS, members=MEMBERS)
def test_every_strategy_gives_all_away_once(
    counts: dict[str, int], members: list[tuple[str, frozenset[str]]]
) -> None:
    wants = [want(name, *topics) for name, topics in members]
    for assignor in ASSIGNORS.values():
        check_all_once(counts, wants, assignor.assign(counts, wants))


@given(counts=COUNTS, members=MEMBERS, data=st.data())
def test_sticky_is_even_and_moves_nothing_without_need(
    counts: dict[str, int], members: list[tuple[str, frozenset[str]]], data: st.DataObject
) -> None:
    wants = [want(name, *topics) for name, topics in members]
    first = sticky(counts, wants, {})
    check_even(wants, first)
    held = {each: name for name, mine in first.items() for each in mine}
    again = sticky(counts, wants, held)
    assert {each: name for name, mine in again.items() for each in mine} == held
    # One goes: what the others had stays with them.
    gone = data.draw(st.sampled_from(wants))
    left = [each for each in wants if each is not gone]
    if left:
        owners = {each: name for each, name in held.items() if name != gone.member_id}
        after = sticky(counts, left, owners)
        check_even(left, after)
        if all(each.topics == left[0].topics for each in left):
            for member in left:
                assert set(first[member.member_id]) <= set(after[member.member_id])


@given(counts=COUNTS, sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5), data=st.data())
def test_cooperative_rounds_come_to_an_end_and_no_partition_is_with_two(
    counts: dict[str, int], sizes: list[int], data: st.DataObject
) -> None:
    """Members come and go; rounds follow each other until nobody has to give up anything."""
    held: Assignments = {}
    generation = 0
    for size in sizes:
        names = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=size, max_size=size))
        held = {name: held.get(name, []) for name in sorted(set(names))}
        for _ in range(4):
            generation += 1
            wants = [
                MemberSubscription(name, frozenset("xyz"), tuple(mine), generation - 1)
                for name, mine in held.items()
            ]
            after = cooperative_sticky(counts, wants)
            for name, mine in after.items():
                for other, theirs in held.items():
                    assert name == other or not set(mine) & set(theirs)
            is_settled = all(set(held[name]) <= set(mine) for name, mine in after.items())
            held = after
            if is_settled:
                break
        else:
            raise AssertionError("it does not come to an end")
        check_all_once(counts, wants, held)
        check_even(wants, held)


def test_many_members_and_partitions_are_shared_out_in_no_time() -> None:
    """Ten thousand to a thousand, after half of them had everything."""
    counts = {"x": 10_000}
    first = cooperative_sticky(counts, [want(f"m{number:04}", "x") for number in range(500)])
    wants = [
        MemberSubscription(name, frozenset("x"), tuple(mine), 1) for name, mine in first.items()
    ]
    wants += [want(f"n{number:04}", "x") for number in range(500)]
    second = cooperative_sticky(counts, wants)
    assert {len(second[f"m{number:04}"]) for number in range(500)} == {10}
    assert {len(second[f"n{number:04}"]) for number in range(500)} == {0}
