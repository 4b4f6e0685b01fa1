"""`spark.readStream.format("onceflow")`: batches, restarts, partitions that come, transactions that
stay open, records that are gone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import onceflow
from onceflow.spark.errors.source import DataLost, TopicRecreated
from tests.interop.broker.clients.face import Message
from tests.interop.harness import eventually
from tests.spark.sink.world import PATIENCE_S
from tests.spark.source.world import SourceWorld, at_most, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

EARLY = {"startingOffsets": "earliest"}


def flat(batches: dict[int, list[str]]) -> list[str]:
    return [value for number in sorted(batches) for value in batches[number]]


def test_batches_are_admitted_as_sparks_own_source_does(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    world = SourceWorld(spark, kafka)
    topic = world.topic(partitions=3)
    for partition, size in enumerate((40, 9, 1)):
        world.send(topic, *numbered(f"{partition}-", range(size)), partition=partition)
    given = {"subscribe": topic, "maxOffsetsPerTrigger": "20", **EARLY}
    ours = world.run_through("onceflow", given, str(tmp_path / "ours"))
    theirs = world.run_through("kafka", given, str(tmp_path / "theirs"))
    assert ours == theirs
    assert [len(values) for values in ours.values()][:2] == [20, 20]
    assert len(flat(ours)) == len(set(flat(ours))) == 50
    # What is new since then, and nothing else, is the next run's.
    world.send(topic, "new", partition=2)
    assert flat(world.run_through("onceflow", given, str(tmp_path / "ours"))) == ["new"]


def test_a_running_stream_sees_what_comes(
    spark: SparkSession, bootstrap: str, checkpoint: str
) -> None:
    world = SourceWorld(spark, bootstrap)
    topic = world.topic()
    world.send(topic, "old")
    batches: dict[int, list[str]] = {}

    def seen(*values: str) -> None:
        eventually(lambda: sorted(flat(batches)), lambda found: found == sorted(values))

    query = world.stream("onceflow", {"subscribe": topic}, checkpoint, batches.__setitem__)
    try:
        # Where it begins is in the log before there is anything to read.
        eventually(lambda: batches.get(0), lambda found: found == [])
        world.send(topic, "a")
        seen("a")
        world.client.add_partitions(topic, 2)
        eventually(lambda: world.client.topics().get(topic), lambda found: found == 2)
        eventually(lambda: sent(world, topic, "b", 1), bool)
        seen("a", "b")
        sender = world.transactions()
        sender.begin()
        sender.send(topic, [b"c"])
        world.send(topic, "d", partition=1)
        seen("a", "b", "d")
        sender.commit()
        seen("a", "b", "c", "d")
        eventually((Path(checkpoint) / "commits" / str(max(batches))).exists, bool)
        progress: Any = eventually(lambda: query.lastProgress, lambda found: found is not None)
        (source,) = progress["sources"]
        lag = json.loads(source["latestOffset"])
        assert lag["from"] == lag["to"]
    finally:
        query.stop()
    world.send(topic, "while it was down")
    rest = world.run_through("onceflow", {"subscribe": topic}, checkpoint)
    assert flat(rest) == ["while it was down"]


def sent(world: SourceWorld, topic: str, value: str, partition: int) -> bool:
    """Whether a partition that is new takes records already."""
    message = Message(value.encode(), partition=partition)
    return all(isinstance(each, int) for each in world.client.produce(topic, [message]))


class Crash(Exception):
    """Ends a query before Spark has logged the end of its batch."""


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_a_batch_that_is_run_again_has_the_same_rows(
    word: str, spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    world = SourceWorld(spark, broker.bootstrap)
    topic = world.topic()
    world.send(topic, *numbered("old", range(5)))
    given = {"subscribe": topic, "startingOffsets": word}
    if word == "latest":
        assert world.run_through("onceflow", given, checkpoint) == {0: []}
        world.send(topic, *numbered("new", range(5)))
    runs: list[tuple[int, list[str]]] = []

    def crash(batch_id: int, values: list[str]) -> None:
        runs.append((batch_id, values))
        raise Crash

    query = world.stream("onceflow", given, checkpoint, crash, availableNow=True)
    with pytest.raises(Exception, match="Crash"):
        query.awaitTermination()
    world.send(topic, "later")
    if word == "latest":  # deleting what was not to be read changes nothing
        world.client.delete_records(topic, 5)
    batches = world.run_through("onceflow", given, checkpoint)
    ((number, values),) = runs
    assert batches == {number: values, number + 1: ["later"]}
    assert values == numbered("old" if word == "earliest" else "new", range(5))


def test_a_batch_whose_records_were_deleted_before_it_is_run_again_fails(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    world = SourceWorld(spark, broker.bootstrap)
    topic = world.topic()
    world.send(topic, *"abcde")

    def crash(batch_id: int, values: list[str]) -> None:
        raise Crash

    given = {"subscribe": topic, **EARLY}
    query = world.stream("onceflow", given, checkpoint, crash, availableNow=True)
    with pytest.raises(Exception, match="Crash"):
        query.awaitTermination()
    world.client.delete_records(topic, 3)
    told = f"partition {topic}-0 was to be read from offset 0 up to 5, and begins at 3"
    with pytest.raises(Exception, match=told):
        world.run_through("onceflow", given, checkpoint)
    skipping = given | {"failOnDataLoss": "false"}
    assert world.run_through("onceflow", skipping, checkpoint) == {0: ["d", "e"]}


def test_a_query_of_sparks_own_source_goes_on_with_this_one(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    world = SourceWorld(spark, broker.bootstrap)
    topic = world.topic(partitions=2)
    world.send(topic, *"abc")
    given = {"subscribe": topic, **EARLY}
    assert flat(world.run_through("kafka", given, checkpoint)) == ["a", "b", "c"]
    world.send(topic, "d", partition=1)
    assert world.run_through("onceflow", given, checkpoint) == {1: ["d"]}


def test_options_of_a_stream_are_checked_when_it_starts(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    world = SourceWorld(spark, broker.bootstrap)
    given = {"subscribe": "t", "endingOffsets": "latest"}
    with pytest.raises(Exception, match="a stream has no end"):
        world.run_through("onceflow", given, checkpoint)


# --- without a JVM: only what brokers answer is of interest ---------------------------------------


def test_the_offsets_of_a_stream_on_real_logs(bootstrap: str) -> None:
    world = SourceWorld(None, bootstrap)
    topic = world.topic()
    reader = world.reader({"subscribe": topic, **EARLY})
    try:
        first = reader.latestOffset(reader.initialOffset(), at_most())
        assert first.pop("ids").keys() == {topic}
        assert first == {"from": {topic: {"0": 0}}, "to": {topic: {"0": 0}}}
        assert reader.latestOffset(first, at_most()) == first
        found: list[Any] = []

        def wait_for_it() -> None:
            while not found or found[-1] == first:
                found.append(reader.latestOffset(first, at_most()))

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        world.send(topic, "a")
        waiting.join(PATIENCE_S)
        assert found[-1].pop("ids").keys() == {topic}
        assert found[-1] == {"from": {topic: {"0": 0}}, "to": {topic: {"0": 1}}}
        world.send(topic, *"bcde")
        limited = reader.latestOffset(found[-1], at_most(2))
        assert limited["to"] == {topic: {"0": 3}}
        assert reader.reportLatestOffset() == {"from": limited["to"], "to": {topic: {"0": 5}}}
    finally:
        reader.stop()


def test_an_open_transaction_holds_a_stream_back(bootstrap: str) -> None:
    world = SourceWorld(None, bootstrap)
    topic = world.topic()
    sender = world.transactions()
    sender.begin()
    sender.send(topic, [b"a"])
    world.send(topic, "b")
    reader = world.reader({"subscribe": topic, **EARLY})
    try:
        first = reader.latestOffset(reader.initialOffset(), at_most())
        assert first["to"] == {topic: {"0": 0}}
        sender.abort()
        end = eventually(
            lambda: reader.latestOffset(first, at_most()),
            lambda found: found["to"] == {topic: {"0": 3}},
        )
        (task,) = reader.partitions(first, end)
        (batch,) = reader.read(task)
        assert batch.column("value").to_pylist() == [b"b"]
    finally:
        reader.stop()


@pytest.mark.parametrize("way", ["deleted", "gone", "made again", "refilled"])
def test_records_that_are_gone_are_an_error_or_a_warning(
    way: str, bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = SourceWorld(None, bootstrap)
    topic = world.topic(way.replace(" ", "-"))
    world.send(topic, *"abcdef")
    quick = {"fetchOffset.retryIntervalMs": "10", **EARLY}
    careful = world.reader({"subscribe": topic, **quick})
    careless = world.reader({"subscribe": topic, "failOnDataLoss": "false", **quick})
    try:
        starts = [
            each.latestOffset(each.initialOffset(), at_most(3)) for each in (careful, careless)
        ]
        lose(world, topic, way)
        told = f"partition {topic}-0 was to be read from offset 3 .*"
        wanted = {
            "deleted": f"{told}up to 6, and begins at 5",
            "gone": f"{told}is not there any more",
        }
        made_again = f"topic '{topic}' was deleted and recreated"
        with pytest.raises(DataLost, match=wanted.get(way, made_again)):
            careful.latestOffset(starts[0], at_most())
        end = careless.latestOffset(starts[1], at_most())
        values: list[Any] = [
            value
            for task in careless.partitions(starts[1], end)
            for batch in careless.read(task)
            for value in batch.column("value").to_pylist()
        ]
        left = {"deleted": b"f", "gone": b"", "made again": b"x", "refilled": b"0123456789"}
        assert b"".join(values) == left[way]
        assert len([each for each in caplog.messages if "records are gone" in each]) == 1
    finally:
        careful.stop()
        careless.stop()


@pytest.mark.parametrize("is_begun", [False, True], ids=["before it is read", "in its midst"])
def test_a_topic_is_made_again_behind_the_plan_of_a_batch(
    bootstrap: str, is_begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And is filled beyond the end of the batch: what is there now is not taken for its records."""
    world = SourceWorld(None, bootstrap)
    topic = world.topic("behind-the-plan")
    for value in "abcdef":
        world.send(topic, value)
    # One batch of records with each Fetch.
    given = {"subscribe": topic, "kafka.max.partition.fetch.bytes": "1", **EARLY}
    careful, careless = (
        world.reader({**given, "failOnDataLoss": fails}) for fails in ("true", "false")
    )
    try:
        end = careful.latestOffset(careful.initialOffset(), at_most())
        (task,) = careful.partitions(careful.initialOffset(), end)
        reading = {each: each.read(task) for each in (careful, careless)}
        if is_begun:
            assert {next(each).num_rows for each in reading.values()} == {1}
        lose(world, topic, "refilled")
        with pytest.raises(DataLost, match=f"topic '{topic}' was deleted and recreated"):
            list(reading[careful])
        if is_begun:
            with pytest.raises(TopicRecreated, match="has to be read again"):
                list(reading[careless])
        assert not list(careless.read(task))
        assert any("recreated" in each for each in caplog.messages)
        after = careless.latestOffset(end, at_most())
        values: list[Any] = [
            value
            for each in careless.partitions(end, after)
            for batch in careless.read(each)
            for value in batch.column("value").to_pylist()
        ]
        assert b"".join(values) == b"0123456789"
    finally:
        careful.stop()
        careless.stop()


def test_a_topic_is_made_again_while_a_query_is_down(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    world = SourceWorld(spark, broker.bootstrap)
    topic = world.topic("again")
    given = {"subscribe": topic, **EARLY}
    world.send(topic, *"abc")
    assert flat(world.run_through("onceflow", given, checkpoint)) == ["a", "b", "c"]
    lose(world, topic, "refilled")
    with pytest.raises(Exception, match=f"topic '{topic}' was deleted and recreated"):
        world.run_through("onceflow", given, checkpoint)
    careless = {**given, "failOnDataLoss": "false"}
    assert flat(world.run_through("onceflow", careless, checkpoint)) == [*"0123456789"]
    world.send(topic, "d")
    assert flat(world.run_through("onceflow", given, checkpoint)) == ["d"]


def lose(world: SourceWorld, topic: str, way: str) -> None:
    if way == "deleted":
        world.client.delete_records(topic, 5)
        return
    world.client.delete(topic)
    eventually(lambda: topic in world.client.topics(), lambda found: not found)
    if way != "gone":
        assert world.topic(topic.removeprefix(world.names.prefix)) == topic
        world.send(topic, *("x" if way == "made again" else "0123456789"))
