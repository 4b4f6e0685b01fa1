"""What goes on around a query while it writes: partitions come, records go, the claims' service is
slow or hangs up, Spark joins tasks or loses executors."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any

import pytest

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.client.transactions.handoff import OpenTransaction
from onceflow.records.partitioning import partition_for_key
from onceflow.spark.sink.api import write, write_stream
from onceflow.spark.sink.claims import ClaimService
from onceflow.spark.sink.job import JobRunner
from onceflow.spark.sink.task_plan import Report
from tests.interop.broker.clients.face import Message
from tests.interop.harness import eventually
from tests.spark.sink import driver as sink_driver
from tests.spark.sink.hooks import Once, at_points, die
from tests.spark.sink.world import committed, fresh, make_topic, put, values
from tests.spark.source.world import SourceWorld

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.interop


def keyed(numbers: range, partitions: int) -> list[Message]:
    """Where every client puts them."""
    return [
        Message(b"%d" % n, b"%d" % n, partition=partition_for_key(b"%d" % n, partitions))
        for n in numbers
    ]


def test_a_join_whose_topics_get_partitions(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    bootstrap = broker.bootstrap
    world = SourceWorld(spark, bootstrap)
    left, right, topic = (make_topic(bootstrap, each, 2) for each in ("left", "right", "out"))

    async def add() -> None:
        async with Admin(bootstrap) as admin:
            for each in (left, right, topic):
                await admin.add_partitions(each, 5)

    def read(name: str, side: str) -> DataFrame:
        options = world.options({"subscribe": name, "startingOffsets": "earliest"})
        frame = spark.readStream.format("onceflow").options(**options).load()
        return frame.selectExpr("key", f"cast(value as string) as {side}")

    def put_both(numbers: range, partitions: int) -> None:
        for name in (left, right):
            world.produce(name, keyed(numbers, partitions))

    def arrived(rows: int) -> None:
        eventually(
            lambda: len(values(bootstrap, topic)),
            lambda count: count >= rows or not query.isActive,
        )
        assert query.exception() is None
        assert values(bootstrap, topic) == sorted(f"{n}={n}" for n in range(rows))

    joined = read(left, "one").join(read(right, "other"), "key")
    rows = joined.selectExpr("key", "concat(one, '=', other) as value")
    writer = write_stream(rows, topic=topic, bootstrap=bootstrap, name=fresh("join"))
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        put_both(range(40), 2)
        arrived(40)
        asyncio.run(add())
        put_both(range(40, 90), 5)
        arrived(90)
    finally:
        query.stop()
    for each in committed(bootstrap, topic):
        key = each.key()
        assert each.partition() == partition_for_key(key, 2 if int(key) < 40 else 5)


def test_a_frame_whose_tasks_spark_joins(spark: SparkSession, broker: onceflow.Broker) -> None:
    """Adaptive execution makes few tasks of many small ones, but not of those that write."""
    topic = make_topic(broker.bootstrap, "out", 6)
    settings = {"spark.sql.shuffle.partitions": "24", "spark.sql.adaptive.enabled": "true"}
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        counted = spark.range(0, 900, 1, 5).selectExpr("id % 300 as n").groupBy("n").count()
        rows = counted.selectExpr("cast(n as string) as key", "cast(count as string) as value")
        assert write(rows, topic=topic, bootstrap=broker.bootstrap) == 300
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    found = committed(broker.bootstrap, topic)
    assert sorted(int(each.key()) for each in found) == list(range(300))
    assert {each.value() for each in found} == {b"3"}


class Trouble:
    """Some answers of the service are late, some are lost."""

    def __init__(self, late: set[int], lost: set[int]) -> None:
        self.asked = 0
        self._late = late
        self._lost = lost

    def __call__(self, service: ClaimService, line: bytes, answer: Any) -> Any:
        number = self.asked
        self.asked += 1
        if number in self._late:
            time.sleep(0.5)
        found = answer(service, line)
        return None if number in self._lost else found


@pytest.mark.parametrize(
    ("late", "lost"),
    [({0, 2}, set()), (set(), {0}), (set(), {1, 3})],
    ids=["late", "lost", "twice"],
)
def test_the_claims_are_slow_or_hang_up(
    late: set[int],
    lost: set[int],
    spark: SparkSession,
    broker: onceflow.Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(3):
        put(tmp_path / "in", number, range(number * 50, (number + 1) * 50))
    plan = {
        "name": fresh("query"),
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "bootstrap": broker.bootstrap,
        "topic": make_topic(broker.bootstrap, "out", 2),
    }
    trouble, answer = Trouble(late, lost), ClaimService.answer
    monkeypatch.setattr(
        ClaimService, "answer", lambda service, line: trouble(service, line, answer)
    )
    sink_driver.files_query(spark, plan).start().awaitTermination()
    assert trouble.asked > max(late | lost)
    assert values(broker.bootstrap, plan["topic"]) == sorted(map(str, range(150)))


@contextmanager
def not_listening(service: ClaimService) -> Iterator[None]:
    """Nobody can connect, as if the driver had ended or a firewall were in between."""
    server = service._server
    assert server.allow_reuse_address
    server.shutdown()
    server.socket.close()
    try:
        yield
    finally:
        server.socket = socket.socket(server.address_family, server.socket_type)
        server.server_bind()
        server.server_activate()
        service._thread = threading.Thread(target=server.serve_forever, daemon=True)
        service._thread.start()


def test_the_claims_cannot_be_reached(
    spark: SparkSession,
    broker: onceflow.Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For longer than the tasks of a batch ask for them: none of them writes, and the batch is
    written again."""
    monkeypatch.setattr(ThreadingTCPServer, "allow_reuse_address", True)  # to listen there again
    for number in range(3):
        put(tmp_path / "in", number, range(number * 50, (number + 1) * 50))
    plan = {
        "name": fresh("query"),
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "bootstrap": broker.bootstrap,
        "topic": make_topic(broker.bootstrap, "out", 2),
    }
    tries: list[OpenTransaction] = []
    failures: list[str] = []

    honest = JobRunner.run

    def run(jobs: JobRunner, frame: DataFrame, transaction: OpenTransaction) -> list[Report]:
        tries.append(transaction)
        try:
            with not_listening(jobs._service) if len(tries) == 2 else nullcontext():
                return honest(jobs, frame, transaction)
        except Exception as error:
            failures.append(str(error))
            raise

    monkeypatch.setattr(JobRunner, "run", run)
    sink_driver.files_query(spark, plan).start().awaitTermination()
    assert len(tries) == 4, "one of three batches was tried twice"
    (failure,) = failures
    assert "the driver does not answer at 127.0.0.1" in failure
    assert values(broker.bootstrap, plan["topic"]) == sorted(map(str, range(150)))


