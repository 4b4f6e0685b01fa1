"""The queries that are killed: topic to topic with dead letters, and windowed counts.

Rows say where they come from, so that whoever reads the output can tell which are there, which are
missing, and to which batch they belong. `own` is the first query with Spark's own sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.spark.sink.api import dead_letters, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BAD: Final = " bad"
"""What the value of a dead letter has in it."""
WHY: Final = "it is bad"
WINDOW_S: Final = 10


class Plan(NamedTuple):
    """What a driver is to run; goes to it as JSON."""

    kind: str
    bootstrap: str
    name: str
    input: str
    output: str
    dead: str
    checkpoint: str
    rows_in_batch: int
    timeout_ms: int = 60_000
    port: int = 0
    """Of the fate server; 0: nothing happens."""
    driver: str = ""


def start_query(spark: SparkSession, plan: Plan) -> Any:
    """Runs all that there is."""
    options = {
        "kafka.bootstrap.servers": plan.bootstrap,
        "subscribe": plan.input,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(plan.rows_in_batch),
    }
    source = spark.readStream.format("onceflow").options(**options).load()
    writer = KINDS[plan.kind](source, plan)
    return writer.option("checkpointLocation", plan.checkpoint).trigger(availableNow=True).start()


def _placed() -> str:
    return "concat_ws(' ', cast(value as string), partition, offset) as value"


def _rows(source: DataFrame, plan: Plan) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    is_bad = F.col("value").cast("string").contains(BAD)
    checked = dead_letters(source, F.when(is_bad, WHY))
    return write_stream(
        checked.selectExpr("key", _placed(), "dead_letter"),
        topic=plan.output,
        dead_letter_topic=plan.dead,
        bootstrap=plan.bootstrap,
        name=plan.name,
        transaction_timeout_ms=plan.timeout_ms,
    )


def _counts(source: DataFrame, plan: Plan) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    window = F.window("timestamp", f"{WINDOW_S} seconds")
    number = F.substring_index(F.col("value").cast("string"), " ", 1).cast("bigint")
    counted = source.groupBy("key", window).agg(F.count("*").alias("n"), F.sum(number).alias("s"))
    rows = counted.selectExpr("key", "concat_ws(' ', unix_timestamp(window.start), n, s) as value")
    return write_stream(
        rows,
        topic=plan.output,
        bootstrap=plan.bootstrap,
        name=plan.name,
        transaction_timeout_ms=plan.timeout_ms,
    ).outputMode("update")


def _own(source: DataFrame, plan: Plan) -> Any:
    is_bad = f"cast(value as string) like '%{BAD}%'"
    rows = source.selectExpr(
        "key",
        f"if({is_bad}, cast(value as string), {_placed().removesuffix(' as value')}) as value",
        f"if({is_bad}, '{plan.dead}', '{plan.output}') as topic",
    )
    return rows.writeStream.format("kafka").option("kafka.bootstrap.servers", plan.bootstrap)


KINDS: Final[Mapping[str, Callable[[Any, Plan], Any]]] = {
    "rows": _rows,
    "counts": _counts,
    "own": _own,
}
