"""One query's sink on a real broker: its identity, its topic, and what is to be seen there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from onceflow.client.settings.clients import ProducerSettings, ReaderSettings
from onceflow.client.transactions.handoff import Claim, OpenTransaction
from onceflow.client.worker.reader import BlockingReader
from onceflow.client.worker.writer import BlockingWriter
from onceflow.runtime.clock import RealClock
from onceflow.spark.sink.batch import BatchJob, BatchWriter
from onceflow.spark.sink.claims import TargetOwner
from onceflow.spark.sink.identity import SinkIdentity
from onceflow.spark.sink.ledger import Planned
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.preflight import prepare_cluster
from onceflow.spark.sink.task_plan import ALL_ROWS, Report
from onceflow.types import TopicPartition

IDENTITY = SinkIdentity.of_query("totals", None, "ledger")


OUT = TopicPartition("out", 0)


SKIPPED = -1


WEEK_MS = 7 * 24 * 3600 * 1000


def settings_of(bootstrap: str, **more: object) -> ProducerSettings:
    given = {"delivery_timeout_ms": 20_000, "request_timeout_ms": 10_000, **more}
    return ProducerSettings.of(
        bootstrap_servers=bootstrap, transactional_id=IDENTITY.transactional_id, **given
    )


def options_of(settings: ProducerSettings, topic: str | None) -> SinkOptions:
    return SinkOptions(identity=IDENTITY, settings=settings, topic=topic)


class Driver:
    """One run of a query, and what its tasks do."""

    def __init__(self, bootstrap: str, query_id: str = "q", **more: object) -> None:
        settings = settings_of(bootstrap, **more)
        options = options_of(settings, "out")
        prepare_cluster(options, reads=True)
        self.writer = BatchWriter(options, offsets_retention_ms=WEEK_MS)
        self.book = self.writer.book
        self.query_id = query_id
        self.is_wanted = True
        self.epochs: list[tuple[int, int]] = []
        self.during: list[Callable[[], None]] = []
        """What happens while the tasks of each epoch run; after they have written."""

    def run(self, transaction: OpenTransaction, values: list[str]) -> list[Report]:
        epoch = transaction.producer_id, transaction.producer_epoch
        self.epochs.append(epoch)
        assert self.book.claim(epoch, TargetOwner(len(self.epochs), 0), [0]) is None
        rows = pa.record_batch({"value": pa.array([each.encode() for each in values])})
        with BlockingWriter(replace(transaction, claims=(Claim(OUT),))) as writer:
            writer.write(*OUT, rows)
            (written,) = writer.flush()
        if self.during:
            self.during.pop(0)()
        attempt = len(self.epochs)
        return [
            Report(0, attempt, ALL_ROWS, len(values), -1),
            Report(0, attempt, 0, written.records, written.last_sequence),
        ]

    def write(self, batch_id: int, *values: str, digest: str | None = None) -> int:
        planned = Planned(self.query_id, batch_id, digest or f"d{batch_id}", RealClock().wall_ms())
        job = BatchJob(
            planned=planned,
            source_offsets={OUT: batch_id + 1},
            run=lambda transaction: self.run(transaction, list(values)),
            is_wanted=lambda: self.is_wanted,
        )
        rows = self.writer.write(job)
        return SKIPPED if rows is None else rows


@contextmanager
def driver(bootstrap: str, **more: Any) -> Iterator[Driver]:
    made = Driver(bootstrap, **more)
    try:
        yield made
    finally:
        made.writer.close()


@contextmanager
def settled(bootstrap: str, **more: Any) -> Iterator[Driver]:
    with driver(bootstrap, **more) as made:
        made.writer.take_over()
        yield made


def visible(bootstrap: str) -> list[str]:
    settings = ReaderSettings.of(bootstrap_servers=bootstrap, fetch_max_wait_ms=50)
    with BlockingReader(settings) as reader:
        batches: list[Any] = list(reader.read(*OUT, *reader.ends(*OUT)))
    return [each.decode() for batch in batches for each in batch.column("value").to_pylist()]
