"""The source of an Arrow pipeline: the offsets of `format("onceflow")`, but its tasks do all there
is to do with the records, and what Spark is given are their reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from onceflow.spark.arrow_pipeline_task import ArrowTask, shared_out
from onceflow.spark.options import SourceOptions
from onceflow.spark.source import OnceflowSource, Spans, StreamReader
from onceflow.spark.source_errors import InvalidOptions
from onceflow.spark.writing import Made, Work
from onceflow.spark.writing_note import pickled, unpickled
from onceflow.spark.writing_report import REPORT

if TYPE_CHECKING:
    import pyarrow as pa

TARGETS: Final = "targets"
TASKS: Final = "tasks"
SCHEMA: Final = StructType([StructField(REPORT, BinaryType())])


class SpansSource(OnceflowSource):
    """Takes the options of its parent, `targets` (how many partitions the sink has) and `tasks`
    (how many there may be in a batch)."""

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
        targets, tasks = int(self.options[TARGETS]), int(self.options[TASKS])
        return SpansReader(self._read_options(), self.work, targets, tasks)

    def _read_options(self) -> SourceOptions:
        own = (TARGETS, TASKS)
        return SourceOptions.of({key: self.options[key] for key in self.options if key not in own})


class SpansReader(StreamReader):
    """A stream of spans."""

    def __init__(self, options: SourceOptions, work: bytes, targets: int, tasks: int) -> None:
        super().__init__(options)
        self._work = work
        self._targets = targets
        self._tasks = tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = [span for task in self._offsets.tasks(start, end) for span in task]
        return [Spans(task) for task in shared_out(found, self._targets, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        work: Work
        task: ArrowTask
        work, task = unpickled(self._work)
        spans = partition.value or ()
        return work.write_made(lambda at: Made(task.rows(spans, at), task.targets(spans, at)))


def spans_source(work: Work, task: ArrowTask) -> type[SpansSource]:
    """The source for one pipeline; it goes to Spark by value."""

    class Source(SpansSource):
        pass

    Source.work = pickled((work, task))
    return Source
