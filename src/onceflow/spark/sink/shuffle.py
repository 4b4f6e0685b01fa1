"""Frames whose tasks are functions over Arrow batches, and the shuffle before tasks that write.

Expressions are written as text: one that is put together in Python asks the JVM several times for
each of its parts, and that for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_STREAM: Final = "LogicalRDD"
"""What Spark calls the plan of a batch, which stands for one that is made already."""
QUERY_ID: Final = "sql.streaming.queryId"
"""A local property of the threads that run a stream."""
Columns: TypeAlias = Mapping[str, str]
"""What is written or says where, by name: expressions of SQL over a frame."""


def selected(frame: DataFrame, columns: Columns) -> DataFrame:
    """Only these."""
    return frame.selectExpr(*(f"{text} AS {name}" for name, text in columns.items()))


def literal(text: str) -> str:
    """A text in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def in_one_task(frame: DataFrame) -> bool:
    """Whether a batch of a stream is computed by one task, or by none. Of other frames that is not
    known without a plan, and making one may run jobs."""
    internal: Any = frame
    plan = internal._jdf.queryExecution().logical()
    if plan.nodeName() != _OF_STREAM:
        return False
    partitions: int = plan.rdd().getNumPartitions()
    return partitions <= 1


def collected(frame: DataFrame, at: int) -> list[bytes]:
    """The column with that number, of bytes, of all rows.

    A batch of a stream is part of what Spark does for the stream, and is only run: `collect` would
    also describe it for Spark's pages and account for it as a query of its own, 7 ms each time.
    """
    if frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID) is None:
        return [bytes(row[at]) for row in frame.collect()]
    internal: Any = frame
    execution = internal._jdf.queryExecution()
    is_planned = execution.logical().nodeName() == _OF_STREAM
    plan = execution.sparkPlan() if is_planned else execution.executedPlan()
    return [bytes(row.getBinary(at)) for row in plan.executeCollect()]


def arrow_function(names: Sequence[str], function: Callable[..., Any], schema: str) -> Any:
    """A function over batches of frames with these columns, as the JVM knows it."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf: Any = UserDefinedFunction(function, _struct(schema), evalType=kind)
    return udf(*names)._jc


def map_in_arrow(frame: DataFrame, function: Any) -> DataFrame:
    """`DataFrame.mapInArrow` of an `arrow_function`; Spark's own asks for pandas and does not use
    it."""
    from pyspark.sql import DataFrame

    internal: Any = frame
    return DataFrame(internal._jdf.mapInArrow(function, False, None), frame.sparkSession)


@cache
def _struct(schema: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(schema)
