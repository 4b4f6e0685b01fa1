"""One run of a query: from its first batch to its end, however it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.client import OpenTransaction
from onceflow.spark.errors import (
    LedgerConflict,
    SinkError,
    SinkRefused,
    without_stack,
)
from onceflow.spark.sink.batch import BatchJob, BatchWriter, JobFailed
from onceflow.spark.sink.checkpoint_files import CheckpointFiles
from onceflow.spark.sink.identity import Files, SinkIdentity, check_identity, keep_identity
from onceflow.spark.sink.job import QUERY_ID, JobRunner
from onceflow.spark.sink.ledger import Finding, LedgerStart, Planned, refusal, seen_by
from onceflow.spark.sink.offset_log import LoggedBatch, read_offset_log, topic_offsets_of
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.preflight import prepare_cluster
from onceflow.spark.sink.routing import TopicLayout
from onceflow.spark.sink.task_plan import ALL_ROWS, Report
from onceflow.spark.source import by_topic
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S: Final = 0.02

_running: dict[str, StreamRun] = {}
"""The run that writes under each name in this process."""
_running_lock = threading.Lock()


class QueryStopped(SinkError):
    """The query was stopped while a batch was being written; the batch is written at the next
    start."""

    def __init__(self) -> None:
        # Spark takes an error for the end of a stopped query by these words, which it looks for
        # with a pattern that overflows its stack when the text behind them is long.
        super().__init__(
            "the query was stopped (py4j.protocol.Py4JJavaError: An error occurred while calling "
            "the batch: java.lang.InterruptedException)"
        )


@dataclass(frozen=True, slots=True)
class SinkTotals:
    """What the runs of a query have committed since its sink was made."""

    batches: int = 0
    rows: int = 0
    dead_letters: int = 0
    last_batch: int | None = None
    at: float | None = None
    """When the last batch was committed, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSetup:
    """What all runs of a query have in common."""

    session: SparkSession
    """The one in which the query is started: that of a batch's frame is a copy that does not know
    its queries."""
    options: SinkOptions
    offsets_retention_ms: int
    is_raise_final: bool
    """A row that raises an error on purpose, as pipelines do for one that cannot be used, ends the
    query at once, as it would raise it again. Else a batch is tried again, whatever was raised."""


def prepare_sink(
    session: SparkSession, options: SinkOptions, *, is_raise_final: bool = False
) -> StreamSink:
    """The sink of a query, when the cluster has all that it needs. Raises `SinkRefused` with all
    that is wrong."""
    return StreamSink(
        SinkSetup(
            session=session,
            options=options,
            offsets_retention_ms=prepare_cluster(options, reads=True),
            is_raise_final=is_raise_final,
        )
    )


class StreamSink:
    """The function of `foreachBatch`, with a gate and a count.

    The gate lets a query end between two batches: once it is closed, the batch under way is written
    and committed to the end, and none begins. All but the call itself is for other threads.
    """

    def __init__(self, setup: SinkSetup) -> None:
        self._setup = setup
        self._run: StreamRun | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_busy = False
        self._is_parked = False
        self._written = SinkTotals()
        self.failure: Exception | None = None
        """What ended the query, as it was raised here."""

    @property
    def identity(self) -> SinkIdentity:
        return self._setup.options.identity

    @property
    def written(self) -> SinkTotals:
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
        self.failure = None
        try:
            query = self._query()
            self._enter(query)
        except QueryStopped:
            raise
        except Exception as error:  # no batch was begun: Spark has its own words for why
            raise without_stack(error) from None
        try:
            self._note(batch_id, self._run_of(query).write_batch(frame, batch_id))
        except QueryStopped:
            raise
        except Exception as error:
            self.failure = error
            raise without_stack(error) from None
        finally:
            with self._lock:
                self._is_busy = False

    def _query(self) -> StreamingQuery:
        session = self._setup.session
        query_id = session.sparkContext.getLocalProperty(QUERY_ID)
        query = None if query_id is None else session.streams.get(query_id)
        if query is None:
            raise SinkRefused(["the query that this batch belongs to is not known to its session"])
        return query

    def _enter(self, query: StreamingQuery) -> None:
        with self._lock:
            self._is_parked = self._is_closed
            self._is_busy = not self._is_closed
            if self._is_busy:
                return
        while query.isActive:
            time.sleep(_POLL_S)
        raise QueryStopped

    def _run_of(self, query: StreamingQuery) -> StreamRun:
        """A query that is started again is another run of it, with connections of its own."""
        if self._run is None or self._run.run_id != query.runId:
            self._run = StreamRun(self._setup, query)
        return self._run

    def _note(self, batch_id: int, counts: RowCounts) -> None:
        with self._lock:
            before = self._written
            self._written = SinkTotals(
                batches=before.batches + 1,
                rows=before.rows + counts.rows,
                dead_letters=before.dead_letters + counts.dead_letters,
                last_batch=batch_id,
                at=time.time(),
            )


