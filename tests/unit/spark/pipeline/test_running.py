"""A pipeline whose source's process dies goes on by itself, but not for ever."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from onceflow.cli.common.errors import as_document
from onceflow.errors import OnceflowError
from onceflow.spark.errors.pipeline import PipelineFailed
from onceflow.spark.errors.sink import SinkFenced
from onceflow.spark.pipeline.running import STARTS, PipelineParts, RunningPipeline
from onceflow.spark.sink.run import SinkTotals
from tests.unit.spark.errors.spark_errors import GONE


class Died(StreamingQueryException):
    """As pyspark makes it, without a JVM."""

    def __init__(self, stack: str) -> None:
        self._desc, self._stackTrace, self._cause = "[STREAM_FAILED] Connection reset", stack, None

    def __str__(self) -> str:
        return self._desc


class Query:
    """Ends as it is told to, or does not."""

    lastProgress = None  # noqa: N815 - Spark's

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.isActive = error is None

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's
        if self._error is not None:
            raise self._error
        return not self.isActive

    def stop(self) -> None:
        self.isActive = False


class Sink:
    """Has written so many batches."""

    failure: Exception | None = None
    is_parked = is_busy = False

    def __init__(self) -> None:
        self.written = SinkTotals(batches=3, last_batch=7)

    def close_gate(self) -> None:
        pass


def running(sink: Sink, *queries: Query) -> RunningPipeline:
    left = list(queries)
    stand_in: Any = sink
    started: Any = left.pop(0)
    parts = PipelineParts(
        sink=stand_in,
        start=lambda: left.pop(0),  # type: ignore[arg-type, return-value]  # as far as it is used
        base=Path("/"),
        bootstrap="a:1",
        broker=None,
        log_path=None,
        cleanup=ExitStack(),
    )
    return RunningPipeline(started, parts)


def test_it_is_started_again_and_can_be_stopped(caplog: pytest.LogCaptureFixture) -> None:
    last = Query()
    pipeline = running(Sink(), Query(Died(GONE)), last)
    assert pipeline.wait(0.01) is False
    assert pipeline.is_active
    (line,) = caplog.messages
    assert "the process that plans the source's batches has ended" in line
    assert line.endswith("it is started again behind batch 7")
    pipeline.stop()
    assert not last.isActive


def test_not_for_ever() -> None:
    sink = Sink()
    deaths: list[Any] = [Query(Died(GONE)) for _ in range(STARTS + 2)]
    pipeline = running(sink, *deaths)
    with pytest.raises(PipelineFailed, match="has ended"):
        pipeline.wait()
    assert deaths.index(pipeline.query) == STARTS


def test_each_batch_that_is_committed_gives_it_new_tries() -> None:
    sink = Sink()
    last: Any = Query()
    pipeline = running(sink, *(Query(Died(GONE)) for _ in range(STARTS * 3)), last)

    def commit() -> None:
        sink.written = replace(sink.written, batches=sink.written.batches + 1)

    assert pipeline.wait(0.5, watch=commit) is False
    assert pipeline.query is last


@pytest.mark.parametrize("failure", [None, PipelineFailed("a batch")])
def test_other_errors_end_it(failure: Exception | None) -> None:
    sink = Sink()
    sink.failure = failure
    pipeline = running(sink, Query(Died("" if failure is None else GONE)), Query())
    with pytest.raises(PipelineFailed):
        pipeline.wait()


@pytest.mark.parametrize("failure", [SinkFenced("taken over"), PipelineFailed("a batch")])
def test_the_sinks_error_is_not_its_own_cause(failure: Exception) -> None:
    """Spark's error comes from it."""
    sink = Sink()
    sink.failure = failure
    died = Died("")
    died.__cause__ = failure
    with pytest.raises(OnceflowError) as told:
        running(sink, Query(died)).wait()
    causes: list[BaseException] = []
    error: BaseException | None = told.value
    while error is not None:
        assert not any(error is each for each in causes)
        causes.append(error)
        error = error.__cause__
    assert as_document(told.value)["error"]["message"]
