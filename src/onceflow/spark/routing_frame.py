"""Frames whose tasks are functions over Arrow batches, and the shuffle before tasks that write.

Expressions are written as text: one that is put together in Python asks the JVM several times for
each of its parts, and that for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from onceflow.spark.routing_packets import PACKED, WAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Columns: TypeAlias = Mapping[str, str]
"""What is written or says where, by name: expressions of SQL over a frame."""


def selected(frame: DataFrame, columns: Columns) -> DataFrame:
    """Only these."""
    return frame.selectExpr(*(f"{text} AS {name}" for name, text in columns.items()))


def literal(text: str) -> str:
    """A text in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def routed(
    frame: DataFrame, names: Sequence[str], pack: Callable[..., Any], tasks: int
) -> DataFrame:
    """All rows as packets, each in the task that writes it."""
    return map_in_arrow(frame, names, pack, PACKED).repartitionById(tasks, WAY)


def map_in_arrow(
    frame: DataFrame, names: Sequence[str], function: Callable[..., Any], schema: str
) -> DataFrame:
    """`DataFrame.mapInArrow`, which asks for pandas and does not use it; `names` are those of all
    columns."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf: Any = UserDefinedFunction(function, _struct(schema), evalType=kind)
    internal: Any = frame
    return DataFrame(internal._jdf.mapInArrow(udf(*names)._jc, False, None), frame.sparkSession)


@cache
def _struct(schema: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(schema)