class RowCounts(NamedTuple):
    """Of one batch."""

    rows: int = 0
    dead_letters: int = 0


class StreamRun:
    """Holds connections and the claim service as long as the query runs."""

    def __init__(self, setup: SinkSetup, query: StreamingQuery) -> None:
        self.run_id = query.runId
        self._query = query
        self._query_id = query.id
        self._options = options = setup.options
        _register(self, options.identity.name)
        internal: Any = query
        root = internal._jsq.streamingQuery().resolvedCheckpointRoot()
        self._files: Files = CheckpointFiles(setup.session, root)
        self._writer = BatchWriter(options, offsets_retention_ms=setup.offsets_retention_ms)
        self._jobs = JobRunner(setup.session, self._writer, is_raise_final=setup.is_raise_final)
        self._counts = RowCounts()
        self._has_taken_over = False
        self._start = LedgerStart(self._files, self._planned_ms)
        self._at_work = threading.Lock()
        """Held while a batch is written."""
        threading.Thread(target=self._close_at_end, daemon=True).start()

    @property
    def is_active(self) -> bool:
        return bool(self._query.isActive)

    def _close_at_end(self) -> None:
        with suppress(Exception):  # the thread that waits for the query gets its error
            self._query.awaitTermination()
        self._jobs.close()
        # A JVM that dies ends the query in the midst of a batch, whose transaction is still to be
        # aborted.
        with self._at_work:
            self._writer.close()

    def write_batch(self, frame: DataFrame, batch_id: int) -> RowCounts:
        """What it has written: nothing where the batch was committed before. Raises whatever ends
        the query."""
        with self._at_work:
            self._counts = RowCounts()
            logged = self._logged(batch_id)
            planned = self._planned(batch_id, logged)
            if not self._has_taken_over:
                self._take_over(planned, logged)
            self._write(frame, planned, logged)
            return self._counts

    def run_tasks(self, frame: DataFrame, transaction: OpenTransaction) -> list[Report]:
        """Lets the tasks of a batch write."""
        reports = self._jobs.run(frame, transaction)
        # The layout has grown if rows have named topics.
        layout = self._writer.topics.layout
        self._counts = count_rows(reports, layout, self._options.dead_letter_topic)
        return reports

    def _write(self, frame: DataFrame, planned: Planned, logged: LoggedBatch) -> None:
        ends = logged.ends()
        known = self._writer.topics.existing(ends)
        job = BatchJob(
            planned=planned,
            source_offsets={
                partition: end for partition, end in ends.items() if partition in known
            },
            run=lambda transaction: self.run_tasks(frame, transaction),
            is_wanted=lambda: self.is_active,
            start=self._start,
        )
        try:
            rows = self._writer.write(job)
        except JobFailed:
            raise QueryStopped from None
        if rows is None:
            _drain(frame)

    # --- the start ------------------------------------------------------------------------------

    def _take_over(self, planned: Planned, logged: LoggedBatch) -> None:
        """First the checks that disturb no other driver, then InitProducerId, then the ledger."""
        check_identity(self._files, self._options.identity)
        entry = seen_by(self._query_id, self._writer.peek_ledger())
        is_foreign = entry is not None and entry.query_id != self._query_id
        if is_foreign:
            if not self._options.continue_from_group:
                raise refusal(Finding.OF_ANOTHER_QUERY, entry, planned)
            check_continues(self._writer, self._files, planned, logged, require_stable=False)
        keep_identity(self._files, self._options.identity)
        self._writer.take_over()
        if is_foreign:
            # Again, now that the other query is fenced: since the first check it may have committed
            # what it had under way.
            check_continues(self._writer, self._files, planned, logged, require_stable=True)
            self._writer.adopt(self._query_id)
        self._has_taken_over = True

    def _logged(self, batch_id: int) -> LoggedBatch:
        text = self._files.read(f"offsets/{batch_id}")
        if text is None:
            raise SinkError(
                f"the checkpoint has no offsets of batch {batch_id}: it was changed while the "
                "query ran"
            )
        return read_offset_log(text)

    def _planned(self, batch_id: int, logged: LoggedBatch) -> Planned:
        self._start.take_up(batch_id, logged.planned_ms)
        return Planned(self._query_id, batch_id, logged.digest, logged.planned_ms)

    def _planned_ms(self, batch_id: int) -> int:
        return self._logged(batch_id).planned_ms


