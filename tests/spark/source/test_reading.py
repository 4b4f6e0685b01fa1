"""What a task makes of records, in this process: Spark's types to the letter, batches of a bearable
size, connections that are kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceflow.client.consumer.fetched import FETCHED_SCHEMA
from onceflow.client.worker.reader import BlockingReader
from onceflow.spark.connection_cache import ConnectionCache
from onceflow.spark.source import task as reading
from onceflow.spark.source.offsets import OffsetSpan
from onceflow.spark.source.option_values import COLUMNS
from onceflow.spark.source.options import SourceOptions
from onceflow.spark.source.task import BATCH_BYTES, ReadTask, spark_columns, spark_schema
from tests.interop.broker.clients.face import Message
from tests.spark.source.world import SourceWorld

if TYPE_CHECKING:
    import onceflow

pytestmark = pytest.mark.interop


def records(headers: list[list[tuple[str, bytes | None]]]) -> pa.RecordBatch:
    """As a reader gives them."""
    rows = len(headers)
    columns: list[Any] = [
        [b"k", None] * rows,
        [None, b"v"] * rows,
        ["t"] * rows,
        [7] * rows,
        range(rows),
        range(1000, 1000 + rows),
        [1] * rows,
        [[{"key": key, "value": value} for key, value in row] for row in headers],
    ]
    arrays = [
        pa.array(list(column)[:rows], type=field.type)
        for column, field in zip(columns, FETCHED_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FETCHED_SCHEMA)


def test_types_are_those_that_spark_asks_for() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from onceflow.spark.source.datasource import OnceflowSource

    needed = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "includeHeaders": "true"}
    schema = OnceflowSource(needed).schema()
    assert schema.fieldNames() == list(COLUMNS)
    assert to_arrow_schema(schema, timezone="UTC").equals(spark_schema(COLUMNS), True)


def test_every_column_keeps_its_values_and_no_headers_are_null() -> None:
    found = spark_columns(records([[], [("a", b"1"), ("a", None)], [], [("b", b"")]]), COLUMNS)
    found.validate(full=True)
    assert found.schema.equals(spark_schema(COLUMNS))
    pair = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert found.column("headers").to_pylist() == [None, pair, None, [{"key": "b", "value": b""}]]
    assert found.column("key").to_pylist() == [b"k", None, b"k", None]
    assert found.column("offset").to_pylist() == [0, 1, 2, 3]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [
        n * 1000 for n in range(1000, 1004)
    ]
    assert found.column("timestampType").to_pylist() == [1] * 4


@pytest.mark.parametrize(("start", "length"), [(1, 2), (2, 2), (0, 1), (4, 0)])
def test_a_part_of_the_records_is_the_same_part(start: int, length: int) -> None:
    whole = records([[], [("a", b"1")], [], [("b", b"2"), ("c", b"3")]])
    part = spark_columns(whole.slice(start, length), COLUMNS)
    part.validate(full=True)
    assert part.to_pylist() == spark_columns(whole, COLUMNS).to_pylist()[start : start + length]


def test_columns_come_in_the_order_that_was_asked_for() -> None:
    found = spark_columns(records([[], []]), ("offset", "value"))
    assert found.to_pydict() == {"offset": [0, 1], "value": [None, b"v"]}


# --- with a broker ------------------------------------------------------------------------------


@pytest.fixture
def world(broker: onceflow.Broker) -> SourceWorld:
    return SourceWorld(None, broker.bootstrap)


def task_for(world: SourceWorld) -> ReadTask:
    options = SourceOptions.of(world.options({"subscribe": "any"}))
    return ReadTask(options.settings, options.columns, True)


def test_records_that_grow_when_decompressed_come_in_pieces(world: SourceWorld) -> None:
    topic = world.topic()
    world.produce(topic, [Message(bytes(5000)) for _ in range(1000)], "zstd")
    batches = list(task_for(world).read([OffsetSpan(topic, 0, 0, 1000)]))
    assert len(batches) >= 4
    assert all(batch.nbytes <= 1.2 * BATCH_BYTES for batch in batches)
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(1000))


def test_a_task_reads_several_spans_in_order(world: SourceWorld) -> None:
    topic = world.topic(partitions=2)
    for partition in range(2):
        world.send(topic, *"abc", partition=partition)
    spans = [OffsetSpan(topic, 1, 1, 3), OffsetSpan(topic, 0, 0, 1)]
    found = [
        (row["partition"], row["value"])
        for batch in task_for(world).read(spans)
        for row in batch.to_pylist()
    ]
    assert found == [(1, b"b"), (1, b"c"), (0, b"a")]


def test_connections_are_kept_for_the_next_task_of_the_same_process(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Counted(BlockingReader):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    kept = ConnectionCache(Counted)
    monkeypatch.setattr(reading, "READERS", kept)
    topic = world.topic()
    world.send(topic, *"abc")
    task, span = task_for(world), OffsetSpan(topic, 0, 0, 3)
    for _ in range(3):
        assert sum(batch.num_rows for batch in task.read([span])) == 3
    assert len(made) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a process that was forked off
    assert sum(batch.num_rows for batch in task.read([span])) == 3
    assert len(made) == 2
    kept.close()


def test_who_stops_in_the_middle_does_not_hinder_the_next(world: SourceWorld) -> None:
    topic = world.topic()
    world.send(topic, *"abc")
    task, span = task_for(world), OffsetSpan(topic, 0, 0, 3)
    left = task.read([span, span])
    next(left)
    assert sum(batch.num_rows for batch in task.read([span])) == 3
    left.close()  # type: ignore[attr-defined]  # a generator
