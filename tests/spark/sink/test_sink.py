"""Frames and streams are written exactly once, by Kafka's rules, on both brokers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from onceflow.records.partitioning import partition_for_key
from onceflow.spark.errors.sink import BatchFailed, SinkRefused
from onceflow.spark.sink import job as sink_job
from onceflow.spark.sink.api import dead_letters, starting_offsets, write, write_stream
from onceflow.spark.sink.job import PIECE_BYTES
from onceflow.spark.sink.task import pack_rows, write_rows
from tests.interop.broker.clients.face import Message
from tests.spark.sink import driver as sink_driver
from tests.spark.sink.hooks import Attempts, PiecesNoted, at_points
from tests.spark.sink.world import PATIENCE_S, committed, fresh, make_topic, put, values
from tests.spark.source.world import SourceWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import onceflow

pytestmark = pytest.mark.interop

LARGE = 100_000
"""Bytes of a row."""
HEADERS = "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary)))"


def run(frame: Any, checkpoint: str, **more: Any) -> None:
    """All that there is now, as a stream."""
    mode = more.pop("mode", "append")
    writer = write_stream(frame, **more).option("checkpointLocation", checkpoint).outputMode(mode)
    writer.trigger(availableNow=True).start().awaitTermination()


# --- frames -------------------------------------------------------------------------------------


def test_a_frame_is_one_transaction(spark: SparkSession, bootstrap: str) -> None:
    topic = make_topic(bootstrap, "out", 3)
    frame = spark.range(1000).selectExpr(
        "if(id % 10 = 0, null, cast(id as string)) as key",
        "cast(id as string) as value",
        f"{HEADERS} as headers",
        "'ignored' as offset",
    )
    assert write(frame, topic=topic, bootstrap=bootstrap, compression_type="lz4") == 1000
    found = committed(bootstrap, topic)
    assert sorted(int(each.value()) for each in found) == list(range(1000))
    for each in found:
        assert each.headers() == [("h", each.value())]
        if each.key() is not None:
            assert each.partition() == partition_for_key(each.key(), 3)
    assert {each.partition() for each in found if each.key() is None} == {0, 1, 2}


def test_rows_name_topic_and_partition(spark: SparkSession, broker: onceflow.Broker) -> None:
    one, other = make_topic(broker.bootstrap, "one", 2), make_topic(broker.bootstrap, "other", 4)
    frame = spark.range(400).selectExpr(
        f"if(id % 2 = 0, '{one}', '{other}') as topic",
        "if(id % 4 = 1, 3, null) as partition",
        "cast(id as string) as key",
        "if(id = 8, null, cast(id as string)) as value",
    )
    assert write(frame, bootstrap=broker.bootstrap, name=fresh("many")) == 400
    evens, odds = committed(broker.bootstrap, one), committed(broker.bootstrap, other)
    assert sorted(int(each.key()) for each in evens) == list(range(0, 400, 2))
    assert sorted(int(each.key()) for each in odds) == list(range(1, 400, 2))
    assert [each.key() for each in evens if each.value() is None] == [b"8"]
    for each in odds:
        named = int(each.key()) % 4 == 1
        assert each.partition() == (3 if named else partition_for_key(each.key(), 4))


def test_what_went_wrong_first_is_told(spark: SparkSession, broker: onceflow.Broker) -> None:
    """A later attempt of the task is refused; the user wants to know why there was one."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    def fail(value: str) -> str:
        raise ValueError(f"not {value}")

    topic = make_topic(broker.bootstrap, "out", 2)
    rows = spark.range(0, 4, 1, 2).selectExpr("id", "cast(id as string) as value")
    whole = F.udf(fail, useArrow=False)("value").alias("value")
    failing = rows.select(whole, F.expr("cast(id div 2 as int) as partition"))
    with pytest.raises(BatchFailed) as raised:
        write(failing, topic=topic, bootstrap=broker.bootstrap, narrow=True)
    told = str(raised.value)
    assert "could not be written after 3 tries: " in told
    assert "ValueError: not " in told
    assert "test_sink.py" in told
    assert "\tat " not in told
    assert committed(broker.bootstrap, topic) == []


