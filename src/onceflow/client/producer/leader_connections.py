"""The connections over which a producer sends: one to each leader, or two.

A broker works on the requests of one connection one after the other, and reads no more of it than
its buffer holds. So where a connection is full a second one is opened beside it, and every other
partition moves there; but only while nothing of it is under way, because order is kept within a
connection. Transactions have one: Apache Kafka lets one of two batches that bring new partitions
at the same time wait.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.client.net import Connection, Lane
from onceflow.client.types import TopicPartition


class Links:
    """Belongs to one sender, who opens them."""

    __slots__ = ("_lanes", "_links", "_may_have_two")

    def __init__(self, *, may_have_two: bool) -> None:
        self._may_have_two = may_have_two
        self._links: dict[tuple[int, Lane], Connection] = {}
        self._lanes: dict[TopicPartition, Lane] = {}

    def opened(self, leader: int, lane: Lane, link: Connection) -> None:
        self._links[leader, lane] = link

    def of(
        self, partition: TopicPartition, leader: int, is_under_way: Callable[[TopicPartition], bool]
    ) -> Connection | None:
        """The one for the next batch of a partition; None when there is none that is open."""
        if not self._may_have_two:
            return self._open(leader, Lane.SHARED)
        moves = partition.partition % 2 and self._open(leader, Lane.BESIDE) is not None
        wanted = Lane.BESIDE if moves else Lane.SHARED
        lane = self._lanes.get(partition, Lane.SHARED)
        if lane is not wanted and not is_under_way(partition):
            self._lanes[partition] = lane = wanted
        return self._open(leader, lane)

    def lacks_second(self, leader: int) -> bool:
        """Whether there may be one more connection to a leader than there is."""
        return self._may_have_two and self._open(leader, Lane.BESIDE) is None

    def _open(self, leader: int, lane: Lane) -> Connection | None:
        link = self._links.get((leader, lane))
        return link if link is not None and link.is_open else None
