"""Power cuts while a log keeps files for its companion: after every one of them the state that a
start finds is that of the log, and readers see what was committed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from uuid import UUID

import pytest

from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.recovery import _Found
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import NewBatch, StoredBatch
from onceflow.records.control import marker
from onceflow.runtime.background import Inline
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import Image, crash_images
from onceflow.testing.disk import SimDisk, Unlink
from onceflow.testing.rand import SimRand
from onceflow.types import LogId
from tests.sim.log.workload import NOW_MS, PromiseBroken
from tests.unit.log.compaction.keyed_log import keyed
from tests.unit.log.producer_companion import (
    ProducerModel,
    Record,
    batches_from,
    followed_append,
    read_committed,
    restored,
)

LOG_ID = LogId(UUID(int=1), 0)
PRODUCERS = 3


@dataclass(slots=True)
class SideFileWorkload:
    """Runs itself on construction: transactions on one log, with restarts in between. It either
    compacts, or cuts the log now and then."""

    seed: int
    steps: int
    compacting: bool
    durability: Durability = Durability.FSYNC
    slow: bool = False
    """Whether snapshots take a while to be made."""
    disk: SimDisk = field(default_factory=SimDisk)
    history: list[StoredBatch] = field(default_factory=list)
    sequence: int = 0
    rand: random.Random = field(init=False)

    @property
    def config(self) -> StoreConfig:
        return StoreConfig(
            durability=self.durability,
            os_checkpoint_bytes=2000,
            log=LogConfig(
                segment_bytes=300,
                index_interval_bytes=100,
                compact=self.compacting,
                delete=False,
                min_cleanable_dirty_ratio=0,
                delete_retention_ms=5,
            ),
            journal=JournalConfig(
                first_file_bytes=8192, largest_file_bytes=16384, files=2, gathered_bytes=1 << 20
            ),
            reserve_bytes=0,
        )

    def __post_init__(self) -> None:
        self.rand = random.Random(self.seed)
        background = SimBackground(random.Random(self.seed))
        incarnations = SimRand(self.seed)
        store = LogStore.open(self.disk, background, incarnations, self.config)
        store.create("state", [LOG_ID])
        log = store.logs[LOG_ID]
        log.companion = ProducerModel(log, slow=self.slow)
        for step in range(self.steps):
            if step % 30 == 29:
                store.close()
                background.close()
                store = LogStore.open(self.disk, background, incarnations, self.config)
                log = store.logs[LOG_ID]
                restored(log, slow=self.slow)
            self._operate(store, log, step)
            for _ in range(self.rand.choice((0, 0, 1, 3, 8))):
                background.step()
        background.close()

    def _operate(self, store: LogStore, log: PartitionLog, step: int) -> None:
        choice = self.rand.random()
        if choice < 0.1:
            store.request_checkpoint()
        elif choice < 0.25 and self.compacting:
            store.compact(NOW_MS + step)
        elif choice < 0.2 and not self.compacting:
            self._cut(store, log)
        else:
            batch = self.next_batch(step, self.rand.randrange(PRODUCERS), end=choice > 0.6)
            stored = followed_append(store, log, batch)
            self.history.append(StoredBatch.parse(bytes(stored.buffer)))

    def next_batch(self, step: int, producer: int, *, end: bool) -> NewBatch:
        if end:
            commit = self.rand.random() < 0.5
            return marker(
                producer, 0, commit=commit, coordinator_epoch=0, timestamp_ms=NOW_MS + step
            )
        self.sequence += 1
        return keyed(
            [(b"k%d" % self.rand.randrange(4), b"%d" % self.sequence)],
            producer_id=producer,
            sequence=self.sequence,
            timestamp=NOW_MS + step,
            transactional=True,
        )

    def _cut(self, store: LogStore, log: PartitionLog) -> None:
        starts = [batch.header.base_offset for batch in batches_from(log, 0)]
        if starts:
            store.truncate(log, self.rand.choice(starts[-6:]))
            restored(log, slow=self.slow)


@cache
def committed(batches: tuple[bytes, ...]) -> list[Record]:
    """By a reader who sees the whole history up to somewhere."""
    history = [StoredBatch.parse(each) for each in batches]
    model = ProducerModel(None).apply_all(history)
    end = min(model.open.values(), default=model.end)
    stable = [batch for batch in history if batch.header.base_offset < end]
    return read_committed(stable, model.all_aborted)


def check_state(log: PartitionLog) -> ProducerModel:
    """The newest snapshot and the log's tail tell what the whole log tells."""
    alone = ProducerModel(log).apply_all(batches_from(log, 0))
    model = restored(log)
    if (model.producers, model.open) != (alone.producers, alone.open):
        raise PromiseBroken(f"{model.state()}, not {alone.state()}")
    return model


