"""What a task does: it claims its output partitions, writes its rows, and reports what it wrote.

It writes at most once. An attempt that is not the first, or that does not own what it wants to
write, ends with an error; the driver then begins a new epoch and all tasks run again. Connections
are opened in the process that uses them, and stay for the next task unless something failed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from onceflow.client import (
    BlockingCluster,
    BrokerAddress,
    BrokerError,
    Claim,
    ProducerSettings,
)
from onceflow.errors import OnceflowError, RecordError
from onceflow.runtime import RealClock, RealRand
from onceflow.spark.connection_cache import ConnectionCache
from onceflow.spark.errors import AttemptRefused, ClaimsUnreachable, LaterAttempt, RowRefused
from onceflow.spark.sink.claims import AttemptFailure, TargetOwner
from onceflow.spark.sink.routing import (
    TARGET,
    TopicLayout,
    placed_by_row,
    placed_where_it_was,
    portions,
    split,
    with_short_offsets,
)
from onceflow.spark.sink.shuffle import pack, report_as_packet
from onceflow.spark.sink.task_plan import (
    ALL_ROWS,
    REPORT,
    Report,
    TaskPlan,
    TaskSecrets,
    reports_to_bytes,
)
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

_HOPELESS: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
    }
)
"""Errors that a broker would answer to the same rows again."""


def _cluster(key: tuple[tuple[BrokerAddress, ...], ProducerSettings]) -> BlockingCluster:
    bootstrap, settings = key
    return BlockingCluster(bootstrap, settings, RealClock(), RealRand(), are_brokers=True)


CLUSTERS: Final = ConnectionCache(_cluster)


@contextmanager
def _reporting_failures(plan: TaskPlan) -> Iterator[None]:
    """Tells the driver why an attempt fails: Spark's own error does not say whether another try
    could help."""
    try:
        yield
    except ClaimsUnreachable:
        raise
    except OnceflowError as error:
        message = f"{type(error).__name__}: {error}"
        is_late = isinstance(error, LaterAttempt)
        failure = AttemptFailure(message, _is_final(error), is_late)
        plan.claims.report_failure(plan.epoch, failure)
        raise


def _is_final(error: OnceflowError) -> bool:
    cause = error.__cause__
    is_hopeless = isinstance(cause, BrokerError) and cause.code in _HOPELESS
    return is_hopeless or isinstance(error, RowRefused | RecordError)


# --- what Spark calls ----------------------------------------------------------------------------


def pack_rows(secrets: TaskSecrets, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What goes through the shuffle, so that the tasks behind it have their rows. Where there is
    none, this task has them all: it writes them, and its reports are what it gives."""
    plan = TaskPlan.of_task(secrets)
    if plan is None or plan.tasks is None or not plan.is_shuffled:
        yield from map(report_as_packet, write_rows(secrets, batches))
        return
    with _reporting_failures(plan):
        rows = with_short_offsets(batches)
        yield from pack(plan.layout, plan.claims, plan.epoch, plan.tasks, rows)


