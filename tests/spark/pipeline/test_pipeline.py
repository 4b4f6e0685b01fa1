"""Pipelines on Spark: formats, functions, what is told of errors, and how they are stopped."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import onceflow
from onceflow.errors import OnceflowError
from onceflow.spark.errors.pipeline import InvalidPipeline, MasterRefused, PipelineFailed
from onceflow.spark.pipeline import frames as pipeline_frames
from onceflow.spark.pipeline.pipeline import Pipeline
from onceflow.spark.pipeline.running import RunningPipeline
from tests.spark.pipeline.world import make_topic, produce, read_all, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 120.0
ANY_PORT = "127.0.0.1:0"
Make = Callable[..., Pipeline]


@pytest.fixture
def topics(broker: onceflow.Broker) -> tuple[str, str]:
    """An input and an output, of two partitions each."""
    name = uuid4().hex
    made = [make_topic(broker.bootstrap, f"{kind}-{name}") for kind in ("in", "out")]
    return made[0], made[1]


@pytest.fixture
def make(topics: tuple[str, str], broker: onceflow.Broker, tmp_path: Path) -> Make:
    """A pipeline between those topics; keywords are tables."""

    def made(**more: Any) -> Pipeline:
        found = tables(*topics, **more)
        found["source"]["bootstrap"] = broker.bootstrap
        return Pipeline(name=topics[1], checkpoint=tmp_path / "state", base=tmp_path, **found)

    return made


def rows(*documents: Any) -> list[tuple[bytes, bytes]]:
    return [(b"%d" % number, json.dumps(each).encode()) for number, each in enumerate(documents)]


def wait_for(running: RunningPipeline, rows: int) -> None:
    """Until so many rows are committed."""

    def enough() -> bool:
        return running.written.rows >= rows

    for _ in range(int(PATIENCE_S * 10)):
        if enough() or running.wait(0.1):
            break
    assert enough(), running.written


def test_csv_to_text(
    make: Make, topics: tuple[str, str], spark: SparkSession, broker: onceflow.Broker
) -> None:
    source, output = topics
    produce(broker.bootstrap, source, [(None, b"1;x y"), (None, b"2;"), (None, b"three;z")])
    pipeline = make(
        source={
            "format": "csv",
            "schema": "number INT, word STRING",
            "format_options": {"sep": ";"},
        },
        transform={"sql": "SELECT concat(number, ':', coalesce(word, 'none')) AS line FROM source"},
        sink={"format": "text", "key": "line", "partition": "0", "headers": {"of": "length(line)"}},
        dead_letters={"topic": f"{output}-bad"},
    )
    running = pipeline.run(spark, once=True)
    found = read_all(broker.bootstrap, output)
    assert {(each.key, each.value, each.headers["of"], each.partition) for each in found} == {
        (b"1:x y", b"1:x y", b"5", 0),
        (b"2:none", b"2:none", b"6", 0),
    }
    (letter,) = read_all(broker.bootstrap, f"{output}-bad")
    assert letter.value == b"three;z"
    assert letter.headers["error"] == b"the value does not fit the schema of the CSV"
    assert (running.written.rows, running.written.dead_letters) == (2, 1)
    assert not running.is_active


WITH_DEAD_LETTERS = {
    "dead_letters": {"topic": "bad"},
    "rules": {"a name": "name IS NOT NULL", "cents": "cents > 0"},
}


@pytest.mark.parametrize(("more", "ways"), [({}, 1), (WITH_DEAD_LETTERS, 2)])
def test_a_value_is_parsed_once_on_each_way(
    make: Make, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, more: Any, ways: int
) -> None:
    """However many rules and columns there are; dead letters have a way of their own. Spark shows
    what it makes of a frame for frames that are no streams only."""
    schema = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp LONG"
    records = spark.createDataFrame([], schema)
    monkeypatch.setattr(pipeline_frames, "_read", lambda *given: records)
    sql = "SELECT name, cents, cents / 100 AS euros FROM source WHERE cents < 1000"
    plan = make(transform={"sql": sql}, sink={"key": "name"}, **more).plan
    frame: Any = pipeline_frames.output_frame(spark, plan, "unused")
    optimized = frame._jdf.queryExecution().optimizedPlan().toString()
    assert optimized.count("from_json(StructField(id,") == ways


def test_raw_to_raw_by_a_function_with_a_function_of_its_own(
    topics: tuple[str, str], spark: SparkSession, broker: onceflow.Broker, tmp_path: Path
) -> None:
    """The module lies beside the pipeline: workers have no such file in their path."""
    source, output = topics
    (tmp_path / "shouting.py").write_text(
        textwrap.dedent(
            """
            from pyspark.sql import functions as F
            from shouting_helper import loud

            KEY = F.col("_key").alias("key")

            @F.udf(returnType="string", useArrow=False)
            def louder(text):
                return loud(text)

            def shout(frame):
                return frame.select(
                    KEY,
                    louder(F.col("value").cast("string")).alias("value"),
                    F.lit(1).alias("partition"),
                )
            """
        )
    )
    (tmp_path / "shouting_helper.py").write_text("def loud(text):\n    return text.upper() + '!'\n")
    produce(broker.bootstrap, source, [(b"k", b"hello"), (None, b"you")])
    found = tables(source, output, transform={"python": "shouting:shout"})
    found["source"] = {"topics": source, "format": "raw", "bootstrap": broker.bootstrap}
    found["sink"]["format"] = "raw"
    Pipeline(name=output, checkpoint=tmp_path / "state", base=tmp_path, **found).run(
        spark, once=True
    )
    written = read_all(broker.bootstrap, output)
    assert {(each.key, each.value, each.partition) for each in written} == {
        (b"k", b"HELLO!", 1),
        (None, b"YOU!", 1),
    }


@pytest.mark.parametrize(
    ("more", "what", "where"),
    [
        (
            {"transform": {"sql": "SELECT nmae FROM source"}},
            "`nmae` cannot be resolved. Did you mean one of the following? [`id`, `name`",
            "transform.sql, line 1 position 7",
        ),
        (
            {"transform": {"sql": "SELECT name FROM sources"}},
            "The table or view `sources` cannot be found",
            "transform.sql, line 1 position 17",
        ),
        ({"transform": {"sql": "SELEC name"}}, "Syntax error at or near 'SELEC'", "transform.sql"),
        ({"sink": {"key": "nobody"}}, "`nobody` cannot be resolved", "sink.key"),
        ({"sink": {"partition": "id +"}}, "Syntax error", "sink.partition"),
        (
            {"rules": {"odd": "sents > 0"}, "dead_letters": {"topic": "unused"}},
            "`sents` cannot be resolved",
            "rules.odd",
        ),
        (
            {"rules": {"odd": "rand() < 0.5"}, "dead_letters": {"topic": "unused"}},
            "may give another result for the same row each time",
            "rules.odd",
        ),
        (
            {"source": {"watermark": {"column": "at", "delay": "1 s"}}},
            "`at` cannot be resolved",
            "source.watermark",
        ),
        ({"sink": {"mode": "complete"}}, "", "sink.mode"),
    ],
)
def test_mistakes_that_only_spark_sees_are_told_with_their_key(
    make: Make, spark: SparkSession, more: Any, what: str, where: str
) -> None:
    with pytest.raises(PipelineFailed) as raised:
        make(**more).start(spark)
    assert what in raised.value.what
    assert raised.value.where.startswith(where)
    assert "\tat " not in str(raised.value)


def test_a_row_that_cannot_be_used_ends_the_query_where_there_is_no_topic_for_it(
    make: Make, topics: tuple[str, str], spark: SparkSession, broker: onceflow.Broker
) -> None:
    produce(broker.bootstrap, topics[0], rows({"id": 1}, {"name": "x"}), partition=1)
    with pytest.raises(OnceflowError) as raised:
        make().run(spark, once=True)
    assert f"the record at offset 1 of {topics[0]}-1 cannot be used: id is null" in str(
        raised.value
    )
    assert "[dead_letters]" in str(raised.value)
    assert "\tat " not in str(raised.value)
    assert read_all(broker.bootstrap, topics[1]) == []


def test_an_error_in_a_function_is_told_with_its_line(
    make: Make,
    topics: tuple[str, str],
    spark: SparkSession,
    broker: onceflow.Broker,
    tmp_path: Path,
) -> None:
    (tmp_path / "failing.py").write_text(
        textwrap.dedent(
            """\
            from pyspark.sql import functions as F

            def fail(frame):
                nothing = F.udf(lambda name: name.nothing, useArrow=False)
                return frame.select(nothing("name").alias("x"))
            """
        )
    )
    produce(broker.bootstrap, topics[0], rows({"id": 1, "name": "a"}))
    with pytest.raises(PipelineFailed) as raised:
        make(transform={"python": "failing:fail"}).run(spark, once=True)
    assert raised.value.what == "AttributeError: 'str' object has no attribute 'nothing'"
    assert raised.value.where == f"{tmp_path / 'failing.py'}, line 4, in <lambda>"


def test_a_stop_finishes_the_batch_and_the_next_start_goes_on(
    make: Make,
    topics: tuple[str, str],
    spark: SparkSession,
    broker: onceflow.Broker,
    tmp_path: Path,
) -> None:
    source, output = topics
    produce(broker.bootstrap, source, rows(*({"id": number} for number in range(100))))
    running = make().start(spark)
    wait_for(running, 100)
    produce(broker.bootstrap, source, rows(*({"id": number} for number in range(100, 200))))
    running.stop()
    assert not running.is_active
    # Every batch that was begun is one that Spark has done with, too.
    begun = {path.name for path in (tmp_path / "state/offsets").iterdir() if path.name.isdigit()}
    done = {path.name for path in (tmp_path / "state/commits").iterdir() if path.name.isdigit()}
    last = running.written.last_batch
    assert {name for name in begun if int(name) <= (last or 0)} == done
    assert len(begun - done) <= 1
    again = make().run(spark, once=True)
    assert running.written.rows + again.written.rows == 200
    found = [json.loads(each.value or b"") for each in read_all(broker.bootstrap, output)]
    assert sorted(each["id"] for each in found) == list(range(200))


def test_a_broker_beside_it_that_dies_is_started_again(spark: SparkSession, tmp_path: Path) -> None:
    found = tables("in", "out", broker={"data_dir": str(tmp_path / "data"), "listen": ANY_PORT})
    running = Pipeline(name="beside", checkpoint=tmp_path / "state", **found).start(spark)
    try:
        for first in (0, 50, 100):
            documents = ({"id": number} for number in range(first, first + 50))
            produce(running.bootstrap, "in", rows(*documents))
            wait_for(running, first + 50)
            assert running.broker is not None
            os.kill(running.broker.pid, signal.SIGKILL)
        written = [json.loads(each.value or b"") for each in read_all(running.bootstrap, "out")]
        running.stop()
    finally:
        running.close()
    assert sorted(each["id"] for each in written) == list(range(150))


def test_a_source_whose_process_is_killed_goes_on(
    make: Make, topics: tuple[str, str], spark: SparkSession, broker: onceflow.Broker
) -> None:
    source, output = topics
    internal: Any = spark.sparkContext
    jvm = internal._gateway.proc.pid
    produce(broker.bootstrap, source, rows(*({"id": number} for number in range(50))))
    running = make().start(spark)
    try:
        wait_for(running, 50)
        (killed,) = children_of(jvm, "python_streaming_source_runner")
        os.kill(killed, signal.SIGKILL)
        produce(broker.bootstrap, source, rows(*({"id": number} for number in range(50, 100))))
        wait_for(running, 100)
        assert running.query.name == output
        running.stop()
    finally:
        running.close()
    found = [json.loads(each.value or b"") for each in read_all(broker.bootstrap, output)]
    assert sorted(each["id"] for each in found) == list(range(100))


def children_of(parent: int, word: str) -> list[int]:
    """The processes that it has started and whose command has that word."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while it is looked at
            above = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if above == parent and word.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_topics_that_are_missing_are_all_named(
    broker: onceflow.Broker, spark: SparkSession, tmp_path: Path
) -> None:
    found = tables("nowhere", "out")
    found["source"] |= {"bootstrap": broker.bootstrap, "topics": ["nowhere", "elsewhere"]}
    with pytest.raises(InvalidPipeline) as raised:
        Pipeline(name="missing", checkpoint=tmp_path, **found).start(spark)
    assert [each.text for each in raised.value.problems] == [
        f"there is no topic {name!r}; `onceflow topics create` makes one"
        for name in ("elsewhere", "nowhere")
    ]


def test_a_broker_of_its_own_is_refused_on_another_machine(tmp_path: Path) -> None:
    pipeline = Pipeline(name="far", checkpoint=tmp_path, **tables("a", "b"))
    with pytest.raises(MasterRefused, match="spark://far:7077 is not this machine"):
        pipeline.start(master="spark://far:7077")
