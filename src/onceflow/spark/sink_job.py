"""A batch as a job of Spark: the frame of all rows that are written, routed, and its tasks."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from onceflow.client.transfer import OpenTransaction
from onceflow.spark import batch_run_points as points
from onceflow.spark.claims import ClaimBook, ClaimService
from onceflow.spark.dead_letters import DEAD_LETTER, with_dead_letters
from onceflow.spark.routing import Layout
from onceflow.spark.routing_frame import (
    Columns,
    gathered,
    literal,
    map_in_arrow,
    narrow,
    routed,
    written_names,
)
from onceflow.spark.sink_options import SinkOptions
from onceflow.spark.sink_topics import Topics
from onceflow.spark.writing import REPORT, Report, TaskPlan, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def claim_service(session: SparkSession, book: ClaimBook, topics: Topics) -> ClaimService:
    """On this machine only where all tasks are, else where executors find the driver."""
    conf = session.sparkContext.getConf()
    if str(session.sparkContext.master).startswith("local"):
        host = bind = "127.0.0.1"
    else:
        host = conf.get("spark.driver.host") or "127.0.0.1"
        bind = conf.get("spark.driver.bindAddress") or host
    return ClaimService(book, host, bind, topics.meet)


def run_job(
    frame: DataFrame,
    options: SinkOptions,
    layout: Layout,
    transaction: OpenTransaction,
    service: ClaimService,
) -> list[Report]:
    """What the tasks of a batch report, when all have written."""
    door, book = service.door, service.book
    known = None if options.asks_rows else layout
    tasks = None if options.narrow else _tasks(frame, known)
    names = set(frame.columns)
    plan = TaskPlan(
        transaction=transaction,
        settings=options.settings,
        layout=known,
        door=door,
        tasks=tasks,
        keys_decide=options.narrow and "partition" not in names,
        reached=points.reached,
    )

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_rows(plan, batches)

    rows, columns = written_frame(frame, names, options)
    if tasks is None:
        placed = narrow(rows, columns, layout)
    else:
        placed = gathered(routed(rows, columns, known, door, plan.told), tasks)
    reports = map_in_arrow(placed, written_names(columns), task, REPORT)
    found: list[Any] = _collected(reports, book, transaction)
    return [Report(*row) for row in found]


def _collected(frame: DataFrame, book: ClaimBook, transaction: OpenTransaction) -> list[Any]:
    """The rows of a frame whose job is cancelled as soon as one of its tasks has failed: Spark
    would try it again, and each time it would be refused."""
    context = frame.sparkSession.sparkContext
    tag = f"onceflow-{transaction.producer_id}-{transaction.producer_epoch}-{uuid4().hex}"

    def cancel() -> None:
        with suppress(Exception):  # it only saves time
            context.cancelJobsWithTag(tag)

    book.give_up = cancel
    context.addJobTag(tag)
    try:
        return frame.collect()
    finally:
        context.removeJobTag(tag)


def written_frame(
    frame: DataFrame, names: Set[str], options: SinkOptions
) -> tuple[DataFrame, Columns]:
    """A frame of all rows that are written, and over it the columns that count, in the types in
    which they are written."""
    wanted = {"key", "value", "headers", "partition"} & names
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


def _tasks(frame: DataFrame, layout: Layout | None) -> int:
    """No more than there are cores: each costs."""
    cores = frame.sparkSession.sparkContext.defaultParallelism
    return max(1, cores if layout is None else min(cores, layout.total))
