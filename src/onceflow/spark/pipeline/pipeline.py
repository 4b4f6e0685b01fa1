"""Pipelines: source topics, a format, SQL or a function, a sink topic; exactly once.

    Pipeline.from_file("pipeline.toml").run()

or the same in Python, by the names of the file's tables and keys:

    Pipeline(
        name="totals",
        checkpoint="state/totals",
        source={"topics": ["orders"], "format": "json", "schema": "id BIGINT, cents INT"},
        transform={"sql": "SELECT id, cents / 100 AS euros FROM source"},
        sink={"topic": "totals", "key": "id", "format": "json"},
    ).run()

Everything that is wrong is reported at once, before Spark is started. Modules with functions are
loaded when there is a session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from onceflow.spark.errors import InvalidPipeline, blame
from onceflow.spark.pipeline.broker import pipeline_broker, require_topics
from onceflow.spark.pipeline.file import load_plan
from onceflow.spark.pipeline.parse import read_plan, with_function
from onceflow.spark.pipeline.plan import PipelinePlan, TransformKind
from onceflow.spark.session import (
    DEFAULT_MASTER,
    is_local_path,
    make_session,
    require_spark,
    session_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceflow.spark.pipeline.running import RunningPipeline
    from onceflow.spark.sink import SinkWriter

__all__ = ["InvalidPipeline", "Pipeline"]


class Pipeline:
    """A pipeline that can be run. Tables are those of a `pipeline.toml`; `transform` may hold
    functions instead of their names. Raises `InvalidPipeline` with all that is wrong."""

    def __init__(
        self,
        *,
        name: str,
        checkpoint: str | Path,
        source: Mapping[str, Any],
        sink: Mapping[str, Any],
        base: str | Path = ".",
        **tables: Mapping[str, Any],
    ) -> None:
        document = {
            "pipeline": {"name": name, "checkpoint": str(checkpoint)},
            "source": source,
            "sink": sink,
            **tables,
        }
        self.plan: PipelinePlan = read_plan(document, Path(base).absolute())

    @classmethod
    def from_file(cls, path: str | Path, *, bootstrap: str | None = None) -> Self:
        """From a `pipeline.toml`; with `bootstrap`, on that cluster."""
        return cls.of(load_plan(Path(path), bootstrap=bootstrap))

    @classmethod
    def of(cls, plan: PipelinePlan) -> Self:
        made = cls.__new__(cls)
        made.plan = plan
        return made

    @property
    def log_path(self) -> Path:
        """Where Spark's own log goes."""
        plan = self.plan
        if is_local_path(plan.checkpoint):
            return Path(plan.checkpoint.removeprefix("file://")).with_suffix(".log")
        return plan.base / f"{plan.name}.log"

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        once: bool = False,
    ) -> RunningPipeline:
        """Runs to the end: until it is stopped or fails, or, with `once`, until all that is there
        now is done. Raises `PipelineFailed`."""
        running = self.start(spark, master=master, once=once)
        try:
            running.wait()
        finally:
            running.close()
        return running

    def start(
        self,
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        once: bool = False,
    ) -> RunningPipeline:
        """Starts it and returns its handle. Without a session it makes one, which ends with it."""
        require_spark()
        from onceflow.spark.pipeline.running import PipelineParts, RunningPipeline

        chosen = self._master(spark, master)
        with ExitStack() as cleanup:
            bootstrap, broker = self.plan.bootstrap, None
            if bootstrap is None:
                broker = cleanup.enter_context(pipeline_broker(self.plan, chosen))
                bootstrap = broker.bootstrap
            self._require_topics(bootstrap)
            session = spark or cleanup.enter_context(self._session(chosen))
            writer = self._writer(session, bootstrap)
            start, sink = self._configured(writer, once=once).start, writer.sink
            with blame("sink.mode", self.plan.base):
                query = start()
            if broker is not None:
                broker.watch(lambda: sink.written.batches)
            return RunningPipeline(
                query,
                PipelineParts(
                    sink=sink,
                    start=start,
                    base=self.plan.base,
                    bootstrap=bootstrap,
                    broker=broker,
                    log_path=None if spark else self.log_path,
                    cleanup=cleanup.pop_all(),
                ),
            )

    def _master(self, spark: SparkSession | None, master: str | None) -> str:
        if spark is not None:
            return str(spark.sparkContext.master)
        return master or self.plan.spark_settings.get("spark.master") or DEFAULT_MASTER

    def _require_topics(self, bootstrap: str) -> None:
        readers = self.plan.readers(bootstrap)
        require_topics(self.plan, readers, make=self.plan.bootstrap is None)

    @contextmanager
    def _session(self, master: str) -> Iterator[SparkSession]:
        plan = self.plan
        settings = session_settings(
            master,
            plan.checkpoint,
            plan.spark_settings,
            cores=os.cpu_count() or 1,
            has_pandas=find_spec("pandas") is not None,
        )
        session = make_session(plan.name, master, settings, self.log_path)
        try:
            yield session
        finally:
            session.stop()

    def _writer(self, session: SparkSession, bootstrap: str) -> SinkWriter:
        from onceflow.spark.pipeline.frames import output_frame
        from onceflow.spark.pipeline.sink import start_sink

        plan = with_function(self.plan)
        if plan.transform.kind is TransformKind.ARROW:
            from onceflow.spark.pipeline.arrow import start_arrow

            return start_arrow(session, plan, bootstrap)
        return start_sink(output_frame(session, plan, bootstrap), plan, bootstrap)

    def _configured(self, writer: DataStreamWriter, *, once: bool) -> DataStreamWriter:
        plan = self.plan
        chosen = writer.option("checkpointLocation", plan.checkpoint).outputMode(
            plan.sink.mode.value
        )
        if once or plan.available_now:
            return chosen.trigger(availableNow=True)
        if plan.interval_ms is not None:
            return chosen.trigger(processingTime=f"{plan.interval_ms} milliseconds")
        return chosen
