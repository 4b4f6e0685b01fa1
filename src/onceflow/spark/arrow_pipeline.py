"""Arrow pipelines: Spark distributes ranges of offsets, and each task reads, transforms, encodes
and writes in one Python stage, under the sink's own transaction, ledger and claims.

The function is given a `pyarrow.Table` of the records of one partition, in pieces of any size, and
returns a table, or two: `(good, bad)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceflow.client.transfer import OpenTransaction
from onceflow.spark import batch_run_points as points
from onceflow.spark.arrow_pipeline_source import NAMES, TARGETS, TASKS, SpansSource
from onceflow.spark.arrow_pipeline_task import ArrowTask
from onceflow.spark.checks import check_spark, producer_settings
from onceflow.spark.claims import ClaimService
from onceflow.spark.formats_arrow import Parser
from onceflow.spark.identity import SinkIdentity
from onceflow.spark.options import SourceOptions
from onceflow.spark.pipeline_errors import InvalidPipeline, Problem
from onceflow.spark.pipeline_frames import carry_by_value
from onceflow.spark.pipeline_plan import PipelinePlan
from onceflow.spark.pipeline_sink import PipelineSink, ask_cluster, sink_settings
from onceflow.spark.routing import Layout
from onceflow.spark.routing_frame import map_in_arrow
from onceflow.spark.sink_errors import SinkRefused
from onceflow.spark.sink_options import LEDGER_TOPIC, SinkOptions
from onceflow.spark.sink_topics import Topics
from onceflow.spark.writing import REPORT, Report, TaskPlan, write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def start_arrow(
    session: SparkSession, plan: PipelinePlan, bootstrap: str
) -> tuple[DataFrame, PipelineSink]:
    """The frame of spans, and the sink that reads and writes them. Raises `SinkRefused`, and
    `InvalidPipeline` for what only the cluster knows to be wrong."""
    if problems := list(check_spark(dict(session.sparkContext.getConf().getAll()))):
        raise SinkRefused(problems)
    options = _sink_options(plan, bootstrap)
    says = ask_cluster(options)
    partitions = _partitions(plan, options)
    carry_by_value(plan.base)
    job = _Job(_task(plan, bootstrap, partitions))
    sink = PipelineSink(
        session, options, job, base=plan.base, forgets_after_ms=says.forgets_after_ms
    )
    return _spans(session, plan, bootstrap, partitions), sink


def _sink_options(plan: PipelinePlan, bootstrap: str) -> SinkOptions:
    settings, timeout_ms = sink_settings(plan)
    identity = SinkIdentity.of_query(plan.name, None, LEDGER_TOPIC)
    return SinkOptions(
        identity=identity,
        settings=producer_settings(
            settings,
            bootstrap=bootstrap,
            transactional_id=identity.transactional_id,
            timeout_ms=timeout_ms,
        ),
        topic=plan.sink.topic,
        dead_letter_topic=plan.dead_letters,
    )


def _partitions(plan: PipelinePlan, options: SinkOptions) -> int:
    """How many the sink has. Dead letters go by the same numbers, so that each of their partitions
    has one task, too."""
    topics = Topics(options.settings, options.topics, make=_make_nothing)
    try:
        sizes = topics.refresh().counts()
    finally:
        topics.close()
    partitions = sizes[plan.sink.topic or ""]
    letters = partitions if plan.dead_letters is None else sizes[plan.dead_letters]
    if letters < partitions:
        told = (
            f"{plan.dead_letters!r} has {letters} partitions and {plan.sink.topic!r} has "
            f"{partitions}: an Arrow pipeline needs as many for dead letters"
        )
        raise InvalidPipeline([Problem(("dead_letters", "topic"), told)])
    return partitions


def _make_nothing(name: str) -> None:
    """All topics are there already."""


def _spans(session: SparkSession, plan: PipelinePlan, bootstrap: str, partitions: int) -> DataFrame:
    session.dataSource.register(SpansSource)
    (source,) = plan.sources
    options = {
        **plan.reader_settings,
        **source.options,
        "kafka.bootstrap.servers": bootstrap,
        TARGETS: str(partitions),
        TASKS: str(session.sparkContext.defaultParallelism),
    }
    return session.readStream.format(SpansSource.name()).options(**options).load()


def _task(plan: PipelinePlan, bootstrap: str, partitions: int) -> ArrowTask:
    (source,) = plan.sources
    options = SourceOptions.of({**source.options, "bootstrap.servers": bootstrap})
    if plan.transform.function is None:
        raise InvalidPipeline([Problem(("transform", "arrow"), "there is no function")])
    return ArrowTask(
        settings=plan.readers(bootstrap),
        fail_on_data_loss=options.fail_on_data_loss,
        parser=Parser(source.format, source.schema, source.format_options),
        function=plan.transform.function,
        sink=plan.sink,
        partitions=partitions,
        dead_letters=plan.dead_letters,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """Lets the tasks of a batch read, transform and write."""

    task: ArrowTask

    def __call__(
        self,
        frame: DataFrame,
        options: SinkOptions,
        layout: Layout,
        transaction: OpenTransaction,
        service: ClaimService,
    ) -> list[Report]:
        task = self.task
        plan = TaskPlan(
            transaction=transaction,
            settings=options.settings,
            layout=layout,
            door=service.door,
            tasks=None,
            keys_decide=False,
            reached=points.reached,
        )

        def work(spans: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_rows(plan, task.rows(spans, layout))

        found: list[Any] = map_in_arrow(frame, NAMES, work, REPORT).collect()
        return [Report(*row) for row in found]
