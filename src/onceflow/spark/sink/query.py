"""A query of the sink, as its user holds it: Spark's own writer and query, and what Spark does not
say. A wrong checkpoint is reported by `start`, not by the first batch; and the error of a query
begins with its cause, with all that Spark says behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from onceflow.spark.errors import SinkRefused, cause_of
from onceflow.spark.sink.checkpoint_files import CheckpointFiles, qualified
from onceflow.spark.sink.identity import check_identity
from onceflow.spark.sink.run import StreamSink, check_not_running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHECKPOINT: Final = "checkpointLocation"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
"""Of the session: the directory in which each query has one by its name."""


class SinkWriter(DataStreamWriter):
    """Writes a frame by a sink; its query has the sink's name unless it is given another."""

    def __init__(self, frame: DataFrame, sink: StreamSink) -> None:
        super().__init__(frame)
        self.sink = sink
        self._checkpoint: str | None = None
        self._query_name = sink.identity.name
        self.queryName(self._query_name)
        self.foreachBatch(sink)

    def option(self, key: str, value: Any) -> SinkWriter:
        self._see(key, value)
        super().option(key, value)
        return self

    def options(self, **options: Any) -> SinkWriter:
        for key, value in options.items():
            self._see(key, value)
        super().options(**options)
        return self

    def queryName(self, queryName: str) -> SinkWriter:  # noqa: N802, N803 - Spark's
        super().queryName(queryName)
        self._query_name = queryName
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's
        outputMode: str | None = None,  # noqa: N803 - Spark's
        partitionBy: str | list[str] | None = None,  # noqa: N803 - Spark's
        queryName: str | None = None,  # noqa: N803 - Spark's
        **options: Any,
    ) -> StreamingQuery:
        """Raises `SinkRefused` and `IdentityChanged` for what cannot go well."""
        self.options(**options)
        if queryName is not None:
            self.queryName(queryName)
        self._check()
        query: Any = super().start(path, format, outputMode, partitionBy)
        return SinkQuery(query._jsq, self.sink)

    def _see(self, key: str, value: Any) -> None:
        if key.lower() == _CHECKPOINT.lower():
            self._checkpoint = None if value is None else str(value)

    def _check(self) -> None:
        identity = self.sink.identity
        check_not_running(identity.name)
        session = self._df.sparkSession
        place = self._checkpoint
        if place is None and (above := session.conf.get(_CHECKPOINTS, None)):
            place = f"{above}/{self._query_name}"
        if not place:
            raise SinkRefused([missing_checkpoint(identity.name)])
        check_identity(CheckpointFiles(session, qualified(session, place)), identity)


def missing_checkpoint(name: str) -> str:
    return (
        f"the query {name!r} has no {_CHECKPOINT}: Spark would keep what it has read in a "
        "directory that is deleted when it ends. Give it one that stays, to go on from: "
        f'.option("{_CHECKPOINT}", "/data/checkpoints/{name}")'
    )


class SinkQuery(StreamingQuery):
    """The query, whose errors begin with their cause."""

    def __init__(self, jsq: Any, sink: StreamSink) -> None:
        super().__init__(jsq)
        self._sink = sink

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802 - Spark's
        with self._cause_first():
            return super().awaitTermination(timeout)  # type: ignore[arg-type]  # takes parts, too

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's
        with self._cause_first():
            super().processAllAvailable()

    def exception(self) -> StreamingQueryException | None:
        error = super().exception()
        if error is not None:
            self._put_first(error)
        return error

    @contextmanager
    def _cause_first(self) -> Iterator[None]:
        try:
            yield
        except StreamingQueryException as error:
            self._put_first(error)
            # With its own causes: the errors of tasks, in full.
            raise error from self._sink.failure

    def _put_first(self, error: Any) -> None:
        """Spark's own text stays, behind it."""
        cause = cause_of(self._sink.failure or error)
        if cause and not error._desc.startswith(cause):
            error._desc = f"{cause}\n\n{error._desc}"
