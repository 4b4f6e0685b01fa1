"""The frame of a batch with the number of its output partition in each row, and one writing task
for each number.

Everything but murmur2 and topics that only rows know is Spark's own SQL: only keys cross over to
Python before the shuffle. It is written as text: an expression that is put together in Python asks
the JVM several times for each of its parts, and that for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from onceflow.spark.claims import Door, Epoch
from onceflow.spark.routing import (
    LARGEST_HASH,
    TARGET,
    Layout,
    murmur2_of,
    targets,
    unknown_topics,
)
from onceflow.spark.sink_errors import RowRefused
from onceflow.spark.writing import Told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Columns: TypeAlias = Mapping[str, str]
"""What is written or says where, by name: expressions of SQL over a frame."""
WRITTEN: Final = ("key", "value", "headers")
"""What goes to the topic, besides what says where."""
_FOUND: Final = "onceflow_found"
"""What a function has made of a row, for as long as it is needed."""
_HASH_UNUSED: Final = 1
"""Where a topic has one partition, no hash is needed."""


def routed(
    frame: DataFrame, columns: Columns, layout: Layout | None, door: Door, told: Told
) -> DataFrame:
    """What is written, and the column `target`. `layout` is None when only the rows know their
    topics: then tasks ask the driver."""
    by_value = f"CAST(pmod(xxhash64({columns['value']}), {LARGEST_HASH}) AS INT)"
    if layout is None:
        asked = _with_column(frame, _FOUND, _asked_target(columns, by_value, door, told))
        return asked.selectExpr(*_written(columns), f"{_FOUND} AS {TARGET}")
    hashed = by_value
    if set(layout.counts().values()) <= {_HASH_UNUSED}:
        hashed = "0"
    elif "key" in columns:
        frame = _with_column(frame, _FOUND, _arrow_udf(murmur2_of)(_column(columns["key"])))
        hashed = f"coalesce({_FOUND}, {by_value})"

    def slot(count: int) -> str:
        found = f"pmod({hashed}, {count})"
        return f"coalesce({columns['partition']}, {found})" if "partition" in columns else found

    return frame.selectExpr(*_written(columns), _target(columns, layout, slot))


def narrow(frame: DataFrame, columns: Columns, layout: Layout) -> DataFrame:
    """Rows stay in their tasks: each goes to the partition that it names, else to the partition
    with the number of its task."""
    slot = "spark_partition_id()"
    if "partition" in columns:
        slot = f"coalesce({columns['partition']}, {slot})"
    return frame.selectExpr(*_written(columns), _target(columns, layout, lambda count: slot))


def gathered(frame: DataFrame, tasks: int) -> DataFrame:
    """All rows of a target in one task."""
    return frame.repartitionById(tasks, TARGET)


def map_in_arrow(
    frame: DataFrame, names: Sequence[str], function: Callable[..., Any], schema: str
) -> DataFrame:
    """`DataFrame.mapInArrow`, which asks for pandas and does not use it; `names` are those of all
    columns."""
    from pyspark.sql import DataFrame
    from pyspark.util import PythonEvalType

    column = _udf(function, _report(schema), PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(*names)
    internal: Any = frame
    return DataFrame(internal._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


@cache
def _report(schema: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(schema)


def _udf(function: Callable[..., Any], kind: Any, eval_type: int) -> Any:
    from pyspark.sql.udf import UserDefinedFunction

    return UserDefinedFunction(function, kind, evalType=eval_type)


def _arrow_udf(function: Callable[..., Any]) -> Any:
    """Of whole numbers."""
    from pyspark.sql.types import IntegerType
    from pyspark.util import PythonEvalType

    return _udf(function, IntegerType(), PythonEvalType.SQL_SCALAR_ARROW_UDF)


def _with_column(frame: DataFrame, name: str, column: Any) -> DataFrame:
    from pyspark.sql import DataFrame

    internal: Any = frame
    return DataFrame(internal._jdf.withColumn(name, column._jc), frame.sparkSession)


# --- expressions --------------------------------------------------------------------------------


def _column(text: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return F.expr(text)


def written_names(columns: Columns) -> list[str]:
    """Of all columns of a frame that is routed."""
    return [*(name for name in WRITTEN if name in columns), TARGET]


def _written(columns: Columns) -> list[str]:
    return [f"{columns[name]} AS {name}" for name in WRITTEN if name in columns]


def literal(text: str) -> str:
    """A text in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _target(columns: Columns, layout: Layout, slot: Callable[[int], str]) -> str:
    """`slot` of the row's topic, counted over all topics."""
    bases = layout.bases()

    def within(name: str, count: int) -> str:
        found = slot(count)
        fits = f"{found} >= 0 AND {found} < {count}"
        return f"CASE WHEN {fits} THEN {found} + {bases[name]} ELSE {layout.outside} END"

    (first, count), *others = layout.topics
    text = reduce(
        lambda found, each: (
            f"CASE WHEN {columns['topic']} = {literal(each[0])} THEN {within(*each)} "
            f"ELSE {found} END"
        ),
        others,
        within(first, count),
    )
    return f"CAST({text} AS INT) AS {TARGET}"


def _asked_target(columns: Columns, by_value: str, door: Door, told: Told) -> Any:
    """By a function that asks the driver for topics it does not know."""
    names = [name for name in ("key", "partition") if name in columns]

    def find(topics: Any, by_value: Any, *more: Any) -> Any:
        return find_targets(door, told, topics, by_value, dict(zip(names, more, strict=True)))

    texts = (columns["topic"], by_value, *(columns[name] for name in names))
    return _arrow_udf(find)(*map(_column, texts))


_known: dict[tuple[str, Epoch], Layout] = {}
"""What this process was told, by query and epoch: numbers hold for one epoch only."""


def find_targets(door: Door, told: Told, topics: Any, by_value: Any, more: dict[str, Any]) -> Any:
    """The numbers of rows that name their topics."""
    import pyarrow.compute as pc

    with told(door):
        asked_in = door.token, told.epoch
        layout = _known.get(asked_in, Layout())
        if unknown := unknown_topics(layout, topics):
            layout = Layout(tuple(door.layout(unknown)))
            _known.clear()
            _known[asked_in] = layout
        if missing := unknown_topics(layout, topics):
            raise RowRefused(f"there is no topic {missing[0]!r}")
        hashes = by_value
        if "key" in more:
            hashes = pc.coalesce(murmur2_of(more["key"]), by_value)
        return targets(layout, topics, hashes, more.get("partition"))
