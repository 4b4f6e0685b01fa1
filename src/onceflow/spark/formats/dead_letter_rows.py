"""Rows that cannot be processed go to a topic of their own, in the same transaction.

    checked = dead_letters(parsed, F.when(F.col("order").isNull(), "not an order"))
    write_stream(checked.select("key", "value", "dead_letter"), ..., dead_letter_topic="bad-orders")

A dead letter is the record as it was read, with headers that say what was wrong (`error`) and
where it came from (`source.topic`, `source.partition`, `source.offset`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEAD_LETTER: Final = "dead_letter"
"""The column; null in good rows."""
_ERROR: Final = "dead_letter_error"
_SOURCE: Final = ("topic", "partition", "offset")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "error": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": _HEADERS,
}
DEAD_LETTER_FIELDS: Final = (
    "struct<" + ",".join(f"{name}:{kind}" for name, kind in _TYPES.items()) + ">"
)


def dead_letters(frame: DataFrame, error: Column) -> DataFrame:
    """The frame with a column that holds the record as it was read, where `error` is not null.

    `frame` still has the columns of its source: `value` and, where there are any, `key`, `topic`,
    `partition`, `offset` and `headers`. The result may be changed in any way that keeps the column
    `dead_letter`; in rows that have it nothing else counts.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    judgement = _unused(_ERROR, frame.columns)

    def field(name: str) -> Column:
        known = F.col(judgement) if name == "error" else None
        if known is None and name in frame.columns:
            known = F.col(name)
        return (F.lit(None) if known is None else known).cast(_TYPES[name]).alias(name)

    letter = F.struct(*map(field, _TYPES))
    # A column of its own is computed once, whatever it is made of.
    judged = frame.withColumn(judgement, error)
    is_bad = F.col(judgement).isNotNull()
    return judged.withColumn(DEAD_LETTER, F.when(is_bad, letter)).drop(judgement)


def _unused(name: str, columns: Collection[str]) -> str:
    """A name like this that no column has: Spark does not look at the case."""
    taken = {each.lower() for each in columns}
    while name in taken:
        name += "_"
    return name


def with_dead_letters(
    frame: DataFrame, dead_letter_topic: str, *, keeps_partition: bool
) -> DataFrame:
    """The frame of all rows that are written, dead letters where their rows stood, with all columns
    but perhaps `partition`. `keeps_partition`: dead letters go to the partition with the number of
    that which their record was read from."""
    from pyspark.sql import functions as F  # noqa: N812

    is_dead = F.col(DEAD_LETTER).isNotNull()
    letter = {name: F.col(f"{DEAD_LETTER}.{name}") for name in _TYPES}

    def either(name: str, dead: Column, kind: str) -> Column:
        good = F.col(name) if name in frame.columns else F.lit(None).cast(kind)
        return F.when(is_dead, dead).otherwise(good).alias(name)

    columns = [
        either("key", letter["key"], "binary"),
        either("value", letter["value"], "binary"),
        either("headers", _dead_headers(letter), _HEADERS),
        either("topic", F.lit(dead_letter_topic), "string"),
    ]
    if keeps_partition:
        columns.append(either("partition", letter["partition"], "int"))
    elif "partition" in frame.columns:
        columns.append(either("partition", F.lit(None).cast("int"), "int"))
    return frame.select(*columns)


def _dead_headers(letter: dict[str, Column]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str, value: Column) -> Column:
        text = value.cast("string").cast("binary")
        return F.struct(F.lit(name).alias("key"), text.alias("value"))

    headers = [header("error", letter["error"])]
    headers += [header(f"source.{name}", letter[name]) for name in _SOURCE]
    kept = F.coalesce(letter["headers"], F.array().cast(_HEADERS))
    return F.concat(kept, F.array(*headers).cast(_HEADERS))
