"""Rules have to say the same of a row each time they are asked: good rows and dead letters are two
branches of a query, for each of which rules are evaluated. A row that is good in one and bad in the
other would be written twice, and a row that is the opposite not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceflow.spark.pipeline_errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def refuse_chance(frame: DataFrame, rule: str, condition: str) -> None:
    """Raises `PipelineFailed` for a condition that Spark knows not to be deterministic, and Spark's
    own errors for one that means nothing for the frame."""
    internal: Any = frame.selectExpr(condition)
    analyzed = internal._jdf.queryExecution().analyzed()
    if not analyzed.projectList().head().deterministic():
        raise PipelineFailed(
            f"the rule {rule!r} ({condition}) may say something else of the same row each time: "
            "rows would be lost or written twice",
            where=f"rules.{rule}",
            advice="leave functions like rand() and uuid() out of rules; to take a sample, compare "
            "a hash of the row: pmod(xxhash64(_topic, _partition, _offset), 100) < 50",
        )
