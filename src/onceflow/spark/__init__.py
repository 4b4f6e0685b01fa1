"""Spark reads and writes topics, exactly once: `spark.readStream.format("onceflow")` is the source
(`pyspark_onceflow` makes it known), `write_stream` and `write` make a micro-batch, or a frame, one
transaction, `dead_letters` sorts out rows that cannot be used, and a `Pipeline` goes from topics to
a topic as a file of some lines says.

Importing this package imports no Spark: what is named here is loaded when it is asked for. It does
one thing: where nobody chose which Python Spark runs, that is this one (see `session_python`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from onceflow.spark.session.python import choose_python

if TYPE_CHECKING:
    from onceflow.spark.errors.pipeline import InvalidPipeline, PipelineError, PipelineFailed
    from onceflow.spark.errors.sink import SinkError, SinkFenced, SinkRefused
    from onceflow.spark.errors.source import InvalidOptions, SourceError
    from onceflow.spark.formats.dead_letter_rows import dead_letters
    from onceflow.spark.pipeline.pipeline import Pipeline
    from onceflow.spark.sink.api import starting_offsets, write, write_stream

__all__ = [
    "Pipeline",
    "dead_letters",
    "starting_offsets",
    "write",
    "write_stream",
    "InvalidOptions",
    "InvalidPipeline",
    "PipelineError",
    "PipelineFailed",
    "SinkError",
    "SinkFenced",
    "SinkRefused",
    "SourceError",
]

# No name here may be that of a module of this package: importing the module would replace it.
_HOMES: Final = {
    "Pipeline": "pipeline",
    "dead_letters": "dead_letter_rows",
    "starting_offsets": "sink",
    "write": "sink",
    "write_stream": "sink",
    "InvalidOptions": "source_errors",
    "InvalidPipeline": "pipeline_errors",
    "PipelineError": "pipeline_errors",
    "PipelineFailed": "pipeline_errors",
    "SinkError": "sink_errors",
    "SinkFenced": "sink_errors",
    "SinkRefused": "sink_errors",
    "SourceError": "source_errors",
}

choose_python()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
