"""`spark.read.format("onceflow")` gives the rows that Spark's own source gives, on both brokers."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

import onceflow
from onceflow.client.errors.consumer import RangeUnavailable
from onceflow.spark.errors.source import DataLost, InvalidOptions
from tests.interop.broker.clients.face import Message
from tests.interop.broker.raw.steps import START_MS
from tests.interop.harness import eventually
from tests.spark.sink.world import PATIENCE_S
from tests.spark.source.world import CODECS, SourceWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop


def fill(world: SourceWorld) -> tuple[str, str]:
    """Every codec, nulls, headers, times; committed, aborted and open transactions."""
    one, two = world.topic("one", partitions=2), world.topic("two")
    for number, codec in enumerate(CODECS):
        first = START_MS + number * 100
        rows = [
            Message(b"%s %d" % (codec.encode(), n) * 20, b"k%d" % n, (), first + n, n % 2)
            for n in range(8)
        ]
        world.produce(one, rows, codec)
    headers = (("a", b"1"), ("b", None), ("a", b""))
    nulls = [
        Message(None, b"key", (), START_MS + 700),
        Message(b"", None, headers, START_MS + 701),
        Message(None, None, (("only", b"one"),), START_MS + 702),
    ]
    world.produce(two, nulls)
    sender = world.transactions()
    for ends in ("commit", "abort", "commit"):
        sender.begin()
        sender.send(one, [b"%s %d" % (ends.encode(), n) for n in range(3)])
        sender.send(two, [ends.encode()])
        getattr(sender, ends)()
    sender.begin()
    sender.send(one, [b"open"], partition=1)
    return one, two


def cases(one: str, two: str) -> dict[str, dict[str, str]]:
    start = json.dumps({one: {"0": 3, "1": -2}})
    end = json.dumps({one: {"0": 22, "1": -1}})
    times = json.dumps({one: {"0": START_MS + 102, "1": START_MS}})
    late = {"startingTimestamp": str(START_MS + 10**9)}
    return {
        "one": {"subscribe": one},
        "both": {"subscribe": f"{one}, {two}", "includeHeaders": "true"},
        "pattern": {"subscribePattern": f"{two[1:-1]}[no]", "includeHeaders": "true"},
        "assign": {"assign": json.dumps({one: [1], two: [0]})},
        "offsets": {"subscribe": one, "startingOffsets": start, "endingOffsets": end},
        "from a time": {"subscribe": one, "startingTimestamp": str(START_MS + 203)},
        "between times": {
            "subscribe": one,
            "startingTimestamp": str(START_MS + 1),
            "endingTimestamp": str(START_MS + 301),
        },
        "times by partition": {
            "subscribe": one,
            "startingOffsetsByTimestamp": times,
            "endingTimestamp": str(START_MS + 400),
        },
        "too late": {"subscribe": two, **late, "startingOffsetsByTimestampStrategy": "latest"},
        "split": {"subscribe": one, "minPartitions": "7"},
        "split small": {"subscribe": one, "maxRecordsPerPartition": "4"},
        "uncommitted": {"subscribe": one, "kafka.isolation.level": "read_uncommitted"},
    }


def test_rows_are_those_of_sparks_own_source(spark: SparkSession, bootstrap: str) -> None:
    world = SourceWorld(spark, bootstrap)
    wanted = cases(*fill(world))
    # Spark's own source reads what is not committed by default, and waits long at the end of a log.
    also = {"kafka.isolation.level": "read_committed", "kafka.fetch.max.wait.ms": "5"}
    theirs = world.rows("kafka", {name: also | given for name, given in wanted.items()})
    ours = world.rows("onceflow", wanted)
    for name in wanted:
        assert ours[name] == theirs[name], name
    sizes = {name: len(rows) for name, rows in ours.items()}
    assert sizes == {
        "one": 46,
        "both": 51,
        "pattern": 5,
        "assign": 25,
        "offsets": 39,
        "from a time": 27,
        "between times": 24,
        "times by partition": 27,
        "too late": 0,
        "split": 46,
        "split small": 46,
        "uncommitted": 50,
    }


def test_the_schema_is_that_of_sparks_own_source_and_columns_can_be_picked(
    spark: SparkSession, broker: onceflow.Broker
) -> None:
    world = SourceWorld(spark, broker.bootstrap)
    topic = world.topic(partitions=5)
    for number in range(5):
        world.send(topic, "a", "b", partition=number)
    for headers in ("true", "false"):
        given = {"subscribe": topic, "includeHeaders": headers}
        assert world.frame("onceflow", given).schema == world.frame("kafka", given).schema
    picked = {"subscribe": topic, "columns": "offset,value", "maxPartitions": "2"}
    frame = world.frame("onceflow", picked)
    assert frame.columns == ["offset", "value"]
    assert frame.rdd.getNumPartitions() == 2
    found = sorted((row.offset, bytes(row.value)) for row in frame.collect())
    assert found == [(0, b"a")] * 5 + [(1, b"b")] * 5


def test_wrong_options_are_told_before_anything_is_read(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    reader = spark.read.format("onceflow")
    with pytest.raises(AnalysisException) as caught:
        reader.options(subscribe="t", strtingOffsets="earliest", minPartitions="no").load()
    told = str(caught.value)
    assert "unknown option 'strtingoffsets'; did you mean 'startingOffsets'?" in told
    assert "minPartitions = 'no' is not allowed; it may be a whole number from 1" in told
    assert "kafka.bootstrap.servers is missing" in told


def test_a_schema_cannot_be_chosen(spark: SparkSession, broker: onceflow.Broker) -> None:
    world = SourceWorld(spark, broker.bootstrap)
    given = world.options({"subscribe": world.topic()})
    frame = spark.read.format("onceflow").options(**given).schema("value string")
    with pytest.raises(Exception, match="the schema cannot be chosen"):
        frame.load().collect()


# --- without a JVM: only what brokers answer is of interest ---------------------------------------


def read_here(world: SourceWorld, **given: str) -> list[str]:
    """The values of a batch, read in this process."""
    from onceflow.spark.source.datasource import OnceflowSource

    source = OnceflowSource(world.options(given))
    reader: Any = source.reader(source.schema())
    return [
        value.decode()
        for task in reader.partitions()
        for batch in reader.read(task)
        for value in batch.column("value").to_pylist()
    ]


def test_an_end_that_is_not_committed_is_waited_for(bootstrap: str) -> None:
    world = SourceWorld(None, bootstrap)
    topic = world.topic()
    world.send(topic, "a")
    sender = world.transactions()
    sender.begin()
    sender.send(topic, [b"b"])
    given = {"subscribe": topic, "endingOffsets": json.dumps({topic: {"0": 2}})}
    assert read_here(world, subscribe=topic) == ["a"]
    with pytest.raises(RangeUnavailable, match="up to offset 2, committed data ends at 1, the log"):
        read_here(world, **given, **{"kafka.default.api.timeout.ms": "1000"})
    found: list[str] = []
    reading = threading.Thread(target=lambda: found.extend(read_here(world, **given)))
    reading.start()
    sender.commit()
    reading.join(PATIENCE_S)
    assert found == ["a", "b"]


def test_deleted_records_are_an_error_or_a_warning(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = SourceWorld(None, bootstrap)
    topic = world.topic()
    world.send(topic, *"abcdef")
    world.client.delete_records(topic, 3)
    given = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1}})}
    told = (
        f"partition {topic}-0 was to be read from offset 1 on, and holds the offsets from 3 up to 6"
    )
    with pytest.raises(DataLost, match=told):
        read_here(world, **given)
    assert read_here(world, **given, failOnDataLoss="false") == ["d", "e", "f"]
    assert [told in each for each in caplog.messages] == [True]


def test_records_that_vanish_after_planning_are_an_error_or_a_warning(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    from onceflow.spark.source.datasource import OnceflowSource

    world = SourceWorld(None, bootstrap)
    topic = world.topic()
    world.send(topic, *"abcdef")
    found = {}
    for fail in ("true", "false"):
        source = OnceflowSource(world.options({"subscribe": topic, "failOnDataLoss": fail}))
        reader: Any = source.reader(source.schema())
        found[fail] = reader, reader.partitions()
    world.client.delete_records(topic, 4)
    reader, (task,) = found["true"]
    with pytest.raises(DataLost, match="from offset 0 up to 6, and begins at 4"):
        list(reader.read(task))
    reader, (task,) = found["false"]
    (batch,) = reader.read(task)
    assert batch.column("value").to_pylist() == [b"e", b"f"]
    assert ["begins at 4" in each for each in caplog.messages] == [True]


def test_offsets_and_partitions_that_cannot_be_are_told(broker: onceflow.Broker) -> None:
    world = SourceWorld(None, broker.bootstrap)
    topic = world.topic(partitions=2)
    world.send(topic, "a")
    for given, kind, told in (
        ({"subscribe": topic + "x"}, "TopicNotFound", "did you mean"),
        ({"assign": json.dumps({topic: [0, 7]})}, "NoSuchPartition", f"{topic}-7 is assigned"),
        (
            {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 0}})},
            "PartitionsDiffer",
            f"{topic}-1 is not in startingOffsets",
        ),
        ({"subscribe": topic, "startingTimestamp": "9" * 13}, "NoOffsetAtTime", f"{topic}-0"),
        ({"subscribe": topic, "startingOffsets": "latest"}, "InvalidOptions", "is for streams"),
    ):
        with pytest.raises(Exception, match=told) as caught:
            read_here(world, **given)
        assert type(caught.value).__name__ == kind


def test_gaps_that_compaction_leaves_are_passed_over(spark: SparkSession) -> None:
    with onceflow.Broker(log_retention_check_interval_ms=100) as broker:
        world = SourceWorld(spark, broker.bootstrap)
        topic = world.topic(
            cleanup_policy="compact", internal_segment_bytes="500", min_cleanable_dirty_ratio="0.0"
        )
        for number in range(40):
            world.produce(topic, [Message(b"%d" % number * 20, b"k%d" % (number % 3))])
        broker.restart()  # what is safely on the disk may be compacted
        # A read that the cleaner overtakes begins with rows of before: it is over when two agree.
        left, _ = eventually(
            lambda: (read_here(world, subscribe=topic), read_here(world, subscribe=topic)),
            lambda reads: reads[0] == reads[1] and len(reads[0]) < 20,
        )
        assert len(left) >= 3
        assert read_here(world, subscribe=topic, minPartitions="9") == left
        early = {"subscribe": topic, "endingOffsets": json.dumps({topic: {"0": 20}})}
        assert read_here(world, **early) == []
        given = {"all": {"subscribe": topic, "minPartitions": "9"}, "early": early}
        assert {name: len(rows) for name, rows in world.rows("onceflow", given).items()} == {
            "all": len(left),
            "early": 0,
        }


def test_a_stream_cannot_end(broker: onceflow.Broker) -> None:
    world = SourceWorld(None, broker.bootstrap)
    with pytest.raises(InvalidOptions, match="a stream has no end"):
        world.reader({"subscribe": "t", "endingOffsets": "latest"})
