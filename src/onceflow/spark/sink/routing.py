"""Which output partition a row belongs to, as one number over all topics; pure functions.

Kafka's own rules: a partition that the row names, else the murmur2 of its key. A row without a key
goes by a hash of its value: a row that Spark computes a second time, after it has lost a machine,
then goes where it went before, in whatever order rows come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from onceflow.spark.errors import RowRefused
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_HASH: Final = 2**31 - 1
TARGET: Final = "target"
"""The column that holds the number."""
PORTION_BYTES: Final = 1 << 20
_PLACING: Final = ("topic", "partition")
"""Columns that say where a row goes, and are not written."""


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """Topics in order, each with its number of partitions; numbers run on from topic to topic. A
    topic that is added last does not change the numbers of the others."""

    topics: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(count for _, count in self.topics)

    @property
    def outside(self) -> int:
        """The number of rows that name a partition that there is not."""
        return 2**31 - 1

    def bases(self) -> dict[str, int]:
        """The number of each topic's first partition."""
        ends = accumulate((count for _, count in self.topics), initial=0)
        return {topic: base for (topic, _), base in zip(self.topics, ends, strict=False)}

    def counts(self) -> dict[str, int]:
        return dict(self.topics)

    def partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions, in order of their numbers."""
        return tuple(
            TopicPartition(topic, number) for topic, count in self.topics for number in range(count)
        )

    def numbers_of(self, topic: str) -> range:
        """Those of a topic's partitions."""
        base = self.bases()[topic]
        return range(base, base + self.counts()[topic])

    def of_task(self, task: int, tasks: int) -> range:
        """The numbers that one of so many tasks writes."""
        return range(task, self.total, tasks)

    def with_topics(self, counts: Sequence[tuple[str, int]]) -> TopicLayout:
        """Those that are new come last."""
        known = self.counts()
        new = tuple((topic, count) for topic, count in counts if topic not in known)
        return TopicLayout(self.topics + new)


def murmur2_of(keys: Any) -> Any:
    """The positive hash of each key, null for none."""
    from onceflow.records import partitions_for_keys

    return partitions_for_keys(keys, LARGEST_HASH + 1)


def hashes_of(batch: pa.RecordBatch) -> Any:
    """What decides where rows go that name no partition: the hash of the key, of a row without one
    that of its value."""
    import pyarrow.compute as pc

    names = batch.schema.names
    keys = murmur2_of(batch.column("key")) if "key" in names else None
    if keys is not None and not keys.null_count:
        return keys
    values = pc.fill_null(murmur2_of(batch.column("value")), 0)
    return values if keys is None else pc.coalesce(keys, values)


def targets(layout: TopicLayout, topics: Any | None, hashes: Any, partitions: Any | None) -> Any:
    """The number of each row: `hashes` are positive, `partitions` may be null; raises `RowRefused`
    for a row without a topic. All topics must be in the layout; None: it has one, for all rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    counts: Any = np.array([count for _, count in layout.topics], np.int64)
    bases: Any = np.array(list(layout.bases().values()), np.int64)
    if topics is not None:
        index = _topic_numbers(layout, topics)
        counts, bases = counts[index], bases[index]
    chosen = hashes.to_numpy(zero_copy_only=False).astype(np.int64) % counts
    if partitions is not None:
        named = partitions.is_valid().to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(partitions, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        chosen = np.where(named, numbers, chosen)
    fits = (chosen >= 0) & (chosen < counts)
    return pa.array(np.where(fits, bases + chosen, layout.outside).astype(np.int32))


def with_targets(batch: pa.RecordBatch, numbers: Any) -> pa.RecordBatch:
    """What is written of some rows, and the number of each."""
    import pyarrow as pa

    kept = [name for name in batch.schema.names if name not in _PLACING]
    return pa.record_batch({**{name: batch.column(name) for name in kept}, TARGET: numbers})


def placed_by_row(layout: TopicLayout, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with their targets: each goes where it says, else where its key belongs."""
    topics, partitions = (_column(batch, name) for name in _PLACING)
    return with_targets(batch, targets(layout, topics, hashes_of(batch), partitions))


