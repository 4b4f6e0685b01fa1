"""Power cuts at every op of a workload on the log store: nothing acknowledged is ever lost.

And the proof that these tests can fail: with syncs that do nothing, and with a recovery that trusts
the index files, the same checks must find broken promises.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from uuid import UUID

import pytest

from onceflow.errors import IndexInvalid
from onceflow.log.checkpoint import PATH, Durability
from onceflow.log.compaction import cleaner
from onceflow.log.compaction.cleaning import CleaningOutcome
from onceflow.log.compaction.compactor import Compactor
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segments.index import Indexes, OffsetIndex, TimeIndex
from onceflow.log.segments.record_rows import Rows
from onceflow.log.segments.segment import FoundBatch, Segment, scan
from onceflow.log.store import LogStore
from onceflow.log.swap import Swap
from onceflow.records.batch import StoredBatch
from onceflow.runtime.background import Inline
from onceflow.testing import background as sim_background
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import crash_images, sampled_images
from onceflow.testing.disk import (
    Link,
    NameOp,
    Op,
    Rename,
    SimDisk,
    Sync,
    SyncDir,
    SyncWrite,
    Truncate,
    Write,
)
from onceflow.testing.rand import SimRand
from onceflow.types import LogId
from tests.sim.log.judge import check_image
from tests.sim.log.workload import NOW_MS, LogWorkload, PromiseBroken, config, make_batch

SUBSETS = 2


def check_all(
    workload: LogWorkload, *, subsets: int = SUBSETS, first: int = 0, every: int = 1
) -> int:
    """The images at every boundary; a third of them are also written to and stopped."""
    count = 0
    images = crash_images(workload.disk, seed=workload.seed, subsets=subsets, first=first)
    for image in islice(images, 0, None, every):
        check_image(image, workload, alive=count % 3 == 0)
        count += 1
    return count


@pytest.mark.parametrize("seed", [1, pytest.param(6, marks=pytest.mark.long)])
def test_no_promise_is_broken_by_a_power_cut_at_any_op(seed: int, every: int) -> None:
    workload = LogWorkload(seed, steps=60)
    assert {asked.kind for asked in workload.asked} >= {"append", "create", "start"}
    assert all(asked.acked_at is not None for asked in workload.asked)
    assert check_all(workload, every=every) > len(workload.disk.ops) // every


def renames(disk: SimDisk) -> Iterator[int]:
    """The ops that put a compacted segment in the place of another."""
    for at, op in enumerate(disk.ops):
        if isinstance(op, Rename) and op.old.endswith(".log.cleaned"):
            yield at


def first_copy(disk: SimDisk) -> int:
    """The op that makes the first file of a compaction."""
    links = (at for at, op in enumerate(disk.ops) if isinstance(op, Link) and "clean" in op.name)
    return next(links)


def compacting_workload(durability: Durability = Durability.FSYNC) -> LogWorkload:
    """The shortest one in which some segments are compacted, whatever changes its course."""
    workloads = [
        LogWorkload(seed, steps=60, compacting=True, durability=durability)
        for seed in range(10, 25)
    ]
    compacting = [each for each in workloads if len(list(renames(each.disk))) >= 3]
    return min(compacting, key=lambda each: len(each.disk.ops) - first_copy(each.disk))


@pytest.mark.parametrize(
    "durability", [Durability.FSYNC, pytest.param(Durability.OS, marks=pytest.mark.long)]
)
def test_compaction_loses_no_latest_record_whenever_the_power_goes(
    durability: Durability, every: int
) -> None:
    workload = compacting_workload(durability)
    check_all(workload, subsets=1, first=first_copy(workload.disk), every=every)


def test_the_checks_notice_a_compaction_that_does_not_wait_for_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, rename = Compactor._swap, Swap.rename

    def hasty(log: PartitionLog, outcome: CleaningOutcome) -> Swap:
        swap = honest(log, outcome)
        rename(swap, log._disk)
        return swap

    monkeypatch.setattr(Compactor, "_swap", staticmethod(hasty))
    monkeypatch.setattr(Swap, "rename", lambda *_: None)
    workload = LogWorkload(seed=13, steps=60, compacting=True)
    with pytest.raises(PromiseBroken, match="were durable"):
        check_all(workload, first=next(renames(workload.disk)))


def test_the_checks_notice_a_compaction_that_forgets_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = cleaner._Judge._filtered

    def forgetful(
        judge: cleaner._Judge, batch: StoredBatch, rows: Rows, row: int
    ) -> StoredBatch | None:
        judge._latest[b"k3"] = 1 << 40
        return honest(judge, batch, rows, row)

    monkeypatch.setattr(cleaner._Judge, "_filtered", forgetful)

    def look_at_ends() -> None:
        for seed in range(10, 40):
            workload = LogWorkload(seed, steps=60, compacting=True)
            check_all(workload, subsets=0, first=len(workload.disk.ops))

    with pytest.raises(PromiseBroken, match="latest record of key b'k3'"):
        look_at_ends()


def test_a_stop_and_a_start_on_the_way_change_nothing(every: int) -> None:
    workload = LogWorkload(seed=7, steps=110)
    check_all(workload, subsets=1, first=len(workload.disk.ops) * 9 // 10, every=every)


@pytest.mark.parametrize("seed", [5])
def test_without_syncs_a_killed_process_loses_nothing_and_a_power_cut_leaves_whole_batches(
    seed: int, every: int
) -> None:
    check_all(LogWorkload(seed, steps=60, durability=Durability.OS), every=every)


def test_a_power_cut_during_recovery_is_recovered_from() -> None:
    workload = LogWorkload(seed=3, steps=30)
    images = list(crash_images(workload.disk, seed=3, subsets=1))
    for image in images[:: len(images) // 6]:
        LogStore.open(image.disk, Inline(), SimRand(5), config())
        for second in crash_images(image.disk, seed=4, subsets=1):
            check_image(second._replace(boundary=image.boundary), workload, alive=False)


def killed_at(disk: SimDisk, boundary: int) -> SimDisk:
    """The disk as a process left it that was killed there: what was not synced is in the page
    cache, for the next start to see and for a power cut to take."""
    found = SimDisk(disk.base)
    for op in disk.ops[:boundary]:
        found.record(op)
    found.tree.next_node = disk.tree.next_node
    return found


@pytest.mark.parametrize("compacting", [False, True])
@pytest.mark.parametrize("durability", Durability)
def test_a_start_removes_nothing_for_the_sake_of_a_checkpoint_that_a_power_cut_may_take(
    durability: Durability, compacting: bool
) -> None:
    """A kill between a checkpoint's rename and its sync, and a power cut in the start after it."""
    workload = LogWorkload(seed=1, steps=60, durability=durability, compacting=compacting)
    ops = workload.disk.ops
    named = [at + 1 for at, op in enumerate(ops) if isinstance(op, Rename) and op.new == PATH]
    for killed in named[1::2]:
        disk = killed_at(workload.disk, killed)
        LogStore.open(disk, Inline(), SimRand(5), workload.config)
        for image in sampled_images(disk, seed=killed, others=1, first=killed):
            check_image(image._replace(boundary=killed), workload, alive=False)


