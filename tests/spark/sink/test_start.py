"""How a query starts and stops: what is refused, with all reasons at once, and who is not
disturbed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.spark.errors.sink import BatchFailed, IdentityChanged, SinkRefused
from onceflow.spark.sink import preflight as checks
from onceflow.spark.sink.api import write, write_stream
from onceflow.spark.sink.checkpoint_files import CheckpointFiles
from tests.interop.harness import eventually
from tests.spark.sink.world import committed, fresh, make_topic, put, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import onceflow

pytestmark = pytest.mark.interop


@pytest.fixture
def given(broker: onceflow.Broker) -> dict[str, Any]:
    topic = make_topic(broker.bootstrap, "out", 2)
    return {"topic": topic, "bootstrap": broker.bootstrap, "name": fresh("query")}


def lines(spark: SparkSession, directory: Path) -> Any:
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory))


def run(frame: Any, checkpoint: str, given: dict[str, Any]) -> None:
    writer = write_stream(frame, **given).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def test_all_that_is_wrong_is_told_at_once(spark: SparkSession, given: dict[str, Any]) -> None:
    frame = spark.range(3).selectExpr("id as key", "array(id) as headers", "id as partition")
    with pytest.raises(SinkRefused) as refused:
        write_stream(frame, **{**given, "name": "two words", "narrow": True})
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        "the frame is not a stream",
        "name = 'two words' is not allowed; it may be up to 200 letters, digits, '.', '_' and '-'",
        "there is no column 'value'",
        "column 'key' is of type bigint; it must be string or binary",
        "column 'headers' is of type array<bigint>; it must be array<struct<key",
        "column 'partition' is of type bigint; it must be int",
    ]
    with pytest.raises(SinkRefused, match="pass topic="):
        write(spark.range(3).selectExpr("'' as value"), bootstrap=given["bootstrap"])


def test_settings_that_cannot_be(spark: SparkSession, given: dict[str, Any]) -> None:
    frame = spark.range(3).selectExpr("'' as value")
    for more, problem in (
        ({"transactional_id": "mine"}, "it follows from name"),
        ({"settings": {"acks": "1"}}, "acks = 1 contradicts"),
        ({"compresion_type": "lz4"}, "compression.type"),
    ):
        with pytest.raises(SinkRefused, match=problem):
            write(frame, **given, **more)


def test_what_brokers_do_not_allow(spark: SparkSession, bootstrap: str) -> None:
    frame = spark.range(3).selectExpr("'' as value")
    with pytest.raises(SinkRefused) as refused:
        write(frame, topic="no?topic", bootstrap=bootstrap, transaction_timeout_ms=900_001)
    assert "is not allowed; it may be a topic name" in str(refused.value)
    with pytest.raises(SinkRefused, match=r"transaction\.max\.timeout\.ms = 900000"):
        write(frame, topic=fresh("new"), bootstrap=bootstrap, transaction_timeout_ms=900_001)


def test_a_topic_that_brokers_make_when_it_is_asked_for(
    spark: SparkSession, bootstrap: str
) -> None:
    topic = fresh("made")
    assert write(spark.range(3).selectExpr("'' as value"), topic=topic, bootstrap=bootstrap) == 3
    assert len(committed(bootstrap, topic)) == 3


def test_settings_of_spark_that_break_it(
    spark: SparkSession, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_MUST_BE_OFF", {"spark.python.unix.domain.socket.enabled": "off"})
    with pytest.raises(SinkRefused, match=r"socket\.enabled is true: off"):
        write(spark.range(3).selectExpr("'' as value"), **given)


def test_names_cannot_be_changed(
    spark: SparkSession, given: dict[str, Any], checkpoint: str, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, range(10))
    frame = lines(spark, tmp_path / "in")
    run(frame, checkpoint, given)
    put(tmp_path / "in", 1, range(10, 20))
    for change in ({"name": fresh("other")}, {"group": "other"}, {"ledger_topic": given["topic"]}):
        writer = write_stream(frame, **{**given, **change})
        with pytest.raises(IdentityChanged, match="this checkpoint belongs to"):
            writer.start(checkpointLocation=checkpoint)  # before there is a query
    run(frame, checkpoint, given)
    assert values(given["bootstrap"], given["topic"]) == sorted(map(str, range(20)))
    kept = json.loads((Path(checkpoint) / "onceflow-sink.json").read_text())
    assert kept["transactional_id"] == given["name"]


def test_a_query_without_a_checkpoint_is_refused_when_it_is_started(
    spark: SparkSession, given: dict[str, Any], tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, range(3))
    writer = write_stream(lines(spark, tmp_path / "in"), **given).trigger(availableNow=True)
    with pytest.raises(SinkRefused, match=f"the query '{given['name']}' has no checkpointLocation"):
        writer.start()
    setting = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(setting, str(tmp_path / "all"))
    try:
        writer.start().awaitTermination()
    finally:
        spark.conf.unset(setting)
    assert (tmp_path / "all" / given["name"] / "onceflow-sink.json").exists()


def test_the_cause_comes_first_in_an_error(
    spark: SparkSession, given: dict[str, Any], checkpoint: str, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, range(1))
    frame = lines(spark, tmp_path / "in").select(_udf(lambda text: text.nothing)("value"))
    writer = write_stream(frame.toDF("value"), **given).option("checkpointLocation", checkpoint)
    query = writer.start()
    with pytest.raises(Exception, match="FOREACH_BATCH") as raised:
        query.awaitTermination()
    first = str(raised.value).splitlines()
    assert first[0] == "AttributeError: 'str' object has no attribute 'nothing'"
    assert first[1].startswith(f"  where: {__file__}, line ")
    assert first[2] == "  what failed: batch 0 could not be written after 3 tries"
    assert str(query.exception()).splitlines()[:3] == first[:3]
    # For those who wait for any query of the session, too: no stack of the JVM before it.
    spoken = str(raised.value).partition("[STREAM_FAILED]")[2]
    assert spoken.index("'str' object has no attribute") < 2500
    assert isinstance(raised.value.__cause__, BatchFailed)


def test_one_name_for_two_live_queries(
    spark: SparkSession, given: dict[str, Any], tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, range(10))
    first = write_stream(lines(spark, tmp_path / "in"), **given)
    query = first.option("checkpointLocation", str(tmp_path / "one")).start()
    try:
        query.processAllAvailable()
        assert query.name == given["name"]
        with pytest.raises(SinkRefused, match="another query of this program writes as"):
            run(lines(spark, tmp_path / "in"), str(tmp_path / "two"), given)
        put(tmp_path / "in", 1, range(10, 20))
        query.processAllAvailable()
    finally:
        query.stop()
    assert values(given["bootstrap"], given["topic"]) == sorted(map(str, range(20)))


def test_a_query_is_stopped_in_the_middle(
    spark: SparkSession, given: dict[str, Any], checkpoint: str, tmp_path: Path
) -> None:
    """It stops at once, leaves nothing open, and the batch is written at the next start."""
    started = tmp_path / "started"

    def slow(value: str) -> str:
        import time

        with started.open("a") as file:
            file.write(".")
        time.sleep(0 if (tmp_path / "free").exists() else 60)
        return value

    put(tmp_path / "in", 0, range(1))
    frame = lines(spark, tmp_path / "in").select(_udf(slow)("value").alias("value"))
    query = write_stream(frame, **given).option("checkpointLocation", checkpoint).start()
    try:
        eventually(started.exists, bool)
    finally:
        query.stop()
    assert query.exception() is None
    assert started.read_text() == ".", "it was tried again"

    async def states() -> list[str]:
        async with Admin(given["bootstrap"]) as admin:
            found = await admin.list_transactions()
            return [each.state for each in found if each.transactional_id == given["name"]]

    assert asyncio.run(states()) != ["Ongoing"]
    (tmp_path / "free").touch()
    run(frame, checkpoint, given)
    assert values(given["bootstrap"], given["topic"]) == ["0"]


def _udf(function: Any) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.udf(function, useArrow=False)


def test_the_older_protocol(
    spark: SparkSession,
    bootstrap: str,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Topics that rows name join the next transaction: in place, and all the same once."""
    monkeypatch.setattr(BlockingCluster, "transaction_version", lambda self, deadline: 1)
    topics = [make_topic(bootstrap, label, 2) for label in ("even", "odd")]
    for number in range(3):
        put(tmp_path / "in", number, range(number * 10, number * 10 + 10))
    frame = lines(spark, tmp_path / "in").selectExpr(
        "value", f"if(value % 2 = 0, '{topics[0]}', '{topics[1]}') as topic"
    )
    run(frame, checkpoint, {"bootstrap": bootstrap, "name": fresh("query")})
    for remainder, topic in enumerate(topics):
        assert values(bootstrap, topic) == sorted(map(str, range(remainder, 30, 2)))


@pytest.mark.parametrize("scheme", ["file:", ""], ids=["local", "through Hadoop"])
def test_the_files_of_a_checkpoint(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    files = CheckpointFiles(spark, f"{scheme}{tmp_path}")
    assert files.names("a") == []
    assert files.read("a-1") is None
    for name in ("a-2", "a-1", "b"):
        files.create(name, name)
    assert files.names("a") == ["a-1", "a-2"]
    assert files.read("a-1") == "a-1"
    files.delete("a-1")
    files.delete("a-1")
    assert files.names("a") == ["a-2"]
