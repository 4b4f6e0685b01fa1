"""A topic in which the broker keeps state of its own: made when first needed, read at a start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onceflow.broker.topics.internal_logs import POLICIES
from onceflow.broker.topics.internal_replay import Unapplied
from onceflow.broker.topics.metadata_log import log_batches
from onceflow.broker.topics.partition import Partition
from onceflow.broker.topics.topics import Topic, Topics
from onceflow.errors import RecordError
from onceflow.log import Ticket
from onceflow.records import PlainRecord, read_placed
from onceflow.runtime import Clock


class OwnTopic:
    """One such topic; what its records mean is for those who derive from it."""

    def __init__(self, topics: Topics, clock: Clock, name: str, partitions: int) -> None:
        self._topics = topics
        self._clock = clock
        self._name = name
        self._partitions = partitions
        self._creation: Ticket | None = None

    @property
    def partition_count(self) -> int:
        """How many it has, or will have once it is made. Which partition keeps an id goes by this
        number: that of a topic which is there stands, whatever the setting says now."""
        topic = self._topics.by_name.get(self._name)
        return self._partitions if topic is None else len(topic.partitions)

    def make(self) -> list[Ticket]:
        """Sees to it that the topic is there; what an answer that relies on it has to await."""
        self._topic()
        return [self._creation] if self._creation is not None else []

    def _topic(self) -> Topic:
        topic = self._topics.by_name.get(self._name)
        if topic is None:
            topic, self._creation = self._topics.create(
                self._name, self._partitions, dict(POLICIES[self._name])
            )
        return topic

    def _to_replay(self) -> Sequence[Partition]:
        """Its partitions, none while it was not made."""
        topic = self._topics.by_name.get(self._name)
        return () if topic is None else topic.partitions

    @staticmethod
    def _placed_records(
        partition: Partition, unapplied: Unapplied
    ) -> Iterator[tuple[int, PlainRecord]]:
        """All records of a partition but for markers, each with its offset."""
        for batch in log_batches(partition.log):
            if batch.header.is_control:
                continue
            records = read_placed(batch)
            try:
                yield from records
            except RecordError as error:  # in the midst of a batch; the others are not touched
                unapplied.add(partition.index, batch.header.base_offset, error)
