"""`format("onceflow")` for `spark.read` and `spark.readStream`: the face towards Spark, which only
translates. Found by Spark through `pyspark_onceflow`.

Spark makes these objects in processes of its own: the schema is asked for in one, a stream's
offsets in another that lives as long as the query, tasks run in workers. Nothing is connected to
before it is needed, and what is pickled holds options only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from onceflow.runtime import RealClock
from onceflow.spark.errors import InvalidOptions, raises_briefly
from onceflow.spark.source.offsets import OffsetSpan
from onceflow.spark.source.options import SourceOptions
from onceflow.spark.source.task import ReadTask

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.spark.source.cluster import SourceCluster
    from onceflow.spark.source.stream import Admission, StreamOffsets

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


class OnceflowSource(DataSource):
    """Topics of Onceflow or Apache Kafka."""

    @classmethod
    def name(cls) -> str:
        return "onceflow"

    def schema(self) -> StructType:
        """Like Spark's own Kafka source. Spark asks for it first, so wrong options raise here."""
        options = self._read_options()
        options.warn()
        return _schema(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options_for(schema)
        options.check_batch()
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        options = self._options_for(schema)
        options.check_stream()
        return StreamReader(options)

    def _read_options(self) -> SourceOptions:
        return SourceOptions.of(dict(self.options))

    def _options_for(self, schema: StructType) -> SourceOptions:
        options = self._read_options()
        if schema != _schema(options):
            raise InvalidOptions(
                ["the schema cannot be chosen: leave .schema(...) out; columns picks some"]
            )
        return options


def _schema(options: SourceOptions) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in options.columns])


class Spans(InputPartition):
    """What one task reads."""

    def __init__(self, value: tuple[OffsetSpan, ...]) -> None:
        super().__init__(value)


class _Reading:
    """What batches and streams have in common."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._task = ReadTask(options.settings, options.columns, options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition.value or ())


class BatchReader(_Reading, DataSourceReader):
    """All that is there between two positions."""

    def partitions(self) -> Sequence[InputPartition]:
        from onceflow.spark.source.batch import batch_tasks
        from onceflow.spark.source.cluster import SourceCluster

        cluster = SourceCluster(self._options.settings)
        try:
            return [Spans(task) for task in batch_tasks(self._options, cluster, RealClock())]
        finally:
            cluster.close()


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Goes on for ever, in batches."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._cluster: SourceCluster | None = None
        self._known_offsets: StreamOffsets | None = None

    @property
    def _offsets(self) -> StreamOffsets:
        """Made where it is asked for: in the process that lives as long as the query."""
        if self._known_offsets is None:
            from onceflow.spark.source.cluster import SourceCluster
            from onceflow.spark.source.stream import StreamOffsets

            self._cluster = SourceCluster(self._options.settings)
            self._known_offsets = StreamOffsets(self._options, self._cluster, RealClock())
        return self._known_offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return self._offsets.initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        options = self._options
        if options.max_offsets is not None:  # that there is a least is known without Spark
            return ReadMaxRows(options.max_offsets)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    @raises_briefly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's
        return self._offsets.latest(start, self._admission(limit))

    def _admission(self, limit: ReadLimit) -> Admission:
        from onceflow.spark.source.stream import ALL, Admission

        match limit:
            case ReadMaxRows(most):
                return Admission(most=most, least=self._options.min_offsets)
            case ReadMinRows(least):
                return Admission(least=least)
            case _:
                return ALL

    @raises_briefly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        self._offsets.take_available()

    @raises_briefly
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        return self._offsets.report()

    @raises_briefly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Spans(task) for task in self._offsets.tasks(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        self._offsets.batch_done()

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
