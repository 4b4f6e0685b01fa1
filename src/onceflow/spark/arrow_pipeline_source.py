"""The source of an Arrow pipeline: the offsets of `format("onceflow")`, but of each batch only
which records are to be read. Reading them is up to the tasks that write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from onceflow.spark.arrow_pipeline_task import shared_out
from onceflow.spark.offsets import OffsetSpan
from onceflow.spark.options import SourceOptions
from onceflow.spark.source import OnceflowSource, Spans, StreamReader
from onceflow.spark.source_errors import InvalidOptions

if TYPE_CHECKING:
    import pyarrow as pa

TARGETS: Final = "targets"
TASKS: Final = "tasks"
SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("start", LongType()),
        StructField("end", LongType()),
    ]
)
NAMES: Final = SCHEMA.fieldNames()


class SpansSource(OnceflowSource):
    """Takes the options of its parent, `targets` (how many partitions the sink has) and `tasks`
    (how many there may be in a batch)."""

    @classmethod
    def name(cls) -> str:
        return "onceflow-spans"

    def schema(self) -> StructType:
        self._read_options()
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        raise InvalidOptions(["an Arrow pipeline is a stream"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        return SpansReader(
            self._read_options(), int(self.options[TARGETS]), int(self.options[TASKS])
        )

    def _read_options(self) -> SourceOptions:
        own = (TARGETS, TASKS)
        return SourceOptions.of({key: self.options[key] for key in self.options if key not in own})


class SpansReader(StreamReader):
    """A stream of spans."""

    def __init__(self, options: SourceOptions, targets: int, tasks: int) -> None:
        super().__init__(options)
        self._targets = targets
        self._tasks = tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = [span for task in self._offsets.tasks(start, end) for span in task]
        return [Spans(task) for task in shared_out(found, self._targets, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        spans: tuple[OffsetSpan, ...] = partition.value or ()
        columns = list(zip(*spans, strict=True)) or [(), (), (), ()]
        types = (pa.string(), pa.int32(), pa.int64(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=NAMES)