def write_rows(secrets: TaskSecrets, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The reports of a task that writes these rows. Where there is nothing to be written, they are
    gone through all the same: what Spark computes for them may be state."""
    plan = TaskPlan.of_task(secrets)
    if plan is None:
        for _ in rows:
            continue
    else:
        yield from _reports(plan, with_short_offsets(rows))


class MadeRows(NamedTuple):
    """Rows that a task makes itself, as in an Arrow pipeline."""

    rows: Iterator[pa.RecordBatch]
    targets: Sequence[int]
    """Where they go, as far as that is known before: it is claimed at once."""


def write_made_rows(
    secrets: TaskSecrets, made: Callable[[TopicLayout], MadeRows]
) -> Iterator[pa.RecordBatch]:
    """The reports of a task that writes the rows that it makes itself."""
    plan = TaskPlan.of_task(secrets)
    if plan is None or plan.layout is None:
        return iter(())
    return _reports(plan, *made(plan.layout))


# --- one attempt ---------------------------------------------------------------------------------


@cache
def _warm() -> None:
    """Once in each process: what is loaded stays. The workers' daemon collects garbage after every
    task, and would go through all modules each time."""
    import pyarrow as pa

    from onceflow.client.worker import writer as worker
    from onceflow.records import encode_all

    encode_all(pa.record_batch({"value": pa.array([b""])}), max_batch_bytes=1 << 10, now_ms=0)
    del worker
    gc.collect()
    gc.freeze()


def _reports(
    plan: TaskPlan, batches: Iterator[pa.RecordBatch], targets: Sequence[int] = ()
) -> Iterator[pa.RecordBatch]:
    """`targets` are claimed before there are any rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise AttemptRefused("only tasks of Spark write rows")
    with _reporting_failures(plan):
        if context.attemptNumber() > 0:
            raise LaterAttempt(
                f"this is attempt {context.attemptNumber()} of task {context.partitionId()}, and "
                "the first one may have written already; the whole batch is written again"
            )
        _warm()
        me = TargetOwner(context.taskAttemptId(), context.partitionId())
        reports = _write(plan, me, batches, targets)
    yield _as_batch(reports)


def _write(
    plan: TaskPlan, me: TargetOwner, batches: Iterator[pa.RecordBatch], targets: Sequence[int]
) -> list[Report]:
    from onceflow.client import BlockingWriter

    settings = plan.secrets.settings
    layout = plan.layout or TopicLayout(tuple(plan.claims.layout(())))
    places = layout.partitions()
    plan.reached("before claim")
    rows_of = _Rows(plan, layout, me, targets)
    received = 0
    transaction = replace(plan.transaction, claims=tuple(map(Claim, places)))
    with (
        CLUSTERS.lease((transaction.bootstrap, settings)) as cluster,
        BlockingWriter(transaction, settings, cluster=cluster) as writer,
    ):
        for batch in portions(batches):
            received += batch.num_rows
            for target, rows in split(_placed(plan, batch, layout)):
                rows_of.check(target)
                writer.write(*places[target], rows)
            plan.reached("mid-write")
        written = writer.flush()
        plan.reached("after write")
    numbers = {place: target for target, place in enumerate(places)}
    return [
        Report(me.task, me.attempt, ALL_ROWS, received, -1),
        *(
            Report(me.task, me.attempt, numbers[each.partition], each.records, each.last_sequence)
            for each in written
        ),
    ]


def _placed(plan: TaskPlan, batch: pa.RecordBatch, layout: TopicLayout) -> pa.RecordBatch:
    """Rows that were not shuffled have no targets yet."""
    if TARGET in batch.schema.names:
        return batch
    is_narrow = plan.tasks is None
    return (placed_where_it_was if is_narrow else placed_by_row)(layout, batch)


class _Rows:
    """Which rows this task may write where."""

    def __init__(
        self, plan: TaskPlan, layout: TopicLayout, me: TargetOwner, targets: Sequence[int]
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._me = me
        self._claimed: set[int] = set()
        if plan.tasks is not None:
            self._claim(layout.of_task(me.task, plan.tasks))
        elif targets:
            self._claim(targets)

    def check(self, target: int) -> None:
        """Raises `RowRefused`, or `AttemptRefused`, when its rows are not this task's."""
        if target >= self._layout.total:
            raise RowRefused(
                "a row belongs to a partition that its topic does not have. They are counted from "
                "0: look at the column 'partition'. In narrow mode a dead letter keeps the number "
                "of the partition that its record was read from: give the topic of dead letters as "
                "many partitions as the source has"
            )
        if target not in self._claimed:
            self._claim_more(target)

    def _claim(self, targets: Sequence[int]) -> None:
        self._plan.claims.claim(self._plan.epoch, self._me, targets)
        self._claimed.update(targets)

    def _claim_more(self, target: int) -> None:
        if self._plan.tasks is not None:
            raise AttemptRefused(
                f"target {target} has come to task {self._me.task}, not to its own"
            )
        try:
            self._claim([target])
        except RowRefused as error:
            raise RowRefused(
                f"two tasks have rows for partition {self._layout.partitions()[target]} ({error}). "
                "In narrow mode each output partition has one task: keep rows where their source "
                "has them and their keys, or leave narrow out"
            ) from error


def _as_batch(reports: list[Report]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch({REPORT: pa.array([reports_to_bytes(reports)])})
