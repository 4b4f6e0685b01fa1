"""A batch of a session: what came with one poll, as records and as columns.

It is decoded once, into columns. Records are made of these when the caller goes through them, one
by one: a thousand that are there at the same time cost the garbage collector more than to make
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from onceflow.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.client.consumer import Columns, Record


_PLACE: Final = ("topic", "partition", "offset")


class Batch:
    """Records of one or several partitions, in order within each."""

    __slots__ = ("_firsts", "_parts", "_table", "_values", "was_read")

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._parts: list[pa.RecordBatch] = table.to_batches()
        self._firsts: dict[TopicPartition, int] | None = None
        self._values: list[Columns] | None = None
        self.was_read = False
        """Whether the caller went through its records."""

    def __len__(self) -> int:
        rows: int = self._table.num_rows
        return rows

    def __iter__(self) -> Iterator[Record]:
        from onceflow.client.consumer import records_in

        self.was_read = True
        return chain.from_iterable(map(records_in, self._unpacked()))

    def __repr__(self) -> str:
        places = ", ".join(f"{place} from {first}" for place, first in self.firsts().items())
        return f"<Batch of {len(self)} records: {places}>"

    def table(self) -> pa.Table:
        """The same, as columns of `fetched.FETCHED_SCHEMA`: key, value, topic, partition, offset,
        timestamp, timestamp_type, headers."""
        return self._table

    def firsts(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that is in it."""
        found = self._firsts
        if found is None:
            found = self._firsts = {}
            for part in self._parts:  # each of one partition
                topic, number, offset = (part.column(each)[0].as_py() for each in _PLACE)
                found.setdefault(TopicPartition(topic, number), offset)
        return found

    def prepare(self, *, records: bool) -> None:
        """What is needed when it is handed out, and for its `records`: when there is time."""
        self.firsts()
        if records:
            self._unpacked()

    def _unpacked(self) -> list[Columns]:
        if self._values is None:
            from onceflow.client.consumer import values_of

            self._values = list(map(values_of, self._parts))
        return self._values
