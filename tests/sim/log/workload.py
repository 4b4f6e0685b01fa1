"""A workload on the log store that remembers what it was promised.

`LogWorkload` runs seeded operations on a `SimDisk` and notes, with the number of the disk op at
that moment, what it asked for and what was acknowledged; `log_judge` holds crash images of that
disk against it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import pyarrow as pa

from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import BatchHeader, Codec, NewBatch, iter_stored
from onceflow.records.columns import encode
from onceflow.testing.background import SimBackground
from onceflow.testing.disk import SimDisk
from onceflow.testing.rand import SimRand
from onceflow.types import LogId

NOW_MS = 1_700_000_000_000
TOPIC = "orders"


class PromiseBroken(AssertionError):
    """The store lost, invented or tore something."""


def config(durability: Durability = Durability.FSYNC, *, compacting: bool = False) -> StoreConfig:
    """Everything tiny, so that a short run rolls, checkpoints, reuses and stalls."""
    return StoreConfig(
        durability=durability,
        os_checkpoint_bytes=4000,
        log=LogConfig(
            segment_bytes=1600,
            index_interval_bytes=300,
            retention_ms=-1,
            retention_bytes=4000 if compacting else 2500,
            compact=compacting,
            min_cleanable_dirty_ratio=0.1,
        ),
        journal=JournalConfig(
            first_file_bytes=8192, largest_file_bytes=16384, files=2, gathered_bytes=1 << 20
        ),
        reserve_bytes=0,
    )


def make_batch(rand: random.Random, timestamp: int) -> NewBatch:
    """A batch of records of a few keys, some without a value, from one of a few producers."""
    count = rand.randint(1, 4)
    size = rand.choice((20, 150, 400, 900)) // count
    columns = pa.record_batch(
        {
            "key": pa.array([b"k%d" % rand.randrange(6) for _ in range(count)], pa.binary()),
            "value": pa.array(
                [rand.randbytes(size) if rand.random() < 0.8 else None for _ in range(count)],
                pa.binary(),
            ),
            "timestamp": pa.array([timestamp] * count, pa.timestamp("ms", "UTC")),
        }
    )
    producer_id = rand.randrange(-1, 2)
    return encode(
        columns,
        codec=rand.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
        producer_id=producer_id,
        producer_epoch=min(producer_id, 0),
        base_sequence=min(producer_id, 0),
    )


@dataclass(slots=True)
class Asked:
    """One operation: when it was asked for and, once it was, when it was acknowledged."""

    kind: str
    log_id: LogId
    asked_at: int
    offset: int = 0
    data: bytes = b""
    end: int = 0
    acked_at: int | None = None


@dataclass(slots=True)
class LogWorkload:
    """Runs itself on construction; `asked` is the history in the order of the journal."""

    seed: int
    steps: int
    disk: SimDisk = field(default_factory=SimDisk)
    asked: list[Asked] = field(default_factory=list)
    durability: Durability = Durability.FSYNC
    compacting: bool = False

    @property
    def config(self) -> StoreConfig:
        return config(self.durability, compacting=self.compacting)

    def __post_init__(self) -> None:
        rand = random.Random(self.seed)
        background = SimBackground(random.Random(self.seed))
        incarnations = SimRand(self.seed)
        store = LogStore.open(self.disk, background, incarnations, self.config)
        for step in range(self.steps):
            if step % 97 == 96:  # a stop and a start on the way
                store.close()
                background.close()
                self._all_acked()
                store = LogStore.open(self.disk, background, incarnations, self.config)
            if self.compacting and rand.random() < 0.15:
                store.compact(NOW_MS + step)
            self._operate(store, rand, step)
            for _ in range(rand.choice((0, 0, 1, 3, 8))):
                background.step()
        background.close()

    def _operate(self, store: LogStore, rand: random.Random, step: int) -> None:
        logs = list(store.logs.values())
        choice = rand.random()
        if len(logs) < 2 or (choice < 0.04 and len(logs) < 5):
            self._create(store, rand)
        elif choice < 0.06:
            self._delete(store, rand.choice(logs))
        elif choice < 0.09:
            self._delete_records(store, rand.choice(logs), rand)
        elif choice < 0.15:
            log = rand.choice(logs)
            # What compaction kept for the sake of a later record must not lose that one.
            if not log.compaction.is_busy:
                self._truncate(store, log, rand)
        elif choice < 0.18:
            self._retention(store)
        elif choice < 0.21:
            store.request_checkpoint()
        elif choice < 0.23:
            log = rand.choice(logs)
            segment_bytes = rand.choice((900, 1600, 3000))
            store.configure(log, replace(log.config, segment_bytes=segment_bytes))
        else:
            self._append(store, rand.choice(logs), rand, step)

    def _note(
        self, kind: str, log_id: LogId, *, offset: int = 0, end: int = 0, data: bytes = b""
    ) -> Asked:
        asked = Asked(kind, log_id, len(self.disk.ops), offset, data, end)
        self.asked.append(asked)
        return asked

    def _ack(self, asked: Asked, error: Exception | None) -> None:
        if error is not None:
            raise PromiseBroken(f"a healthy disk, but {error}")
        asked.acked_at = len(self.disk.ops)

    def _all_acked(self) -> None:
        for asked in self.asked:
            if asked.acked_at is None and self.durability is Durability.FSYNC:
                raise PromiseBroken(f"after a stop {asked} is still not acknowledged")

    def _create(self, store: LogStore, rand: random.Random) -> None:
        log_id = LogId(UUID(int=rand.getrandbits(128)), rand.randrange(3))
        asked = self._note("create", log_id)
        store.create(TOPIC, [log_id]).add_done_callback(partial(self._ack, asked))

    def _delete(self, store: LogStore, log: PartitionLog) -> None:
        asked = self._note("delete", log.log_id)
        store.delete([log]).add_done_callback(partial(self._ack, asked))

    def _append(self, store: LogStore, log: PartitionLog, rand: random.Random, step: int) -> None:
        batch = make_batch(rand, NOW_MS + step).assign(log.end_offset, 0)
        asked = self._note(
            "append",
            log.log_id,
            offset=batch.header.base_offset,
            end=batch.header.next_offset,
            data=bytes(batch.buffer),
        )
        store.append(log, batch).add_done_callback(partial(self._ack, asked))

    def _delete_records(self, store: LogStore, log: PartitionLog, rand: random.Random) -> None:
        offset = rand.randint(log.start_offset, log.high_watermark) if log.high_watermark else 0
        offset = max(offset, log.start_offset)
        if offset <= log.high_watermark:
            asked = self._note("start", log.log_id, offset=offset)
            ticket = store.delete_records(log, offset)
            ticket.add_done_callback(partial(self._ack, asked))

    def _retention(self, store: LogStore) -> None:
        before = {log: log.start_offset for log in store.logs.values()}
        at = len(self.disk.ops)
        store.enforce_retention(NOW_MS)
        for log, start in before.items():
            if log.start_offset > start:
                asked = self._note("start", log.log_id, offset=log.start_offset)
                asked.asked_at = at
                if self.durability is Durability.FSYNC:  # else nobody is told: it may come again
                    store.flush().add_done_callback(partial(self._ack, asked))

    def _truncate(self, store: LogStore, log: PartitionLog, rand: random.Random) -> None:
        """Cuts at the start of one of the last batches; blocks, so it is acknowledged at once."""
        starts = [
            batch.header.base_offset
            for batch in iter_stored(read_all(log))
            if batch.header.base_offset >= max(log.start_offset, log.compaction.cleaned_to)
        ]
        if starts:
            asked = self._note("truncate", log.log_id, offset=rand.choice(starts[-8:]))
            store.truncate(log, asked.offset)
            self._ack(asked, None)


def check_found(log: PartitionLog, offset: int, header: BatchHeader) -> None:
    """A read gives the batch that holds the offset; in a compacted part perhaps one behind it."""
    lowest = 0 if offset < log.compaction.cleaned_to else header.base_offset
    if not lowest <= offset <= header.last_offset:
        raise PromiseBroken(f"a read at {offset} starts at {header.base_offset}")


def read_all(log: PartitionLog) -> bytes:
    """All durable batches from the log start on, by reads of every size."""
    parts: list[bytes] = []
    offset = log.start_offset
    while offset < log.high_watermark:
        data = log.read(offset, 1 + 37 * len(parts) % 1500).read()
        batches = list(iter_stored(data))
        if not batches or sum(len(batch.buffer) for batch in batches) != len(data):
            raise PromiseBroken(f"a read at {offset} does not give whole batches")
        check_found(log, offset, batches[0].header)
        parts.append(data)
        offset = batches[-1].header.next_offset
    return b"".join(parts)
