"""Shared out evenly, and with as few changes as that allows; what has to change hands does so in
two steps.

Even means: where one member has two partitions more than another, that other one wants none of
them. What is given up by one member is not given to another in the same round: the one first hears
that it lost it, gives it up and joins again, and the round after that gives it away. So no member
has to give up anything in advance, and no partition is ever with two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle, islice

from onceflow.client.assignors.member_subscription import (
    Assignments,
    MemberSubscription,
    MemberSubscriptions,
    PartitionCounts,
)
from onceflow.types import TopicPartition


def cooperative_sticky(counts: PartitionCounts, wants: MemberSubscriptions) -> Assignments:
    """What each member is to hold after this round."""
    owners = valid_owners(counts, wants)
    claims: dict[TopicPartition, set[str]] = {}
    for member in wants:
        for partition in member.owned:
            claims.setdefault(partition, set()).add(member.member_id)
    return {
        member_id: [
            each
            for each in partitions
            if owners.get(each) == member_id or not claims.get(each, set()) - {member_id}
        ]
        for member_id, partitions in sticky(counts, wants, owners).items()
    }


def valid_owners(counts: PartitionCounts, wants: MemberSubscriptions) -> dict[TopicPartition, str]:
    """Who holds what by right: of several who say so, who has it from the newest generation, and
    nobody when there are two of those."""
    owners: dict[TopicPartition, str] = {}
    since: dict[TopicPartition, int] = {}
    for member in wants:
        for partition in member.owned:
            newest = since.get(partition)
            if newest is None or member.generation > newest:
                since[partition] = member.generation
                owners[partition] = member.member_id
            elif member.generation == newest and owners.get(partition) != member.member_id:
                owners.pop(partition, None)
    topics = {member.member_id: member.topics for member in wants}
    return {
        partition: member_id
        for partition, member_id in owners.items()
        if partition.topic in topics[member_id]
        and 0 <= partition.partition < counts.get(partition.topic, 0)
    }


def sticky(
    counts: PartitionCounts, wants: MemberSubscriptions, owners: Mapping[TopicPartition, str]
) -> Assignments:
    """The even assignment that is nearest to what is held now; all at once."""
    members = sorted(wants, key=lambda each: each.rank)
    wanted = {topic for member in members for topic in member.topics}
    partitions = [
        TopicPartition(topic, number)
        for topic in sorted(wanted)
        for number in range(counts.get(topic, 0))
    ]
    held: Assignments = {member.member_id: [] for member in members}
    for partition in partitions:
        if partition in owners:
            held[owners[partition]].append(partition)
    if all(member.topics == members[0].topics for member in members):
        return _shared_by_equals(partitions, held)
    return _shared_by_wish(partitions, members, held)


def _shared_by_equals(partitions: list[TopicPartition], held: Assignments) -> Assignments:
    """All want the same: each gets the same number, the first who have more keep one more."""
    share, rest = divmod(len(partitions), len(held)) if held else (0, 0)
    given: Assignments = {}
    for member_id, owned in held.items():
        keeps_more = len(owned) > share and rest > 0
        rest -= keeps_more
        given[member_id] = owned[: share + keeps_more]
    kept = {partition for each in given.values() for partition in each}
    free = iter([each for each in partitions if each not in kept])
    _deal(free, given, share)
    _deal(free, given, share + 1)
    return given


def _deal(free: Iterable[TopicPartition], given: Assignments, most: int) -> None:
    """One to each in turn, until all have `most` or nothing is left."""
    missing = {member_id: most - len(each) for member_id, each in given.items()}
    turns = (member_id for member_id in cycle(missing) if missing[member_id] > 0)
    for _ in range(sum(max(0, each) for each in missing.values())):
        found = next(iter(islice(free, 1)), None)
        if found is None:
            return
        member_id = next(turns)
        missing[member_id] -= 1
        given[member_id].append(found)


def _shared_by_wish(
    partitions: list[TopicPartition], members: list[MemberSubscription], held: Assignments
) -> Assignments:
    """Members want different topics."""
    kept = {partition for each in held.values() for partition in each}
    readers: dict[str, list[MemberSubscription]] = {}
    for member in members:
        for topic in member.topics:
            readers.setdefault(topic, []).append(member)
    free = [each for each in partitions if each not in kept]
    # Who can go to few members goes first: later there may be no even place left.
    for partition in sorted(free, key=lambda each: (len(readers[each.topic]), each)):
        taker = min(readers[partition.topic], key=lambda each: len(held[each.member_id]))
        held[taker.member_id].append(partition)
    fresh = set(free)
    while _one_move(members, held, fresh):
        pass
    return held


def _one_move(
    members: list[MemberSubscription], held: Assignments, fresh: set[TopicPartition]
) -> bool:
    """Takes one partition from a member to one that wants it and has at least two less. Each move
    makes the shares more even, so they come to an end."""
    by_load = sorted(members, key=lambda each: len(held[each.member_id]))
    for taker in by_load:
        mine = held[taker.member_id]
        for giver in reversed(by_load):
            theirs = held[giver.member_id]
            if len(theirs) - len(mine) < 2:
                break
            movable = [each for each in theirs if each.topic in taker.topics]
            if movable:
                # Rather what has only just been given out; no member has to give it up.
                moved = max(movable, key=lambda each: (each in fresh, each))
                theirs.remove(moved)
                mine.append(moved)
                return True
    return False
