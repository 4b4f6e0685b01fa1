"""The judge of a crash image: what a store recovered from it must hold, may hold, and must not.

`check_image` raises `PromiseBroken` when the store does not hold what the workload was promised. In
a workload that compacts, records may be missing that a later one of their key displaces; that one
is then there.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache

from onceflow.errors import OnceflowError
from onceflow.log.checkpoint import Durability
from onceflow.log.partition_log import PartitionLog, directory_name
from onceflow.log.recovery import STRAY
from onceflow.log.segments.segment import segment_base
from onceflow.log.store import LogStore
from onceflow.records.batch import StoredBatch, iter_stored, read_header
from onceflow.records.columns import decode
from onceflow.runtime.background import Inline
from onceflow.testing.crash import Image
from onceflow.testing.disk import SimDisk
from onceflow.testing.rand import SimRand
from onceflow.types import LogId
from tests.sim.log.workload import (
    NOW_MS,
    TOPIC,
    Asked,
    LogWorkload,
    PromiseBroken,
    check_found,
    make_batch,
    read_all,
)

Rows = dict[int, tuple[bytes, bytes | None, object]]
"""Key, value and timestamp by offset."""


@cache
def rows_of(batch: bytes) -> Rows:
    rows = decode([StoredBatch.parse(batch)]).to_pylist()
    return {row["offset"]: (row["key"], row["value"], row["timestamp"]) for row in rows}


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
        store = LogStore.open(image.disk, Inline(), rand, workload.config)
        _check_store(store, workload, image.boundary, all_kept=all_kept)
        if alive:
            _check_alive(store, image.disk, rand, workload)
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
    _check_strays(store, histories, boundary)
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
            _check_records(log, past, found)
            if all_kept:
                _check_start(log, past, boundary)
                survivors |= _surviving(log, past, found, boundary)
    if workload.durability is Durability.FSYNC:  # without a journal there is no order over all logs
        _check_prefix(workload, survivors)


def _check_strays(store: LogStore, histories: dict[LogId, Expected], boundary: int) -> None:
    """Moved aside is what nobody was told of, and never what is left of a deleted log."""
    for log_id, expected in histories.items():
        name = directory_name(TOPIC, log_id)
        if _acked(expected.asked[0], boundary) and name + STRAY in store.report.strays:
            raise PromiseBroken(f"{name} was acknowledged, and is moved aside")


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
            again = [each for each in past[number:] if each.kind == "append"]
            for offset, batch in found.items():
                if offset >= cut.offset and not any(_is_left_of(batch, each) for each in again):
                    raise PromiseBroken(f"the batch at {offset} was cut off and is back")


def _check_bytes(log: PartitionLog, past: list[Asked]) -> dict[int, StoredBatch]:
    """Every batch is one that was appended, none is missing in between, each can be found."""
    for offset in range(log.high_watermark - 1, log.start_offset - 1, -1):  # no help from hints
        check_found(log, offset, read_header(log.read(offset, 1).read()))
    found = {batch.header.base_offset: batch for batch in iter_stored(read_all(log))}
    end = log.start_offset
    for offset, batch in found.items():
        if offset > max(end, log.compaction.cleaned_to):
            raise PromiseBroken(f"offsets {end} to {offset} are missing")
        end = batch.header.next_offset
        if not any(_is_left_of(batch, each) for each in past if each.offset == offset):
            raise PromiseBroken(f"the batch at {offset} is not one that was appended")
    if end != log.high_watermark or log.high_watermark != log.end_offset:
        raise PromiseBroken(f"ends at {end}, high watermark {log.high_watermark}")
    return found


def _is_left_of(batch: StoredBatch, asked: Asked) -> bool:
    """Whether it is the batch that was appended, or what compaction has left of it."""
    if asked.data == batch.buffer:
        return True
    if asked.kind != "append":
        return False
    was = read_header(asked.data)
    same = batch.header._replace(
        batch_length=was.batch_length,
        crc=was.crc,
        attributes=was.attributes,
        base_timestamp=was.base_timestamp,
        record_count=was.record_count,
    )
    return same == was and rows_of(bytes(batch.buffer)).items() <= rows_of(asked.data).items()


def _check_records(log: PartitionLog, past: list[Asked], found: dict[int, StoredBatch]) -> None:
    """All batches are there as they were appended; where the log is compacted, a record that is
    missing was displaced by a later one of its key, which is there."""
    changed = [
        asked
        for offset, asked in _surviving_appends(log, past).items()
        if asked.end > log.start_offset
        and not (offset in found and found[offset].buffer == asked.data)
    ]
    if not changed:
        return
    there: Rows = {}
    for batch in found.values():
        there |= rows_of(bytes(batch.buffer))
    latest = {key: offset for offset, (key, _, _) in sorted(there.items())}
    for asked in changed:
        if asked.offset >= log.compaction.cleaned_to:
            raise PromiseBroken(f"the batch at {asked.offset} is gone")
        for offset, (key, _, _) in rows_of(asked.data).items():
            if offset >= log.start_offset and latest.get(key, -1) < offset:
                raise PromiseBroken(f"the latest record of key {key!r}, at {offset}, is gone")


def _surviving_appends(log: PartitionLog, past: list[Asked]) -> dict[int, Asked]:
    """The last appends at each offset, of those that the log ends behind."""
    appends: dict[int, Asked] = {}
    for asked in past:
        if asked.kind == "truncate":
            appends = {offset: each for offset, each in appends.items() if offset < asked.offset}
        elif asked.kind == "append" and asked.end <= log.end_offset:
            appends[asked.offset] = asked
    return appends


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
        there = asked.end <= log.end_offset
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
    store: LogStore, disk: SimDisk, incarnations: SimRand, workload: LogWorkload
) -> None:
    """The recovered store works, stops, and starts with what it had."""
    rand = random.Random(1)
    for log in store.logs.values():
        batch = make_batch(rand, NOW_MS).assign(log.end_offset, 0)
        if not store.append(log, batch).done:
            raise PromiseBroken("an append after recovery is not acknowledged")
    if workload.compacting:
        store.compact(NOW_MS + 10_000)
        if any(log.compaction.is_busy for log in store.logs.values()):
            raise PromiseBroken("a compaction after recovery does not end")
    ends = {log_id: (log.start_offset, log.end_offset) for log_id, log in store.logs.items()}
    store.close()
    strays = store.report.strays
    check_tidy(store, disk, strays)
    again = LogStore.open(disk, Inline(), incarnations, workload.config)
    if not again.report.clean:
        raise PromiseBroken("a clean stop is not recognised")
    if ends != {log_id: (log.start_offset, log.end_offset) for log_id, log in again.logs.items()}:
        raise PromiseBroken("logs differ after a clean stop")
    for log in again.logs.values():
        read_all(log)
    check_tidy(again, disk, strays)


def check_tidy(store: LogStore, disk: SimDisk, strays: Collection[str] = ()) -> None:
    """On the disk is what belongs to the logs, what a start had to move aside, and nothing else."""
    directories = {entry.name for entry in disk.entries(".") if entry.is_dir} - {"journal"}
    if directories - set(strays) != {log.directory for log in store.logs.values()}:
        raise PromiseBroken(f"directories are left over: {sorted(directories)}")
    for log in store.logs.values():
        bases = {segment.base_offset for segment in log.segments}
        names = {entry.name for entry in disk.entries(log.directory)}
        logs = {segment_base(name) for name in names if name.endswith(".log")}
        others = {segment_base(name) for name in names}
        if logs != bases or others - bases or any("cleaned" in name for name in names):
            raise PromiseBroken(f"files are missing or left over: {sorted(names)}")
