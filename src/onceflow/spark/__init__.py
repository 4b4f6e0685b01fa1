"""Spark reads and writes topics, exactly once: `spark.readStream.format("onceflow")` is the source
(`pyspark_onceflow` makes it known), `write_stream` and `write` make a micro-batch, or a frame, one
transaction, `dead_letters` sorts out rows that cannot be used, and a `Pipeline` goes from topics to
a topic as a file of some lines says.

Importing this package imports no Spark: what is named here is loaded when it is asked for. It does
one thing: unless the user chose which Python Spark runs, it is this one (see `session/python.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door
from onceflow.spark.session import choose_python

if TYPE_CHECKING:
    from onceflow.spark.errors import (
        InvalidOptions,
        InvalidPipeline,
        PipelineError,
        PipelineFailed,
        SinkError,
        SinkFenced,
        SinkRefused,
        SourceError,
    )
    from onceflow.spark.formats import dead_letters
    from onceflow.spark.pipeline import Pipeline
    from onceflow.spark.sink import starting_offsets, write, write_stream
else:
    __getattr__ = door(
        __name__,
        {
            "errors": "InvalidOptions InvalidPipeline PipelineError PipelineFailed SinkError "
            "SinkFenced SinkRefused SourceError",
            "formats": "dead_letters",
            "pipeline": "Pipeline",
            "sink": "starting_offsets write write_stream",
        },
    )

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

choose_python()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
