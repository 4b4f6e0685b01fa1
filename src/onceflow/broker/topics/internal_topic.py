"""A topic in which the broker keeps state of its own: made when first needed, read at a start.

One bad record must not keep a broker from ever starting again, nor be lost without a word: it is
skipped, named in the log with its place and the reason, and counted. It stays in the log.

A record that a newer version wrote is another matter. There is nothing wrong with it, and a start
that skips it forgets what it says, such as a committed offset. So the start refuses and says how to
go on: with that version, or with `skip.unknown.records`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onceflow.broker.topics.internal_logs import POLICIES
from onceflow.broker.topics.metadata_log import log_batches
from onceflow.broker.topics.partition import HostedPartition
from onceflow.broker.topics.topics import HostedTopic, Topics
from onceflow.errors import NewerFormat, NewerRecord, OnceflowError, RecordError
from onceflow.log import Ticket
from onceflow.records import PlainRecord, read_placed
from onceflow.runtime import Clock

_MOST_NAMED = 100
"""One cause can spoil a million records: the others are only counted."""

_log = logging.getLogger(__name__)


class _Newer(NamedTuple):
    partition: int
    offset: int
    error: NewerRecord


class Unapplied:
    """The records of one topic that a start could not apply."""

    def __init__(self, topic: str, *, skip_unknown: bool = False) -> None:
        self._topic = topic
        self._skip_unknown = skip_unknown
        self._newer: list[_Newer] = []
        self.skipped = 0

    def add(self, partition: int, offset: int, error: OnceflowError) -> None:
        """Takes note of one record, or of what follows it in its batch."""
        if isinstance(error, NewerRecord) and not self._skip_unknown:
            self._newer.append(_Newer(partition, offset, error))
            return
        self.skipped += 1
        if self.skipped <= _MOST_NAMED:
            _log.error(
                "skipped the record at offset %d of %s-%d, which cannot be applied: %s",
                offset,
                self._topic,
                partition,
                error,
            )

    def tell(self) -> None:
        """All records were read. Raises `NewerFormat` where a newer version wrote some of them."""
        if self._newer:
            partition, offset, error = self._newer[0]
            raise NewerFormat(
                f"{len(self._newer)} records of {self._topic} were written by a newer version, the "
                f"first at offset {offset} of partition {partition}: {error}. Nothing was changed. "
                "Start the version that wrote them, or start once with skip.unknown.records = true "
                "(onceflow serve --set skip.unknown.records=true): then what they say is forgotten"
            )
        if self.skipped:
            _log.error(
                "skipped %d records of %s that cannot be applied: what they said of groups or "
                "transactions does not count; the first %d are named above",
                self.skipped,
                self._topic,
                min(self.skipped, _MOST_NAMED),
            )


class InternalTopic:
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

    def _topic(self) -> HostedTopic:
        topic = self._topics.by_name.get(self._name)
        if topic is None:
            topic, self._creation = self._topics.create(
                self._name, self._partitions, dict(POLICIES[self._name])
            )
        return topic

    def _to_replay(self) -> Sequence[HostedPartition]:
        """Its partitions, none while it was not made."""
        topic = self._topics.by_name.get(self._name)
        return () if topic is None else topic.partitions

    @staticmethod
    def _placed_records(
        partition: HostedPartition, unapplied: Unapplied
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
