"""Arrow pipelines: one Python stage that reads, transforms and writes, under the sink's rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.errors import OnceflowError
from onceflow.records.partitioning import partition_for_key
from onceflow.spark.errors.pipeline import InvalidPipeline
from onceflow.spark.pipeline.pipeline import Pipeline
from onceflow.spark.sink import task_plan
from tests.interop.harness import eventually
from tests.spark.pipeline.world import make_topic, produce, read_all, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Function = Callable[[pa.Table], Any]
Make = Callable[..., Pipeline]


@pytest.fixture
def topics(broker: onceflow.Broker) -> tuple[str, str, str]:
    """Input, output and dead letters, of three partitions each."""
    name = uuid4().hex
    made = [make_topic(broker.bootstrap, f"{kind}-{name}", 3) for kind in ("in", "out", "bad")]
    return made[0], made[1], made[2]


@pytest.fixture
def make(topics: tuple[str, str, str], broker: onceflow.Broker, tmp_path: Path) -> Make:
    def made(function: Function, **more: Any) -> Pipeline:
        given = {"dead_letters": {"topic": topics[2]}, "transform": {"arrow": function}, **more}
        found = tables(topics[0], topics[1], **given)
        found["source"]["bootstrap"] = broker.bootstrap
        return Pipeline(name=topics[1], checkpoint=tmp_path / "state", base=tmp_path, **found)

    return made


def orders(count: int, first: int = 0) -> list[tuple[bytes, bytes]]:
    return [
        (b"%d" % number, json.dumps({"id": number, "cents": number * 10, "name": "a"}).encode())
        for number in range(first, first + count)
    ]


def doubled(table: pa.Table) -> Any:
    """Every fifth row is refused."""
    is_bad = pa.array([int(number or 0) % 5 == 4 for number in table["id"].to_pylist()])
    bad = table.filter(is_bad)
    good = table.filter(pc.invert(is_bad)).select(["id", "cents", "_key"])
    told = pa.array([f"{each} is refused" for each in bad["id"].to_pylist()], pa.string())
    cents = pc.multiply(good["cents"], 2)
    return good.set_column(1, "cents", cents), bad.append_column("error", told)


def test_rows_are_read_transformed_and_written_in_place_and_the_next_run_goes_on(
    make: Make, topics: tuple[str, str, str], spark: SparkSession, broker: onceflow.Broker
) -> None:
    source, output, bad = topics
    produce(broker.bootstrap, source, [*orders(100), (b"x", b"{broken"), (b"y", None)])
    pipeline = make(doubled, sink={"key": "_key", "headers": {"of": "id"}})
    first = pipeline.run(spark, once=True)
    produce(broker.bootstrap, source, orders(50, first=100))
    second = pipeline.run(spark, once=True)
    assert (first.written.rows, first.written.dead_letters) == (80, 22)
    assert (second.written.rows, second.written.dead_letters) == (40, 10)

    sent = read_all(broker.bootstrap, source)
    found = read_all(broker.bootstrap, output)
    expected = {
        (each.partition, each.key, json.loads(each.value or b"")["id"])
        for each in sent
        if each.key not in (b"x", b"y") and int(each.key or b"") % 5 != 4
    }
    assert len(found) == len(expected) == 120
    assert {(each.partition, each.key, int(each.headers["of"])) for each in found} == expected
    assert all(
        json.loads(each.value or b"")
        == {"id": int(each.key or b""), "cents": int(each.key or b"") * 20}
        for each in found
    )
    letters = read_all(broker.bootstrap, bad)
    by_place = {(b"%d" % each.partition, b"%d" % each.offset): each for each in sent}
    for each in letters:
        origin = by_place[each.headers["source.partition"], each.headers["source.offset"]]
        assert (each.key, each.value, each.partition) == (*origin[2:4], origin.partition)
    told = {each.key: each.headers["error"] for each in letters}
    assert told[b"9"] == b"9 is refused"
    assert told[b"x"] == b"the value is not JSON"
    assert told[b"y"] == b"the value is null"


@pytest.mark.parametrize("point", ["before EndTxn", "after EndTxn"])
def test_a_driver_that_fails_leaves_nothing_twice_and_nothing_out(
    make: Make,
    topics: tuple[str, str, str],
    spark: SparkSession,
    broker: onceflow.Broker,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    class Failed(Exception):
        """As if the driver had died here."""

    def fail(reached: str) -> None:
        if reached == point:
            raise Failed

    produce(broker.bootstrap, topics[0], orders(60))
    pipeline = make(doubled)
    with monkeypatch.context() as patched:
        patched.setattr(task_plan, "reached", fail)
        with pytest.raises(OnceflowError):
            pipeline.run(spark, once=True)
    produce(broker.bootstrap, topics[0], orders(5, first=60))
    pipeline.run(spark, once=True)
    found = [json.loads(each.value or b"")["id"] for each in read_all(broker.bootstrap, topics[1])]
    assert sorted(found) == [number for number in range(65) if number % 5 != 4]
    assert len(read_all(broker.bootstrap, topics[2])) == 13


def test_raw_records_stay_where_they_are(
    topics: tuple[str, str, str], spark: SparkSession, broker: onceflow.Broker, tmp_path: Path
) -> None:
    source, output, _ = topics
    produce(broker.bootstrap, source, [(b"k", b"\xff\x00"), (None, None), (b"z", b"")])

    def kept(table: pa.Table) -> pa.Table:
        return pa.table({"key": table["_key"], "value": table["value"]})

    found = tables(source, output, transform={"arrow": kept})
    found["source"] = {"topics": source, "format": "raw", "bootstrap": broker.bootstrap}
    found["sink"] = {"topic": output, "format": "raw", "partition": "source"}
    Pipeline(name=output, checkpoint=tmp_path / "state", **found).run(spark, once=True)
    assert [
        (each.partition, each.key, each.value) for each in read_all(broker.bootstrap, output)
    ] == [(each.partition, each.key, each.value) for each in read_all(broker.bootstrap, source)]


def failing(table: pa.Table) -> pa.Table:
    raise ValueError(f"cannot do {table.num_rows} rows")


def test_what_a_function_does_wrong_is_told_once(
    make: Make, topics: tuple[str, str, str], spark: SparkSession, broker: onceflow.Broker
) -> None:
    produce(broker.bootstrap, topics[0], orders(10))
    with pytest.raises(OnceflowError) as raised:
        make(failing).run(spark, once=True)
    assert str(raised.value).startswith(
        "batch 0 cannot be written: FunctionFailed: the function raised ValueError: cannot do "
    )
    assert Path(__file__).name in str(raised.value)
    assert "\tat " not in str(raised.value)
    assert read_all(broker.bootstrap, topics[1]) == []


def test_dead_letters_need_as_many_partitions(
    make: Make, topics: tuple[str, str, str], spark: SparkSession, broker: onceflow.Broker
) -> None:
    few = make_topic(broker.bootstrap, f"few-{uuid4().hex}", 2)
    with pytest.raises(InvalidPipeline, match=f"'{few}' has 2 partitions and '{topics[1]}' has 3"):
        make(doubled, dead_letters={"topic": few}).start(spark)


def test_partitions_are_added_while_it_runs(
    make: Make, topics: tuple[str, str, str], spark: SparkSession, broker: onceflow.Broker
) -> None:
    """A key belongs elsewhere then."""
    source, output, _ = topics

    async def add() -> None:
        async with Admin(broker.bootstrap) as admin:
            for topic in topics:
                await admin.add_partitions(topic, 6)

    produce(broker.bootstrap, source, orders(30))
    running = make(lambda table: table, sink={"key": "_key"}).start(spark)
    try:
        eventually(lambda: running.written.rows, lambda rows: rows == 30)
        asyncio.run(add())
        produce(broker.bootstrap, source, orders(60, first=30))
        eventually(lambda: running.written.rows, lambda rows: rows == 90)
    finally:
        running.stop()
    for each in read_all(broker.bootstrap, output):
        key = each.key or b""
        assert each.partition == partition_for_key(key, 3 if int(key) < 30 else 6)
