"""Records that were fetched for a caller that takes them one by one, and has not taken all yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.types import TopicPartition

if TYPE_CHECKING:
    from onceflow.client.consumer.fetched import Record


class RecordIterator:
    """What is left of the last records that were polled."""

    __slots__ = ("_counted", "_next", "_records")

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._next = self._counted = 0

    def __len__(self) -> int:
        return len(self._records) - self._next

    def put(self, records: list[Record]) -> None:
        """Only when there are none left."""
        self._records, self._next, self._counted = records, 0, 0

    def one(self) -> Record | None:
        """The next one; None when there is none."""
        at = self._next
        if at == len(self._records):
            return None
        self._next = at + 1
        return self._records[at]

    def take(self, most: int) -> list[Record]:
        """The next ones."""
        end = min(self._next + most, len(self._records))
        taken = self._records[self._next : end]
        self._next = end
        return taken

    @property
    def uncounted(self) -> int:
        """How many were taken since `count`."""
        return self._next - self._counted

    def count(self) -> int:
        """How many were taken since this was last called; to be called before `put` and `drop`."""
        found, self._counted = self.uncounted, self._next
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that is left."""
        found: dict[TopicPartition, int] = {}
        for record in self._records[self._next :]:
            found.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return found

    def counts(self) -> dict[TopicPartition, int]:
        """How many are left of each partition."""
        found: dict[TopicPartition, int] = {}
        for record in self._records[self._next :]:
            partition = TopicPartition(record.topic, record.partition)
            found[partition] = found.get(partition, 0) + 1
        return found

    def drop(self) -> None:
        self.put([])
