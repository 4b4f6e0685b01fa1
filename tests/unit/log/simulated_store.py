"""Small pieces for tests of the log: batches, a store on a simulated disk."""

from __future__ import annotations

from collections import deque
from typing import Any
from uuid import UUID

from onceflow.errors import DiskFull
from onceflow.log.checkpoint import PATH
from onceflow.log.config import LogConfig
from onceflow.log.journal.journal import Ticket
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import HEADER_SIZE, NewBatch, iter_stored, seal
from onceflow.runtime.background import Done, Inline, Job, JobLane
from onceflow.testing.disk import Op, Rename, SimDisk
from onceflow.testing.rand import SimRand
from onceflow.types import LogId

NOW_MS = 1_700_000_000_000
RAND = SimRand(1)


def new_batch(records: int = 1, *, size: int = 100, timestamp: int = NOW_MS) -> NewBatch:
    """A batch whose records section is filler: the log does not look inside."""
    return seal(
        bytearray(HEADER_SIZE) + bytes([records % 256]) * size,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=records,
    )


class Held(Inline):
    """Runs at once what is not held back."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[JobLane] = set()
        self._kept: deque[tuple[JobLane, Job, Done]] = deque()

    def submit(self, lane: JobLane, job: Job, done: Done) -> None:
        if lane in self.held:
            self._kept.append((lane, job, done))
        else:
            super().submit(lane, job, done)

    def let_go(self, *lanes: JobLane) -> None:
        """What has been held back until now, in these lanes or all, runs; what it asks for is held
        back again."""
        for _ in range(len(self._kept)):
            lane, job, done = self._kept.popleft()
            if not lanes or lane in lanes:
                super().submit(lane, job, done)
            else:
                self._kept.append((lane, job, done))


def log_id(number: int, partition: int = 0) -> LogId:
    return LogId(UUID(int=number), partition)


def open_store(disk: SimDisk, config: StoreConfig | None = None) -> LogStore:
    return LogStore.open(disk, Inline(), RAND, config or StoreConfig(reserve_bytes=0))


def small_segments(**settings: Any) -> StoreConfig:
    settings = {"segment_bytes": 1000, "index_interval_bytes": 100, **settings}
    return StoreConfig(log=LogConfig(**settings), reserve_bytes=0)


def store_with_log(
    config: StoreConfig | None = None, disk: SimDisk | None = None
) -> tuple[SimDisk, LogStore, PartitionLog]:
    disk = disk or SimDisk()
    store = open_store(disk, config)
    store.create("orders", [log_id(1)])
    return disk, store, store.logs[log_id(1)]


def append(store: LogStore, log: PartitionLog, batch: NewBatch) -> Ticket:
    return store.append(log, batch.assign(log.end_offset, 0))


def full_for_checkpoints(op: Op) -> bool:
    """For `SimDisk.fail`: as if there were no room for a checkpoint, not even that of the last."""
    if isinstance(op, Rename) and op.new == PATH:
        raise DiskFull("simulated")
    return False


def offsets(log: PartitionLog) -> list[int]:
    """The base offsets of all durable batches, read batch by batch."""
    found: list[int] = []
    offset = log.start_offset
    while offset < log.high_watermark:
        first = next(iter_stored(log.read(offset, 1).read()))
        found.append(first.header.base_offset)
        offset = first.header.next_offset
    return found


def used(disk: SimDisk) -> int:
    """The bytes of all files that have a name."""
    named = {node for names in disk.tree.names.values() for node in names.values()}
    return sum(len(data) for node, data in disk.tree.files.items() if node in named)
