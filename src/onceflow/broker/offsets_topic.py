"""`__consumer_offsets`: made when first needed, appended to by the groups, read again at start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from onceflow.broker.topics import OFFSETS_TOPIC, Topic, Topics
from onceflow.group.events import Producer
from onceflow.log.journal import Ticket
from onceflow.log.partition_log import PartitionLog
from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.plain import PlainRecord, write_records
from onceflow.runtime.clock import Clock

_CONFIG = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    # A start reads all of it, and only what is sealed is compacted: less than Kafka's 100 MiB.
    "segment.bytes": "16777216",
}
_READ_BYTES = 1 << 20


class OffsetsTopic:
    """The log of all groups, as the group service sees it."""

    def __init__(self, topics: Topics, clock: Clock, partitions: int) -> None:
        self._topics = topics
        self._clock = clock
        self._partitions = partitions
        self._creation: Ticket | None = None

    def make(self) -> list[Ticket]:
        """Sees to it that the topic is there; what an answer that relies on it has to await."""
        self._topic()
        return [self._creation] if self._creation is not None else []

    def _topic(self) -> Topic:
        topic = self._topics.by_name.get(OFFSETS_TOPIC)
        if topic is None:
            topic, self._creation = self._topics.create(OFFSETS_TOPIC, self._partitions, _CONFIG)
        return topic

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: Producer | None,
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

    def replay(self, into: Callable[[int, StoredBatch], None]) -> None:
        """Every batch of every partition, in each one's order."""
        topic = self._topics.by_name.get(OFFSETS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            for batch in _batches(partition.log):
                into(partition.index, batch)


def _batches(log: PartitionLog) -> Iterator[StoredBatch]:
    offset = log.start_offset
    while offset < log.high_watermark:
        for batch in iter_stored(log.read(offset, _READ_BYTES).read()):
            offset = batch.header.next_offset
            yield batch
