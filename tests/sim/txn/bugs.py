"""Bugs to plant in a broker, each of which the judge of power cuts must find.

A bug is planted in the broker that serves the clients, in the one that recovers, or in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from onceflow.broker.group.coordinator import GroupService
from onceflow.broker.handlers import produce
from onceflow.broker.topics import partition as partition_module
from onceflow.broker.topics.internal_topic import Unapplied
from onceflow.broker.topics.producer_snapshots import ProducerFiles, load_producers
from onceflow.broker.topics.topics import Topics
from onceflow.broker.txn import coordinator as txn_service, topic as transactions_topic
from onceflow.broker.txn.markers import Markers
from onceflow.broker.txn.state_store import TransactionStateStore
from onceflow.log.journal.journal import Ticket
from onceflow.log.partition_log import PartitionLog
from onceflow.log.side_files import PendingSideFile, SideFileKeeper
from onceflow.log.urgency import Purpose
from onceflow.producers.ids import Block
from onceflow.producers.table import ProducerTable
from onceflow.txn import ending, machine
from onceflow.txn.decisions import Finish
from onceflow.txn.ending import COMPLETED, finish
from onceflow.txn.records import decode_value
from onceflow.txn.state import NONE, TransactionMetadata, TransactionState
from onceflow.txn.timeouts import Deadlines
from onceflow.types import TopicPartition
from tests.unit.log.producer_companion import ModelSnapshot

Plant = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """What is wrong, what the judge says to it, and in which workload that shows soon."""

    plant: Plant
    verdict: str
    shape: str = "fsync"
    seed: int = 0
    first: int = 0
    """The boundary from which on it is looked for: it shows a little later, and before is wasted
    time."""
    serving: bool = True
    recovering: bool = True


def marker_skipped(patch: pytest.MonkeyPatch) -> None:
    """One partition of a transaction gets no marker."""
    honest = Markers.write

    def write(markers: Markers, place: TopicPartition, *who: int, **how: Any) -> Ticket | None:
        return None if place == ("a", 1) else honest(markers, place, *who, **how)

    patch.setattr(Markers, "write", write)


def _kept_in_memory(
    patch: pytest.MonkeyPatch, is_kept: Callable[[TransactionMetadata], bool]
) -> None:
    honest = TransactionStateStore.write

    def write(
        book: TransactionStateStore, transaction: TransactionMetadata, purpose: Purpose
    ) -> None:
        if is_kept(transaction):
            book._apply(transaction)
        else:
            honest(book, transaction, purpose)

    patch.setattr(TransactionStateStore, "write", write)


def prepare_not_written(patch: pytest.MonkeyPatch) -> None:
    """That a transaction is decided is in memory only."""
    _kept_in_memory(patch, lambda transaction: transaction.state in COMPLETED)


def fencing_not_written(patch: pytest.MonkeyPatch) -> None:
    """The epoch that InitProducerId gives is in memory only."""
    _kept_in_memory(patch, lambda each: each.state is TransactionState.EMPTY and each.epoch > 0)


def complete_before_markers(patch: pytest.MonkeyPatch) -> None:
    """It is noted that all markers are written, and then they are."""
    honest = TransactionStateStore._carry_out

    def carry_out(book: TransactionStateStore, ending: Finish, places: Any) -> None:
        book.write(ending.complete, Purpose.TRANSACTION_ENDS)
        honest(book, ending, places)

    patch.setattr(TransactionStateStore, "_carry_out", carry_out)


def end_answered_early(patch: pytest.MonkeyPatch) -> None:
    """The coordinator's answers wait for nothing."""
    patch.setattr(txn_service, "or_hang_up", lambda _, response: response)


def commit_answered_early(patch: pytest.MonkeyPatch) -> None:
    """EndTxn is answered before its decision is durable."""
    honest = txn_service.TransactionService.end

    def end(service: txn_service.TransactionService, *request: Any) -> Any:
        with pytest.MonkeyPatch.context() as inside:
            end_answered_early(inside)
            return honest(service, *request)

    patch.setattr(txn_service.TransactionService, "end", end)


def produce_answered_early(patch: pytest.MonkeyPatch) -> None:
    """Produce is answered before its records are durable."""
    patch.setattr(produce, "once_durable", lambda _, answer: answer(None))


def recovery_flips_the_decision(patch: pytest.MonkeyPatch) -> None:
    """What was being committed is aborted by the next start."""

    def resume(transaction: TransactionMetadata, now_ms: int) -> Finish | None:
        if transaction.state not in COMPLETED:
            return None
        return finish(replace(transaction, state=TransactionState.PREPARE_ABORT), now_ms)

    patch.setattr(machine, "resume", resume)


def recovery_forgets_the_decision(patch: pytest.MonkeyPatch) -> None:
    """What was being ended stays so."""
    patch.setattr(machine, "resume", lambda *_: None)


