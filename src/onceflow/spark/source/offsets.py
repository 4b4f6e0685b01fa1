"""Offsets as Spark keeps them in a checkpoint, and the arithmetic of planning; pure functions.

The offset of a batch says where the batch begins and where it ends:

    {"from": {"orders": {"0": 100, "1": 7}}, "to": {"orders": {"0": 180, "1": 7}}}

With topic ids, where brokers have them, it also says which logs these are: a topic that is deleted
and recreated has another id.

    {"from": ..., "to": ..., "ids": {"orders": "4d63edc8-8a8e-4f0a-bbbd-33a0ba8bd9ac"}}

Spark logs only the end of a batch before it runs it, and asks again where a query begins when it
runs the first batch again. With the beginning inside the end, a batch that is run again is the
same batch, whatever "earliest" or "latest" mean by then. Topics and partitions are in order, so
that equal offsets are equal texts. What Spark's own Kafka source has logged is read too: a query
may go on from its checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from onceflow.spark.errors import OffsetsUnreadable
from onceflow.types import TopicPartition

Offsets: TypeAlias = Mapping[TopicPartition, int]
LogEntry: TypeAlias = dict[str, Any]
"""What `json.dumps` makes a line of Spark's log of."""

_FROM: Final = "from"
_TO: Final = "to"
_IDS: Final = "ids"
NOTHING_YET: Final[Mapping[str, Any]] = {}
"""The offset before the first batch, always the same: where that begins is decided, once, when its
end is."""
RECORDS_WORTH_A_TASK: Final = 1000


class OffsetSpan(NamedTuple):
    """Records of one partition, from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    """Of the topic whose log this was when it was planned, where brokers give topics ids."""

    @property
    def size(self) -> int:
        """How many offsets; of records there may be fewer."""
        return self.end - self.start

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Where a batch ends, and where it begins in those partitions where that is known."""

    start: Offsets
    end: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)
    """Of topics, as far as they are known."""

    def to_log(self) -> LogEntry:
        entry: LogEntry = {_FROM: by_topic(self.start), _TO: by_topic(self.end)}
        if self.ids:
            entry[_IDS] = dict(sorted(self.ids.items()))
        return entry

    @classmethod
    def from_log(cls, entry: Mapping[str, Any]) -> BatchOffsets:
        """Raises `OffsetsUnreadable`. Of Spark's own source, and before the first batch, there is
        no start."""
        try:
            if _is_ours(entry):
                start, end = _partitions(entry[_FROM]), _partitions(entry[_TO])
                return cls(start, end, _texts(entry.get(_IDS, {})))
            return cls({}, _partitions(entry))
        except (AttributeError, TypeError, ValueError) as error:
            raise OffsetsUnreadable(
                f"the checkpoint holds {entry!r}, which is not an offset of this source; was it "
                "made by a query with another source? Use a new checkpoint for a new query"
            ) from error


def _is_ours(entry: Mapping[str, Any]) -> bool:
    """Topics may be called `from`, `to` and `ids`; theirs would be one level less deep."""
    return {_FROM, _TO} <= set(entry) <= {_FROM, _TO, _IDS} and all(
        isinstance(partitions, Mapping)
        for name in (_FROM, _TO)
        for partitions in entry[name].values()
    )


def _texts(ids: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(each, str) for each in ids.values()):
        raise ValueError(f"{ids!r} are no ids")
    return dict(ids)


