"""The quick ways through a log say what the slow ones say, batch by batch and byte by byte."""

from __future__ import annotations

import random
import struct

import pytest

from onceflow.errors import BatchTruncated, LogCorrupt, RecordError
from onceflow.log.config import LogConfig
from onceflow.log.journal.format import key_log_id, log_key
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segments.batch_walk import BatchWalk, Facts, facts_of, read_facts
from onceflow.log.segments.index import Indexes, OffsetIndex, TimeIndex
from onceflow.log.store import StoreConfig
from onceflow.records.batch import StoredBatch, iter_stored, read_header, verify_crc
from onceflow.runtime.disk import Access, File
from onceflow.testing.disk import SimDisk
from tests.unit.log.simulated_store import (
    NOW_MS,
    append,
    log_id,
    new_batch,
    offsets,
    open_store,
    store_with_log,
)


def stored(count: int, seed: int = 1, *, largest: int = 400) -> list[StoredBatch]:
    """Consecutive batches of many sizes, timestamps not in order."""
    rand = random.Random(seed)
    batches: list[StoredBatch] = []
    offset = 0
    for number in range(count):
        size, timestamp = rand.randint(0, largest), NOW_MS + 10 * number + rand.randint(-50, 50)
        new = new_batch(rand.randint(1, 5), size=size, timestamp=timestamp)
        batches.append(new.assign(offset, 0))
        offset = batches[-1].header.next_offset
    return batches


def joined(batches: list[StoredBatch]) -> bytearray:
    return bytearray(b"".join(batch.buffer for batch in batches))


def file_of(data: bytes | bytearray) -> File:
    file = SimDisk().open("x", Access.CREATE)
    file.pwrite(0, data)
    return file


def walked(data: bytes | bytearray) -> tuple[list[Facts], BatchWalk, RecordError | None]:
    walk = BatchWalk(file_of(data), 0, len(data), 0, check_crc=True)
    found: list[Facts] = []
    try:
        found.extend(walk)
    except RecordError as error:
        return found, walk, error
    return found, walk, None


def one_by_one(data: bytearray) -> tuple[list[Facts], int, RecordError | None]:
    """What `read_header` and `verify_crc` say of the same bytes."""
    found: list[Facts] = []
    view = memoryview(data)
    at = expected = 0
    try:
        while at < len(data):
            header = read_header(view, at)
            if at + header.size > len(data):
                raise BatchTruncated("")
            verify_crc(view, header, at)
            if header.base_offset < expected:
                return found, at, RecordError("")
            found.append(facts_of(header))
            at, expected = at + header.size, header.next_offset
    except RecordError as error:
        return found, at, error
    return found, at, None


def test_a_walk_gives_every_batch_whatever_its_size() -> None:
    batches = stored(40) + stored(3, largest=3)
    data = joined(stored(200, largest=20_000))
    assert walked(data)[0] == [facts_of(batch.header) for batch in iter_stored(data)]
    large = [new_batch(2, size=700_000).assign(0, 0), new_batch(3, size=10).assign(2, 0)]
    found, walk, error = walked(joined(large))
    assert found == [facts_of(batch.header) for batch in large]
    assert (walk.position, walk.next_offset, error) == (len(joined(large)), 5, None)
    assert [read_facts(batch.buffer) for batch in batches] == [
        facts_of(batch.header) for batch in batches
    ]


def test_a_walk_refuses_every_flipped_bit_that_the_slow_way_refuses_and_at_the_same_place() -> None:
    data = joined(stored(3, largest=20))
    for position in range(len(data)):
        for bit in (0, 3, 7):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            expected, at, problem = one_by_one(damaged)
            found, walk, error = walked(damaged)
            assert found == expected
            assert walk.position == at
            assert (error is None) == (problem is None)


def test_a_batch_in_an_entry_that_is_not_exactly_it_is_refused() -> None:
    batch = stored(1)[0]
    for wrong in (b"", batch.buffer[:60], batch.buffer[:-1], bytes(batch.buffer) + b"x"):
        with pytest.raises(RecordError):
            read_facts(wrong)


def index_pair(entries: int) -> tuple[OffsetIndex, TimeIndex]:
    offset_index, times = OffsetIndex(), TimeIndex()
    for number in range(entries):
        offset_index.add(number * 3 + 1, number * 300_001)
        times.add((number << 33) + 5, number * 3 + 1)
    return offset_index, times