def deadlines_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a start, open transactions have all the time in the world."""
    honest = TransactionStateStore.load

    def load(book: TransactionStateStore, unapplied: Unapplied) -> None:
        honest(book, unapplied)
        book._deadlines = Deadlines()

    patch.setattr(TransactionStateStore, "load", load)


def _loaded(patch: pytest.MonkeyPatch, change: Callable[[ProducerTable], None]) -> None:
    def load(log: PartitionLog) -> ProducerTable:
        table = load_producers(log)
        change(table)
        return table

    patch.setattr(partition_module, "load_producers", load)


def repeats_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a start nobody knows which batches there were."""

    def forget(table: ProducerTable) -> None:
        for _, producer in table.producers():
            producer.window.clear()

    _loaded(patch, forget)


def aborted_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a start readers are not told of aborted transactions."""
    _loaded(patch, lambda table: table.aborted.drop_before(1 << 40))


def tail_not_read(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is taken for all that there is to know."""

    def load(log: PartitionLog) -> ProducerTable:
        for offset, data in log.snapshots():
            return ProducerTable.from_bytes(data, offset)
        return load_producers(log)

    patch.setattr(partition_module, "load_producers", load)


def snapshot_of_the_future(patch: pytest.MonkeyPatch) -> None:
    """A snapshot holds what came behind its offset, up to when it was written."""
    honest = SideFileKeeper.collect

    def collect(keeper: SideFileKeeper, durable: int) -> tuple[PendingSideFile, ...]:
        files = keeper.companion
        return tuple(
            each._replace(snapshot=ModelSnapshot(files._table.to_bytes(each.end), is_finished=True))
            if isinstance(files, ProducerFiles) and each.snapshot is not None
            else each
            for each in honest(keeper, durable)
        )

    patch.setattr(SideFileKeeper, "collect", collect)


def producer_ids_not_claimed(patch: pytest.MonkeyPatch) -> None:
    """Blocks of producer ids are claimed in memory only."""

    def claim(topics: Topics) -> tuple[Block, Ticket]:
        block = topics._producer_ids.claim(topics._producer_ids.next_unclaimed)
        topics._producer_ids.apply(block)
        done = Ticket()
        done.complete()
        return block, done

    patch.setattr(Topics, "claim_producer_ids", claim)


def offsets_kept_after_abort(patch: pytest.MonkeyPatch) -> None:
    """Offsets count, whatever the marker says."""
    honest = GroupService.marker_appended

    def appended(groups: GroupService, *marker: Any, commit: bool) -> None:
        honest(groups, *marker, commit=True)

    patch.setattr(GroupService, "marker_appended", appended)


def stable_beyond_open(patch: pytest.MonkeyPatch) -> None:
    """The last stable offset is the high watermark, always."""
    patch.setattr(ProducerTable, "last_stable_offset", lambda _, high_watermark: high_watermark)


def zombies_let_in(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks a producer for its epoch."""
    for module in (machine, ending):
        patch.setattr(module, "stranger", lambda *_: None)


def answers_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a start nobody knows which requests were answered last."""

    def decode(transactional_id: str, value: bytes) -> TransactionMetadata:
        return replace(decode_value(transactional_id, value), last_epoch=NONE)

    patch.setattr(transactions_topic, "decode_value", decode)


def undurable_records_shown(patch: pytest.MonkeyPatch) -> None:
    """The high watermark is the end of the log."""
    end = property(lambda partition: partition.log.end_offset)
    patch.setattr(partition_module.HostedPartition, "high_watermark", end)


_IN_PART = "is visible in part|has ended in part|group-. is at|was committed|visible is"

BUGS = {
    each.plant.__name__: each
    for each in (
        Bug(marker_skipped, "hangs at"),
        Bug(prepare_not_written, _IN_PART, "os", first=120),
        Bug(complete_before_markers, _IN_PART, "os", first=180),
        Bug(fencing_not_written, "was handed out before", seed=1, recovering=False, first=150),
        Bug(end_answered_early, "was handed out before", recovering=False),
        Bug(commit_answered_early, "was committed, and is gone", recovering=False, first=60),
        Bug(produce_answered_early, "is at|has the record at", recovering=False),
        Bug(recovery_flips_the_decision, _IN_PART + "|EndTxn again", "crowded", first=60),
        Bug(
            recovery_forgets_the_decision,
            _IN_PART + "|is still Prepare|hangs at",
            "crowded",
            first=120,
        ),
        Bug(deadlines_forgotten, "hangs at", serving=False, first=40),
        Bug(
            repeats_forgotten,
            "is there at|the repeat of a batch|a repeat in",
            serving=False,
            first=40,
        ),
        Bug(aborted_forgotten, "reads of committed records are wrong", serving=False, first=40),
        Bug(
            tail_not_read,
            "a repeat in|the repeat of|group-. is at|hangs at|wrong at",
            serving=False,
            first=155,
        ),
        Bug(
            snapshot_of_the_future,
            "the repeat of a batch|is there at|hangs at",
            "rolling",
            first=285,
            recovering=False,
        ),
        Bug(producer_ids_not_claimed, "was handed out before"),
        Bug(offsets_kept_after_abort, "group-. is at", first=60),
        Bug(stable_beyond_open, "reads of committed records are wrong", first=40),
        Bug(zombies_let_in, "no identity for|is out, and can", first=75, serving=False),
        Bug(answers_forgotten, "again gives", first=70, serving=False),
        Bug(undurable_records_shown, "went back", first=95, recovering=False),
    )
}
