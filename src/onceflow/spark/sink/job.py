"""A micro-batch as a job of Spark: the frame of all rows that are written, the shuffle that brings
them to the tasks that write them, and what those tasks report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from onceflow.client import OpenTransaction
from onceflow.spark.errors import RAISED, find_cause
from onceflow.spark.formats import DEAD_LETTER, with_dead_letters
from onceflow.spark.sink import task_plan
from onceflow.spark.sink.claims import AttemptFailure, ClaimService, Epoch
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.routing import TopicLayout, with_short_offsets
from onceflow.spark.sink.shuffle import PACKED, PACKED_NAMES, PART, WAY, unpack
from onceflow.spark.sink.task import pack_rows, write_rows
from onceflow.spark.sink.task_plan import (
    REPORT_SCHEMA,
    Report,
    TaskPlan,
    TaskSecrets,
    reports_from_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from onceflow.spark.sink.batch import BatchWriter

TOKEN: Final = token_hex(16)
"""Of the claims of this program: it is inside the function of tasks, and that is made before there
is a service that they could ask."""
_REPORT_AT: Final = 0
_PART_AT: Final = PACKED_NAMES.index(PART)


class JobRunner:
    """Lets the tasks of one run's batches write, and answers their claims until it is closed."""

    def __init__(
        self, session: SparkSession, writer: BatchWriter, *, is_raise_final: bool = False
    ) -> None:
        """`is_raise_final` is that of `SinkSetup`."""
        self._options = writer.options
        self._topics = writer.topics
        self._book = writer.book
        self._is_raise_final = is_raise_final
        host, bind = _addresses(session.sparkContext)
        self._service = ClaimService(self._book, host, bind, self._topics.ensure, TOKEN)

    def close(self) -> None:
        self._service.close()

    def run(self, frame: DataFrame, transaction: OpenTransaction) -> list[Report]:
        """What the tasks of a batch report, when all have written. `frame` is of `writing_in_plan`,
        or, in narrow mode, any whose tasks write."""
        plan = TaskPlan(
            secrets=secrets_of(self._options),
            transaction=transaction,
            layout=None if self._options.asks_rows else self._topics.layout,
            host=self._service.client.host,
            port=self._service.client.port,
            tasks=None,
            is_shuffled=False,
            reached=task_plan.reached,
        )
        try:
            return self._reports(frame, plan)
        except Exception as error:
            if self._is_raise_final:
                self._add_raised(error, plan.epoch)
            raise
        finally:
            prepare_next(frame.sparkSession)

    def _reports(self, frame: DataFrame, plan: TaskPlan) -> list[Report]:
        if self._options.narrow:
            return self._collected(frame, _REPORT_AT, plan)
        if plan.layout is not None and in_one_task(frame):
            # It has all rows, so it may write them wherever they belong.
            return self._collected(frame, _PART_AT, replace(plan, tasks=1))
        tasks = _tasks(frame, plan.layout)
        function = _writing_packets(frame.sparkSession.sparkContext, plan.secrets)
        written = map_in_arrow(frame.repartitionById(tasks, WAY), function)
        return self._collected(written, _REPORT_AT, replace(plan, tasks=tasks, is_shuffled=True))

    def _collected(self, frame: DataFrame, at: int, plan: TaskPlan) -> list[Report]:
        """What the tasks of a frame report in one of its columns. The job is cancelled as soon as
        one has failed: Spark would try that task again, and each attempt would be refused."""
        context = frame.sparkSession.sparkContext
        tag = f"onceflow-{plan.epoch[0]}-{plan.epoch[1]}-{uuid4().hex}"

        def cancel() -> None:
            with suppress(Exception):  # it only saves time
                context.cancelJobsWithTag(tag)

        context.addJobTag(tag)
        try:
            with self._book.giving_up_by(cancel), plan.goes_with_jobs(context):
                values = collected(frame, at)
                return [each for value in values for each in reports_from_bytes(value)]
        except Exception:
            self._add_first_cause(context, tag, plan.epoch)
            raise
        finally:
            context.removeJobTag(tag)

    def _add_first_cause(self, context: SparkContext, tag: str, epoch: Epoch) -> None:
        """When all that is known is that attempts came too late: what the first one ended with."""
        failures = self._book.failures
        if failures and all(each.is_late for each in failures):
            cause = first_cause(context, tag)
            if cause:
                self._book.add_failure(epoch, AttemptFailure(cause, is_final=False))

    def _add_raised(self, error: Exception, epoch: Epoch) -> None:
        """What a row has raised, as the reason not to try again. The job's own error may only say
        that a later attempt of its task was refused."""
        texts = (str(error), *(each.message for each in self._book.failures))
        causes = (find_cause(text, Path("/")) for text in texts)
        cause = next((each for each in causes if each and each.kind == RAISED), None)
        if cause is not None:
            failure = AttemptFailure(f"[{cause.kind}] {cause.text}", is_final=True)
            self._book.add_failure(epoch, failure)


