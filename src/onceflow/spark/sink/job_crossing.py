"""How the rows of a stream cross from the JVM to Python: in pieces of some hundred kilobytes, which
are fastest.

They are held to a number of bytes, always. Spark looks at the size of a piece after each row then,
which costs some tenths of a microsecond; a number of rows alone would be cheaper, but rows can
become a thousand times as large from one batch to the next, and a piece of them would not fit into
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceflow.spark.sink.shuffle import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES: Final = 256 << 10
CROSSING: Final = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(PIECE_BYTES),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # The shuffle of a batch is what it is: there is nothing to adapt, and each of its stages would
    # be a job of its own.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of Spark, from the second batch on; the first has those of its user, or Spark's own,
which hold pieces to 64 MB."""


def prepare_next(session: SparkSession) -> None:
    """Sets the session that Spark has made for a stream up for its next batch; any other session is
    its user's, and left alone."""
    if session.sparkContext.getLocalProperty(QUERY_ID) is not None:
        for name, value in CROSSING.items():
            session.conf.set(name, value)