@pytest.mark.parametrize("entries", [0, 1, 7])
def test_index_files_are_big_endian_entries_as_kafka_has_them(entries: int) -> None:
    offset_index, times = index_pair(entries)
    assert offset_index.to_bytes() == b"".join(
        struct.pack(">ii", number * 3 + 1, number * 300_001) for number in range(entries)
    )
    assert times.to_bytes() == b"".join(
        struct.pack(">qi", (number << 33) + 5, number * 3 + 1) for number in range(entries)
    )
    again = OffsetIndex.from_bytes(offset_index.to_bytes(), 1 << 30)
    assert (again.offsets, again.positions) == (offset_index.offsets, offset_index.positions)
    time_again = TimeIndex.from_bytes(times.to_bytes(), 1 << 30)
    assert (time_again.timestamps, time_again.offsets) == (times.timestamps, times.offsets)


def test_batches_noted_in_one_go_or_one_by_one_give_the_same_index() -> None:
    facts = [facts_of(batch.header) for batch in stored(60)]
    together, single = Indexes.empty(500), Indexes.empty(500)
    together.note(facts, 0, 0)
    position = 0
    for each in facts:
        single.note((each,), position, 0)
        position += each[0]
    assert together.to_bytes() == single.to_bytes()
    assert len(together.offsets) > 10


@pytest.mark.parametrize(
    "config",
    [
        LogConfig(segment_bytes=1500, index_interval_bytes=200),
        LogConfig(segment_ms=100, index_interval_bytes=200),
        LogConfig(segment_index_bytes=40, index_interval_bytes=0),
    ],
)
def test_a_run_of_appends_leaves_what_single_appends_leave(config: LogConfig) -> None:
    batches = stored(50)
    settings = StoreConfig(log=config, reserve_bytes=0)
    _, _, single = store_with_log(settings)
    _, _, together = store_with_log(settings)
    for batch in batches:
        single.append(batch.header, batch.buffer)
    for start in range(0, 50, 20):
        part = batches[start : start + 20]
        together.append_run([read_facts(each.buffer) for each in part], [b.buffer for b in part])
    assert together.end_offset == single.end_offset
    assert content(together) == content(single) == joined(batches)
    assert len(together.segments) >= len(single.segments) > 2
    for segment in together.segments:
        assert segment.size <= config.segment_bytes
        assert len(segment.indexes.offsets) * 8 <= config.segment_index_bytes
        assert segment.find(segment.base_offset) is not None


def content(log: PartitionLog) -> bytes:
    return b"".join(segment.file.pread(0, segment.size) for segment in log.segments)


def test_replay_gathers_appends_of_many_logs_and_keeps_their_order_with_all_else() -> None:
    config = StoreConfig(
        log=LogConfig(segment_bytes=1000),
        journal=JournalConfig(first_file_bytes=4 << 20),
        reserve_bytes=0,
    )
    disk, store, first = store_with_log(config)
    store._checkpointer.request = lambda: None  # type: ignore[method-assign]  # all of it is replayed
    store.create("more", [log_id(2), log_id(3)])
    logs = [first, store.logs[log_id(2)], store.logs[log_id(3)]]
    rand = random.Random(3)
    for number in range(300):
        append(store, rand.choice(logs), new_batch(rand.randint(1, 3), size=rand.randint(1, 300)))
        if number == 100:
            store.delete_records(logs[1], logs[1].high_watermark)
        if number == 200:
            store.delete([logs.pop()])
    again = open_store(SimDisk(disk.tree), config)
    assert again.report.entries == 305
    assert set(again.logs) == {log_id(1), log_id(2)}
    for log in logs:
        recovered = again.logs[log.log_id]
        assert (recovered.start_offset, recovered.end_offset) == (log.start_offset, log.end_offset)
        assert offsets(recovered) == offsets(log)


def test_an_append_in_the_journal_that_does_not_follow_is_refused() -> None:
    disk, store, log = store_with_log()
    for _ in range(3):
        append(store, log, new_batch())
    store.logs[log.log_id].active.end_offset += 7  # a defect: the order has a hole
    append(store, log, new_batch())
    with pytest.raises(LogCorrupt, match=r"APPEND at offset 10 .* at offset 3"):
        open_store(SimDisk(disk.tree))


def test_a_log_key_names_its_log() -> None:
    assert key_log_id(log_key(log_id(77, 5))) == log_id(77, 5)
