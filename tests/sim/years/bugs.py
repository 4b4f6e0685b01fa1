"""Bugs that only days bring to light, to be planted one at a time: proof that a year can fail.

Most of them were in the broker once. Each breaks one thing that a clock, a checkpoint or a restart
has to do with, and is found in a world of the seed that stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from onceflow.broker.produce.producer_expiry import ProducerExpiry
from onceflow.broker.topics import topics
from onceflow.broker.topics.internal_logs import METADATA_POLICY
from onceflow.broker.topics.metadata_log import MetadataImage
from onceflow.broker.topics.topics import Topics
from onceflow.broker.txn.state_store import TransactionStateStore
from onceflow.client.session.clients import SessionConsumer
from onceflow.group import driver, offsets
from onceflow.log import recovery
from onceflow.log.compaction import cleaner, compactor
from onceflow.log.compaction.transactions import BatchKind, Outcomes
from onceflow.log.config import WEEK_MS
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segments.segment import Segment
from onceflow.log.urgency import Purpose
from onceflow.producers.table import ProducerTable
from onceflow.records.batch import BatchHeader
from onceflow.runtime.clock import SteadyClock
from onceflow.spark.sink import batch as batch_run
from onceflow.spark.sink.ledger import LedgerEntry, LedgerVerdict, Planned, decide
from onceflow.spark.sink.offset_log import LoggedBatch
from onceflow.spark.sink.run import StreamRun
from onceflow.txn.state import TransactionMetadata

Plant = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """What is wrong, what is said to it, and in which world that shows soon."""

    plant: Plant
    verdict: str
    seed: int
    days: int
    durability: str = "fsync"


def metadata_ages(patch: pytest.MonkeyPatch) -> None:
    """The log that says which topics there are has the retention of a topic."""
    policy = replace(METADATA_POLICY, delete=True, retention_ms=WEEK_MS, compact=False)
    patch.setattr(topics, "METADATA_POLICY", policy)


def metadata_ages_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """The same, and a start removes all logs of which no topic is known."""
    metadata_ages(patch)

    def remove(found: Topics, image: MetadataImage, *, adopt: bool) -> None:
        named = {record.topic_id for record in image.topics.values()}
        logs = [log for log in found._store.logs.values() if log is not found._log]
        found._store.delete([log for log in logs if log.log_id.topic_id not in named])

    patch.setattr(Topics, "_settle_unknown_logs", remove)


def producer_ids_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What compaction and the ages leave of the claims of producer ids is not looked at."""
    honest = Topics.__init__

    def start(found: Topics, *given: Any, **named: Any) -> None:
        honest(found, *given, **named)
        found._producer_ids = MetadataImage().producer_ids

    patch.setattr(Topics, "__init__", start)


def producers_age_by_timestamps(patch: pytest.MonkeyPatch) -> None:
    """A producer is as old as its records say, whenever they came."""

    def run(expiry: ProducerExpiry) -> Iterator[None]:
        latest = expiry._clock.wall_ms() - expiry.silent_ms
        for topic in expiry._topics.by_name.values():
            for partition in topic.partitions:
                table = partition.producers._producers
                for producer_id, producer in list(table.items()):
                    if producer.last_timestamp <= latest and producer.transaction_start is None:
                        del table[producer_id]
        yield

    patch.setattr(ProducerExpiry, "run", run)


