"""A workload on the log store that remembers what it was promised, and the judge of a crash image.

`LogWorkload` runs seeded operations on a `SimDisk` and notes, with the number of the disk op at
that moment, what it asked for and what was acknowledged. `check_image` recovers a store from an
image of that disk and raises `PromiseBroken` when the store does not hold what had been promised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from onceflow.errors import OnceflowError
from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal_ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import (
    HEADER_SIZE,
    NewBatch,
    StoredBatch,
    iter_stored,
    read_header,
    seal,
)
from onceflow.runtime.background import Inline
from onceflow.runtime.rand import SimRand
from onceflow.runtime.sim_background import SimBackground
from onceflow.runtime.sim_crash import Image
from onceflow.runtime.sim_disk import SimDisk
from onceflow.types import LogId

NOW_MS = 1_700_000_000_000


class PromiseBroken(AssertionError):
    """The store lost, invented or tore something."""


def config(durability: Durability = Durability.FSYNC) -> StoreConfig:
    """Everything tiny, so that a short run rolls, checkpoints, reuses and stalls."""
    return StoreConfig(
        durability=durability,
        os_checkpoint_bytes=4000,
        log=LogConfig(
            segment_bytes=1600, index_interval_bytes=300, retention_ms=-1, retention_bytes=2500
        ),
        journal=JournalConfig(
            first_file_bytes=8192, largest_file_bytes=16384, files=2, gathered_bytes=1 << 20
        ),
        reserve_bytes=0,
    )


def make_batch(rand: random.Random, timestamp: int) -> NewBatch:
    """A batch whose records section is noise: the log does not look inside."""
    count = rand.randint(1, 4)
    size = rand.choice((20, 150, 400, 900))
    return seal(
        bytearray(HEADER_SIZE) + rand.randbytes(size),
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
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

    def __post_init__(self) -> None:
        rand = random.Random(self.seed)
        background = SimBackground(random.Random(self.seed))
        incarnations = SimRand(self.seed)
        store = LogStore.open(self.disk, background, incarnations, config(self.durability))
        for step in range(self.steps):
            if step % 97 == 96:  # a stop and a start on the way
                store.close()
                background.close()
                self._all_acked()
                store = LogStore.open(self.disk, background, incarnations, config(self.durability))
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
            self._truncate(store, rand.choice(logs), rand)
        elif choice < 0.18:
            self._retention(store)
        elif choice < 0.21:
            store.request_checkpoint()
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
        store.create("orders", [log_id]).add_done_callback(partial(self._ack, asked))

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
            if batch.header.base_offset >= log.start_offset
        ]
        if starts:
            asked = self._note("truncate", log.log_id, offset=rand.choice(starts[-8:]))
            store.truncate(log, asked.offset)
            self._ack(asked, None)


def read_all(log: PartitionLog) -> bytes:
    """All durable batches from the log start on, by reads of every size."""
    parts: list[bytes] = []
    offset = log.start_offset
    while offset < log.high_watermark:
        data = log.read(offset, 1 + 37 * len(parts) % 1500).read()
        batches = list(iter_stored(data))
        if not batches or sum(len(batch.buffer) for batch in batches) != len(data):
            raise PromiseBroken(f"a read at {offset} does not give whole batches")
        if not batches[0].header.base_offset <= offset <= batches[0].header.last_offset:
            raise PromiseBroken(f"a read at {offset} starts at {batches[0].header.base_offset}")
        parts.append(data)
        offset = batches[-1].header.next_offset
    return b"".join(parts)


@dataclass(slots=True)
class Expected:
    """What one log may and must look like after a crash at some op."""

    asked: list[Asked] = field(default_factory=list)

    def exists(self, boundary: int) -> bool | None:
        """True or False when it must or must not be there, None when both are right."""
        created = next((each for each in self.asked if each.kind == "create"), None)
        deleted = next((each for each in self.asked if each.kind == "delete"), None)
        if created is None or created.asked_at > boundary:
            return False
        if deleted is not None and deleted.asked_at <= boundary:
            return False if _acked(deleted, boundary) else None
        return True if _acked(created, boundary) else None


def _acked(asked: Asked, boundary: int) -> bool:
    return asked.acked_at is not None and asked.acked_at <= boundary


def check_image(image: Image, workload: LogWorkload, *, alive: bool = True) -> None:
    """Recovers the image and holds the result against the history."""
    # Without syncs a power cut may take what was acknowledged; a killed process may not.
    all_kept = workload.durability is Durability.FSYNC or image.kind == "all unsynced"
    try:
        rand = SimRand(-1 - workload.seed)
        store = LogStore.open(image.disk, Inline(), rand, config(workload.durability))
        _check_store(store, workload, image.boundary, all_kept=all_kept)
        if alive:
            _check_alive(store, image.disk, rand, workload.durability)
    except (OnceflowError, PromiseBroken) as error:
        raise PromiseBroken(
            f"seed {workload.seed}, boundary {image.boundary}, image {image.kind!r}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_store(store: LogStore, workload: LogWorkload, boundary: int, *, all_kept: bool) -> None:
    histories: dict[LogId, Expected] = {}
    for asked in workload.asked:
        histories.setdefault(asked.log_id, Expected()).asked.append(asked)
    for log_id in store.logs:
        if log_id not in histories:
            raise PromiseBroken(f"log {log_id} was never asked for")
    survivors: dict[int, bool] = {}
    for log_id, expected in histories.items():
        exists = expected.exists(boundary)
        log = store.logs.get(log_id)
        if exists is not None and exists != (log is not None):
            raise PromiseBroken(f"log {log_id}: exists is {log is not None}, not {exists}")
        past = [each for each in expected.asked if each.asked_at <= boundary]
        if all_kept:
            survivors |= _surviving_names(log, past, boundary)
        if log is not None:
            found = _check_bytes(log, past)
            _check_cuts(past, found, boundary)
            if all_kept:
                _check_start(log, past, boundary)
                survivors |= _surviving(log, past, found, boundary)
    if workload.durability is Durability.FSYNC:  # without a journal there is no order over all logs
        _check_prefix(workload, survivors)


def _surviving_names(log: PartitionLog | None, past: list[Asked], boundary: int) -> dict[int, bool]:
    """Which creations and deletions are known to have survived, or known not to have."""
    survivors: dict[int, bool] = {}
    for asked in past:
        if asked.kind == "create" and (log is not None or len(past) == 1):
            survivors[id(asked)] = log is not None
        if asked.kind == "delete" and (log is not None or _acked(past[0], boundary)):
            survivors[id(asked)] = log is None
    return survivors


def _check_cuts(past: list[Asked], found: dict[int, StoredBatch], boundary: int) -> None:
    """What an acknowledged truncation has cut off is gone, unless it was appended again."""
    for number, cut in enumerate(past):
        if cut.kind == "truncate" and _acked(cut, boundary):
            again = {each.data for each in past[number:] if each.kind == "append"}
            for offset, batch in found.items():
                if offset >= cut.offset and bytes(batch.buffer) not in again:
                    raise PromiseBroken(f"the batch at {offset} was cut off and is back")


def _check_bytes(log: PartitionLog, past: list[Asked]) -> dict[int, StoredBatch]:
    """Every batch is one that was appended, none is missing in between, each can be found."""
    for offset in range(log.high_watermark - 1, log.start_offset - 1, -1):  # no help from hints
        header = read_header(log.read(offset, 1).read())
        if not header.base_offset <= offset <= header.last_offset:
            raise PromiseBroken(f"a read at {offset} gives the batch at {header.base_offset}")
    found = {batch.header.base_offset: batch for batch in iter_stored(read_all(log))}
    end = log.start_offset
    for offset, batch in found.items():
        if offset > end:
            raise PromiseBroken(f"offsets {end} to {offset} are missing")
        end = batch.header.next_offset
        if not any(each.data == batch.buffer for each in past if each.offset == offset):
            raise PromiseBroken(f"the batch at {offset} is not one that was appended")
    if end != log.high_watermark or log.high_watermark != log.end_offset:
        raise PromiseBroken(f"ends at {end}, high watermark {log.high_watermark}")
    return found


def _check_start(log: PartitionLog, past: list[Asked], boundary: int) -> None:
    starts = [each for each in past if each.kind == "start"]
    acked = (each.offset for each in starts if _acked(each, boundary))
    if log.start_offset < max(acked, default=0):
        raise PromiseBroken(f"log start {log.start_offset} is below an acknowledged one")
    if log.start_offset > max((each.offset for each in starts), default=0):
        raise PromiseBroken(f"log start {log.start_offset} was never asked for")


def _surviving(
    log: PartitionLog, past: list[Asked], found: dict[int, StoredBatch], boundary: int
) -> dict[int, bool]:
    survivors: dict[int, bool] = {}
    highest = 0
    for number, asked in enumerate(past):
        if asked.kind == "start" and asked.offset > highest:
            highest = asked.offset
            survivors[id(asked)] = log.start_offset >= highest
        if asked.kind != "append" or asked.end <= log.start_offset:
            continue
        cuts = (each for each in past[number:] if each.kind == "truncate")
        if any(cut.offset <= asked.offset for cut in cuts):
            continue  # it may or may not have been cut off
        there = asked.offset in found and found[asked.offset].buffer == asked.data
        if not there and _acked(asked, boundary):
            raise PromiseBroken(f"the acknowledged batch at {asked.offset} is gone")
        survivors[id(asked)] = there
    return survivors


def _check_prefix(workload: LogWorkload, survivors: dict[int, bool]) -> None:
    """What survives is a prefix of one total order, over all logs."""
    order = [survivors[id(each)] for each in workload.asked if id(each) in survivors]
    if sorted(order, reverse=True) != order:
        raise PromiseBroken("a later change survived where an earlier one of another log did not")


def _check_alive(
    store: LogStore, disk: SimDisk, incarnations: SimRand, durability: Durability
) -> None:
    """The recovered store works, stops, and starts with what it had."""
    rand = random.Random(1)
    for log in store.logs.values():
        batch = make_batch(rand, NOW_MS).assign(log.end_offset, 0)
        if not store.append(log, batch).done:
            raise PromiseBroken("an append after recovery is not acknowledged")
    ends = {log_id: (log.start_offset, log.end_offset) for log_id, log in store.logs.items()}
    store.close()
    _check_tidy(store, disk)
    again = LogStore.open(disk, Inline(), incarnations, config(durability))
    if not again.report.clean:
        raise PromiseBroken("a clean stop is not recognised")
    if ends != {log_id: (log.start_offset, log.end_offset) for log_id, log in again.logs.items()}:
        raise PromiseBroken("logs differ after a clean stop")
    for log in again.logs.values():
        read_all(log)
    _check_tidy(again, disk)


def _check_tidy(store: LogStore, disk: SimDisk) -> None:
    """On the disk is what belongs to the logs, and nothing else."""
    directories = {entry.name for entry in disk.entries(".") if entry.is_dir} - {"journal"}
    strays = {name for name in directories if name.endswith(".stray")}
    if directories - strays != {log.directory for log in store.logs.values()}:
        raise PromiseBroken(f"directories are left over: {sorted(directories)}")
    for log in store.logs.values():
        expected = {segment.path("log") for segment in log.segments}
        files = {f"{log.directory}/{entry.name}" for entry in disk.entries(log.directory)}
        if {path for path in files if path.endswith(".log")} != expected:
            raise PromiseBroken(f"files are left over: {sorted(files - expected)}")
