"""What is shown of a pipeline: numbers out of Spark's progress, as JSON, as a line, as a table."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from onceflow.spark.pipeline.display import (
    Begun,
    JsonScreen,
    LiveScreen,
    PipelineSnapshot,
    PlainScreen,
    Showing,
    Watch,
    live_table,
    plain_line,
    screen_for,
)
from onceflow.spark.pipeline.progress import BatchProgress, ReadCount, batch_progress
from onceflow.spark.sink.run import SinkTotals
from onceflow.types import TopicPartition


def offsets(start: int, end: int) -> str:
    return json.dumps({"from": {"orders": {"0": start}}, "to": {"orders": {"0": end}}})


def progress(start: int, end: int, latest: int) -> dict[str, Any]:
    return {
        "batchId": 4,
        "durationMs": {"triggerExecution": 120},
        "sources": [
            {"endOffset": json.loads(offsets(start, end)), "latestOffset": offsets(end, latest)},
            {"endOffset": {"rate": 3}, "latestOffset": None},
        ],
        "stateOperators": [{"numRowsTotal": 7}, {"numRowsTotal": 2}],
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    }


def test_progress_is_read_out_of_offsets() -> None:
    told = batch_progress(progress(100, 150, 175))
    place = TopicPartition("0 orders", 0)
    assert told == BatchProgress(
        4, 120, 25, 9, "2026-01-01T00:00:00.000Z", {place: 150}, {place: 100}
    )
    assert batch_progress({}) == BatchProgress(-1, 0, 0, 0, "", {}, {})


def test_rows_are_counted_from_where_the_run_began() -> None:
    reads = ReadCount()
    assert reads.add(batch_progress(progress(100, 150, 150))) == 50
    assert reads.add(batch_progress(progress(150, 180, 180))) == 80


class Pipeline:
    """One that has come so far."""

    is_active = True
    is_stopping = False

    def __init__(self) -> None:
        self.written = SinkTotals()
        self.found: tuple[BatchProgress, int] | None = None

    def progress(self) -> tuple[BatchProgress, int] | None:
        return self.found


def test_a_watch_knows_rates_and_states() -> None:
    now = [0.0]
    pipeline = Pipeline()
    watch = Watch(pipeline, clock=lambda: now[0])
    assert watch.look() == PipelineSnapshot(state="running")
    now[0] = 2.0
    pipeline.found = batch_progress(progress(0, 100, 130)), 100
    pipeline.written = SinkTotals(1, 90, 10, 0, 1_767_225_600.0)
    snapshot = watch.look()
    assert snapshot == PipelineSnapshot(
        state="running",
        batch=0,
        batches=1,
        read=100,
        written=90,
        dead_letters=10,
        rows_per_second=50.0,
        lag=30,
        batch_ms=120,
        last_commit="2026-01-01T00:00:00.000+00:00",
        state_rows=9,
        watermark="2026-01-01T00:00:00.000Z",
    )
    now[0] = 20.0
    watch.look()
    now[0] = 40.0
    assert watch.look().rows_per_second == 0.0, "what was long ago counts no more"
    pipeline.is_stopping = True
    assert watch.look().state == "stopping"
    pipeline.is_active = False
    assert watch.look().state == "ended"


SNAPSHOT = PipelineSnapshot(
    state="running",
    batch=12,
    batches=13,
    read=12_000,
    written=11_900,
    dead_letters=100,
    rows_per_second=1234.5,
    lag=5,
    batch_ms=80,
    last_commit="2026-01-01T12:34:56.789+00:00",
    state_rows=42,
)


BEGUN = Begun("totals", "here:1", "/state/totals.log")


def test_it_is_told_where_everything_is() -> None:
    output = io.StringIO()
    JsonScreen(output).begin(BEGUN)
    line = json.loads(output.getvalue())
    assert (line["state"], line["bootstrap"], line["log"]) == ("started", "here:1", BEGUN.log)
    output = io.StringIO()
    PlainScreen(output).begin(BEGUN)
    assert output.getvalue() == (
        "totals runs on the brokers at here:1; Spark's log is /state/totals.log\n"
    )


def test_one_plain_line() -> None:
    assert plain_line(SNAPSHOT) == (
        "running, batch 12, 12,000 read, 11,900 written, 100 dead letters, 1,234 rows/s, lag 5, "
        "80 ms a batch, 42 rows of state"
    )
    assert plain_line(PipelineSnapshot(state="running")).endswith("0 rows/s, lag -")


def test_json_lines_hold_everything() -> None:
    output = io.StringIO()
    JsonScreen(output).show(SNAPSHOT)
    line = json.loads(output.getvalue())
    assert line.pop("at").endswith("+00:00")
    assert line["written"] == 11_900
    assert line["last_commit"] == "2026-01-01T12:34:56.789+00:00"
    assert output.getvalue().count("\n") == 1


def test_a_table_for_people() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(live_table("totals", SNAPSHOT))
    shown = captured.get()
    for words in ("totals", "● running", "11,900", "13 batches", "12:34:56.789", "42 rows"):
        assert words in shown
    with console.capture() as captured:
        console.print(live_table("totals", PipelineSnapshot(state="running")))
    assert "state" not in captured.get()


def test_whoever_looks_gets_the_right_screen() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, highlight=False)
    pipe = Console(file=io.StringIO(), force_terminal=False)
    output = io.StringIO()
    with screen_for("totals", output, terminal, as_json=True) as screen:
        assert isinstance(screen, JsonScreen)
    with screen_for("totals", output, pipe, as_json=False) as screen:
        assert isinstance(screen, PlainScreen)
    with screen_for("totals", output, terminal, as_json=False) as screen:
        assert isinstance(screen, LiveScreen)
        screen.begin(BEGUN)
        screen.show(SNAPSHOT)
    assert "the brokers at here:1; Spark" in terminal.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "11,900" in terminal.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_it_is_shown_when_it_is_time() -> None:
    now = [0.0]
    output = io.StringIO()
    showing = Showing(Watch(Pipeline()), PlainScreen(output), clock=lambda: now[0])
    for moment in (0.0, 1.0, 4.9, 5.0, 5.1, 10.1):
        now[0] = moment
        showing()
    assert output.getvalue().count("\n") == 3