def _addresses(context: SparkContext) -> tuple[str, str]:
    """Where claims are asked for, and where the driver listens for them: on this machine only where
    all tasks are, else where executors find the driver."""
    if str(context.master).startswith("local"):
        return "127.0.0.1", "127.0.0.1"
    conf = context.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host


def writing_in_plan(frame: DataFrame, options: SinkOptions) -> DataFrame:
    """A frame whose own plan does what can be done without a shuffle: in narrow mode it writes its
    rows, and has reports as rows; else it packs them. What is behind a shuffle is planned for each
    try of a batch, so that no shuffle is that of an earlier one."""
    secrets = secrets_of(options)
    rows, columns = written_frame(frame, options)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_rows(secrets, batches)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack_rows(secrets, batches)

    function, schema = (write, REPORT_SCHEMA) if options.narrow else (pack, PACKED)
    return map_in_arrow(selected(rows, columns), arrow_function(list(columns), function, schema))


def secrets_of(options: SinkOptions) -> TaskSecrets:
    return TaskSecrets(options.settings, TOKEN)


@lru_cache(maxsize=8)
def _writing_packets(_context: SparkContext, secrets: TaskSecrets) -> Any:
    """Making the function takes milliseconds, and it is the same for all batches of a query."""

    def write(packets: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_rows(secrets, unpack(with_short_offsets(packets)))

    return arrow_function(PACKED_NAMES, write, REPORT_SCHEMA)


def written_frame(frame: DataFrame, options: SinkOptions) -> tuple[DataFrame, Columns]:
    """A frame of all rows that are written, and over it the columns that count, in the types in
    which they are written."""
    wanted = {"key", "value", "headers", "partition"} & set(frame.columns)
    if options.asks_rows or options.dead_letter_topic is not None:
        wanted.add("topic")
    columns = {name: _written(name, options) for name in sorted(wanted)}
    if options.dead_letter_topic is None:
        return frame, columns
    texts = [f"{text} AS {name}" for name, text in columns.items()]
    letters = with_dead_letters(
        frame.selectExpr(*texts, DEAD_LETTER),
        options.dead_letter_topic,
        keeps_partition=options.narrow,
    )
    return letters, {name: name for name in letters.columns}


def _written(name: str, options: SinkOptions) -> str:
    if name in ("key", "value"):
        return f"CAST({name} AS BINARY)"
    return literal(options.topic) if name == "topic" and options.topic else name


def _tasks(frame: DataFrame, layout: TopicLayout | None) -> int:
    """No more than there are cores: each costs."""
    cores = frame.sparkSession.sparkContext.defaultParallelism
    return max(1, cores if layout is None else min(cores, layout.total))


# --- how rows cross from the JVM to Python -------------------------------------------------------
#
# They cross in pieces of a few hundred kilobytes, the fastest size. The limit is in bytes, never in
# rows alone: Spark then looks at the size after each row, which costs some tenths of a microsecond,
# but rows can be a thousand times as large from one batch to the next, and a piece with a fixed
# number of them would not fit into memory.


PIECE_BYTES: Final = 256 << 10
CROSSING: Final = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(PIECE_BYTES),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # The shuffle of a batch is what it is: there is nothing to adapt, and each of its stages would
    # be a job of its own.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of Spark, from the second batch on; the first has those of its user, or Spark's own,
which hold pieces to 64 MB."""


def prepare_next(session: SparkSession) -> None:
    """Sets the session that Spark has made for a stream up for its next batch; any other session is
    its user's, and left alone."""
    if session.sparkContext.getLocalProperty(QUERY_ID) is not None:
        for name, value in CROSSING.items():
            session.conf.set(name, value)


# --- why a job failed in the first place ---------------------------------------------------------
#
# A job raises how its last task attempt ended. Only the first attempt may write, so that is often a
# refusal or a cancelled job; Spark's status store has what came before.


_PATIENCE_MS: Final = 5000
"""Spark notes how tasks end a moment later."""
_JVM_STACK: Final = "\n\tat "


def first_cause(context: SparkContext, tag: str) -> str | None:
    """How the first task attempt ended that failed in the jobs with this tag, without the stack of
    the JVM; None when it is not known."""
    with suppress(Exception):  # without a cause the job's own error is raised
        internal: Any = context
        spark = internal._jsc.sc()
        spark.listenerBus().waitUntilEmpty(_PATIENCE_MS)
        failed = list(_failed(internal._jvm, spark.statusStore(), tag))
        if failed:
            _, message = min(failed)
            return message.partition(_JVM_STACK)[0].strip()
    return None


def _failed(jvm: Any, store: Any, tag: str) -> Iterator[tuple[int, str]]:
    """Of each stage the first attempt that failed: when it was launched, and its error."""
    api = jvm.org.apache.spark.status.api.v1
    statuses = jvm.java.util.ArrayList()
    statuses.add(api.TaskStatus.FAILED)
    for job in _each(store.jobsList(None)):
        if not job.jobTags().contains(tag):
            continue
        for stage in _each(job.stageIds()):
            tasks = store.taskList(stage, 0, 0, 1, api.TaskSorting.ID, statuses)
            for task in _each(tasks):
                yield task.launchTime().getTime(), task.errorMessage().getOrElse(None) or ""


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


# --- frames whose tasks are functions over Arrow batches -----------------------------------------
#
# Expressions are SQL text: a Column that Python puts together asks the JVM several times for each
# of its parts, in every batch.


_OF_STREAM: Final = "LogicalRDD"
"""What Spark calls the plan of a batch, which stands for one that is made already."""
QUERY_ID: Final = "sql.streaming.queryId"
"""A local property of the threads that run a stream."""
Columns: TypeAlias = Mapping[str, str]
"""What is written or says where, by name: expressions of SQL over a frame."""


def selected(frame: DataFrame, columns: Columns) -> DataFrame:
    """Only these."""
    return frame.selectExpr(*(f"{text} AS {name}" for name, text in columns.items()))


def literal(text: str) -> str:
    """A text in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def in_one_task(frame: DataFrame) -> bool:
    """Whether a batch of a stream is computed by one task, or by none. Of other frames that is not
    known without a plan, and making one may run jobs."""
    internal: Any = frame
    plan = internal._jdf.queryExecution().logical()
    if plan.nodeName() != _OF_STREAM:
        return False
    partitions: int = plan.rdd().getNumPartitions()
    return partitions <= 1


def collected(frame: DataFrame, at: int) -> list[bytes]:
    """The column with that number, of bytes, of all rows.

    A batch of a stream is part of what Spark does for the stream, and is only run: `collect` would
    also describe it for Spark's pages and account for it as a query of its own, 7 ms each time.
    """
    if frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID) is None:
        return [bytes(row[at]) for row in frame.collect()]
    internal: Any = frame
    execution = internal._jdf.queryExecution()
    is_planned = execution.logical().nodeName() == _OF_STREAM
    plan = execution.sparkPlan() if is_planned else execution.executedPlan()
    return [bytes(row.getBinary(at)) for row in plan.executeCollect()]


def arrow_function(names: Sequence[str], function: Callable[..., Any], schema: str) -> Any:
    """A function over batches of frames with these columns, as the JVM knows it."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf: Any = UserDefinedFunction(function, _struct(schema), evalType=kind)
    return udf(*names)._jc


def map_in_arrow(frame: DataFrame, function: Any) -> DataFrame:
    """`DataFrame.mapInArrow` of an `arrow_function`; Spark's own asks for pandas and does not use
    it."""
    from pyspark.sql import DataFrame

    internal: Any = frame
    return DataFrame(internal._jdf.mapInArrow(function, False, None), frame.sparkSession)


@cache
def _struct(schema: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(schema)
