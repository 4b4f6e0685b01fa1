"""Spark reads and writes topics, exactly once: `spark.readStream.format("onceflow")` is the source
(`pyspark_onceflow` makes it known), `write_stream` and `write` make a micro-batch, or a frame, one
transaction, and a `Pipeline` goes from topics to a topic as a file of some lines says.

Importing this package imports no Spark: what is named here is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onceflow.spark.pipeline import Pipeline
    from onceflow.spark.sink import starting_offsets, write, write_stream

__all__ = ["Pipeline", "starting_offsets", "write", "write_stream"]

_HOMES: Final = {
    "Pipeline": "pipeline",
    "starting_offsets": "sink",
    "write": "sink",
    "write_stream": "sink",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
