"""Queries that run for long: what they hold at the end is what they held when they were warm."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import onceflow
from onceflow.spark.sink.api import write_stream
from tests.interop.harness import eventually
from tests.spark.sink.world import doubled, fresh, make_topic, values
from tests.spark.source.world import SourceWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.interop

WARM = {False: 40, True: 10}
"""Batches after which a query, Spark and its JVM have all they need; narrow ones come second."""
LENGTHS = [
    pytest.param(60, id="60"),
    pytest.param(1000, id="1000", marks=pytest.mark.long),
]
"""So many batches are between the two looks."""
MORE = {
    "threads": 4,
    "files": 8,
    "jvm threads": 48,
    "jvm files": 16,
    "views": 0,
    "memory": 64 << 20,
}
"""How much may come on top: what each batch leaves behind would be more, even of the short query.
Spark's pools of threads grow when the machine is busy, and it keeps something of each of its last
batches."""
REST = 10
"""Batches that are left when it is looked at for the last time."""
LOOKS = 3
"""Something is always under way: the least of some looks counts."""


def least_held(spark: SparkSession) -> dict[str, int]:
    looks = [held(spark) for _ in range(LOOKS)]
    return {what: min(look[what] for look in looks) for what in MORE}


def held(spark: SparkSession) -> dict[str, int]:
    """By this process and by its JVM."""
    internal: Any = spark.sparkContext
    jvm = internal._jvm
    jvm.System.gc()
    beans = jvm.java.lang.management.ManagementFactory
    jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())
    return {
        "threads": threading.active_count(),
        "files": _files("self"),
        "jvm threads": int(beans.getThreadMXBean().getThreadCount()),
        "jvm files": _files(str(jvm_pid)),
        "views": len(spark.catalog.listTables()),
        "memory": int(beans.getMemoryMXBean().getHeapMemoryUsage().getUsed())
        + int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"),
    }


def _files(pid: str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize("narrow", [False, True], ids=["by key", "narrow"])
@pytest.mark.parametrize("more", LENGTHS)
def test_many_batches(
    more: int, narrow: bool, spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    bootstrap = broker.bootstrap
    batches = WARM[narrow] + more + REST
    world = SourceWorld(spark, bootstrap)
    source, topic = make_topic(bootstrap, "in", 2), make_topic(bootstrap, "out", 2)
    for partition in (0, 1):
        numbers = range(partition * batches, (partition + 1) * batches)
        world.send(source, *map(str, numbers), partition=partition)
    given = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
    frame = spark.readStream.format("onceflow").options(**world.options(given)).load()
    columns = ["value", "partition"] if narrow else ["value"]
    writer = write_stream(
        frame.select(*columns),
        topic=topic,
        bootstrap=bootstrap,
        name=fresh("long"),
        narrow=narrow,
    )
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    try:
        _come_to(query, WARM[narrow], batches)
        warm = least_held(spark)
        _come_to(query, WARM[narrow] + more, batches)
        last = least_held(spark)
        query.awaitTermination()
    finally:
        query.stop()
    found = values(bootstrap, topic)
    assert len(found) == 2 * batches
    assert not doubled(found)
    assert not {
        what: (warm[what], last[what]) for what in MORE if last[what] > warm[what] + MORE[what]
    }


def _come_to(query: StreamingQuery, batch: int, batches: int) -> None:
    def at() -> int:
        progress = query.lastProgress
        return -1 if progress is None else int(progress["batchId"])

    eventually(at, lambda number: number >= batch or not query.isActive, seconds=60 + batches)
    assert query.exception() is None
    assert query.isActive, "it ended before it was looked at"