@pytest.mark.parametrize(("seed", "compacting"), [(13, False), (15, True)])
@pytest.mark.parametrize("durability", Durability)
def test_what_a_start_after_a_kill_took_over_outlives_a_power_cut(
    seed: int, durability: Durability, compacting: bool
) -> None:
    """Kills after every change of a name. What the start then found, and with syncs all that was
    acknowledged after it, is there for good."""
    workload = LogWorkload(seed, steps=60, durability=durability, compacting=compacting)
    for killed, op in enumerate(workload.disk.ops, 1):
        if isinstance(op, NameOp):
            disk = killed_at(workload.disk, killed)
            ends = work_on(disk, workload)
            for image in sampled_images(disk, seed=killed, others=1, first=len(disk.ops)):
                survived = LogStore.open(image.disk, Inline(), SimRand(6), workload.config)
                found = {log_id: log.end_offset for log_id, log in survived.logs.items()}
                assert found.keys() == ends.keys()
                assert all(found[log_id] >= end for log_id, end in ends.items())


@pytest.mark.parametrize("durability", Durability)
def test_what_a_recovery_cut_that_was_killed_then_stays_cut(durability: Durability) -> None:
    """The start after it finds the files as they should be, though the cuts are in the page cache
    alone; it closes segments, and a power cut brings back what was behind their ends."""
    count = 0
    for seed in (3, 16, 21):
        workload = LogWorkload(seed, steps=60, durability=durability)
        ops = workload.disk.ops
        for killed in [at for at, op in enumerate(ops, 1) if isinstance(op, Write)][::12]:
            recovering = killed_at(workload.disk, killed)
            LogStore.open(recovering, Inline(), SimRand(5), workload.config)
            for again in [
                at + 1
                for at, op in enumerate(recovering.ops)
                if at >= killed and isinstance(op, Truncate)
            ]:
                disk = killed_at(recovering, again)
                work_on(disk, workload, rounds=4)
                count += 1
                for image in sampled_images(disk, seed=again, others=1, first=len(disk.ops)):
                    LogStore.open(image.disk, Inline(), SimRand(6), workload.config)
    assert count > 20


