"""The source of an Arrow pipeline: the offsets of `format("onceflow")`, with tasks that do all the
work on the records themselves. The rows that Spark sees are their reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from onceflow.runtime import RealClock
from onceflow.spark.errors import AttemptRefused, InvalidOptions, raises_briefly
from onceflow.spark.pipeline.arrow_task import ArrowTask, shared_out
from onceflow.spark.sink import REPORT, MadeRows, TaskFunction, TopicLayout, pickled, unpickled
from onceflow.spark.source import OffsetSpan, OnceflowSource, SourceOptions, StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

SINK: Final = "sink"
TASKS: Final = "tasks"
_LOOK_AROUND_S: Final = 1.0
"""How old the number of the sink's partitions may be."""
SCHEMA: Final = StructType([StructField(REPORT, BinaryType())])


class SpansSource(OnceflowSource):
    """Takes the options of its parent, `sink` (the topic that is written to) and `tasks` (how many
    there may be in a batch)."""

    work: ClassVar[bytes] = b""
    """What tasks do, pickled once: Spark passes it from process to process, and not all of them
    know what it is made of."""

    @classmethod
    def name(cls) -> str:
        return "onceflow-spans"

    def schema(self) -> StructType:
        self._read_options()
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        raise InvalidOptions(["an Arrow pipeline is a stream"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        sink, tasks = self.options[SINK], int(self.options[TASKS])
        return SpansReader(self._read_options(), self.work, sink, tasks)

    def _read_options(self) -> SourceOptions:
        own = (SINK, TASKS)
        return SourceOptions.of({key: self.options[key] for key in self.options if key not in own})


class Share(InputPartition):
    """What one task reads, and the number of the sink's partitions when it was planned: by that
    spans are given to tasks, so that no partition has two, and by that they are written."""

    def __init__(self, spans: tuple[OffsetSpan, ...], targets: int) -> None:
        super().__init__((spans, targets))


class SpansReader(StreamReader):
    """A stream of spans."""

    def __init__(self, options: SourceOptions, work: bytes, sink: str, tasks: int) -> None:
        super().__init__(options)
        self._work = work
        self._sink = sink
        self._tasks = tasks
        self._targets = 0
        self._looked_at = -math.inf

    @raises_briefly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        spans = [span for task in self._offsets.tasks(start, end) for span in task]
        targets = self._count_targets(spans) if spans else 1
        return [Share(task, targets) for task in shared_out(spans, targets, self._tasks)]

    def _count_targets(self, spans: Sequence[OffsetSpan]) -> int:
        """As many as there are now, or were a moment ago: partitions may be added. Where a source
        has got more, its sink may have, too, and keys belong elsewhere from then on."""
        now = RealClock().monotonic()
        is_known = all(span.partition < self._targets for span in spans)
        is_old = now - self._looked_at >= _LOOK_AROUND_S
        if self._cluster is not None and (is_old or not is_known):
            self._targets = self._cluster.partition_count(self._sink)
            self._looked_at = now
        return self._targets

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        work: TaskFunction
        task: ArrowTask
        work, task = unpickled(self._work)
        spans, targets = partition.value
        return work.write_made(lambda at: _made(replace(task, partitions=targets), spans, at))


def _made(task: ArrowTask, spans: tuple[OffsetSpan, ...], layout: TopicLayout) -> MadeRows:
    """Raises `AttemptRefused` for a sink that has lost partitions."""
    there = layout.counts()[task.sink.topic or ""]
    if there < task.partitions:
        raise AttemptRefused(
            f"{task.sink.topic!r} had {task.partitions} partitions when the batch was planned, and "
            f"has {there}: it was deleted and recreated. Start the query again"
        )
    return MadeRows(task.rows(spans, layout), task.targets(spans, layout))


def spans_source(work: TaskFunction, task: ArrowTask) -> type[SpansSource]:
    """The source for one pipeline; it goes to Spark by value."""

    class Source(SpansSource):
        pass

    Source.work = pickled((work, task))
    return Source
