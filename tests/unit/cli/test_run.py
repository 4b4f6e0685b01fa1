"""`onceflow run` up to the start of Spark, which it does not come to here, and how a pipeline that
is played is told to stop."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from onceflow.cli import run
from onceflow.cli.common.streams import OutputFailed
from onceflow.spark.pipeline.pipeline import Pipeline
from onceflow.spark.sink.run import SinkTotals

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage: onceflow run [OPTIONS] {FILE}" in said
    for option in ("--master", "--bootstrap", "--once", "--json"):
        assert option in said


def test_a_wrong_file_is_told_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text('[pipeline]\nname = "a b"\ncheckpoint = "c"\n[sink]\nformat = "jsn"\n')
    assert run(["run", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path} cannot be run; 5 things are wrong:\n")
    assert "\n  line 2: pipeline.name: 'a b' is not allowed; it may be up to 200 letters" in said
    assert "\n  line 5: sink.format: 'jsn' is not allowed; it may be json, csv, text or raw" in said
    assert run(["run", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["type"] == "InvalidPipeline"


def test_a_file_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run"]) == 2
    assert "FILE" in capsys.readouterr().err


# --- how it is stopped ----------------------------------------------------------------------------


class Running:
    """A pipeline that runs until it is told to stop, or ended at once; `during` happens to it."""

    bootstrap = "played"
    progress = staticmethod(lambda: None)

    def __init__(self, *during: Callable[[], object]) -> None:
        self._during = during
        self.written = SinkTotals()
        self.is_active, self.is_stopping = True, False
        self.calls: list[str] = []

    def request_stop(self) -> None:
        self.calls.append("request_stop")
        self.is_stopping = True

    def wait(self, watch: Callable[[], None]) -> None:
        for each in self._during:
            each()
        assert self.is_stopping, "nothing has told it to stop"
        self.calls.append("waited")

    def stop(self) -> None:
        self.calls.append("stop")
        self.is_stopping = True

    def kill(self) -> None:
        self.calls.append("kill")

    def close(self) -> None:
        self.is_active = False
        self.calls.append("close")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """A signal that the command does not catch must not end the tests."""
    before = {each: signal.signal(each, lambda number, frame: None) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def play(monkeypatch: pytest.MonkeyPatch, running: Running) -> int:
    """The status of the command that runs it."""
    pipeline = SimpleNamespace(
        plan=SimpleNamespace(name="played"), log_path="log", start=lambda **_: running
    )
    monkeypatch.setattr(Pipeline, "from_file", lambda path, **_: pipeline)
    return run(["run", "played.toml", "--json"])


def raising(number: signal.Signals) -> Callable[[], object]:
    return lambda: signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_lets_the_batch_under_way_finish(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    running = Running(raising(number))
    assert play(monkeypatch, running) == 0
    assert running.calls == ["request_stop", "waited", "close"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    class Ended(Exception):
        pass

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    running = Running(raising(signal.SIGINT), raising(number))
    with pytest.raises(Ended, match="130"):
        play(monkeypatch, running)
    assert running.calls[:2] == ["request_stop", "kill"]


def test_a_hangup_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    running = Running(raising(signal.SIGHUP), raising(signal.SIGTERM))
    assert play(monkeypatch, running) == 0
    assert running.calls == ["request_stop", "waited", "close"]


def fail() -> None:
    raise OutputFailed("cannot write to standard output: Input/output error")


@pytest.mark.parametrize(
    ("during", "status", "calls"),
    [
        ([fail], 1, ["stop", "close"]),
        ([raising(signal.SIGHUP), fail], 0, ["request_stop", "stop", "close"]),
    ],
)
def test_an_output_that_fails_lets_the_batch_under_way_finish(
    monkeypatch: pytest.MonkeyPatch, during: list[Any], status: int, calls: list[str]
) -> None:
    """As that to a terminal that is closed, before its signal is here or after it."""
    running = Running(*during)
    assert play(monkeypatch, running) == status
    assert running.calls == calls