def work_on(disk: SimDisk, workload: LogWorkload, rounds: int = 1) -> dict[LogId, int]:
    """Starts a store and appends to all logs; where they then durably end. More than one round
    closes segments, and a checkpoint names them."""
    store = LogStore.open(disk, Inline(), SimRand(5), workload.config)
    ends = {log_id: log.end_offset for log_id, log in store.logs.items()}
    rand = random.Random(1)
    for log in [*store.logs.values()] * rounds:
        assert store.append(log, make_batch(rand, NOW_MS).assign(log.end_offset, 0)).done
        if workload.durability is Durability.FSYNC:
            ends[log.log_id] = log.end_offset
    if rounds > 1:
        store.request_checkpoint()
    return ends


@pytest.mark.parametrize("seed", range(8))
def test_a_log_start_never_overtakes_an_append_before_it(seed: int) -> None:
    disk, background = SimDisk(), SimBackground(random.Random(seed))
    store = LogStore.open(disk, background, SimRand(seed), config())
    log_id = LogId(UUID(int=1), 0)
    store.create("orders", [log_id])
    log = store.logs[log_id]
    rand = random.Random(seed)
    store.append(log, make_batch(rand, NOW_MS).assign(0, 0))
    background.wait(lambda: log.high_watermark > 0)
    end = log.end_offset
    first = len(disk.ops)
    store.append(log, make_batch(rand, NOW_MS).assign(end, 0))
    store.delete_records(log, end)
    store.request_checkpoint()
    background.close()
    outcomes = set()
    for image in crash_images(disk, seed=seed, subsets=2, first=first):
        found = LogStore.open(image.disk, Inline(), SimRand(-1), config()).logs[log_id]
        outcomes.add((found.start_offset == end, found.end_offset > end))
    assert outcomes == {(False, False), (True, True)}  # both were in one group


class LyingDisk(SimDisk):
    """Says that it synced, and did not."""

    lies: type[Op]

    def record(self, op: Op) -> None:
        if not isinstance(op, self.lies):
            super().record(op)


@pytest.mark.parametrize("kind", [Sync, SyncDir, SyncWrite])
def test_the_checks_notice_when_syncing_does_nothing(kind: type[Op]) -> None:
    disk = LyingDisk()
    disk.lies = kind
    workload = LogWorkload(seed=1, steps=60, disk=disk)
    with pytest.raises(PromiseBroken):
        check_all(workload)


def test_the_checks_notice_a_recovery_that_trusts_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trusting(
        interval: int, offsets: bytes, times: bytes, *, size: int, last_offset: int
    ) -> Indexes:
        index = OffsetIndex()
        for at in range(0, len(offsets) - 7, 8):
            index.add(
                int.from_bytes(offsets[at : at + 4], "big"),
                int.from_bytes(offsets[at + 4 : at + 8], "big"),
            )
        return Indexes(interval, index, TimeIndex())

    def follow(segment: Segment, entry: tuple[int, int] | None) -> FoundBatch | None:
        if entry is None:
            return None
        return next(scan(segment.file, entry[1], segment.size), None)

    honest = Segment.rebuild_indexes

    def rebuild(segment: Segment, *, check_crc: bool) -> None:
        try:
            segment._indexes = trusting(300, segment._read("index"), b"", size=0, last_offset=0)
        except IndexInvalid:  # there is no file
            honest(segment, check_crc=check_crc)

    monkeypatch.setattr(sim_background, "share_at_once", lambda _: 0)
    workload = LogWorkload(seed=14, steps=60)
    check_all(workload, subsets=0, first=len(workload.disk.ops))
    monkeypatch.setattr(Indexes, "from_bytes", trusting)
    monkeypatch.setattr(Segment, "_follow", follow)
    monkeypatch.setattr(Segment, "_check_time_entry", lambda *_: None)
    monkeypatch.setattr(Segment, "rebuild_indexes", rebuild)
    with pytest.raises(PromiseBroken):
        check_all(workload)
