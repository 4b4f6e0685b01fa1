"""A query that sleeps for a year: brokers forget its groups and its ledger meanwhile, and delete
what it has read.

They forget at once here, and the year is taken off the times in the checkpoint. That they forget
its transactional id, too, is tried in virtual time (`tests/sim/years/ledger`).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.spark.sink.api import write_stream
from onceflow.types import TopicPartition
from tests.spark.sink.hooks import Once, at_points, die
from tests.spark.sink.world import fresh, make_topic, values
from tests.spark.source.world import SourceWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

YEAR_MS = 365 * 24 * 3600 * 1000
ROWS = 10
"""That come each year."""


class Years:
    """A query from a topic to another one, and what is left of it after a year."""

    def __init__(self, spark: SparkSession, bootstrap: str, checkpoint: str) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint
        self._name = fresh("years")
        self._world = SourceWorld(spark, bootstrap)
        self._input, self._output = (make_topic(bootstrap, each) for each in ("in", "out"))
        self._sent = 0

    def more_rows(self) -> None:
        self._world.send(self._input, *map(str, range(self._sent, self._sent + ROWS)))
        self._sent += ROWS

    def run(self) -> None:
        options = {"subscribe": self._input, "startingOffsets": "earliest"}
        source = self._spark.readStream.format("onceflow").options(**self._world.options(options))
        writer = write_stream(
            source.load().select("value"),
            topic=self._output,
            bootstrap=self._bootstrap,
            name=self._name,
        )
        writer.option("checkpointLocation", self._checkpoint).trigger(
            availableNow=True
        ).start().awaitTermination()

    def pass_a_year(self, unread: int = 0) -> None:
        """`unread`: so many records are not deleted meanwhile."""
        asyncio.run(self._forget(self._sent - unread))
        for path in (Path(self._checkpoint) / "offsets").glob("[0-9]*"):
            version, metadata, rest = path.read_text().split("\n", 2)
            _write(path, "\n".join((version, _earlier(metadata, "batchTimestampMs"), rest)))
        for note in Path(self._checkpoint).glob("onceflow-ledger*.json"):
            _write(note, _earlier(note.read_text(), "entry_ms"))

    async def _forget(self, before: int) -> None:
        async with Admin(self._bootstrap) as admin:
            await admin.delete_group(self._name)
            await admin.delete_group(f"{self._name}.ledger")
            await admin.delete_records({TopicPartition(self._input, 0): before})

    def check(self) -> None:
        found = values(self._bootstrap, self._output)
        assert sorted(map(int, found)) == list(range(self._sent))


def _earlier(text: str, field: str) -> str:
    found: dict[str, Any] = json.loads(text)
    found[field] -= YEAR_MS
    return json.dumps(found)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def test_a_query_has_a_batch_each_year(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str
) -> None:
    query = Years(spark, broker.bootstrap, checkpoint)
    for year in range(2):
        if year:
            query.pass_a_year()
        query.more_rows()
        query.run()
        query.check()


def test_a_query_sleeps_behind_a_commit_that_spark_did_not_hear_of(
    spark: SparkSession, broker: onceflow.Broker, checkpoint: str, tmp_path: Path
) -> None:
    """Nobody knows any more whether the batch is in the output: it is not written again."""
    query = Years(spark, broker.bootstrap, checkpoint)
    query.more_rows()
    query.run()
    query.more_rows()
    with (
        at_points(Once("after EndTxn", tmp_path / "mark", die)),
        pytest.raises(Exception, match="Died: for a test"),
    ):
        query.run()
    query.pass_a_year(unread=ROWS)
    for _ in range(2):
        with pytest.raises(Exception, match=r"LedgerConflict.*may have been forgotten"):
            query.run()
        query.check()
