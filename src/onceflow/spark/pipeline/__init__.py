"""From topics to a topic, as a short file says: read, parse, transform, encode, write;
with the broker beside it, and what a person sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.spark.pipeline.display import (
        Begun as Begun,
        Showing as Showing,
        Watch as Watch,
        screen_for as screen_for,
    )
    from onceflow.spark.pipeline.pipeline import Pipeline as Pipeline
    from onceflow.spark.pipeline.running import RunningPipeline as RunningPipeline
else:
    __getattr__ = door(
        __name__,
        {
            "display": "Begun Showing Watch screen_for",
            "pipeline": "Pipeline",
            "running": "RunningPipeline",
        },
    )
