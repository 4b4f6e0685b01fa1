"""A companion for tests of the log: the simplest fold over batches that knows producers and
transactions, and a reader that sees only what is committed."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from onceflow.log.partition_log import PartitionLog
from onceflow.log.side_files import SideFiles
from onceflow.log.store import LogStore
from onceflow.records.batch import NewBatch, StoredBatch, iter_stored
from onceflow.records.columns import decode
from onceflow.records.control import MarkerType, parse_marker

Record = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


class ModelSnapshot:
    """Bytes that are there, but perhaps not yet to be had."""

    def __init__(self, data: bytes, *, is_finished: bool) -> None:
        self._data = data
        self.is_finished = is_finished

    def finish(self) -> None:
        self.is_finished = True

    def cancel(self) -> None:
        self._data = b"cancelled"

    def to_bytes(self) -> bytes:
        assert self.is_finished
        return self._data


class ProducerModel:
    """What producers and transactions are like after the batches below `end`."""

    def __init__(self, log: PartitionLog | None, *, slow: bool = False) -> None:
        """A slow one finishes its snapshots some batches later."""
        self.log = log
        self.slow = slow
        self.unfinished: list[ModelSnapshot] = []
        self.end = 0
        self.producers: dict[int, tuple[int, int]] = {}  # epoch and newest sequence of that epoch
        self.open: dict[int, int] = {}  # to the first offset
        self.ended: list[tuple[int, int]] = []  # first offset and marker
        self.all_aborted: list[tuple[int, int, int]] = []
        self.aged = False
        self.forgets = False  # as if all producers had expired

    def apply(self, batch: StoredBatch) -> None:
        header = batch.header
        self.end = header.next_offset
        if len(self.unfinished) > 1 or (self.unfinished and not header.base_offset % 3):
            self.unfinished.pop(0).finish()
        if header.producer_id < 0:
            return
        epoch, sequence = self.producers.get(header.producer_id, (-1, -1))
        if epoch != header.producer_epoch:
            sequence = -1
        if not header.is_control:
            sequence = header.last_sequence
            if header.is_transactional:
                self.open.setdefault(header.producer_id, header.base_offset)
        elif header.producer_id in self.open:
            first = self.open.pop(header.producer_id)
            self.ended.append((first, header.base_offset))
            marker = parse_marker(batch)
            if marker is not None and marker.type is MarkerType.ABORT:
                self.all_aborted.append((header.producer_id, first, header.base_offset))
        self.producers[header.producer_id] = header.producer_epoch, sequence

    def apply_all(self, batches: Iterable[StoredBatch]) -> ProducerModel:
        for batch in batches:
            self.apply(batch)
        return self

    def state(self) -> tuple[object, ...]:
        return self.producers, self.open, self.all_aborted

    # --- as a companion -----------------------------------------------------------------------

    def sealed(self, base: int, end: int) -> SideFiles:
        assert self.end == end, "the companion has not seen all batches, or too many"
        entries = [each for each in self.all_aborted if base <= each[2] < end]
        index = b"".join(struct.pack(">hqqqq", 0, *each, each[2] + 1) for each in entries)
        state = [end, list(self.producers.items()), list(self.open.items()), self.all_aborted]
        snapshot = ModelSnapshot(json.dumps(state).encode(), is_finished=not self.slow)
        if self.slow:
            self.unfinished.append(snapshot)
        return SideFiles(snapshot, index)

    def has_aged(self) -> bool:
        return self.aged

    def start_moved(self, start: int) -> None:
        self.all_aborted = [each for each in self.all_aborted if each[2] >= start]

    def first_unstable(self) -> int | None:
        durable = self.end if self.log is None else self.log.high_watermark
        waiting = (first for first, at in self.ended if at >= durable)
        return min([*self.open.values(), *waiting], default=None)

    def aborted(self, start: int, end: int) -> Sequence[tuple[int, int, int]]:
        return [each for each in self.all_aborted if each[1] < end and each[2] >= start]

    def remembered(self) -> Collection[int]:
        return () if self.forgets else tuple(self.producers)

    def compacted(self, upto: int) -> None:
        self.all_aborted = [each for each in self.all_aborted if each[2] >= upto]

    @classmethod
    def load(cls, log: PartitionLog, data: bytes) -> ProducerModel:
        model = cls(log)
        end, producers, opened, aborted = json.loads(data)
        model.end = end
        model.producers = {producer_id: tuple(state) for producer_id, state in producers}
        model.open = dict(opened)
        model.all_aborted = [tuple(each) for each in aborted]
        return model


def batches_from(log: PartitionLog, offset: int) -> list[StoredBatch]:
    """All durable batches that end behind an offset."""
    found: list[StoredBatch] = []
    while offset < log.high_watermark:
        part = list(iter_stored(log.read(offset, 1 << 16).read()))
        found += part
        offset = part[-1].header.next_offset if part else log.high_watermark
    return found


def restored(log: PartitionLog, *, slow: bool = False) -> ProducerModel:
    """The companion as a start makes it: the newest snapshot, then the log's tail."""
    offset, data = next(log.snapshots(), (log.start_offset, None))
    model = ProducerModel(log) if data is None else ProducerModel.load(log, data)
    model.apply_all(batches_from(log, offset))
    model.end = log.end_offset
    model.slow = slow
    log.companion = model
    return model


def followed_append(store: LogStore, log: PartitionLog, batch: NewBatch) -> StoredBatch:
    """Appends, and tells the companion."""
    stored = batch.assign(log.end_offset, 0)
    store.append(log, stored)
    model = log.companion
    assert isinstance(model, ProducerModel)
    model.apply(stored)
    return stored


def read_committed(
    batches: Iterable[StoredBatch], aborted: Sequence[tuple[int, int, int]]
) -> list[Record]:
    """What a consumer delivers of fetched batches with the aborted transactions it was told."""
    waiting = sorted((first, producer_id) for producer_id, first, _ in aborted)
    skipped: set[int] = set()
    delivered: list[Record] = []
    for batch in batches:
        header = batch.header
        while waiting and waiting[0][0] <= header.last_offset:
            skipped.add(waiting.pop(0)[1])
        if header.is_control:
            marker = parse_marker(batch) if header.record_count else None
            if marker is not None and marker.type is MarkerType.ABORT:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            delivered += _records(bytes(batch.buffer))
    return delivered


@lru_cache(maxsize=10_000)
def _records(batch: bytes) -> list[Record]:
    rows = decode([StoredBatch.parse(batch)]).to_pylist()
    return [(row["offset"], row["key"], row["value"]) for row in rows]
