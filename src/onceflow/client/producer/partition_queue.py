"""The batches of one partition that wait to be sent, in the order in which they will be."""

from __future__ import annotations

from collections import deque

from onceflow.client.producer.batch import Batch
from onceflow.client.producer.idempotence import PartitionSequences
from onceflow.client.types import TopicPartition


class Queue:
    """Those with a number come first, in the order of their numbers."""

    __slots__ = ("_open", "partition", "state", "waiting")

    def __init__(
        self, partition: TopicPartition, state: PartitionSequences, open_batches: dict[int, Batch]
    ) -> None:
        self.partition = partition
        self.state = state
        self.waiting: deque[Batch] = deque()
        self._open = open_batches

    @property
    def open(self) -> Batch | None:
        """The last one, while records may be added to it."""
        return self._open.get(self.partition.partition)

    def append(self, batch: Batch) -> None:
        """Behind all others, to which nothing is added any more; whether to this one it says."""
        self.close()
        self.waiting.append(batch)
        if batch.is_open:
            self._open[self.partition.partition] = batch

    def close(self) -> None:
        batch = self._open.pop(self.partition.partition, None)
        if batch is not None:
            batch.is_open = False

    def put_back(self, batch: Batch) -> None:
        """In front of everything that has no number, behind those with earlier numbers."""
        flight = self.state.in_flight
        place = flight.index(batch)
        position = 0
        for waiting in self.waiting:
            if waiting not in flight or flight.index(waiting) > place:
                break
            position += 1
        self.waiting.insert(position, batch)
