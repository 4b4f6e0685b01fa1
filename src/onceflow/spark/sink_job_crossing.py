"""How the rows of a stream cross from the JVM to Python: chosen after each batch for the next.

Pieces of some hundred kilobytes are fastest. Spark can hold them to a number of bytes, but looks at
the size of a piece after each row then, which costs about as much as writing the row does. So from
the second batch on they are held to a number of rows, by what rows were like in the batch before;
after a failure the bytes count again, as rows may have become much larger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from onceflow.spark.routing_frame import QUERY_ID
from onceflow.spark.writing_report import ALL_ROWS, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES: Final = 256 << 10
MOST_ROWS: Final = 10_000
_UNLIMITED: Final = 2**31 - 1
"""Spark does not look at sizes then."""
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def rows_of_piece(reports: Iterable[Report]) -> int | None:
    """So many rows have the size of a piece; None where there were none to learn from."""
    of_all = [each for each in reports if each.target == ALL_ROWS]
    rows, size = sum(each.rows for each in of_all), sum(each.size for each in of_all)
    return max(1, min(MOST_ROWS, PIECE_BYTES * rows // max(1, size))) if rows else None


def crossing(rows: int | None) -> dict[str, str]:
    """Settings of Spark. The shuffle of a batch is what it is: there is nothing to adapt, and each
    of its stages would be a job of its own."""
    most = {_ROWS: str(rows or MOST_ROWS), _BYTES: str(_UNLIMITED if rows else PIECE_BYTES)}
    return {**most, _ADAPTIVE: "false"}


def prepare_next(session: SparkSession, reports: Iterable[Report]) -> None:
    """Sets the session that Spark has made for a stream up for its next batch, by the reports of
    this one, if there are any; any other session is its user's, and left alone."""
    if session.sparkContext.getLocalProperty(QUERY_ID) is not None:
        for name, value in crossing(rows_of_piece(reports)).items():
            session.conf.set(name, value)
