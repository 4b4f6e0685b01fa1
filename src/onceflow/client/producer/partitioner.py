"""Chooses the partition of a record, as Apache Kafka's Java producer does.

With a key, its murmur2 hash decides: the same key always goes to the same partition. Records
without a key stay with a partition until their batch is closed, because it is full or was sent, and
then move to another: batches become large, and all partitions get their share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from onceflow.client.errors import ClientError, NoSuchPartition, TopicNotFound
from onceflow.client.net import Cluster
from onceflow.client.producer.batch import RECORD_OVERHEAD, ProducerBatch
from onceflow.records import partition_for_key
from onceflow.runtime import Rand
from onceflow.types import TopicPartition

__all__ = ["StickyPartitioner", "partition_for_key"]


class _Sticky:
    __slots__ = ("batch", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.batch: ProducerBatch | None = None


class StickyPartitioner:
    """Remembers for each topic where records without a key are gathered."""

    def __init__(self, rand: Rand, batch_size: int) -> None:
        self._rand = rand
        self._batch_size = batch_size
        self._sticky: dict[str, _Sticky] = {}

    def partition(self, topic: str, size: int, available: Sequence[int]) -> int:
        """For a record of `size` bytes; `available` are the partitions that have a leader, or all
        if none has one."""
        sticky = self._sticky.get(topic)
        if sticky is not None:
            batch = sticky.batch
            if batch is None or (
                batch.is_open and batch.size + size + RECORD_OVERHEAD <= self._batch_size
            ):
                return sticky.partition
            others = [each for each in available if each != sticky.partition]
            available = others or available
        chosen = available[self._rand.randrange(len(available))]
        self._sticky[topic] = _Sticky(chosen)
        return chosen

    def current(self, topic: str) -> int | None:
        """Where the topic's records go as long as the batch that the last one went into takes them;
        None when another place has to be chosen."""
        sticky = self._sticky.get(topic)
        if sticky is None or sticky.batch is None or not sticky.batch.is_open:
            return None
        return sticky.partition

    def batch_of(self, topic: str) -> ProducerBatch | None:
        """The batch that the topic's last record went into."""
        sticky = self._sticky.get(topic)
        return None if sticky is None else sticky.batch

    def landed(self, topic: str, batch: ProducerBatch) -> None:
        """The batch that a record went into for which `partition` was asked."""
        sticky = self._sticky.get(topic)
        if sticky is not None and sticky.partition == batch.partition.partition:
            sticky.batch = batch

    def forget(self, topic: str) -> None:
        """The topic's partitions have changed, or the one in use has lost its leader."""
        self._sticky.pop(topic, None)


NOWHERE: Final = -1
"""No partition has that number."""
_SOON_S: Final = 1.0
"""So long a record waits for news of a topic that is known: what is old is better than nothing."""
_CREATION_S: Final = 5.0
"""So long, and at most for `max.block.ms`, a record waits for its topic to be created: a broker
that never does so gives the same answer as one that has just begun."""
_AGAIN_S: Final = 10.0
"""When there were none, so long none waits for them."""


class PartitionChooser:
    """Chooses the partition of each record: the one that the application named, the one of its key,
    or else the sticky one.

    What is known of the topic decides. Metadata is asked for when nothing is known, when it is too
    old (`metadata.max.age.ms`; else records of one key could go on to two partitions), and when the
    named partition is not a known one. Brokers with `auto.create.topics.enable` create a topic that
    does not exist, as for Apache Kafka's own producer.
    """

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
        another one; `NOWHERE` when that is not known yet."""
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
        """How many there are now; as many as before when no broker answers soon."""
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
