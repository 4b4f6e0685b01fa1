"""The queries that the Spark bench compares: the same records from topic to topic, keys and values
as they are. All take what is there when they start, in batches of one size, and then end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.spark.pipeline.pipeline import Pipeline
from onceflow.spark.sink.api import write_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SHORT_POLL_MS: Final = 5
"""Else the built-in source waits half a second at the end of each partition."""


class Job(NamedTuple):
    """One run of a query."""

    name: str
    bootstrap: str
    source: str
    sink: str
    rows_a_batch: int
    checkpoint: str


def _started(writer: DataStreamWriter, job: Job) -> StreamingQuery:
    return (
        writer.option("checkpointLocation", job.checkpoint)
        .queryName(job.name)
        .trigger(availableNow=True)
        .start()
    )


# --- Spark's own connector ----------------------------------------------------------------------


def _from_kafka(session: SparkSession, job: Job) -> DataFrame:
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": job.bootstrap,
        "kafka.fetch.max.wait.ms": SHORT_POLL_MS,
        "subscribe": job.source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": job.rows_a_batch,
    }
    return session.readStream.format("kafka").options(**options).load().select("key", "value")


def built_in(session: SparkSession, job: Job) -> StreamingQuery:
    """Source and sink of Spark: at least once."""
    options = {"kafka.bootstrap.servers": job.bootstrap, "topic": job.sink}
    writer = _from_kafka(session, job).writeStream.format("kafka").options(**options)
    return _started(writer, job)


def foreach(session: SparkSession, job: Job) -> StreamingQuery:
    """As it is mostly written: a producer of confluent-kafka in each task, row by row."""

    def send(rows: Iterator[Row]) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": job.bootstrap, "linger.ms": 5})
        for row in rows:
            while True:
                try:
                    producer.produce(job.sink, bytes(row.value), bytes(row.key))
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.01)
        producer.flush()

    def write(frame: DataFrame, _batch: int) -> None:
        frame.foreachPartition(send)

    return _started(_from_kafka(session, job).writeStream.foreachBatch(write), job)


# --- ours ---------------------------------------------------------------------------------------


def _from_onceflow(session: SparkSession, job: Job, columns: str) -> DataFrame:
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": job.bootstrap,
        "subscribe": job.source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": job.rows_a_batch,
        "columns": columns,
        "maxPartitions": session.sparkContext.defaultParallelism,
    }
    return session.readStream.format("onceflow").options(**options).load()


def narrow(session: SparkSession, job: Job) -> StreamingQuery:
    """Exactly once; rows stay in the partition they come from."""
    frame = _from_onceflow(session, job, "key,value,partition")
    writer = write_stream(
        frame, bootstrap=job.bootstrap, topic=job.sink, name=job.name, narrow=True
    )
    return _started(writer, job)


def by_key(session: SparkSession, job: Job) -> StreamingQuery:
    """Exactly once; a shuffle brings rows to the partition where their key belongs."""
    frame = _from_onceflow(session, job, "key,value")
    writer = write_stream(frame, bootstrap=job.bootstrap, topic=job.sink, name=job.name)
    return _started(writer, job)


def arrow(session: SparkSession, job: Job) -> StreamingQuery:
    """Exactly once; an Arrow pipeline, with a Python function in the middle."""

    def same(table: pa.Table) -> pa.Table:
        return table

    return _arrow_pipeline(session, job, same)


def upper(session: SparkSession, job: Job) -> StreamingQuery:
    """The same, with a function that does something: all letters become upper-case."""

    def upper_case(table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc
        from pyarrow import binary, string

        at = table.schema.get_field_index("value")
        letters = pc.ascii_upper(table.column(at).cast(string()))
        return table.set_column(at, "value", letters.cast(binary()))

    return _arrow_pipeline(session, job, upper_case)


def _arrow_pipeline(
    session: SparkSession, job: Job, function: Callable[[pa.Table], pa.Table]
) -> StreamingQuery:
    pipeline = Pipeline(
        name=job.name,
        checkpoint=job.checkpoint,
        base=Path(job.checkpoint).parent,
        source={
            "bootstrap": job.bootstrap,
            "topics": [job.source],
            "format": "raw",
            "options": {"maxOffsetsPerTrigger": job.rows_a_batch},
        },
        transform={"arrow": function},
        sink={"topic": job.sink, "format": "raw", "key": "_key"},
    )
    return pipeline.start(session, once=True).query


QUERIES: Final[dict[str, Callable[[SparkSession, Job], StreamingQuery]]] = {
    "builtin": built_in,
    "foreach": foreach,
    "narrow": narrow,
    "key": by_key,
    "arrow": arrow,
    "upper": upper,
}
