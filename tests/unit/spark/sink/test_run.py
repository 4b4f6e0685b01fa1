"""The function of `foreachBatch`: its gate, its count, what it remembers. Runs are stand-ins."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.spark.errors.sink import BatchFailed, SinkRefused
from onceflow.spark.sink import run as sink_run
from onceflow.spark.sink.routing import TopicLayout
from onceflow.spark.sink.run import (
    QueryStopped,
    RowCounts,
    SinkSetup,
    SinkTotals,
    StreamSink,
    count_rows,
)
from onceflow.spark.sink.task_plan import ALL_ROWS, Report
from tests.interop.harness import eventually
from tests.unit.spark.sink.one_query import options_of, settings_of

FRAME: Any = None


class Run:
    """Writes what it is told to, or fails."""

    made: list[str]
    results: list[RowCounts | Exception]

    def __init__(self, setup: SinkSetup, query: Any) -> None:
        self.run_id = query.runId
        self.made.append(self.run_id)

    def write_batch(self, frame: Any, batch_id: int) -> RowCounts:
        found = self.results.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def query() -> Any:
    return SimpleNamespace(runId="first", isActive=True)


@pytest.fixture
def sink(query: Any, monkeypatch: pytest.MonkeyPatch) -> StreamSink:
    monkeypatch.setattr(sink_run, "StreamRun", Run)
    Run.made, Run.results = [], []
    session: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(getLocalProperty=lambda _: "query"),
        streams=SimpleNamespace(get={"query": query}.get),
    )
    return StreamSink(
        SinkSetup(
            session=session,
            options=options_of(settings_of("127.0.0.1:1"), "out"),
            offsets_retention_ms=0,
            is_raise_final=False,
        )
    )


def test_what_runs_have_written_is_summed_up(sink: StreamSink, query: Any) -> None:
    Run.results = [RowCounts(5, 1), RowCounts(), RowCounts(2, 2)]
    for batch_id in (7, 8):
        sink(FRAME, batch_id)
    query.runId = "second"  # the query was started again
    sink(FRAME, 9)
    assert Run.made == ["first", "second"]
    assert sink.written.at is not None
    assert sink.written == SinkTotals(3, 7, 3, 9, sink.written.at)
    assert not sink.is_busy


def test_what_ended_the_query_is_remembered_until_it_runs_again(sink: StreamSink) -> None:
    Run.results = [BatchFailed("a row"), RowCounts(1)]
    with pytest.raises(BatchFailed):
        sink(FRAME, 0)
    failure = sink.failure
    assert isinstance(failure, BatchFailed)
    assert not sink.is_busy
    assert sink.written == SinkTotals()
    sink(FRAME, 0)
    assert sink.failure is None
    assert sink.written.batches == 1


def test_a_query_that_was_stopped_has_not_failed(sink: StreamSink) -> None:
    Run.results = [QueryStopped()]
    with pytest.raises(QueryStopped):
        sink(FRAME, 0)
    assert sink.failure is None


def test_a_query_that_its_session_does_not_know(sink: StreamSink) -> None:
    streams: Any = sink._setup.session.streams
    streams.get = lambda _: None
    with pytest.raises(SinkRefused, match="not known to its session"):
        sink(FRAME, 0)


def test_behind_a_closed_gate_a_batch_waits_for_the_end_of_its_query(
    sink: StreamSink, query: Any
) -> None:
    raised: list[Exception] = []

    def write() -> None:
        try:
            sink(FRAME, 0)
        except Exception as error:
            raised.append(error)

    assert not sink.is_parked
    sink.close_gate()
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    eventually(lambda: sink.is_parked, bool)
    assert not sink.is_busy
    assert thread.is_alive()
    query.isActive = False
    thread.join(10)
    assert [type(each) for each in raised] == [QueryStopped]
    assert Run.made == []
    assert sink.failure is None


def test_dead_letters_are_counted_apart() -> None:
    layout = TopicLayout((("out", 2), ("dead", 2), ("more", 1)))
    reports = [
        Report(0, 1, ALL_ROWS, 31, -1),
        *(Report(0, 1, target, 1 << target, 0) for target in range(5)),
    ]
    assert count_rows(reports, layout, "dead") == RowCounts(1 + 2 + 16, 4 + 8)
    assert count_rows(reports, layout, None) == RowCounts(31, 0)