def check_committed(log: PartitionLog, model: ProducerModel, history: list[StoredBatch]) -> None:
    before = [each for each in history if each.header.base_offset < log.end_offset]
    expected = committed(tuple(bytes(each.buffer) for each in before))
    end = min(model.open.values(), default=log.end_offset)
    stable = [each for each in batches_from(log, 0) if each.header.base_offset < end]
    found = read_committed(stable, model.aborted(0, end))
    if not set(found) <= set(expected):
        raise PromiseBroken("a reader sees what was not committed")
    if {key: value for _, key, value in found} != {key: value for _, key, value in expected}:
        raise PromiseBroken("the last committed record of a key is gone")
    kept = [each for each in expected if each[0] >= log.compaction.cleaned_to]
    if not set(kept) <= set(found):
        raise PromiseBroken("a committed record is gone")


def check_images(workload: SideFileWorkload, images: Iterable[Image], *, going_on: int = 11) -> int:
    """Recovers the images; of each eleventh the log goes on. How many had a snapshot."""
    with_snapshot = 0
    for number, image in enumerate(images):
        store = LogStore.open(image.disk, Inline(), SimRand(-1), workload.config)
        log = store.logs.get(LOG_ID)
        if log is None:
            continue
        with_snapshot += any(True for _ in log.snapshots())
        model = check_state(log)
        if workload.compacting:
            check_committed(log, model, workload.history)
        if number % going_on == 0:
            check_going_on(store, log, image.disk, workload)
    return with_snapshot


def check_going_on(
    store: LogStore, log: PartitionLog, disk: SimDisk, workload: SideFileWorkload
) -> None:
    """Other batches take the offsets of those that were lost; then a crash, or a stop."""
    for step in range(5):
        followed_append(store, log, workload.next_batch(step, 10 + step % 2, end=step == 3))
        store.request_checkpoint()
        crashed = LogStore.open(SimDisk(disk.tree), Inline(), SimRand(-2), workload.config)
        check_state(crashed.logs[LOG_ID])
    store.close()
    check_state(LogStore.open(disk, Inline(), SimRand(-2), workload.config).logs[LOG_ID])
    names = [entry.name for entry in disk.entries(log.directory)]
    if sum(name.endswith(".producers") for name in names) > 2 or any(
        name.endswith((".unfinished", ".cleaned")) for name in names
    ):
        raise PromiseBroken(f"files are left over: {names}")


def around_removals(disk: SimDisk) -> Iterator[Image]:
    """The images right before a snapshot is taken away."""
    for at, op in enumerate(disk.ops):
        if isinstance(op, Unlink) and op.name.endswith(".producers"):
            yield from crash_images(disk, seed=1, subsets=1, first=at, last=at)


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("compacting", [False, True])
def test_a_start_finds_the_state_of_the_log_whenever_the_power_goes(
    durability: Durability, compacting: bool, every: int
) -> None:
    workload = SideFileWorkload(3, steps=35, compacting=compacting, durability=durability)
    images = crash_images(workload.disk, seed=workload.seed, subsets=1)
    found = check_images(workload, islice(images, 0, None, every))
    assert found > len(workload.disk.ops) // 2 // every


@pytest.mark.parametrize("compacting", [False, True])
def test_a_start_finds_the_state_of_the_log_when_snapshots_come_late(
    compacting: bool, every: int
) -> None:
    workload = SideFileWorkload(3, steps=35, compacting=compacting, slow=True)
    images = crash_images(workload.disk, seed=workload.seed, subsets=1)
    found = check_images(workload, islice(images, 0, None, every))
    assert found > len(workload.disk.ops) // 4 // every


def test_the_checks_notice_snapshots_that_are_trusted_behind_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest: Callable[..., bool] = _Found._belongs

    def trusting(found: _Found, base: int, name: str, live: set[int], *, clean: bool) -> bool:
        return name.endswith(".producers") or honest(found, base, name, live, clean=clean)

    workload = SideFileWorkload(3, steps=70, compacting=False)
    check_images(workload, around_removals(workload.disk), going_on=1)
    monkeypatch.setattr(_Found, "_belongs", trusting)
    with pytest.raises(PromiseBroken):
        check_images(workload, around_removals(workload.disk), going_on=1)
