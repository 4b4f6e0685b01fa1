"""Arrow pipelines: Spark distributes ranges of offsets, and each task reads, transforms, encodes
and writes in one Python stage, under the sink's own transaction, ledger and claims.

The function is given a `pyarrow.Table` of the records of one partition, in pieces of any size, and
returns a table, or two: `(good, bad)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from onceflow.spark.errors import InvalidPipeline, KeyProblem, SinkRefused
from onceflow.spark.formats import Misfit, Parser, zone_of
from onceflow.spark.pipeline.arrow_source import SINK, TASKS, SpansSource, spans_source
from onceflow.spark.pipeline.arrow_task import ArrowTask
from onceflow.spark.pipeline.frames import carry_by_value
from onceflow.spark.pipeline.plan import PipelinePlan, SourcePlan
from onceflow.spark.pipeline.sink import PipelineSink, prepare_cluster_or_refuse, sink_settings
from onceflow.spark.sink import (
    LEDGER_TOPIC,
    TOKEN,
    SinkIdentity,
    SinkOptions,
    SinkTopics,
    TaskFunction,
    check_spark,
    producer_settings,
    run_job,
)
from onceflow.spark.source import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_ZONE: Final = "spark.sql.session.timeZone"
_PIECE: Final = "max.partition.fetch.bytes"
PIECE_BYTES: Final = 4 << 20
"""What a function is given at a time, unless it is set: each piece has a price of its own."""


def start_arrow(
    session: SparkSession, plan: PipelinePlan, bootstrap: str
) -> tuple[DataFrame, PipelineSink]:
    """The frame of reports, and the sink in whose transactions tasks write. Raises `SinkRefused`,
    and `InvalidPipeline` for what only the cluster knows to be wrong."""
    if problems := list(check_spark(dict(session.sparkContext.getConf().getAll()))):
        raise SinkRefused(problems)
    options = _sink_options(plan, bootstrap)
    limits = prepare_cluster_or_refuse(options)
    partitions = _partitions(plan, options)
    carry_by_value(plan.base)
    sink = PipelineSink(
        session, options, run_job, base=plan.base, offsets_retention_ms=limits.offsets_retention_ms
    )
    task = task_of(plan, bootstrap, partitions, _zone(session))
    return _reports(session, plan, bootstrap, options, task), sink


def _zone(session: SparkSession) -> str:
    """That of the session; raises `InvalidPipeline` where only Spark knows it."""
    zone = str(session.conf.get(_ZONE))
    try:
        zone_of(zone)
        pa.scalar(0, pa.timestamp("ms", zone)).cast(pa.string())
    except (Misfit, pa.ArrowInvalid):
        text = f"{zone!r} is not a time zone that Arrow knows: write Europe/Berlin or +02:00"
        raise InvalidPipeline([KeyProblem(("settings", _ZONE), text)]) from None
    return zone


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
        narrow=True,
    )


def _partitions(plan: PipelinePlan, options: SinkOptions) -> int:
    """How many the sink has. Dead letters go by the same numbers, so that each of their partitions
    has one task, too."""
    topics = SinkTopics(options.settings, options.topics, create=_make_nothing)
    try:
        sizes = topics.refresh().counts()
    finally:
        topics.close()
    partitions = sizes[plan.sink.topic or ""]
    letters = partitions if plan.dead_letters is None else sizes[plan.dead_letters]
    if letters < partitions:
        problem = (
            f"{plan.dead_letters!r} has {letters} partitions and {plan.sink.topic!r} has "
            f"{partitions}: an Arrow pipeline needs as many for dead letters"
        )
        raise InvalidPipeline([KeyProblem(("dead_letters", "topic"), problem)])
    return partitions


def _make_nothing(name: str) -> None:
    """All topics are there already."""


def _reports(
    session: SparkSession, plan: PipelinePlan, bootstrap: str, options: SinkOptions, task: ArrowTask
) -> DataFrame:
    """A stream of what tasks report that read, transform and write."""
    work = TaskFunction(settings=options.settings, token=TOKEN)
    session.dataSource.register(spans_source(work, task))
    (source,) = plan.sources
    chosen = {
        **_source_options(plan, source, bootstrap),
        SINK: task.sink.topic or "",
        TASKS: str(session.sparkContext.defaultParallelism),
    }
    return session.readStream.format(SpansSource.name()).options(**chosen).load()


def _source_options(plan: PipelinePlan, source: SourcePlan, bootstrap: str) -> dict[str, str]:
    options = {**plan.reader_settings, **source.options, "kafka.bootstrap.servers": bootstrap}
    if not any(key.lower().removeprefix("kafka.") == _PIECE for key in options):
        options[_PIECE] = str(PIECE_BYTES)
    return options


def task_of(plan: PipelinePlan, bootstrap: str, partitions: int, zone: str = "UTC") -> ArrowTask:
    """What tasks do with the records of a pipeline, for a sink of so many partitions."""
    (source,) = plan.sources
    options = SourceOptions.of(_source_options(plan, source, bootstrap))
    function = plan.transform.load()
    if function is None:
        raise InvalidPipeline([KeyProblem(("transform", "arrow"), "there is no function")])
    return ArrowTask(
        settings=options.settings,
        fail_on_data_loss=options.fail_on_data_loss,
        parser=Parser(source.format, source.schema, source.format_options, zone),
        function=function,
        sink=plan.sink,
        partitions=partitions,
        dead_letters=plan.dead_letters,
        zone=zone,
    )
