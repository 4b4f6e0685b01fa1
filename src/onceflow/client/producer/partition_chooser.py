"""Where a record goes: as it was told, as its key says, else where those without one are gathered.

What is known of the topic decides. It is asked for when nothing is known, when that is too old
(`metadata.max.age.ms`; or records of one key would go on to two partitions), and when the partition
that was told is none of those that are known. A topic that is not there is created by brokers that
do so (`auto.create.topics.enable`), as for Apache Kafka's own producer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from onceflow.client.errors import ClientError, NoSuchPartition, TopicNotFound
from onceflow.client.net import Cluster
from onceflow.client.producer.partitioner import StickyPartitioner
from onceflow.client.types import TopicPartition
from onceflow.records import partition_for_key

NOWHERE: Final = -1
"""No partition has that number."""
_SOON_S: Final = 1.0
"""So long a record waits for news of a topic that is known: what is old is better than nothing."""
_CREATION_S: Final = 5.0
"""So long, and at most for `max.block.ms`, a record waits for its topic to be created: a broker
that never does so gives the same answer as one that has just begun."""
_AGAIN_S: Final = 10.0
"""When there were none, so long none waits for them."""


class Places:
    """Of one producer."""

    __slots__ = ("_cluster", "_may_create", "_not_before", "_patience_s", "_seen", "sticky")

    def __init__(
        self,
        cluster: Cluster,
        sticky: StickyPartitioner,
        *,
        max_block_ms: int = 60_000,
        may_create: bool = True,
    ) -> None:
        self._cluster = cluster
        self._may_create = may_create
        self._patience_s = min(max_block_ms / 1000, _CREATION_S)
        self._not_before = 0.0
        self._seen: set[str] = set()
        """Topics that were there."""
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
        partitions = await self.count(topic, NOWHERE if partition is None else partition)
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

    async def count(self, topic: str, wanted: int = NOWHERE) -> int:
        """How many partitions a topic has; raises `TopicNotFound`. Whether there is one of the
        number `wanted` by now is asked for when that is not known."""
        partitions = self._cluster.known_partitions(topic)
        if partitions is None:
            partitions = await self._found(topic)
        elif self._cluster.is_old(topic):
            partitions = await self._renewed(topic, partitions)
        if wanted >= partitions:
            with suppress(TopicNotFound):  # by a broker that is behind
                partitions = len((await self._cluster.metadata([topic]))[0].partitions)
        return partitions

    async def _found(self, topic: str) -> int:
        """A topic that was there is not gone because one broker does not know it, which may be
        behind: that is asked for some time, as one that may be created."""
        if self._may_create or topic in self._seen:
            await self._cluster.await_topic(topic, self._patience_s, create=self._may_create)
        self._seen.discard(topic)
        found = await self._cluster.find_topic(topic)
        self._seen.add(topic)
        return len(found.partitions)

    async def _renewed(self, topic: str, partitions: int) -> int:
        """How many there are now; as many as before when nobody says so soon."""
        now = asyncio.get_running_loop().time
        if now() < self._not_before:
            return partitions
        try:
            async with asyncio.timeout(_SOON_S):
                found = await self._cluster.topic(topic)
        except TopicNotFound:
            return await self._found(topic)
        except (TimeoutError, ClientError):
            self._not_before = now() + _AGAIN_S
            return partitions
        if self._cluster.is_old(topic):
            self._not_before = now() + _AGAIN_S
        return len(found.partitions)
