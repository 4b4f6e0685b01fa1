"""`onceflow run`: a pipeline in the foreground.

Says on standard error what it does and on standard output how it goes: a live table in a terminal,
a line every few seconds elsewhere, JSON lines with `--json`. SIGINT, SIGTERM and SIGHUP let the
batch under way finish and end it in an orderly way; a second one ends it at once, as a crash would:
nothing is lost or doubled, and the next start goes on. SIGHUP is left alone where it is ignored, as
under `nohup`. An output that cannot be written any more, as to a terminal that was closed, ends it
in an orderly way, too.

Ends with 0 when it was stopped or, with `--once`, has done all there was; with 1 when it failed or
the file is wrong; with 2 when it was called wrongly; with 130 when it was ended at once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from onceflow.cli.common import AsJson, OutputFailed, not_ignored, note

if TYPE_CHECKING:
    from onceflow.spark.pipeline import Pipeline, RunningPipeline, Showing

_AT_ONCE: Final = 130

PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline: a TOML file; see docs/SPARK.md.")
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark's master, such as spark://host:7077. The default is this machine.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar="ONCEFLOW_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="Brokers to use instead of those in the file.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process what is there now, then exit.")]


def run(
    file: PipelineFile,
    master: Master = None,
    bootstrap: Bootstrap = None,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline: from topics, through SQL or Python on Spark, to a topic; exactly once."""
    from onceflow.spark.pipeline import Pipeline

    pipeline = Pipeline.from_file(file, bootstrap=bootstrap)
    _end_at_once_when_signalled()
    note("starting Spark")
    running = pipeline.start(master=master, once=once)
    _stop_when_signalled(running)
    try:
        _show_to_the_end(pipeline, running, as_json=as_json)
    finally:
        running.close()


def _show_to_the_end(pipeline: Pipeline, running: RunningPipeline, *, as_json: bool) -> None:
    from rich.console import Console

    from onceflow.spark.pipeline import Begun, Showing, Watch, screen_for

    name = pipeline.plan.name
    console = Console(highlight=False)
    with screen_for(name, sys.stdout, console, as_json=as_json) as screen:
        screen.begin(Begun(name, running.bootstrap, str(pipeline.log_path)))
        showing = Showing(Watch(running), screen)
        try:
            _wait(running, showing)
        finally:
            showing.now()


def _wait(running: RunningPipeline, showing: Showing) -> None:
    """A terminal that is closed can fail the output before its signal is here: the batch under way
    is finished either way."""
    try:
        running.wait(watch=showing)
    except (OutputFailed, BrokenPipeError):
        was_told_to = running.is_stopping
        running.stop()
        if not was_told_to:
            raise


def _signals() -> set[signal.Signals]:
    """What stops it; the same as for `serve`."""
    return {signal.SIGINT, signal.SIGTERM, *not_ignored()}


def _end_at_once_when_signalled() -> None:
    """While it starts: whatever was started ends with it."""

    def end(number: int, frame: Any) -> None:
        raise typer.Exit(_AT_ONCE)

    for each in _signals():
        signal.signal(each, end)


def _stop_when_signalled(running: RunningPipeline) -> None:
    """The first one lets the batch under way finish, the second one does not."""
    numbers = _signals()

    def at_once(number: int, frame: Any) -> None:
        running.kill()
        os._exit(_AT_ONCE)

    def stop(number: int, frame: Any) -> None:
        for each in numbers:
            signal.signal(each, at_once)
        note("stopping after the current batch; interrupt again to stop at once")
        running.request_stop()

    for each in numbers:
        signal.signal(each, stop)
