"""What the answers of a broker mean to a reader of exactly one range of offsets; no input and no
output, for readers of any kind.

Offsets that hold no record (markers, what was aborted or compacted away) are passed over; a range
is read to its end even where nothing is left at the end of it.
"""

from __future__ import annotations

from onceflow.client.codec import FetchAnswer
from onceflow.client.consumer.isolation import PartitionFilter
from onceflow.client.errors import RecordsUnreadable
from onceflow.errors import InvalidSetting, OnceflowError
from onceflow.records import StoredBatch, iter_stored
from onceflow.types import TopicPartition


class RangeReading:
    """The progress of one range. `position` is the offset to be fetched next."""

    __slots__ = ("_filter", "_read_committed", "end", "partition")

    def __init__(
        self, partition: TopicPartition, start: int, end: int, *, read_committed: bool
    ) -> None:
        if not 0 <= start <= end:
            raise InvalidSetting(
                f"offsets {start} up to {end} of partition {partition} are no range; give a start "
                "of 0 or more and an end that is not below it"
            )
        self.partition = partition
        self.end = end
        self._read_committed = read_committed
        self._filter = PartitionFilter(start, read_committed=read_committed)

    @property
    def position(self) -> int:
        return min(self._filter.position, self.end)

    @property
    def is_done(self) -> bool:
        return self._filter.position >= self.end

    def is_readable_to_the_end(self, answer: FetchAnswer) -> bool:
        """Whether no open transaction and no missing replica holds back a part of the range."""
        bound = answer.last_stable_offset if self._read_committed else answer.high_watermark
        return bound >= self.end

    def take(self, answer: FetchAnswer, *, is_alone: bool = True) -> list[StoredBatch]:
        """The batches of an answer that has no error, those that begin behind the range left out;
        the first and the last may reach out of it. Raises `RecordsUnreadable`.

        `is_alone`: it was the only partition that was asked for, so that a broker that sends
        nothing has nothing below the offset up to which it may be read.
        """
        if not answer.records:
            if is_alone and self.is_readable_to_the_end(answer):
                self._filter.seek(self.end)
            return []
        before = self._filter.position
        self._filter.begin(answer.aborted)
        taken = []
        try:
            for batch in self._filter.visible(iter_stored(answer.records)):
                if batch.header.base_offset >= self.end:
                    break
                taken.append(batch)
        except OnceflowError as error:
            if not taken:
                position = self._filter.position
                raise RecordsUnreadable.of(self.partition, position, error) from error
        if self._filter.position == before:
            raise RecordsUnreadable.of(self.partition, before, "not one whole batch was sent")
        return taken
