"""Who reads what: the leader of a group gives each partition to one member.

Pure functions of the members' subscriptions and of how many partitions the topics have. `range` and
`roundrobin` answer as Kafka's own do; `cooperative-sticky` is in `sticky`. All of them go by
member id, or by `group.instance.id` where there is one, so that the assignment is the same for
every leader of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Final, NamedTuple, TypeAlias

from onceflow.client.assignors.member_subscription import (
    Assignments,
    MemberSubscriptions,
    PartitionCounts,
)
from onceflow.client.assignors.sticky import cooperative_sticky
from onceflow.client.codec import ConsumerProtocolSubscription
from onceflow.types import TopicPartition

Assign: TypeAlias = Callable[[PartitionCounts, MemberSubscriptions], Assignments]


def assign_range(counts: PartitionCounts, wants: MemberSubscriptions) -> Assignments:
    """Topic by topic, neighbouring partitions to each member; the first ones get one more when it
    does not come out even. Topics with equal numbers of partitions are shared out alike."""
    given: Assignments = {each.member_id: [] for each in wants}
    for topic, readers in _by_topic(wants).items():
        count = counts.get(topic, 0)
        share, rest = divmod(count, len(readers))
        start = 0
        for index, member_id in enumerate(readers):
            stop = start + share + (index < rest)
            given[member_id] += [TopicPartition(topic, each) for each in range(start, stop)]
            start = stop
    return given


def assign_roundrobin(counts: PartitionCounts, wants: MemberSubscriptions) -> Assignments:
    """All partitions of all topics in order, one after the other to the next member that wants its
    topic."""
    given: Assignments = {each.member_id: [] for each in wants}
    readers = _by_topic(wants)
    members = cycle(sorted(wants, key=lambda each: each.rank))
    for topic in sorted(readers):
        for number in range(counts.get(topic, 0)):
            member = next(each for each in members if topic in each.topics)
            given[member.member_id].append(TopicPartition(topic, number))
    return given


def _by_topic(wants: MemberSubscriptions) -> dict[str, list[str]]:
    """Topics in order, each with those who want it, in order."""
    readers: dict[str, list[str]] = {}
    for member in sorted(wants, key=lambda each: each.rank):
        for topic in set(member.topics):
            readers.setdefault(topic, []).append(member.member_id)
    return dict(sorted(readers.items()))


class Assignor(NamedTuple):
    """A strategy, as `partition.assignment.strategy` names it."""

    name: str
    assign: Assign
    is_cooperative: bool
    """Members keep what they hold while they join, and give up only what they lose."""


_ALL: Final = (
    Assignor("range", assign_range, False),
    Assignor("roundrobin", assign_roundrobin, False),
    Assignor("cooperative-sticky", cooperative_sticky, True),
)
ASSIGNORS: Final[Mapping[str, Assignor]] = {each.name: each for each in _ALL}


def user_data(assignor: Assignor, subscription: ConsumerProtocolSubscription) -> bytes | None:
    """What a member adds to its subscription for one strategy: older members of other makes look
    for the generation here."""
    if not assignor.is_cooperative:
        return None
    return subscription.generation.to_bytes(4, "big", signed=True)