def _drain(frame: DataFrame) -> None:
    """Runs the frame of a batch that is committed already: without it Spark's state stores would
    stay a batch behind."""
    frame.write.format("noop").mode("overwrite").save()


def count_rows(
    reports: Iterable[Report], layout: TopicLayout, dead_letter_topic: str | None
) -> RowCounts:
    letters = range(0) if dead_letter_topic is None else layout.numbers_of(dead_letter_topic)
    counts = [0, 0]
    for each in reports:
        if each.target != ALL_ROWS:
            counts[each.target in letters] += each.rows
    return RowCounts(*counts)


def check_not_running(name: str) -> None:
    """Raises `SinkRefused` while a query of this program writes under the name."""
    with _running_lock:
        _check_free(name)


def _check_free(name: str) -> None:
    other = _running.get(name)
    if other is not None and other.is_active:
        raise SinkRefused(
            [f"another query of this program writes as {name!r}: give one of them another name"]
        )


def _register(run: StreamRun, name: str) -> None:
    with _running_lock:
        _check_free(name)
        _running[name] = run


# --- going on without the checkpoint that was lost -----------------------------------------------


def check_continues(
    writer: BatchWriter,
    files: Files,
    planned: Planned,
    logged: LoggedBatch,
    *,
    require_stable: bool,
) -> None:
    """Raises `LedgerConflict` unless the query's first batch begins where the group ended."""
    if planned.batch_id != 0:
        raise LedgerConflict(
            f"continue_from_group is for a new checkpoint; this one is at batch {planned.batch_id}"
        )
    starts = _starts(files, logged)
    if not starts:
        raise LedgerConflict(
            "continue_from_group needs a source whose offsets are those of topics, and to know "
            "where it starts"
        )
    group = writer.group_offsets(starts, require_stable=require_stable)
    differing = {
        partition for partition, start in starts.items() if group.get(partition, start) != start
    }
    if differing:
        wanted = json.dumps(by_topic({**starts, **group}))
        raise LedgerConflict(
            f"the query does not start where the group ended, in {len(differing)} partitions: rows "
            f"would be lost or written twice. Start its source with startingOffsets = {wanted}"
        )


def _starts(files: Files, logged: LoggedBatch) -> Mapping[TopicPartition, int]:
    """Where the first batch begins: our source says so in its offset, Spark's own keeps it in a
    file."""
    starts: dict[TopicPartition, int] = {}
    for name, offsets in logged.topic_offsets().items():
        begins = dict(offsets.start)
        if not begins:
            text = files.read(f"sources/{name}/0") or ""
            kept = topic_offsets_of(text[text.find("{") :])
            begins = dict(kept.end) if kept is not None else {}
        starts |= begins
    return starts
