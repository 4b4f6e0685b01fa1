"""Which partition a record goes to, as Java's producer would have it.

A key decides by its murmur2. Records without one stay with a partition until the batch that they
gather in is closed, because it is full or was sent, and then go to another: batches get large, and
all partitions get their share.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.client.producer.batch import RECORD_OVERHEAD, Batch
from onceflow.records import partition_for_key
from onceflow.runtime import Rand

__all__ = ["StickyPartitioner", "partition_for_key"]


class _Sticky:
    __slots__ = ("batch", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.batch: Batch | None = None


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

    def batch_of(self, topic: str) -> Batch | None:
        """The batch that the topic's last record went into."""
        sticky = self._sticky.get(topic)
        return None if sticky is None else sticky.batch

    def landed(self, topic: str, batch: Batch) -> None:
        """The batch that a record went into for which `partition` was asked."""
        sticky = self._sticky.get(topic)
        if sticky is not None and sticky.partition == batch.partition.partition:
            sticky.batch = batch

    def forget(self, topic: str) -> None:
        """The topic's partitions have changed, or the one in use has lost its leader."""
        self._sticky.pop(topic, None)
