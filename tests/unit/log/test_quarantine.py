"""A job that keeps house for one log and fails: that log waits, all others go on, nothing stops.

Only a durable write that fails stops the store: a sync that a checkpoint relies on, or the rename
that a durable checkpoint has promised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from onceflow.errors import DiskFailed
from onceflow.log.checkpoint import Durability
from onceflow.log.checkpointer import Checkpointer
from onceflow.log.compaction.cleaner import _Judge
from onceflow.log.config import LogConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.quarantine import FailedJob, Quarantine
from onceflow.log.side_files import SideFiles
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import StoredBatch
from onceflow.runtime.background import Inline
from onceflow.testing.disk import Link, Op, Rename, SimDisk, Sync, SyncDir, Unlink, Write
from tests.unit.log.compaction.keyed_log import DAY_MS, compact, config, keyed, records, seal_active
from tests.unit.log.producer_companion import ProducerModel, followed_append
from tests.unit.log.simulated_store import NOW_MS, RAND, append, log_id, new_batch, open_store


class House:
    """A store with two dirty compacted logs, and what it tells."""

    def __init__(self, settings: StoreConfig | None = None) -> None:
        self.disk = SimDisk()
        self.told: list[FailedJob] = []
        self.failures: list[Exception] = []
        self.store = LogStore.open(
            self.disk,
            Inline(),
            RAND,
            settings or config(),
            self.failures.append,
            self.told.append,
        )
        self.store.create("bad", [log_id(1, 3)])
        self.store.create("good", [log_id(2)])
        self.bad = self.store.logs[log_id(1, 3)]
        self.good = self.store.logs[log_id(2)]
        for log in (self.bad, self.good):
            for number in range(6):
                append(self.store, log, keyed([(b"k", b"%d" % number), (b"k%d" % number, b"")]))
            seal_active(self.store, log)

    def node(self, path: str) -> int:
        directory, name = path.split("/")
        return self.disk.tree.names[self.disk.tree.names[0][directory]][name]

    def compact(self, times: int = 1) -> None:
        for _ in range(times):
            compact(self.store)

    def is_compacted(self, log: PartitionLog) -> bool:
        return [record[0] for record in records(log)] == [1, 3, 5, 7, 9, 10, 11, 12]

    def check_leftovers(self) -> None:
        for log in (self.bad, self.good):
            names = [entry.name for entry in self.disk.entries(log.directory)]
            assert not [name for name in names if "cleaned" in name]


def of_copies(house: House, kind: type[Op]) -> Callable[[Op], bool]:
    """Fails what is done to the copies that a compaction of the bad log makes."""
    directory = house.disk.tree.names[0][house.bad.directory]

    def fail(op: Op) -> bool:
        if not isinstance(op, kind):
            return False
        if isinstance(op, Link):
            return op.directory == directory and op.name.endswith(".cleaned")
        names = house.disk.tree.names[directory]
        copies = [node for name, node in names.items() if name.endswith(".cleaned")]
        return getattr(op, "node", None) in copies

    return fail


@pytest.mark.parametrize("kind", [Link, Write, Sync])
def test_a_copy_that_cannot_be_written_is_no_failed_disk(kind: type[Op]) -> None:
    house = House()
    house.disk.fail = of_copies(house, kind)
    house.compact()
    assert not house.failures
    assert house.is_compacted(house.good)
    assert not house.is_compacted(house.bad)
    (failed,) = house.told
    assert failed[:2] == ("compaction", "bad-3")
    assert isinstance(failed.error, DiskFailed)
    house.check_leftovers()
    house.disk.fail = lambda _: False
    house.compact(2)
    assert house.is_compacted(house.bad)
    assert house.store.quarantine.failures == {"compaction": 1}


def test_a_source_that_cannot_be_read_is_no_failed_disk() -> None:
    house = House()
    path = house.bad.segments[2].path("log")
    house.disk.fail_read = lambda each: each == path
    house.compact()
    assert not house.failures
    assert house.is_compacted(house.good)
    (failed,) = house.told
    assert (failed.subject, failed.path) == ("bad-3", path), "the file is named"
    house.disk.fail_read = lambda _: False
    house.compact(2)
    assert house.is_compacted(house.bad)


def test_a_failure_that_nobody_thought_of_is_told_with_its_file_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    sound = _Judge.retained

    def overflow(self: _Judge, batches: list[StoredBatch]) -> Iterator[StoredBatch]:
        if batches[0].header.base_offset == 2:
            raise OverflowError("int too big to convert")
        return sound(self, batches)

    monkeypatch.setattr(_Judge, "retained", overflow)
    house.compact()
    assert not house.failures
    assert {each.subject for each in house.told} == {"bad-3", "good-0"}
    assert house.told[0].path.endswith("/00000000000000000002.log")
    house.check_leftovers()
    house.compact(100)
    # Left out for 1, 2, 4 ... rounds, so less and less often.
    assert 4 <= sum(each.subject == "bad-3" for each in house.told) <= 8
    monkeypatch.setattr(_Judge, "retained", sound)
    house.compact(40)
    assert house.is_compacted(house.bad)
    assert house.is_compacted(house.good)
    house.store.close()
    assert open_store(house.disk, config()).report.clean


def test_a_log_that_cannot_even_be_looked_at_does_not_hold_up_the_others() -> None:
    house = House()

    class Broken(ProducerModel):
        def first_unstable(self) -> int | None:
            raise ValueError("who knows")

    model = Broken(house.bad)
    house.bad.companion = model
    house.compact()
    assert [each.subject for each in house.told] == ["bad-3"]
    assert house.is_compacted(house.good)


def test_what_stale_copies_a_failure_has_left_is_never_taken_for_new_ones() -> None:
    house = House()
    house.disk.fail = lambda op: isinstance(op, Unlink) or of_copies(house, Sync)(op)
    house.compact()
    assert not house.failures
    assert [name for name in names_of(house) if name.endswith(".cleaned")]
    house.disk.fail = lambda _: False
    stale = f"{house.bad.segments[0].path('txnindex')}.cleaned"
    house.disk.record(
        Link(house.disk.tree.names[0][house.bad.directory], stale.split("/")[1], 999, False)
    )
    house.compact(2)
    assert house.is_compacted(house.bad)
    assert not [name for name in names_of(house) if "cleaned" in name or "txnindex" in name]


def names_of(house: House) -> list[str]:
    return [entry.name for entry in house.disk.entries(house.bad.directory)]


@pytest.mark.parametrize("kind", [Rename, SyncDir])
def test_what_a_checkpoint_relies_on_is_a_durable_write(kind: type[Op]) -> None:
    house = House()
    directory = house.disk.tree.names[0][house.bad.directory]
    house.store.request_checkpoint()
    house.disk.fail = lambda op: isinstance(op, kind) and getattr(op, "directory", -1) == directory
    house.store.compact(NOW_MS)
    (failure,) = house.failures
    assert isinstance(failure, DiskFailed)
    recovered = open_store(SimDisk(house.disk.tree), config())
    for log in (house.bad, house.good):
        assert records(recovered.logs[log.log_id])[-1] == records(log)[-1]


def test_files_that_cannot_be_removed_are_told_and_the_store_goes_on() -> None:
    house = House(config(delete=True, retention_ms=DAY_MS))
    kept = house.disk.entries(house.good.directory)
    house.disk.fail = lambda op: isinstance(op, Unlink)
    house.store.delete([house.bad])
    house.store.enforce_retention(NOW_MS + 2 * DAY_MS)
    house.store.request_checkpoint()
    assert not house.failures
    assert {each.job for each in house.told} == {"removal of deleted files"}
    assert any(house.bad.directory in each.subject for each in house.told)
    append(house.store, house.good, keyed([(b"k", b"more")]))
    crashed = SimDisk(house.disk.tree)
    house.disk.fail = lambda _: False
    for _ in range(9):  # it is not tried at each
        house.store.request_checkpoint()
    for disk in (house.disk, crashed):
        again = open_store(disk, config()) if disk is crashed else house.store
        assert [each.log_id for each in again.logs.values()] == [house.good.log_id]
        found = {entry.name for entry in disk.entries(house.good.directory)}
        assert not found & {entry.name for entry in kept if entry.name.endswith("log")}
        assert not again.report.strays
        directories = [entry.name for entry in disk.entries(".") if entry.is_dir]
        assert directories == [house.good.directory, "journal"]


def test_files_that_cannot_be_removed_are_told_ever_more_rarely() -> None:
    house = House()
    house.disk.fail = lambda op: isinstance(op, Unlink)
    house.store.delete([house.bad])
    for _ in range(100):
        house.store.look_again()
    assert {each.subject for each in house.told} == {house.bad.directory}
    assert len(house.told) == 7, "of 101 attempts"
    house.disk.fail = lambda _: False
    for _ in range(33):
        house.store.look_again()
    assert not house.disk.exists(house.bad.directory)
    assert not house.store._checkpointer._left_directories


def test_a_checkpoint_is_told_though_what_it_sets_free_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(replace(config(), durability=Durability.OS))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "_saved", broken)
        ticket = house.store._checkpointer._next
        with suppress(ZeroDivisionError):
            house.store.create("more", [log_id(7)])
    assert ticket.done
    assert ticket.error is None


def test_retention_of_one_log_does_not_wait_for_another() -> None:
    house = House(config(compact=False, delete=True, retention_ms=DAY_MS))
    active = house.bad.active.path("log")

    def no_new_segment(op: Op) -> bool:
        directory = house.disk.tree.names[0][house.bad.directory]
        return isinstance(op, Link) and op.directory == directory and op.name.endswith("13.log")

    house.disk.fail = no_new_segment
    house.store.enforce_retention(NOW_MS + 2 * DAY_MS)
    assert not house.failures
    assert [each[:2] for each in house.told] == [("retention", "bad-3")]
    assert house.good.start_offset == 13
    assert house.bad.start_offset == 0
    assert house.bad.active.path("log") == active
    append(house.store, house.good, keyed([(b"k", b"more")], timestamp=NOW_MS + 2 * DAY_MS))
    house.disk.fail = lambda _: False
    for _ in range(2):
        house.store.enforce_retention(NOW_MS + 2 * DAY_MS)
    assert house.bad.start_offset == 13
    assert house.store.quarantine.failures == {"retention": 1}


@pytest.mark.parametrize("suffix", ["index", "timeindex", "producers.unfinished"])
def test_an_index_or_a_snapshot_that_cannot_be_written_is_written_another_time(suffix: str) -> None:
    house = House()
    for log in (house.bad, house.good):
        model = log.companion = ProducerModel(log)
        model.end = log.end_offset
        followed_append(house.store, log, keyed([(b"k", b"x" * 200)], producer_id=5, sequence=0))
    directory = house.disk.tree.names[0][house.bad.directory]
    house.disk.fail = lambda op: (
        isinstance(op, Link) and op.directory == directory and op.name.endswith(f".{suffix}")
    )
    house.store.request_checkpoint()
    assert not house.failures
    assert [each[:2] for each in house.told] == [("snapshot", "bad-3")]
    crashed = SimDisk(house.disk.tree)
    house.disk.fail = lambda _: False
    house.store.request_checkpoint()
    assert len(house.told) == 1
    assert [offset for offset, _ in house.bad.snapshots()][:1] == [13]
    for disk in (house.disk, crashed):
        again = open_store(SimDisk(disk.tree), config())
        assert records(again.logs[house.bad.log_id]) == records(house.bad)


def test_a_companion_that_fails_costs_a_snapshot_and_not_an_append() -> None:
    house = House()

    class Broken(ProducerModel):
        def sealed(self, base: int, end: int) -> SideFiles:
            raise OverflowError("a number too large")

    house.bad.companion = Broken(house.bad)
    append(house.store, house.bad, keyed([(b"k", b"x" * 200)]))
    assert house.bad.high_watermark == 14
    house.store.request_checkpoint()
    assert [each[:2] for each in house.told] == [("snapshot", "bad-3")]
    house.store.close()
    assert not house.failures
    assert open_store(house.disk, config()).report.clean


def test_a_roll_that_fails_leaves_the_log_as_it_was() -> None:
    """A name that nobody noted would never be synced, and what follows be lost with it."""
    disk = SimDisk()
    settings = StoreConfig(log=LogConfig(segment_bytes=300), reserve_bytes=0)
    store = open_store(disk, settings)
    store.create("orders", [log_id(1)])
    append(store, store.logs[log_id(1)], new_batch())
    store.close()
    store = open_store(disk, settings)
    log = store.logs[log_id(1)]
    index = log.active.path("timeindex")
    disk.fail_read = lambda path: path == index
    with pytest.raises(DiskFailed):
        log.roll()
    assert len(log.segments) == 1
    assert not log.collect_flush().directory


def test_rounds_double_until_it_goes_well() -> None:
    told: list[FailedJob] = []
    quarantine = Quarantine(told.append)
    gaps = []
    for _ in range(7):
        quarantine.failed("compaction", "orders-0", "x", ValueError())
        skipped = 0
        while not quarantine.begin("compaction", "orders-0"):
            skipped += 1
        gaps.append(skipped)
        assert quarantine.begin("compaction", "orders-1")
        assert quarantine.begin("retention", "orders-0")
    assert gaps == [1, 2, 4, 8, 16, 32, 32]
    quarantine.passed("compaction", "orders-0")
    quarantine.failed("compaction", "orders-0", "x", ValueError())
    assert not quarantine.begin("compaction", "orders-0")
    assert quarantine.begin("compaction", "orders-0")
    quarantine.failed("compaction", "orders-0", "x", ValueError())
    quarantine.forget("orders-0")
    assert quarantine.begin("compaction", "orders-0")
    assert quarantine.failures == {"compaction": 9}
    assert len(told) == 9