def producers_age_before_their_time(patch: pytest.MonkeyPatch) -> None:
    """A producer is forgotten after half of its time."""
    honest = ProducerTable.expire

    def expire(
        table: ProducerTable, now_ms: int, silent_ms: int, among: Iterable[int] | None = None
    ) -> int:
        return honest(table, now_ms, silent_ms // 4, among)

    patch.setattr(ProducerTable, "expire", expire)


def producers_never_age(patch: pytest.MonkeyPatch) -> None:
    """Whoever has written once is remembered for ever."""
    patch.setattr(ProducerTable, "expire", lambda *_: 0)


def compaction_waits_for_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Records of the future are not compacted before it has come."""
    honest = compactor._plan

    def plan(log: PartitionLog, now_ms: int, upto: int) -> tuple[list[Segment], float]:
        segments, ratio = honest(log, now_ms, upto)
        is_ahead = any(each.max_timestamp > now_ms for each in segments)
        return ([], 0.0) if is_ahead else (segments, ratio)

    patch.setattr(compactor, "_plan", plan)


def compaction_never(patch: pytest.MonkeyPatch) -> None:
    """Nothing is ever found to be worth a compaction."""
    patch.setattr(compactor, "_plan", lambda *_: ([], 0.0))


def aborted_records_displace(patch: pytest.MonkeyPatch) -> None:
    """To compaction all transactions were committed."""

    def kind_of(outcomes: Outcomes, header: BatchHeader) -> BatchKind:
        kind = honest(outcomes, header)
        return BatchKind.COMMITTED if kind is BatchKind.ABORTED else kind

    honest = Outcomes.kind_of
    patch.setattr(Outcomes, "kind_of", kind_of)


def tombstones_go_first(patch: pytest.MonkeyPatch) -> None:
    """Compaction takes the oldest record of a key for the latest."""

    def note(latest: dict[bytes | None, int], rows: Any) -> int:
        for key, offset in zip(rows.keys, rows.offsets, strict=True):
            latest.setdefault(key, offset)
        return 0

    patch.setattr(cleaner, "_note", note)
    patch.setattr(
        cleaner._Judge,
        "_is_kept",
        lambda judge, rows, row, _: judge._latest.get(rows.keys[row], -1) >= rows.offsets[row],
    )


def retention_by_the_oldest(patch: pytest.MonkeyPatch) -> None:
    """A segment goes when its first record is old."""
    patch.setattr(Segment, "newest_ms", property(lambda segment: segment.first_timestamp))


def retention_never(patch: pytest.MonkeyPatch) -> None:
    """Nothing is ever too old."""
    patch.setattr(PartitionLog, "retained_from", lambda log, _: log.start_offset)


def offsets_of_members_age(patch: pytest.MonkeyPatch) -> None:
    """Offsets of a group expire while its members read the topic."""
    honest = offsets.expired

    def expired(group: Any, known: Any, age_ms: Any, retention_ms: int) -> Any:
        found = honest(group, known, age_ms, retention_ms)
        committed = known.committed(group.group_id).items()
        old = [
            place for place, each in committed if age_ms(each.value.commit_timestamp_ms) >= WEEK_MS
        ]
        return [*found, *(place for place in old if place not in found)]

    patch.setattr(driver, "expired", expired)


def offsets_never_age(patch: pytest.MonkeyPatch) -> None:
    """Groups stay for ever."""
    patch.setattr(driver, "expired", lambda *_: [])


def stamps_age_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """A clock that is set ahead makes all offsets and transactional ids old."""
    patch.setattr(SteadyClock, "age_ms", lambda clock, stamp: clock._clock.wall_ms() - stamp)


def transactional_ids_never_age(patch: pytest.MonkeyPatch) -> None:
    """Transactional ids stay for ever."""
    patch.setattr(TransactionStateStore, "_is_expired", lambda *_: False)


def open_transactions_age(patch: pytest.MonkeyPatch) -> None:
    """A transactional id expires with a transaction that only its client may end."""

    def forget(book: TransactionStateStore, transaction: TransactionMetadata) -> None:
        book._dependencies.topic.append(transaction.transactional_id, None, Purpose.APPEND)
        del book._known[transaction.transactional_id]

    patch.setattr(
        TransactionStateStore,
        "_is_expired",
        lambda book, each, longest: book._clock.age_ms(each.updated_ms) >= longest,
    )
    patch.setattr(TransactionStateStore, "_forget", forget)


def start_trusts_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """What a start finds behind the checkpoint is not synced, and called durable."""
    honest = recovery._Found.open

    def open_log(found: recovery._Found) -> PartitionLog:
        found._unsynced = []
        return honest(found)

    patch.setattr(recovery._Found, "open", open_log)


BUGS = {
    each.plant.__name__: each
    for each in (
        Bug(metadata_ages, "does not start|topics", 4, 30),
        Bug(metadata_ages_unnoticed, "topics", 4, 30),
        Bug(producer_ids_forgotten, "was handed out before|does not start", 4, 30),
        Bug(producers_age_by_timestamps, "the repeat of a batch", 2, 10),
        Bug(producers_age_before_their_time, "the repeat of a batch", 2, 40),
        Bug(producers_never_age, "too much: producers", 4, 150),
        Bug(compaction_waits_for_the_clock, "is not compacted", 2, 60),
        Bug(compaction_never, "is not compacted", 4, 20),
        Bug(aborted_records_displace, "is gone|is there|is visible", 2, 60),
        Bug(tombstones_go_first, "is gone|is back|is there", 2, 60),
        Bug(retention_by_the_oldest, "is gone", 4, 30),
        Bug(retention_never, "is still there", 4, 30),
        Bug(offsets_of_members_age, "member is at -1", 4, 60),
        Bug(offsets_never_age, "not at one of {-1}", 4, 40),
        Bug(stamps_age_by_the_wall_clock, "is at -1|is None", 2, 120),
        Bug(transactional_ids_never_age, "is still known|should be forgotten", 4, 40),
        Bug(open_transactions_age, "is None|was put out|hangs", 2, 30),
        Bug(start_trusts_the_page_cache, "does not start", 7, 30, "os"),
    )
}


# --- of sessions and the ledger ------------------------------------------------------------------


def forgotten_offsets_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """A session whose group was forgotten begins at the first record."""

    def asked(consumer: SessionConsumer, *_: Collection[Any]) -> None:
        """Nobody minds."""

    patch.setattr(SessionConsumer, "_asked", asked)


def forgotten_batches_run(patch: pytest.MonkeyPatch) -> None:
    """What the ledger does not know was never committed, however long ago it was planned."""

    def ageless(
        entry: LedgerEntry | None, batch: Planned, _: int, offsets_retention_ms: int
    ) -> LedgerVerdict:
        unknown = batch._replace(known_ms=None)
        return decide(entry, unknown, batch.planned_ms, offsets_retention_ms)

    patch.setattr(batch_run, "decide", ageless)


def batches_do_not_age(patch: pytest.MonkeyPatch) -> None:
    """How old a batch is, is asked before anything else, and not when it is decided."""
    looked_at: dict[tuple[str, int], int] = {}
    honest = StreamRun._planned

    def planned(run: StreamRun, batch_id: int, logged: LoggedBatch) -> Planned:
        found = honest(run, batch_id, logged)
        looked_at[found.query_id, found.batch_id] = run._writer._clock.wall_ms()
        return found

    def stale(
        entry: LedgerEntry | None, batch: Planned, _: int, offsets_retention_ms: int
    ) -> LedgerVerdict:
        looked_ms = looked_at[batch.query_id, batch.batch_id]
        return decide(entry, batch._replace(known_ms=None), looked_ms, offsets_retention_ms)

    patch.setattr(StreamRun, "_planned", planned)
    patch.setattr(batch_run, "decide", stale)
