"""Spark's own Kafka connector reads and writes, in batches and as a stream, on both brokers."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import START_MS, batch, produce
from tests.interop.harness import Compare, Names, Script, Transcript
from tests.interop.real_kafka import cannot_test
from tests.spark.session import spark_environment
from tools.java import find_java
from tools.kafka_jars import KafkaJarsError
from tools.spark_jars import ensure_spark_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.interop

SCHEMA = "partition int, key binary, value binary, headers array<struct<key:string,value:binary>>"


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """One Spark for the whole session, with the connector's jars."""
    if importlib.util.find_spec("pyspark") is None:
        cannot_test(request, "spark", "pyspark is missing: install requirements-spark.lock")
    if find_java() is None:
        cannot_test(request, "spark", "there is no Java to run Spark")
    try:
        jars = ensure_spark_jars()
    except KafkaJarsError as error:
        cannot_test(request, "spark", str(error))
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as scratch:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("interop")
            .config("spark.jars", ",".join(map(str, jars.glob("*.jar"))))
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.local.dir", scratch)
            .config("spark.log.level", "ERROR")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        yield session
        session.stop()


class Connector:
    """The connector against one broker."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": bootstrap}

    def rows(self, values: list[tuple[Any, ...]]) -> DataFrame:
        return self._spark.createDataFrame(values, SCHEMA)

    def write(self, frame: DataFrame, topic: str) -> None:
        # The sink's producer would ask for a producer id by default.
        options = {**self._options, "kafka.enable.idempotence": "false", "topic": topic}
        frame.write.format("kafka").options(**options).options(includeHeaders="true").save()

    def read(self, topic: str, **options: str) -> list[tuple[Any, ...]]:
        reader = self._spark.read.format("kafka").options(**self._options, subscribe=topic)
        frame = reader.options(includeHeaders="true", **options).load()
        return sorted(
            (
                row.partition,
                row.offset,
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                [(header.key, bytes(header.value)) for header in row.headers or ()],
            )
            for row in frame.collect()
        )

    def stream(self, source: str, target: str, checkpoint: str) -> int:
        """Everything that is there from one topic to another, as one run of a stream."""
        reader = self._spark.readStream.format("kafka").options(**self._options, subscribe=source)
        frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="40").load()
        writer = frame.select("key", "value").writeStream.format("kafka")
        options = {**self._options, "kafka.enable.idempotence": "false", "topic": target}
        options |= {"checkpointLocation": checkpoint}
        query = writer.options(**options).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)


def batches(spark: SparkSession) -> Script:
    def spark_batches(bootstrap: str, names: Names, transcript: Transcript) -> None:
        """What is written is read back: all of it, by offsets, by time, topics by pattern."""
        connector, topic = Connector(spark, bootstrap), ready_topic(names, partitions=2)
        rows: list[tuple[Any, ...]] = [
            (number % 2, b"k%d" % number, b"v%d" % number, [("h", b"%d" % number)])
            for number in range(20)
        ]
        rows.append((0, None, None, []))
        connector.write(connector.rows(rows).coalesce(1), topic)
        found = connector.read(topic)
        assert [row[0] for row in found] == [0] * 11 + [1] * 10
        wanted = sorted((row[2] or b"", row[0]) for row in rows)
        assert sorted((row[3] or b"", row[0]) for row in found) == wanted
        transcript.note("all", found)
        start = json.dumps({topic: {"0": 3, "1": 0}})
        end = json.dumps({topic: {"0": 6, "1": 0}})
        found = connector.read(topic, startingOffsets=start, endingOffsets=end)
        assert [row[1] for row in found] == [3, 4, 5]
        transcript.note("by offsets", found)
        transcript.note("long ago", len(connector.read(topic, startingTimestamp=str(START_MS))))
        timed = ready_topic(names, "timed")
        with RawConnection(bootstrap) as connection:
            produce(connection, timed, batch(b"a", b"b", b"c", b"d"))
        by_time = {"startingTimestamp": str(START_MS + 1), "endingTimestamp": str(START_MS + 3)}
        assert [row[3] for row in connector.read(timed, **by_time)] == [b"b", b"c"]
        transcript.note("by time", connector.read(timed, **by_time))

    return spark_batches


def streams(spark: SparkSession) -> Script:
    def spark_streams(bootstrap: str, names: Names, transcript: Transcript) -> None:
        """A stream goes from topic to topic, and goes on from its checkpoint."""
        connector = Connector(spark, bootstrap)
        source, target = ready_topic(names, "in", partitions=2), ready_topic(names, "out")
        with tempfile.TemporaryDirectory() as checkpoint:
            for turn in range(2):
                rows: list[tuple[Any, ...]] = [
                    (n % 2, b"k", b"%d-%d" % (turn, n), []) for n in range(100)
                ]
                connector.write(connector.rows(rows), source)
                copied = connector.stream(source, target, checkpoint)
                transcript.note(f"copied in turn {turn}", copied)
                assert copied == 100
        values = sorted(row[3] for row in connector.read(target))
        assert values == sorted(b"%d-%d" % (turn, n) for turn in range(2) for n in range(100))
        transcript.note("target", values)

    return spark_streams


@pytest.mark.parametrize("make", [batches, streams], ids=lambda make: make.__name__)
def test_spark(make: Any, spark: SparkSession, compare: Compare) -> None:
    compare(make(spark))
