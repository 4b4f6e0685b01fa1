"""Small pieces for tests of compaction: keyed batches, a store with one compacted log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from onceflow.log.config import LogConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import Codec, NewBatch, StoredBatch, iter_stored
from onceflow.records.columns import decode, encode
from onceflow.testing.disk import SimDisk
from tests.unit.log.simulated_store import NOW_MS, append, log_id, open_store

Row = tuple[bytes | None, bytes | None]
DAY_MS = 24 * 3600 * 1000


def config(**settings: Any) -> StoreConfig:
    """Every batch of the tests fills a segment of its own, unless told otherwise."""
    values: dict[str, Any] = {
        "segment_bytes": 100,
        "compact": True,
        "delete": False,
        "index_interval_bytes": 0,
    }
    return StoreConfig(log=LogConfig(**{**values, **settings}), reserve_bytes=0)


def keyed(
    rows: Sequence[Row],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    sequence: int = -1,
    timestamp: int = NOW_MS,
    transactional: bool = False,
) -> NewBatch:
    columns = pa.record_batch(
        {
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
            "timestamp": pa.array(
                [timestamp + number for number in range(len(rows))], pa.timestamp("ms", "UTC")
            ),
        }
    )
    return encode(
        columns,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        transactional=transactional,
    )


def opened(
    settings: StoreConfig | None = None, disk: SimDisk | None = None
) -> tuple[SimDisk, LogStore, PartitionLog]:
    disk = disk or SimDisk()
    store = open_store(disk, settings or config())
    store.create("state", [log_id(1)])
    return disk, store, store.logs[log_id(1)]


def batches_of(log: PartitionLog) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    offset = log.start_offset
    while offset < log.high_watermark:
        part = list(iter_stored(log.read(offset, 1).read()))
        found += part
        offset = part[-1].header.next_offset if part else log.high_watermark
    return found


def records(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    # Without timestamps, of which Python's own cannot hold all that a record may have.
    rows = decode(batches_of(log)).select(["offset", "key", "value"]).to_pylist()
    return [(row["offset"], row["key"], row["value"]) for row in rows]


def timestamps(batch: StoredBatch) -> list[int]:
    found: list[int] = decode([batch]).column("timestamp").to_numpy().astype("i8").tolist()
    return found


def compact(store: LogStore, now_ms: int = NOW_MS + 1000) -> None:
    store.request_checkpoint()
    store.compact(now_ms)


def seal_active(store: LogStore, log: PartitionLog) -> None:
    """A record of a key of its own, larger than a segment: all before it are sealed now."""
    append(store, log, keyed([(b"end", b"x" * 200)]))