def _partitions(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    offsets = {}
    for topic, partitions in topics.items():
        for number, offset in partitions.items():
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise ValueError(f"{offset!r} is no offset")
            offsets[TopicPartition(topic, int(number))] = offset
    return offsets


def by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets in the form in which Spark's options and checkpoints have them."""
    topics: dict[str, dict[str, int]] = {}
    for topic, number in sorted(offsets):
        topics.setdefault(topic, {})[str(number)] = offsets[TopicPartition(topic, number)]
    return topics


def spans(start: Offsets, end: Offsets, ids: Mapping[str, str]) -> list[OffsetSpan]:
    """What lies between, in order; partitions where that is nothing are left out."""
    return [
        OffsetSpan(
            partition.topic,
            partition.partition,
            start[partition],
            end[partition],
            ids.get(partition.topic),
        )
        for partition in sorted(end)
        if partition in start and start[partition] < end[partition]
    ]


# --- how much at once ---------------------------------------------------------------------------


def limited(limit: int, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Ends that leave about `limit` offsets to be read, of each partition in proportion to what it
    has; one that has something gets at least one, as in Spark's own source."""
    sizes = {
        partition: end[partition] - start[partition]
        for partition in end
        if start[partition] < end[partition]
    }
    total = sum(sizes.values())
    if not total:
        return dict(end)
    ends = dict(end)
    for partition, size in sizes.items():
        share = limit * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        ends[partition] = min(end[partition], start[partition] + whole)
    return ends


def count_new(start: Offsets, end: Offsets) -> int:
    """How many offsets there are to be read."""
    return sum(max(0, end[partition] - start[partition]) for partition in end)


# --- who reads what -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How spans are made into tasks."""

    min_partitions: int | None = None
    """More tasks than partitions, where needed: large spans are split."""
    max_partitions: int | None = None
    """Fewer tasks than partitions, where needed: a task reads several spans."""
    max_records: int | None = None
    """No span has more offsets."""


def divide(spans: Sequence[OffsetSpan], division: Division) -> list[tuple[OffsetSpan, ...]]:
    """The spans of each task; every offset is in exactly one."""
    parts = [span for span in spans if span.size > 0]
    if division.max_records is not None:
        parts = [
            part
            for span in parts
            for part in _split(span, math.ceil(span.size / division.max_records))
        ]
    if division.min_partitions is not None and len(parts) < division.min_partitions:
        parts = _spread(parts, division.min_partitions)
    if division.max_partitions is not None and len(parts) > division.max_partitions:
        return _gather(parts, division.max_partitions)
    return [(part,) for part in parts]


def worth_tasks(spans: Iterable[OffsetSpan], tasks: int) -> int:
    """How many of so many tasks are worth it: of few records, starting another one costs more than
    it saves."""
    total = sum(span.size for span in spans)
    return max(1, min(tasks, total // RECORDS_WORTH_A_TASK))


def _split(span: OffsetSpan, parts: int) -> list[OffsetSpan]:
    """Parts of one size, give or take one offset; never an empty one."""
    parts = max(1, min(parts, span.size))
    borders = [span.start + span.size * number // parts for number in range(parts + 1)]
    return [span._replace(start=start, end=end) for start, end in pairwise(borders)]


def _spread(parts: Sequence[OffsetSpan], wanted: int) -> list[OffsetSpan]:
    """About so many parts: spans that would stay whole are taken out first, the others are split
    in proportion to their size."""
    total = sum(part.size for part in parts)
    large = [part for part in parts if _share(part.size, total, wanted) > 1]
    left = max(1, wanted - (len(parts) - len(large)))
    total_large = sum(part.size for part in large)
    shares = {part: _share(part.size, total_large, left) for part in large}
    return [piece for part in parts for piece in _split(part, shares.get(part, 1))]


def _share(size: int, total: int, wanted: int) -> int:
    return max(1, math.floor(size / total * wanted + 0.5))


def _gather(parts: Iterable[OffsetSpan], wanted: int) -> list[tuple[OffsetSpan, ...]]:
    """So many tasks of about one size: largest part first, each to the task with the least."""
    tasks: list[list[OffsetSpan]] = [[] for _ in range(wanted)]
    sizes = [0] * wanted
    for part in sorted(parts, key=lambda part: (-part.size, part)):
        least = sizes.index(min(sizes))
        tasks[least].append(part)
        sizes[least] += part.size
    return [tuple(sorted(task)) for task in tasks if task]