def placed_where_it_was(layout: TopicLayout, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with their targets, for tasks that have rows of some partitions only: each goes where it
    says, else where its key belongs. Raises `RowRefused` for one that has neither: a hash of its
    value would bring it to the partition of another task."""
    import pyarrow as pa

    topics, partitions = (_column(batch, name) for name in _PLACING)
    if partitions is None or partitions.null_count:
        hashes = _key_hashes(batch, partitions)
    else:
        hashes = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)  # not asked for
    return with_targets(batch, targets(layout, topics, hashes, partitions))


def _key_hashes(batch: pa.RecordBatch, partitions: Any | None) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    keyless = pa.nulls(batch.num_rows, pa.int32())
    keys: Any = murmur2_of(batch.column("key")) if "key" in batch.schema.names else keyless
    known = keys if partitions is None else pc.coalesce(partitions, keys)
    if known.null_count:
        raise RowRefused(
            "a row has neither a partition nor a key, so that it is not known where it was: fill "
            "the column 'partition', or leave narrow out"
        )
    return pc.fill_null(keys, 0)


def _column(batch: pa.RecordBatch, name: str) -> Any | None:
    return batch.column(name) if name in batch.schema.names else None


def _topic_numbers(layout: TopicLayout, topics: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if topics.null_count:
        raise RowRefused("a row has no topic: fill the column 'topic', or give one topic for all")
    names = pa.array([topic for topic, _ in layout.topics], topics.type)
    found: Any = pc.index_in(topics, value_set=names)
    return found.to_numpy(zero_copy_only=False)


def unknown_topics(layout: TopicLayout, topics: Any) -> list[str]:
    """Those that rows name and that the layout lacks."""
    known = layout.counts()
    found = topics.unique().to_pylist()
    return sorted(topic for topic in found if topic is not None and topic not in known)


def with_short_offsets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the types that are used here, also where Spark's setting
    `spark.sql.execution.arrow.useLargeVarTypes` gives texts and bytes offsets of 64 bits. What
    Spark sends at once is far smaller."""
    for batch in batches:
        wanted = _short_schema(batch.schema)
        yield batch if wanted is None else batch.cast(wanted)


@lru_cache(maxsize=8)
def _short_schema(schema: pa.Schema) -> pa.Schema | None:
    """None where nothing is to be changed."""
    import pyarrow as pa

    def short(kind: Any) -> Any:
        if pa.types.is_large_binary(kind):
            return pa.binary()
        if pa.types.is_large_string(kind):
            return pa.string()
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(short(kind.value_type)))
        if pa.types.is_struct(kind):
            return pa.struct([each.with_type(short(each.type)) for each in kind])
        return kind

    wanted = pa.schema([field.with_type(short(field.type)) for field in schema])
    return None if wanted == schema else wanted


def portions(
    batches: Iterable[pa.RecordBatch], most: int = PORTION_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer, larger pieces: what a target gets of one is a record batch, and a
    broker takes large ones more easily. Spark's own are small, as that is faster for Spark. What is
    almost as large as it should be stays as it is: joining copies."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        is_other = waiting and batch.schema != waiting[0].schema
        if is_other or size >= most * 3 // 4:
            yield from _as_one(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield from _as_one(waiting)


def _as_one(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    import pyarrow as pa

    if len(batches) == 1:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


def split(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each target, in the order in which they came."""
    import numpy as np

    numbers: Any = batch.column(TARGET).to_numpy(zero_copy_only=False)
    if len(numbers) and (numbers == numbers[0]).all():
        return iter(((int(numbers[0]), batch),))
    if (numbers[1:] >= numbers[:-1]).all():
        return runs(batch, numbers)
    # Small numbers are sorted several times as fast.
    is_small = int(numbers.max()) <= np.iinfo(np.uint16).max
    order: Any = np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable")
    return runs(batch.take(order), numbers[order])


def runs(batch: pa.RecordBatch, numbers: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each number; equal numbers are side by side."""
    import numpy as np

    if not len(numbers):
        return
    borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(borders):
        yield int(numbers[start]), batch.slice(start, end - start)
