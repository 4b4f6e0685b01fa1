"""Compaction: what stays of a log, what goes, and that nobody who reads meanwhile notices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from onceflow.checksum import crc32c
from onceflow.errors import DiskFull, InvalidSetting
from onceflow.log.checkpoint import decode as decode_checkpoint
from onceflow.log.checkpoint import encode as encode_checkpoint
from onceflow.log.checkpoint import read_checkpoint
from onceflow.log.compaction_plan import DirtySegment, cleanable
from onceflow.log.config import LogConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import Codec, NewBatch, StoredBatch, TimestampType, iter_stored
from onceflow.records.columns import decode, encode
from onceflow.records.control import marker
from onceflow.records.validate import validate_records
from onceflow.runtime.background import Inline
from onceflow.runtime.sim_background import SimBackground
from onceflow.runtime.sim_disk import Link, Op, SimDisk
from tests.unit.log_helpers import NOW_MS, RAND, append, log_id, new_batch, open_store

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
    rows = decode(batches_of(log)).to_pylist()
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


def test_of_each_key_the_latest_record_stays_with_its_offset() -> None:
    disk, store, log = opened()
    for number in range(12):
        append(store, log, keyed([(b"k%d" % (number % 3), b"v%d" % number)] * 2))
    seal_active(store, log)
    before = log.size
    compact(store)
    assert records(log) == [
        (19, b"k0", b"v9"),
        (21, b"k1", b"v10"),
        (23, b"k2", b"v11"),
        (24, b"end", b"x" * 200),
    ]
    assert log.size < before
    assert log.compaction.cleaned_to == 24
    assert not [entry.name for entry in disk.entries(log.directory) if "cleaned" in entry.name]
    store.close()
    again = open_store(disk, config()).logs[log.log_id]
    assert records(again) == records(log)
    assert again.compaction.cleaned_to == 24


def test_a_read_in_a_gap_goes_on_with_the_next_batch_there_is() -> None:
    _, store, log = opened()
    for number in range(10):
        append(store, log, keyed([(b"same", b"%d" % number)]))
    seal_active(store, log)
    compact(store)
    for offset in range(10):
        first = next(iter_stored(log.read(offset, 1).read()))
        assert first.header.base_offset == 9
    assert log.read(3, 1000, until=7).length == 0
    assert next(iter_stored(log.read(10, 1).read())).header.base_offset == 10
    assert log.offset_for_time(NOW_MS) == (9, NOW_MS)
    assert log.max_timestamp() == (9, NOW_MS)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_loses_some_records_keeps_all_else(codec: Codec) -> None:
    _, store, log = opened()
    rows = [(b"a", b"1"), (b"b", b"2" * 300), (None, b"no key"), (b"c", b"")]
    append(store, log, keyed(rows, codec=codec, producer_id=5, sequence=70))
    original = batches_of(log)[0].header
    append(store, log, keyed([(b"a", b"new")]))
    seal_active(store, log)
    compact(store)
    batch = batches_of(log)[0]
    header = batch.header
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 3, 2)
    assert (header.producer_id, header.base_sequence, header.last_sequence) == (5, 70, 73)
    assert header.codec is codec
    assert header._replace(batch_length=0, crc=0, record_count=4) == original._replace(
        batch_length=0, crc=0
    )
    validate_records(batch)
    assert timestamps(batch) == [NOW_MS + 1, NOW_MS + 3]
    assert records(log)[:2] == [(1, b"b", b"2" * 300), (3, b"c", b"")]


def test_a_tombstone_stays_until_its_time_and_then_goes() -> None:
    _, store, log = opened(config(delete_retention_ms=DAY_MS, min_cleanable_dirty_ratio=0))
    append(store, log, keyed([(b"a", b"1"), (b"b", b"2")]))
    append(store, log, keyed([(b"a", None), (b"c", b"3")]))
    seal_active(store, log)
    first_pass = NOW_MS + 5000
    compact(store, first_pass)
    assert records(log)[:3] == [(1, b"b", b"2"), (2, b"a", None), (3, b"c", b"3")]
    batch = batches_of(log)[1]
    assert batch.header.has_delete_horizon
    assert batch.header.base_timestamp == first_pass + DAY_MS
    assert batch.header.max_timestamp == NOW_MS + 1
    validate_records(batch)
    assert timestamps(batch) == [NOW_MS, NOW_MS + 1]

    seal_active(store, log)  # something dirty
    compact(store, first_pass + DAY_MS - 1)
    assert (2, b"a", None) in records(log)
    assert batches_of(log)[1].header.base_timestamp == first_pass + DAY_MS
    seal_active(store, log)
    compact(store, first_pass + DAY_MS)
    assert [record[:2] for record in records(log)[:2]] == [(1, b"b"), (3, b"c")]


def test_the_last_batch_of_a_producer_stays_as_a_header_while_it_may_come_back() -> None:
    settings = config(producer_id_expiration_ms=DAY_MS, min_cleanable_dirty_ratio=0)
    _, store, log = opened(settings)
    for number in range(4):
        append(store, log, keyed([(b"k", b"v")] * 3, producer_id=7, sequence=3 * number))
    append(store, log, keyed([(b"k", b"last")]))
    seal_active(store, log)
    compact(store)
    kept = batches_of(log)
    empty = kept[0].header
    assert (empty.base_offset, empty.record_count, empty.producer_id) == (9, 0, 7)
    assert (empty.base_sequence, empty.last_sequence, empty.size) == (9, 11, 61)
    assert [batch.header.base_offset for batch in kept] == [9, 12, 13]
    assert log.max_timestamp() is not None  # a batch without records does not hide the others
    seal_active(store, log)
    compact(store, NOW_MS + 2 * DAY_MS)
    assert [batch.header.base_offset for batch in batches_of(log)] == [12, 13, 14]


def test_transactions_are_left_alone_and_displace_nothing() -> None:
    _, store, log = opened()
    append(store, log, keyed([(b"a", b"old")]))
    append(store, log, keyed([(b"a", b"txn")], producer_id=3, sequence=0, transactional=True))
    append(store, log, marker(3, 0, commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS))
    append(store, log, keyed([(b"b", b"1")]))
    append(store, log, keyed([(b"b", b"2")]))
    seal_active(store, log)
    compact(store)
    assert [batch.header.base_offset for batch in batches_of(log)] == [0, 1, 2, 4, 5]


def test_timestamps_of_the_broker_survive() -> None:
    _, store, log = opened()
    batch = keyed([(b"a", b"1"), (b"b", None)])
    store.append(log, batch.assign_log_append_time(0, 0, NOW_MS + 77))
    append(store, log, keyed([(b"a", b"2")]))
    seal_active(store, log)
    compact(store)
    first = batches_of(log)[0]
    assert first.header.timestamp_type is TimestampType.LOG_APPEND
    assert timestamps(first) == [NOW_MS + 77]


def test_small_segments_are_joined_and_emptied_ones_vanish() -> None:
    disk, store, log = opened(config(segment_bytes=400))
    for number in range(40):
        append(store, log, keyed([(b"k%d" % (number % 2), b"x" * 60)]))
    append(store, log, keyed([(b"end", b"x" * 500)]))
    many = len(log.segments)
    compact(store)
    assert many > 10
    assert len(log.segments) == 3
    names = {entry.name for entry in disk.entries(log.directory)}
    assert {name for name in names if name.endswith(".log")} == {
        f"{segment.base_offset:020}.log" for segment in log.segments
    }
    assert records(log)[:2] == [(38, b"k0", b"x" * 60), (39, b"k1", b"x" * 60)]
    store.truncate(log, 39)  # into the part with gaps
    append(store, log, keyed([(b"more", b"y")]))
    recovered = open_store(SimDisk(disk.tree), config(segment_bytes=400)).logs[log.log_id]
    assert records(recovered) == [(38, b"k0", b"x" * 60), (39, b"more", b"y")]


def test_a_segment_of_which_nothing_is_left_vanishes() -> None:
    disk, store, log = opened(config(delete_retention_ms=0, min_cleanable_dirty_ratio=0))
    for number in range(4):
        append(store, log, keyed([(b"a", None if number == 3 else b"1")]))
    seal_active(store, log)
    compact(store)
    seal_active(store, log)
    compact(store, NOW_MS + 2000)
    assert [record[0] for record in records(log)] == [4, 5]
    assert [segment.base_offset for segment in log.segments] == [4, 5]
    recovered = open_store(SimDisk(disk.tree), config()).logs[log.log_id]
    assert records(recovered) == records(log)
    assert recovered.read(0, 1).read() == log.read(0, 1).read() != b""


def test_an_index_that_is_lost_is_built_anew_from_a_segment_with_gaps() -> None:
    disk, store, log = opened(config(segment_bytes=2000))
    for number in range(60):
        append(store, log, keyed([(b"k%d" % (number % 7), b"v" * 30)]))
    append(store, log, keyed([(b"k6", b"x" * 2000)]))
    append(store, log, keyed([(b"end", b"x" * 2000)]))
    compact(store)
    store.close()
    expected = records(log)
    for suffix in ("index", "timeindex"):
        disk.unlink(log.segments[0].path(suffix))
    again = open_store(disk, config(segment_bytes=2000)).logs[log.log_id]
    assert records(again) == expected


def test_a_reader_keeps_the_file_that_it_has_open() -> None:
    _, store, log = opened()
    for number in range(6):
        append(store, log, keyed([(b"k", b"%d" % number)]))
    seal_active(store, log)
    span = log.read(0, 10_000)
    before = span.read()
    compact(store)
    assert span.read() == before != log.read(0, 10_000).read()


def facts(*sizes: tuple[int, int], first: int = NOW_MS, latest: int = NOW_MS) -> list[DirtySegment]:
    return [DirtySegment(end, size, first, latest) for end, size in sizes]


def test_a_log_is_compacted_when_enough_of_it_is_dirty() -> None:
    settings = LogConfig(compact=True)
    segments = facts((10, 100), (20, 60), (30, 39))
    assert cleanable(segments, 10, NOW_MS, settings) == (0, 99 / 199)
    assert cleanable(segments, 0, NOW_MS, settings) == (3, 1.0)
    assert cleanable(facts((10, 100), (20, 101)), 10, NOW_MS, settings)[0] == 2
    assert cleanable(facts((10, 100)), 10, NOW_MS, LogConfig(min_cleanable_dirty_ratio=0))[0] == 0
    assert cleanable([], 0, NOW_MS, settings) == (0, 0.0)


def test_records_may_be_too_young_or_overdue() -> None:
    young = LogConfig(min_compaction_lag_ms=1000)
    segments = facts((10, 100), latest=NOW_MS - 1000) + facts((20, 100), latest=NOW_MS - 999)
    assert cleanable(segments, 0, NOW_MS, young)[0] == 1
    late = LogConfig(max_compaction_lag_ms=1000)
    clean = facts((10, 1000))
    assert cleanable(clean + facts((20, 1), first=NOW_MS - 1000), 10, NOW_MS, late)[0] == 0
    assert cleanable(clean + facts((20, 1), first=NOW_MS - 1001), 10, NOW_MS, late)[0] == 2


def test_a_compacted_log_closes_segments_in_time_for_the_lag() -> None:
    _, store, log = opened(
        config(segment_bytes=100_000, max_compaction_lag_ms=500, min_cleanable_dirty_ratio=1)
    )
    append(store, log, keyed([(b"a", b"1")]))
    append(store, log, keyed([(b"a", b"2")], timestamp=NOW_MS + 500))
    assert len(log.segments) == 1
    append(store, log, keyed([(b"a", b"3")], timestamp=NOW_MS + 501))
    assert len(log.segments) == 2
    compact(store, NOW_MS + 500)
    assert len(records(log)) == 3
    compact(store, NOW_MS + 502)
    assert [record[0] for record in records(log)] == [1, 2]


def test_what_is_not_to_be_compacted_or_deleted_is_not() -> None:
    _, store, log = opened(config(compact=False, retention_ms=0))
    for _ in range(5):
        append(store, log, keyed([(b"a", b"1" * 100)]))
    compact(store)
    store.enforce_retention(NOW_MS + DAY_MS)
    assert len(records(log)) == 5
    log.config = LogConfig(segment_bytes=100, retention_ms=0)
    store.enforce_retention(NOW_MS + DAY_MS)
    assert log.start_offset == 5


def test_compact_and_delete_do_both() -> None:
    _, store, log = opened(config(delete=True, retention_ms=DAY_MS))
    for number in range(6):
        append(store, log, keyed([(b"a", b"%d" % number)]))
    seal_active(store, log)
    compact(store)
    assert [record[0] for record in records(log)] == [5, 6]
    append(store, log, keyed([(b"b", b"z" * 100)], timestamp=NOW_MS + 2 * DAY_MS))
    store.enforce_retention(NOW_MS + 2 * DAY_MS)
    assert [record[0] for record in records(log)] == [7]


def test_a_log_with_records_that_make_no_sense_is_left_as_it_is() -> None:
    disk, store, log = opened()
    for _ in range(4):
        append(store, log, new_batch(3))
    seal_active(store, log)
    before = [bytes(batch.buffer) for batch in batches_of(log)]
    compact(store)
    assert "in the batch at offset 0" in str(log.compaction.problem)
    assert [bytes(batch.buffer) for batch in batches_of(log)] == before
    assert not [entry.name for entry in disk.entries(log.directory) if "cleaned" in entry.name]
    assert store.failure is None
    compact(store)  # not tried again


def test_no_room_for_the_copy_puts_compaction_off() -> None:
    disk, store, log = opened()
    for number in range(8):
        append(store, log, keyed([(b"a", b"%d" % number)]))
    seal_active(store, log)

    def full_for_copies(op: Op) -> bool:
        if isinstance(op, Link) and "cleaned" in op.name:
            raise DiskFull("simulated")
        return False

    disk.fail = full_for_copies
    compact(store)
    assert store.failure is None
    assert len(records(log)) == 9
    disk.fail = lambda _: False
    compact(store)
    assert len(records(log)) == 2


@pytest.mark.parametrize("seed", range(12))
def test_a_log_may_be_deleted_truncated_or_the_store_stopped_while_it_is_compacted(
    seed: int,
) -> None:
    disk, background = SimDisk(), SimBackground(random.Random(seed))
    store = LogStore.open(disk, background, RAND, config())
    created = store.create("state", [log_id(1), log_id(2)])
    background.wait(lambda: created.done)
    log, other = store.logs[log_id(1)], store.logs[log_id(2)]
    for number in range(20):
        append(store, log, keyed([(b"a", b"%d" % number)]))
        ticket = append(store, other, keyed([(b"a", b"%d" % number)]))
    background.wait(lambda: ticket.done)
    store.request_checkpoint()
    background.close()
    store.compact(NOW_MS + 1000)
    for _ in range(seed * 7):
        background.step()
    if seed % 3 == 0:
        store.delete([log])
    elif seed % 3 == 1:
        store.truncate(log, 19)
        assert [record[0] for record in records(log)] in ([], [18], list(range(19)))
    store.close()
    background.close()
    directories = [entry.name for entry in disk.entries(".") if entry.name.startswith("state")]
    assert len(directories) == len(store.logs)
    for each in directories:
        assert not [entry.name for entry in disk.entries(each) if "cleaned" in entry.name]
    again = LogStore.open(disk, Inline(), RAND, config())
    assert again.report.clean
    assert records(again.logs[log_id(2)])[-1] == (19, b"a", b"19")


def test_more_keys_than_fit_the_memory_are_compacted_in_several_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onceflow.log.cleaner._KEY_MEMORY", 1000)
    _, store, log = opened(config(min_cleanable_dirty_ratio=0))
    for number in range(60):
        append(store, log, keyed([(b"k%d" % (number % 20), b"%d" % number)]))
    seal_active(store, log)
    ends = []
    for _ in range(40):
        compact(store)
        ends.append(log.compaction.cleaned_to)
    assert ends == sorted(ends)
    assert len(set(ends)) > 3
    assert [record[0] for record in records(log)] == list(range(40, 61))


def test_settings_of_compaction_have_their_ranges() -> None:
    with pytest.raises(InvalidSetting, match=r"min_cleanable_dirty_ratio is 1\.5"):
        LogConfig(min_cleanable_dirty_ratio=1.5)
    with pytest.raises(InvalidSetting, match="max_compaction_lag_ms is 0"):
        LogConfig(max_compaction_lag_ms=0)


def test_a_checkpoint_of_the_format_before_compaction_is_read() -> None:
    disk, store, log = opened()
    append(store, log, keyed([(b"a", b"1")]))
    store.close()
    checkpoint = read_checkpoint(disk)
    assert checkpoint is not None
    body = encode_checkpoint(checkpoint).partition(b"\n")[2][:-1]
    assert body.count(b",0,[]]") == 1
    body = body.replace(b",0,[]]", b"]")
    head = b"onceflow-checkpoint 1 %08x\n" % crc32c(body, crc32c(b"1"))
    assert decode_checkpoint(head + body + b"\n") == checkpoint
