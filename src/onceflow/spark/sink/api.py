"""Spark frames into topics, exactly once: a micro-batch is one transaction.

    query = (
        write_stream(frame, topic="totals", bootstrap="localhost:9092", name="totals")
        .option("checkpointLocation", "/data/checkpoints/totals")
        .outputMode("update")
        .start()
    )

Whatever dies, and whenever: when the query is started again on its checkpoint, every row of the
output is there once for readers of committed records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from onceflow.client import ClientSettings, committed_offsets
from onceflow.runtime import RealClock
from onceflow.spark.errors import CommitUnclear
from onceflow.spark.formats import dead_letters as dead_letters
from onceflow.spark.sink.batch import BatchJob, BatchWriter
from onceflow.spark.sink.identity import SinkIdentity
from onceflow.spark.sink.job import JobRunner, writing_in_plan
from onceflow.spark.sink.ledger import Planned
from onceflow.spark.sink.options import (
    LEDGER_TOPIC,
    TRANSACTION_TIMEOUT_MS,
    SinkOptions,
    checked_options,
)
from onceflow.spark.sink.preflight import prepare_cluster, run_on_own_thread
from onceflow.spark.sink.run import prepare_sink
from onceflow.spark.source import by_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def write_stream(
    df: DataFrame,
    *,
    bootstrap: str,
    name: str,
    topic: str | None = None,
    group: str | None = None,
    ledger_topic: str = LEDGER_TOPIC,
    dead_letter_topic: str | None = None,
    narrow: bool = False,
    continue_from_group: bool = False,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    settings: Mapping[str, object] | None = None,
    **more: object,
) -> DataStreamWriter:
    """A writer to be started as usual; it needs a `checkpointLocation`, and its query is called
    `name`.

    `name` stays the same as long as the query lives, and belongs to no other. `group` is where
    source offsets are committed, `name` by default. Other settings of the client go by Kafka's
    names, in `settings` or as keywords. Raises `SinkRefused` with all that is wrong.
    """
    options = checked_options(
        df,
        SinkIdentity.of_query(name, group, ledger_topic),
        is_stream=True,
        topic=topic,
        dead_letter_topic=dead_letter_topic,
        narrow=narrow,
        continue_from_group=continue_from_group,
        bootstrap=bootstrap,
        timeout_ms=transaction_timeout_ms,
        settings={**(settings or {}), **more},
    )
    sink = prepare_sink(df.sparkSession, options)
    from onceflow.spark.sink.query import SinkWriter  # Spark is loaded by now

    return SinkWriter(writing_in_plan(df, options), sink)


def write(
    df: DataFrame,
    *,
    bootstrap: str,
    topic: str | None = None,
    name: str | None = None,
    ledger_topic: str = LEDGER_TOPIC,
    dead_letter_topic: str | None = None,
    narrow: bool = False,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    settings: Mapping[str, object] | None = None,
    **more: object,
) -> int:
    """Writes a frame as one transaction; the number of rows.

    With a `name`, what an earlier write of that name has left open is ended first, and of two at
    the same time one is stopped. Raises `SinkRefused` with all that is wrong.
    """
    run_id = str(uuid4())
    options = checked_options(
        df,
        SinkIdentity.of_write(name or f"onceflow-{run_id}", ledger_topic),
        is_stream=False,
        topic=topic,
        dead_letter_topic=dead_letter_topic,
        narrow=narrow,
        continue_from_group=False,
        bootstrap=bootstrap,
        timeout_ms=transaction_timeout_ms,
        settings={**(settings or {}), **more},
    )
    return _write_once(df, options, run_id)


def _write_once(df: DataFrame, options: SinkOptions, run_id: str) -> int:
    retention_ms = prepare_cluster(options, reads=False)
    planned = Planned(run_id, 0, "", RealClock().wall_ms())

    def attempt() -> int:
        with (
            closing(BatchWriter(options, offsets_retention_ms=retention_ms)) as writer,
            closing(JobRunner(df.sparkSession, writer)) as jobs,
        ):
            job = BatchJob(
                planned=planned,
                source_offsets={},
                # Planned anew for each try: a plan that has failed may keep its failed parts.
                run=lambda transaction: jobs.run(writing_in_plan(df, options), transaction),
                is_wanted=lambda: True,
            )
            writer.adopt(run_id)
            writer.take_over()
            rows = writer.write(job)
            return writer.committed_rows if rows is None else rows

    try:
        return attempt()
    except CommitUnclear:
        # The ledger tells whether it was committed; if it was not, it is written now.
        return attempt()


def starting_offsets(*, bootstrap: str, group: str, **settings: object) -> str:
    """Where a group has come to, in the form of a source's option `startingOffsets`: for a query
    whose checkpoint is lost, to be started with `continue_from_group=True`."""
    from onceflow.client import Cluster

    made = ClientSettings.of({"bootstrap.servers": bootstrap}, **settings)

    async def ask() -> Any:
        async with Cluster(made.bootstrap_servers, made.cluster()) as cluster:
            return await committed_offsets(cluster, group)

    return json.dumps(by_topic(run_on_own_thread(ask())))