@pytest.fixture
def cleaned() -> Iterator[onceflow.Broker]:
    """A broker that looks all the time for what it may compact."""
    with onceflow.Broker(log_retention_check_interval_ms=100) as broker:
        yield broker


def test_a_planned_batch_is_compacted(
    spark: SparkSession, cleaned: onceflow.Broker, checkpoint: str, tmp_path: Path
) -> None:
    """A driver dies, and when the next one runs the batch again some of its records are gone: what
    compaction removes is no loss."""
    bootstrap = cleaned.bootstrap
    world = SourceWorld(spark, bootstrap)
    source = world.topic(
        "compacted",
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
        delete_retention_ms="100",
    )
    topic = make_topic(bootstrap, "out", 1)
    world.produce(source, [Message(b"%d" % n, b"%d" % (n % 7)) for n in range(60)])
    options = world.options({"subscribe": source, "startingOffsets": "earliest"})
    frame = spark.readStream.format("onceflow").options(**options).load().select("key", "value")

    def run() -> None:
        writer = write_stream(frame, topic=topic, bootstrap=bootstrap, name=source)
        started = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        started.start().awaitTermination()

    with (
        at_points(Once("before EndTxn", tmp_path / "mark", die)),
        pytest.raises(Exception, match="Died: for a test"),
    ):
        run()

    # A segment ends when another begins, and what is safely on the disk may be compacted.
    world.produce(source, [Message(b"late", b"late")])
    cleaned.restart()

    def records() -> int:
        return sum(1 for each in committed(bootstrap, source) if each.key() != b"late")

    eventually(records, lambda count: count == 7)
    run()
    found = {each.key(): each.value() for each in committed(bootstrap, topic)}
    found.pop(b"late", None)
    assert found == {b"%d" % (n % 7): b"%d" % n for n in range(53, 60)}