def test_rows_that_cannot_be_written(spark: SparkSession, broker: onceflow.Broker) -> None:
    bootstrap, topic = broker.bootstrap, make_topic(broker.bootstrap, "out", 2)
    rows = spark.range(10)
    for expression, problem in (
        ("if(id = 7, 2, 0) as partition", "a partition that its topic does not have"),
        (f"if(id = 7, null, '{topic}') as topic", "a row has no topic"),
        ("if(id = 7, 'no/topic', 'none') as topic", "cannot be the name of a topic"),
    ):
        frame = rows.selectExpr(expression, "cast(id as string) as value")
        given: Any = {} if "topic" in frame.columns else {"topic": topic}
        with pytest.raises(BatchFailed, match=problem) as raised:
            write(frame, bootstrap=bootstrap, **given)
        assert "create it" not in str(raised.value)
    large = rows.selectExpr("repeat('x', 3000000) as value")
    with pytest.raises(BatchFailed, match=r"max\.message\.bytes"):
        write(large, topic=topic, bootstrap=bootstrap)
    assert values(bootstrap, topic) == []


def test_narrow(spark: SparkSession, broker: onceflow.Broker) -> None:
    bootstrap, topic = broker.bootstrap, make_topic(broker.bootstrap, "out", 2)
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as value", "id")
    named = rows.selectExpr("value", "cast(id div 50 as int) as partition")
    assert write(named, topic=topic, bootstrap=bootstrap, narrow=True) == 100
    for each in committed(bootstrap, topic):
        assert each.partition() == (0 if int(each.value()) < 50 else 1)
    keyed = rows.selectExpr("value as key", "value")
    with pytest.raises(BatchFailed, match="two tasks have rows for partition"):
        write(keyed, topic=topic, bootstrap=bootstrap, narrow=True)
    keyless = rows.selectExpr("if(id = 7, null, '7') as key", "value").coalesce(1)
    with pytest.raises(BatchFailed, match="neither a partition nor a key"):
        write(keyless, topic=topic, bootstrap=bootstrap, narrow=True)
    outside = rows.selectExpr("value", "cast(id div 50 * 2 as int) as partition")
    with pytest.raises(BatchFailed, match="a partition that its topic does not have"):
        write(outside, topic=topic, bootstrap=bootstrap, narrow=True)
    with pytest.raises(SinkRefused, match="select the source's column 'partition'"):
        write(rows.select("value"), topic=topic, bootstrap=bootstrap, narrow=True)
    assert len(values(bootstrap, topic)) == 100


def test_dead_letters_by_chance(spark: SparkSession, broker: onceflow.Broker) -> None:
    """What is wrong with a row is asked once: else it could be a dead letter without a reason."""
    from pyspark.sql import functions as F  # noqa: N812

    bootstrap = broker.bootstrap
    good, bad = make_topic(bootstrap, "good", 2), make_topic(bootstrap, "bad", 2)
    rows = spark.range(200).selectExpr("cast(cast(id as string) as binary) as value")
    judged = dead_letters(rows, F.when(F.rand() < 0.5, "by chance"))
    given: Any = {"topic": good, "dead_letter_topic": bad, "bootstrap": bootstrap}
    assert write(judged, **given) == 200
    letters = committed(bootstrap, bad)
    assert sorted(values(bootstrap, good) + values(bootstrap, bad)) == sorted(map(str, range(200)))
    assert {dict(each.headers())["error"] for each in letters} == {b"by chance"}


