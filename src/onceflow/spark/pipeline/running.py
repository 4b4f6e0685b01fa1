"""A pipeline that runs: its query, the broker beside it, and how it is ended.

Spark plans a source's batches in a Python process of its own, and ends the query when that dies.
Here it is started again on its checkpoint: the ledger knows what was committed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceflow.errors import OnceflowError
from onceflow.spark.errors import SOURCE_GONE, PipelineFailed, explain, is_source_gone
from onceflow.spark.pipeline.progress import BatchProgress, ReadCount, batch_progress
from onceflow.spark.pipeline.sink import PipelineSink, PipelineTotals

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from onceflow.spark.pipeline.broker import PipelineBroker

_POLL_S: Final = 0.05
STARTS: Final = 3
"""So often a query is started again before a batch is committed."""
_SOURCE_ADVICE: Final = "look in the system log for what killed it: usually memory ran out"
_log = logging.getLogger("onceflow.spark")


class RunningPipeline:
    """The handle of a pipeline that was started. `query` is Spark's own; another one after it was
    started again."""

    def __init__(
        self,
        query: StreamingQuery,
        sink: PipelineSink,
        base: Path,
        *,
        start: Callable[[], StreamingQuery],
        bootstrap: str,
        broker: PipelineBroker | None,
        log_path: Path | None,
        cleanup: ExitStack,
    ) -> None:
        self.query = query
        self._start = start
        self.bootstrap = bootstrap
        """The cluster; that of the broker beside it, if there is one."""
        self.broker = broker
        """None where others run the brokers."""
        self._log_path = log_path
        self._sink = sink
        self._base = base
        self._cleanup = cleanup
        self._reads = ReadCount()
        self._is_stopping = threading.Event()
        self._starts_left = STARTS
        self._written_before: PipelineTotals | None = None
        """When the query was last started again."""
        if broker is not None:
            broker.watch(lambda: sink.written.batches)

    @property
    def is_active(self) -> bool:
        return bool(self.query.isActive)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    @property
    def written(self) -> PipelineTotals:
        """What this run has committed so far."""
        return self._sink.written

    def progress(self) -> tuple[BatchProgress, int] | None:
        """What Spark tells of the last batch, and how many offsets were read in this run."""
        last: Any = self.query.lastProgress
        if last is None:
            return None
        batch = batch_progress(json.loads(last.json))
        return batch, self._reads.add(batch)

    def request_stop(self) -> None:
        """From now on no batch begins; `wait` stops the query when the one under way is done."""
        self._is_stopping.set()
        self._sink.close_gate()

    def stop(self) -> None:
        """Finishes the batch under way, then ends; raises as `wait` does."""
        self.request_stop()
        self.wait()

    def wait(self, timeout_s: float | None = None, watch: Callable[[], None] | None = None) -> bool:
        """Returns True when the pipeline has ended, False when time is up before that. `watch` is
        called now and then. Raises `PipelineFailed`, or what the sink has raised on purpose."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._has_ended():
                return True
            if self._is_stopping.is_set() and self._is_between_batches():
                self._end_query()
                return True
            if self.broker is not None and self.broker.failure is not None:
                raise self.broker.failure
            if watch is not None:
                watch()
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def close(self) -> None:
        """Stops at once, whatever is under way, and whatever was started with the pipeline."""
        try:
            if self.is_active:
                self.query.stop()
        finally:
            self._cleanup.close()

    def kill(self) -> None:
        """For a program that ends at once: nothing of it stays behind."""
        if self.broker is not None:
            self.broker.kill()

    def _has_ended(self) -> bool:
        from pyspark.errors import StreamingQueryException

        query: Any = self.query  # which takes parts of seconds, too
        try:
            if not query.awaitTermination(_POLL_S):
                return False
        except StreamingQueryException as error:
            if self._goes_on_after(error):
                return False
            self._cleanup.close()
            failure = self._sink.failure or error
            explained = self._explained(failure)
            # Not from Spark's error, whose cause is the sink's: a walk through the causes would
            # go round for ever.
            raise explained from (failure.__cause__ if explained is failure else failure)
        self._cleanup.close()
        return True

    def _goes_on_after(self, error: Exception) -> bool:
        """Starts the query again where only the process of its source has died."""
        if self._sink.failure is not None or not is_source_gone(error):
            return False
        written = self._sink.written
        if self._written_before is None or written.batches > self._written_before.batches:
            self._starts_left = STARTS
        if not self._starts_left:
            return False
        self._starts_left -= 1
        self._written_before = written
        _log.warning(
            "the process that plans the source's batches has ended, and the query with it; it is "
            "started again behind batch %s",
            "none" if written.last_batch is None else written.last_batch,
        )
        self.query = self._start()
        return True

    def _explained(self, error: Exception) -> OnceflowError:
        failure: OnceflowError
        if is_source_gone(error):
            failure = PipelineFailed(SOURCE_GONE, advice=_SOURCE_ADVICE)
        else:
            failure = explain(error, self._base)
        return failure.logged_in(self._log_path) if isinstance(failure, PipelineFailed) else failure

    def _end_query(self) -> None:
        try:
            self.query.stop()
            self._has_ended()
        finally:
            self._cleanup.close()

    def _is_between_batches(self) -> bool:
        """Whether the last batch that was written is done with for Spark, too."""
        if self._sink.is_parked:
            return True
        if self._sink.is_busy:
            return False
        written = self._sink.written
        last = written.last_batch
        # A source dies when it is asked for the next batch: Spark is done with all before it.
        if last is None or written == self._written_before:
            return True
        found: Any = self.query.lastProgress
        return found is not None and found.batchId >= last
