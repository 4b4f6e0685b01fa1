"""The batches of one partition that wait to be sent, in the order in which they will be."""

from __future__ import annotations

from collections import deque

from onceflow.client.batches import Batch
from onceflow.client.model import TopicPartition
from onceflow.client.sequences import PartitionSequences


class Queue:
    """Those with a number come first, in the order of their numbers."""

    __slots__ = ("open", "partition", "state", "waiting")

    def __init__(self, partition: TopicPartition, state: PartitionSequences) -> None:
        self.partition = partition
        self.state = state
        self.waiting: deque[Batch] = deque()
        self.open: Batch | None = None
        """The last one, while records may be added to it."""

    def close(self) -> None:
        if self.open is not None:
            self.open.is_open = False
            self.open = None

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
