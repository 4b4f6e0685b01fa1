"""What tests of the source share: topics with something in them, rows as plain values, and a stream
that writes down what it saw."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from tests.interop.broker.clients.client_confluent import Confluent
from tests.interop.broker.clients.face import Message
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.clients.transactional import ConfluentProducer, ConfluentTransactions
from tests.interop.harness import Names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.streaming.query import StreamingQuery

    from onceflow.spark.source.datasource import StreamReader

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
Options = Mapping[str, str]
Rows = list[tuple[Any, ...]]


class SourceWorld:
    """One broker, names that nobody else uses, and Spark where it is needed."""

    def __init__(self, spark: SparkSession | None, bootstrap: str) -> None:
        self._spark = spark
        self.bootstrap = bootstrap
        self.names = Names.fresh(bootstrap)
        self.client = Confluent(bootstrap)

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "this test runs without Spark"
        return self._spark

    # --- topics ---------------------------------------------------------------------------------

    def topic(self, label: str = "t", *, partitions: int = 1, **configs: str) -> str:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        return ready_topic(self.names, label, partitions=partitions, configs=given)

    def send(self, topic: str, *values: str, partition: int = 0, codec: str = "none") -> None:
        self.produce(topic, [Message(v.encode(), partition=partition) for v in values], codec)

    def produce(self, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
        results = self.client.produce(topic, messages, codec=codec)
        assert all(isinstance(each, int) for each in results), results

    def transactions(self, label: str = "txn") -> ConfluentProducer:
        return ConfluentTransactions(self.bootstrap).producer(self.names(label))

    # --- batches --------------------------------------------------------------------------------

    def options(self, given: Options) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, **given}

    def frame(self, source: str, given: Options) -> DataFrame:
        return self.spark.read.format(source).options(**self.options(given)).load()

    def rows(self, source: str, cases: Mapping[str, Options]) -> dict[str, Rows]:
        """What each of several reads gives, in one job."""
        from pyspark.sql.functions import lit

        frames = [
            self.frame(source, given).select(lit(name).alias("case"), "*")
            for name, given in cases.items()
        ]
        found: dict[str, Rows] = {name: [] for name in cases}
        together = reduce(lambda one, other: one.unionByName(other, True), frames)
        for row in together.collect():
            case, *values = row
            found[case].append(tuple(map(plain, values)))
        return {name: sorted(rows, key=place_of) for name, rows in found.items()}

    def reader(self, given: Options) -> StreamReader:
        """The driver's side of a stream, in this process."""
        from onceflow.spark.source.datasource import OnceflowSource

        source = OnceflowSource(self.options(given))
        reader: Any = source.streamReader(source.schema())
        return reader  # type: ignore[no-any-return]  # Spark's own type says less

    # --- streams --------------------------------------------------------------------------------

    def stream(
        self,
        source: str,
        given: Options,
        checkpoint: str,
        seen: Callable[[int, list[str]], None],
        **trigger: Any,
    ) -> StreamingQuery:
        """Runs, and tells of each batch the values that it had."""

        def take(frame: DataFrame, batch_id: int) -> None:
            values = [row.value for row in frame.select("value").collect()]
            seen(batch_id, sorted(bytes(value).decode() for value in values))

        frame = self.spark.readStream.format(source).options(**self.options(given)).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run_through(self, source: str, given: Options, checkpoint: str) -> dict[int, list[str]]:
        """All that is available now, by batch."""
        batches: dict[int, list[str]] = {}
        query = self.stream(source, given, checkpoint, batches.__setitem__, availableNow=True)
        query.awaitTermination()
        return batches


def at_most(rows: int | None = None) -> ReadLimit:
    """What Spark allows a batch."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    return ReadAllAvailable() if rows is None else ReadMaxRows(rows)


def plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    if isinstance(value, list):
        return [tuple(map(plain, each)) for each in value]
    return value


def place_of(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Topic, partition, offset."""
    return row[2:5]


def numbered(label: str, numbers: Iterable[int]) -> list[str]:
    return [f"{label}{number:03}" for number in numbers]
