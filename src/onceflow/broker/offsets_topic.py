"""`__consumer_offsets`: made when first needed, appended to by the groups, read again at start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceflow.broker.metadata_log import log_records
from onceflow.broker.topics import OFFSETS_TOPIC, Topic, Topics
from onceflow.errors import OnceflowError
from onceflow.log.journal import Ticket
from onceflow.records.plain import PlainRecord, write_records
from onceflow.runtime.clock import Clock

_CONFIG = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}


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
        done: Callable[[Exception | None], None],
    ) -> None:
        """Appends keys and values; `done` is called when they are durable, or with the error."""
        batch = write_records([PlainRecord(*each) for each in records], self._clock.wall_ms())
        try:
            _, ticket = self._topic().partitions[partition].append(batch)
        except OnceflowError as error:
            done(error)
            return
        ticket.add_done_callback(done)

    def replay(self, into: Callable[[int, bytes, bytes | None, int], None]) -> None:
        """Every record of every partition, in each one's order."""
        topic = self._topics.by_name.get(OFFSETS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            for record in log_records(partition.log):
                if record.key is not None:
                    into(partition.index, record.key, record.value, 0)
