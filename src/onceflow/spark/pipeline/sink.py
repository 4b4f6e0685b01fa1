"""The sink of a pipeline: that of `onceflow.spark.sink.api`, with a gate and a count.

The gate lets a pipeline end between two batches: once it is closed, the batch under way is written
and committed to the end, and none begins. The count is what the display shows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceflow.client import OpenTransaction
from onceflow.spark.errors import RAISED, SinkRefused, find_cause, without_stack
from onceflow.spark.pipeline.plan import PipelinePlan
from onceflow.spark.sink import (
    ALL_ROWS,
    LEDGER_TOPIC,
    QUERY_ID,
    TRANSACTION_TIMEOUT_MS,
    AttemptFailure,
    BrokerLimits,
    ClaimService,
    QueryStopped,
    Report,
    SinkIdentity,
    SinkOptions,
    StreamRun,
    TopicLayout,
    checked_options,
    prepare_cluster,
    run_job,
    writing_in_plan,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Job = Callable[["DataFrame", SinkOptions, TopicLayout, OpenTransaction, ClaimService], list[Report]]
"""Lets the tasks of a batch write; `run_job` is one."""
_TIMEOUT: Final = "transaction.timeout.ms"
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class PipelineTotals:
    """What a run of a pipeline has committed."""

    batches: int = 0
    rows: int = 0
    dead_letters: int = 0
    last_batch: int | None = None
    at: float | None = None
    """When the last batch was committed, in seconds since 1970."""


def start_sink(
    frame: DataFrame, plan: PipelinePlan, bootstrap: str
) -> tuple[DataFrame, PipelineSink]:
    """The frame that is written, and the sink in whose transactions its tasks write. Raises
    `SinkRefused` with all that is wrong."""
    settings, timeout_ms = sink_settings(plan)
    options = checked_options(
        frame,
        SinkIdentity.of_query(plan.name, None, LEDGER_TOPIC),
        is_stream=True,
        topic=plan.sink.topic,
        dead_letter_topic=plan.dead_letters,
        narrow=False,
        continue_from_group=False,
        bootstrap=bootstrap,
        timeout_ms=timeout_ms,
        settings=settings,
    )
    limits = prepare_cluster_or_refuse(options)
    sink = PipelineSink(
        frame.sparkSession,
        options,
        run_job,
        base=plan.base,
        offsets_retention_ms=limits.offsets_retention_ms,
    )
    return writing_in_plan(frame, options), sink


def sink_settings(plan: PipelinePlan) -> tuple[dict[str, str], int]:
    """Those of the producer, and the timeout of its transactions."""
    settings = dict(plan.producer_settings)
    return settings, int(settings.pop(_TIMEOUT, TRANSACTION_TIMEOUT_MS))


def prepare_cluster_or_refuse(options: SinkOptions) -> BrokerLimits:
    """Raises `SinkRefused`."""
    findings = prepare_cluster(options.settings, options.identity, options.topics, reads=True)
    if findings.problems:
        raise SinkRefused(findings.problems)
    return findings.limits


class PipelineSink:
    """The function of `foreachBatch`."""

    def __init__(
        self,
        session: SparkSession,
        options: SinkOptions,
        job: Job,
        *,
        base: Path,
        offsets_retention_ms: int,
    ) -> None:
        self._base = base
        self._session = session
        self._options = options
        self._job = job
        self._offsets_retention_ms = offsets_retention_ms
        self._run: PipelineRun | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_busy = False
        self._is_parked = False
        self._written = PipelineTotals()
        self.failure: Exception | None = None
        """What ended the query, as it was raised here."""

    @property
    def identity(self) -> SinkIdentity:
        return self._options.identity

    @property
    def written(self) -> PipelineTotals:
        with self._lock:
            return self._written

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being written."""
        with self._lock:
            return self._is_busy

    @property
    def is_parked(self) -> bool:
        """Whether a batch has come that is not to be begun: all before it is done with."""
        with self._lock:
            return self._is_parked

    def close_gate(self) -> None:
        """No batch begins any more."""
        with self._lock:
            self._is_closed = True

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        query = self._query()
        self._enter(query)
        try:
            self._run_of(query).write_batch(frame, batch_id)
        except QueryStopped:
            raise
        except Exception as error:
            self.failure = error
            raise without_stack(error) from None
        finally:
            with self._lock:
                self._is_busy = False
        self._note(batch_id)

    def _enter(self, query: StreamingQuery) -> None:
        with self._lock:
            self._is_parked = self._is_closed
            self._is_busy = not self._is_closed
        if self._is_busy:
            return
        while query.isActive:
            time.sleep(_POLL_S)
        raise QueryStopped

    def _query(self) -> StreamingQuery:
        query_id = self._session.sparkContext.getLocalProperty(QUERY_ID)
        query = None if query_id is None else self._session.streams.get(query_id)
        if query is None:
            raise SinkRefused(["the query that this batch belongs to is not known to its session"])
        return query

    def _run_of(self, query: StreamingQuery) -> PipelineRun:
        if self._run is None or self._run.run_id != query.runId:
            self._run = PipelineRun(
                self._session,
                query,
                self._options,
                self._job,
                base=self._base,
                offsets_retention_ms=self._offsets_retention_ms,
            )
        return self._run

    def _note(self, batch_id: int) -> None:
        good, dead = (0, 0) if self._run is None else self._run.counts
        with self._lock:
            before = self._written
            self._written = replace(
                before,
                batches=before.batches + 1,
                rows=before.rows + good,
                dead_letters=before.dead_letters + dead,
                last_batch=batch_id,
                at=time.time(),
            )


class PipelineRun(StreamRun):
    """A run whose tasks do the job of a pipeline."""

    def __init__(
        self,
        session: SparkSession,
        query: StreamingQuery,
        options: SinkOptions,
        job: Job,
        *,
        base: Path,
        offsets_retention_ms: int,
    ) -> None:
        self._base = base
        super().__init__(session, query, options, offsets_retention_ms=offsets_retention_ms)
        self._job = job
        self.counts = (0, 0)
        """Rows and dead letters of the last batch."""

    def write_batch(self, frame: DataFrame, batch_id: int) -> None:
        self.counts = (0, 0)
        super().write_batch(frame, batch_id)

    def run_tasks(self, frame: DataFrame, transaction: OpenTransaction) -> list[Report]:
        layout = self._topics.layout
        try:
            reports = self._job(frame, self._options, layout, transaction, self._service)
        except Exception as error:
            # What the job raises may be that a later attempt of the task was refused.
            noted_before = (each.message for each in self._service.book.failures)
            causes = (find_cause(text, self._base) for text in (str(error), *noted_before))
            cause = next((each for each in causes if each and each.kind == RAISED), None)
            if cause is not None:
                # The same row would raise it again.
                epoch = (transaction.producer_id, transaction.producer_epoch)
                failure = AttemptFailure(f"[{cause.kind}] {cause.text}", is_final=True)
                self._service.book.add_failure(epoch, failure)
            raise
        # The layout has grown if rows have named topics.
        self.counts = _counts(reports, self._topics.layout, self._options.dead_letter_topic)
        return reports


def _counts(
    reports: list[Report], layout: TopicLayout, dead_letters: str | None
) -> tuple[int, int]:
    partitions = layout.partitions()
    counts = [0, 0]
    for each in reports:
        if each.target != ALL_ROWS:
            counts[partitions[each.target].topic == dead_letters] += each.rows
    return counts[0], counts[1]
