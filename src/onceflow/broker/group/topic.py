"""`__consumer_offsets`: made when first needed, appended to by the groups, read again at start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onceflow.broker.topics import OFFSETS_TOPIC, InternalTopic, Topics, Unapplied, log_batches
from onceflow.group import GroupProblem
from onceflow.log import Ticket
from onceflow.records import PlainRecord, StoredBatch, coordinator_partition, write_records
from onceflow.runtime import Clock
from onceflow.types import TopicPartition
from onceflow.wire import ProducerIdAndEpoch


class OffsetsTopic(InternalTopic):
    """The log of all groups, as the group service sees it."""

    def __init__(self, topics: Topics, clock: Clock, partitions: int) -> None:
        super().__init__(topics, clock, OFFSETS_TOPIC, partitions)

    def ensure_partition(self, group_id: str) -> TopicPartition:
        """The partition that keeps a group."""
        count = len(self._topic().partitions)
        return TopicPartition(OFFSETS_TOPIC, coordinator_partition(group_id, count))

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: ProducerIdAndEpoch | None,
    ) -> tuple[int, Ticket]:
        """Appends keys and values as one batch, in a producer's transaction if one is given: the
        offset of the first, and when it is durable. Raises what `Partition.append` does."""
        plain = [PlainRecord(*each) for each in records]
        now_ms = self._clock.wall_ms()
        if producer is None:
            batch = write_records(plain, now_ms)
        else:
            batch = write_records(
                plain,
                now_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=0,  # as Kafka writes it: the sequences of offsets are not checked
                transactional=True,
            )
        stored, ticket = self._topic().partitions[partition].append(batch)
        return stored.header.base_offset, ticket

    def replay(
        self, into: Callable[[int, StoredBatch], Iterable[GroupProblem]], unapplied: Unapplied
    ) -> None:
        """Every batch of every partition, in each one's order."""
        for partition in self._to_replay():
            for batch in log_batches(partition.log):
                for problem in into(partition.index, batch):
                    unapplied.add(partition.index, *problem)
        unapplied.tell()
