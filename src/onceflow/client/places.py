"""Where a record goes: as it was told, as its key says, else where those without one are gathered.

What is known of the topic decides; it is asked for only when nothing is known.
"""

from __future__ import annotations

from typing import Final

from onceflow.client.cluster import Cluster
from onceflow.client.errors import NoSuchPartition
from onceflow.client.model import TopicPartition
from onceflow.client.partitioner import StickyPartitioner, partition_for_key

NOWHERE: Final = -1
"""No partition has that number."""


class Places:
    """Of one producer."""

    __slots__ = ("_cluster", "sticky")

    def __init__(self, cluster: Cluster, sticky: StickyPartitioner) -> None:
        self._cluster = cluster
        self.sticky = sticky

    def likely(self, topic: str, key: bytes | None) -> int:
        """The partition of a record for which none was given, as long as `find` would not choose
        another one; `NOWHERE` when nobody knows yet."""
        if key is None:
            current = self.sticky.current(topic)
            return NOWHERE if current is None else current
        partitions = self._cluster.known_partitions(topic)
        return NOWHERE if partitions is None else partition_for_key(key, partitions)

    async def find(
        self, topic: str, key: bytes | None, partition: int | None, size: int
    ) -> TopicPartition:
        """For a record with `size` bytes of key and value; raises `NoSuchPartition`, and
        `TopicNotFound`."""
        partitions = self._cluster.known_partitions(topic)
        if partitions is None:
            partitions = len((await self._cluster.find_topic(topic)).partitions)
        if partition is not None:
            if not 0 <= partition < partitions:
                raise NoSuchPartition(
                    f"topic {topic!r} has no partition {partition}; it has {partitions}, counted "
                    "from 0"
                )
            return TopicPartition(topic, partition)
        if key is not None:
            return TopicPartition(topic, partition_for_key(key, partitions))
        return TopicPartition(topic, self.sticky.partition(topic, size, range(partitions)))
