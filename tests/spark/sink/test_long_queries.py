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
from tests.spark.sink.world import fresh, make_topic, values
from tests.spark.source.world import SourceWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.interop

WARM = 40
"""Batches after which a query, Spark and its JVM have all they need."""
ROWS_IN_BATCH = 2
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
LOOKS = 3
"""Something is always under way: the least of some looks counts."""


def least_held(spark: SparkSession) -> dict[str, int]:
    looks = [held(spark) for _ in range(LOOKS)]
    return {what: min(look[what] for look in looks) for what in MORE}


def more_than(warm: dict[str, int], spark: SparkSession) -> dict[str, tuple[int, int]]:
    last = least_held(spark)
    return {what: (warm[what], last[what]) for what in MORE if last[what] > warm[what] + MORE[what]}


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


@pytest.mark.parametrize(
    "narrow",
    [pytest.param(False, id="by key", marks=pytest.mark.long), pytest.param(True, id="narrow")],
)
@pytest.mark.parametrize("more", LENGTHS)
def test_many_batches(
    more: int, narrow: bool, spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    bootstrap = broker.bootstrap
    world = SourceWorld(spark, bootstrap)
    source, topic = make_topic(bootstrap, "in", 2), make_topic(bootstrap, "out", 2)

    sent: list[str] = []

    def run_through(query: StreamingQuery, batches: int) -> None:
        rows = [str(len(sent) + number) for number in range(ROWS_IN_BATCH * batches)]
        for partition in (0, 1):
            world.send(source, *rows[partition::2], partition=partition)
        sent.extend(rows)
        query.processAllAvailable()

    given = {
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": f"{ROWS_IN_BATCH}",
    }
    frame = spark.readStream.format("onceflow").options(**world.options(given)).load()
    columns = ["value", "partition"] if narrow else ["value"]
    writer = write_stream(
        frame.select(*columns),
        topic=topic,
        bootstrap=bootstrap,
        name=fresh("long"),
        narrow=narrow,
    )
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        run_through(query, WARM)
        warm = least_held(spark)
        run_through(query, more)
        # Pools that have grown become small again when there is nothing to do for a minute.
        eventually(lambda: more_than(warm, spark), lambda found: not found)
        progress = query.lastProgress
        assert progress is not None
        assert int(progress["batchId"]) >= WARM + more - 1
    finally:
        query.stop()
    assert values(bootstrap, topic) == sorted(sent)
