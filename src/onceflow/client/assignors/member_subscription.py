"""What the assignors take and give: the subscription of each member, and its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from onceflow.client.codec import NO_GENERATION
from onceflow.client.events import GROUPS
from onceflow.types import TopicPartition


class MemberSubscription(NamedTuple):
    """A member of the group: the topics it subscribes to, and the partitions it owned in which
    generation."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    instance_id: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """The order of members. Static ones come first, by the name that they keep, so that one
        that comes back under another member id is given the same."""
        return self.instance_id is None, self.instance_id or self.member_id


MemberSubscriptions: TypeAlias = Sequence[MemberSubscription]
PartitionCounts: TypeAlias = Mapping[str, int]
"""Of the topics that exist."""
Assignments: TypeAlias = dict[str, list[TopicPartition]]
"""By member id; each member is in there."""


def log_unreadable_subscription(member_id: str, error: object) -> None:
    GROUPS.warning(
        "unreadable",
        "member %(member_id)r gets no partitions, as its subscription cannot be read: %(reason)s",
        member_id=member_id,
        reason=str(error),
    )