@pytest.mark.parametrize("taken", ["dead_letter_error", "Dead_Letter_Error"])
def test_dead_letters_leave_the_columns_of_a_frame_alone(spark: SparkSession, taken: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.range(2).selectExpr("cast('v' as binary) as value", f"id as {taken}")
    judged = dead_letters(rows, F.when(F.col(taken) == 1, "bad"))
    assert judged.columns == ["value", taken, "dead_letter"]
    found = judged.select(taken, "dead_letter.error").collect()
    assert sorted(map(tuple, found)) == [(0, None), (1, "bad")]


def test_a_topic_that_rows_named_is_deleted(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str, tmp_path: Path
) -> None:
    """Later rows do not name it."""
    bootstrap, given = broker.bootstrap, fresh("named")
    put(tmp_path / "in", 0, range(10))
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    rows = frame.selectExpr("value", f"concat('{given}-', cast(value as int) div 10) as topic")
    writer = write_stream(rows, bootstrap=bootstrap, name=given)
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([f"{given}-0"])[f"{given}-0"].result(PATIENCE_S)
        put(tmp_path / "in", 1, range(10, 20))
        query.processAllAvailable()
    finally:
        query.stop()
    assert values(bootstrap, f"{given}-1") == list(map(str, range(10, 20)))


@pytest.mark.parametrize("narrow", [False, True])
def test_large_rows_come_to_tasks_in_small_pieces(
    narrow: bool,
    spark: SparkSession,
    broker: onceflow.Broker,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many rows fit into a piece, and however small those of the first batch were."""
    topic, notes = make_topic(broker.bootstrap, "out", 2), tmp_path / "notes"
    notes.mkdir()
    for function in (pack_rows, write_rows):
        monkeypatch.setattr(sink_job, function.__name__, PiecesNoted(function, notes))
    put(tmp_path / "in", 0, range(100))
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    rows = frame.selectExpr(
        f"if(cast(value as int) < 100, value, repeat('x', {LARGE})) as value", "0 as partition"
    )
    given: Any = {"topic": topic, "bootstrap": broker.bootstrap, "narrow": narrow}
    writer = write_stream(rows, name=fresh("query"), **given)
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        for number in (1, 2):
            put(tmp_path / "in", number, range(100 * number, 100 * number + 50))
            query.processAllAvailable()
    finally:
        query.stop()
    sizes = [int(each.name.partition("-")[0]) for each in notes.iterdir()]
    large = [each for each in sizes if each > LARGE]
    assert sum(large) >= 100 * LARGE
    # Spark looks at the size of a piece after each row.
    assert max(large) < PIECE_BYTES + 2 * LARGE


@pytest.mark.long
def test_rows_become_large(broker: onceflow.Broker, tmp_path: Path) -> None:
    """Batches of small rows say nothing of the next one, and Spark's memory is a gigabyte."""
    topic = make_topic(broker.bootstrap, "out", 2)
    rows = {0: range(20_000), 1: range(20_000, 20_600)}
    for number, each in rows.items():
        put(tmp_path / "in", number, each)
    driver = sink_driver.start(
        bootstrap=broker.bootstrap,
        topic=topic,
        name=fresh("query"),
        input=str(tmp_path / "in"),
        checkpoint=str(tmp_path / "checkpoint"),
        scratch=str(tmp_path / "scratch"),
        value="if(cast(value as int) < 20000, value, repeat('x', 1000000))",
        spark={"spark.driver.memory": "1g"},
    )
    assert sink_driver.result(driver, patience_s=240) is None
    sizes = Counter(len(each.value()) for each in committed(broker.bootstrap, topic))
    assert sizes.total() == 20_600
    assert sizes[1_000_000] == 600


def test_large_types_of_arrow(spark: SparkSession, broker: onceflow.Broker) -> None:
    """Spark sends texts and bytes with offsets of 64 bits."""
    bootstrap = broker.bootstrap
    setting = "spark.sql.execution.arrow.useLargeVarTypes"
    rows = spark.range(0, 300, 1, 3).selectExpr(
        "id", "cast(id as string) as key", f"{HEADERS} as headers", "cast(id as string) as value"
    )
    spark.conf.set(setting, "true")
    try:
        for narrow in (False, True):
            topic = make_topic(bootstrap, "large", 3)
            chosen = (
                rows.selectExpr("*", "cast(id div 100 as int) as partition") if narrow else rows
            )
            assert write(chosen, topic=topic, bootstrap=bootstrap, narrow=narrow) == 300
            assert sorted(map(int, values(bootstrap, topic))) == list(range(300))
            for each in committed(bootstrap, topic):
                assert each.headers() == [("h", each.value())]
        world = SourceWorld(spark, bootstrap)
        options = {"subscribe": topic, "includeHeaders": "true"}
        assert world.frame("onceflow", options).count() == 300
        assert {bytes(row.value) for row in world.frame("onceflow", options).collect()} == {
            b"%d" % number for number in range(300)
        }
    finally:
        spark.conf.unset(setting)


@pytest.mark.parametrize("columns", [("key", "value"), ("value", "partition")])
def test_narrow_rows_stay_in_their_partition(
    columns: tuple[str, ...], spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    """A batch has no rows for some partitions: its first task is not that of partition 0."""
    from pyspark.sql import functions as F  # noqa: N812

    bootstrap = broker.bootstrap
    world = SourceWorld(spark, bootstrap)
    source, topic, dead = (make_topic(bootstrap, each, 3) for each in ("in", "out", "dead"))
    options = world.options({"subscribe": source, "startingOffsets": "earliest"})
    frame = spark.readStream.format("onceflow").options(**options).load()
    checked = dead_letters(frame, F.when(F.col("value") == F.lit(b"bad"), "bad"))

    rows = checked.select(*columns, "dead_letter")
    given: Any = {"topic": topic, "dead_letter_topic": dead, "bootstrap": bootstrap}
    keys = [next(f"{n}" for n in range(99) if partition_for_key(b"%d" % n, 3) == p) for p in (1, 2)]
    for partition, key in enumerate(keys, 1):
        world.produce(
            source, [Message(value, key.encode(), partition=partition) for value in (b"x", b"bad")]
        )
        run(rows, checkpoint, **given, name=source, narrow=True)
    for written in (topic, dead):
        assert sorted(each.partition() for each in committed(bootstrap, written)) == [1, 2]


def test_dead_letters(spark: SparkSession, broker: onceflow.Broker) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    bootstrap = broker.bootstrap
    good, bad = make_topic(bootstrap, "good", 2), make_topic(bootstrap, "bad", 2)
    read = spark.range(20).selectExpr(
        "cast(cast(id as string) as binary) as key",
        "cast(if(id % 5 = 0, '?', cast(id as string)) as binary) as value",
        "'in' as topic",
        "cast(id % 3 as int) as partition",
        "id as offset",
    )
    parsed = read.withColumn("number", F.expr("try_cast(cast(value as string) as int)"))
    wrong = F.when(F.col("number").isNull(), "not a number").when(F.col("number") > 17, "too large")
    frame = dead_letters(parsed, wrong).selectExpr(
        "cast(number * 2 as string) as value", "dead_letter"
    )
    given: Any = {"topic": good, "dead_letter_topic": bad, "bootstrap": bootstrap}
    assert write(frame, **given) == 20
    numbers = [number for number in range(18) if number % 5]
    assert values(bootstrap, good) == sorted(str(2 * number) for number in numbers)
    letters = {int(each.key()): each for each in committed(bootstrap, bad)}
    assert letters.keys() == {0, 5, 10, 15, 18, 19}
    for number, letter in letters.items():
        is_number = number % 5 != 0
        assert letter.value() == (b"%d" % number if is_number else b"?")
        assert letter.headers() == [
            ("error", b"too large" if is_number else b"not a number"),
            ("source.topic", b"in"),
            ("source.partition", b"%d" % (number % 3)),
            ("source.offset", b"%d" % number),
        ]
    with pytest.raises(SinkRefused, match="there is no topic for them"):
        write(frame, topic=good, bootstrap=bootstrap)
    with pytest.raises(SinkRefused, match="has no column 'dead_letter'"):
        write(frame.drop("dead_letter"), **given)


# --- streams ------------------------------------------------------------------------------------


def group_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        return [each.offset for each in consumer.committed(wanted, PATIENCE_S)]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("source", "bootstrap"), [("kafka", "kafka"), ("onceflow", "broker")], indirect=["bootstrap"]
)
def test_topic_to_topic(
    source: str, spark: SparkSession, bootstrap: str, checkpoint: str, tmp_path: Path
) -> None:
    """Source offsets are in the query's group, and with them a lost checkpoint is gone on from."""
    read, written = make_topic(bootstrap, "in", 2), make_topic(bootstrap, "out", 2)
    name = fresh("query")

    def more(numbers: range) -> None:
        frame = spark.range(numbers.start, numbers.stop).selectExpr("cast(id as string) as value")
        write(frame, topic=read, bootstrap=bootstrap)

    def reader(start: str) -> Any:
        options = {"subscribe": read, "startingOffsets": start, "maxOffsetsPerTrigger": "80"}
        options |= {"kafka.bootstrap.servers": bootstrap}
        # What the sink has committed here ends with a marker, which Spark's reader steps over.
        frame = spark.readStream.format(source).options(**options).load()
        return frame.selectExpr("key", "value")

    given = {"topic": written, "bootstrap": bootstrap, "name": name}
    more(range(100))
    run(reader("earliest"), checkpoint, **given)
    assert values(bootstrap, written) == sorted(map(str, range(100)))
    ends = json.loads(starting_offsets(bootstrap=bootstrap, group=name))
    assert [ends[read]["0"], ends[read]["1"]] == group_offsets(bootstrap, name, read, 2)
    assert sum(ends[read].values()) >= 100
    more(range(100, 150))
    run(reader("earliest"), checkpoint, **given)
    assert values(bootstrap, written) == sorted(map(str, range(150)))
    # A new checkpoint is a new query: it does not go on unasked, nor from anywhere else.
    more(range(150, 160))
    lost = str(tmp_path / "new checkpoint")
    with pytest.raises(Exception, match="committed by another query"):
        run(reader("earliest"), lost, **given)
    with pytest.raises(Exception, match="does not start where the group ended"):
        run(reader("earliest"), lost, **given, continue_from_group=True)
    assert values(bootstrap, written) == sorted(map(str, range(150)))
    start = starting_offsets(bootstrap=bootstrap, group=name)
    run(reader(start), str(tmp_path / "third"), **given, continue_from_group=True)
    assert values(bootstrap, written) == sorted(map(str, range(160)))


@pytest.mark.parametrize(("most", "writers"), [("1", 1), ("2", 2)])
def test_rows_of_one_task_are_not_shuffled(
    most: str,
    writers: int,
    spark: SparkSession,
    broker: onceflow.Broker,
    checkpoint: str,
    tmp_path: Path,
) -> None:
    """They are where their keys belong all the same, or where they name, or dead letters."""
    from pyspark.sql import functions as F  # noqa: N812

    bootstrap = broker.bootstrap
    read, written = make_topic(bootstrap, "in", 2), make_topic(bootstrap, "out", 5)
    bad = make_topic(bootstrap, "bad", 3)
    text = "cast(id as string)"
    numbers = spark.range(90).selectExpr(f"{text} as key", f"{text} as value")
    write(numbers, topic=read, bootstrap=bootstrap)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": read, "maxPartitions": most}
    source = (
        spark.readStream.format("onceflow")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
    )
    is_bad = F.expr("cast(cast(value as string) as int) % 9 = 0")
    frame = dead_letters(source, F.when(is_bad, "nine")).selectExpr(
        "key", "value", "if(cast(key as string) = '7', 4, null) as partition", "dead_letter"
    )
    notes = tmp_path / "notes"
    notes.mkdir()
    hook = Attempts(lambda point: None, notes)
    with at_points(hook):
        given = {"topic": written, "dead_letter_topic": bad, "bootstrap": bootstrap}
        run(frame, checkpoint, **given, name=fresh("query"))
    found = committed(bootstrap, written)
    assert sorted(int(each.value()) for each in found) == [n for n in range(90) if n % 9]
    for each in found:
        home = 4 if each.key() == b"7" else partition_for_key(each.key(), 5)
        assert each.partition() == home
    letters = committed(bootstrap, bad)
    assert sorted(int(each.value()) for each in letters) == list(range(0, 90, 9))
    tasks = Counter(stage for stage, *_ in hook.noted())
    assert len(tasks) >= 3
    assert set(tasks.values()) == {writers}


def test_a_stateful_stream(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str, tmp_path: Path
) -> None:
    """Aggregates in update mode equal what is computed from the input."""
    topic, name = make_topic(broker.bootstrap, "out", 2), fresh("query")
    for number in range(3):
        put(tmp_path / "in", number, range(number * 50, number * 50 + 50))
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    frame = (
        lines.selectExpr("cast(value as int) as number")
        .selectExpr("number % 7 as key", "number")
        .groupBy("key")
        .sum("number")
        .selectExpr("cast(key as string) as key", "cast(`sum(number)` as string) as value")
    )
    run(frame, checkpoint, topic=topic, bootstrap=broker.bootstrap, name=name, mode="update")
    found = committed(broker.bootstrap, topic)
    assert len(found) == 3 * 7
    last = {int(each.key()): int(each.value()) for each in found}
    assert last == {key: sum(range(key, 150, 7)) for key in range(7)}


def test_a_skipped_batch_is_drained(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str, tmp_path: Path
) -> None:
    """Spark did not hear of a commit: the batch is not written again, its state is kept."""
    topic, name = make_topic(broker.bootstrap, "out"), fresh("query")
    put(tmp_path / "in", 0, range(10))
    frame = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(tmp_path / "in"))
        .groupBy()
        .count()
        .selectExpr("cast(count as string) as value")
    )
    given = {"topic": topic, "bootstrap": broker.bootstrap, "name": name, "mode": "update"}
    run(frame, checkpoint, **given)
    (Path(checkpoint) / "commits" / "0").unlink()
    (Path(checkpoint) / "commits" / ".0.crc").unlink(missing_ok=True)
    put(tmp_path / "in", 1, range(5))
    run(frame, checkpoint, **given)
    assert values(broker.bootstrap, topic) == ["10", "15"]
