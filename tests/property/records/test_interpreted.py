"""A kernel gives the same answers and writes the same bytes as plain Python and compiled, whatever
it is given: the first calls of a fresh installation are the plain ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import addressof, c_char
from random import Random
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from onceflow.errors import RecordError
from onceflow.log.compaction.rewrite import with_records
from onceflow.log.segments import record_kernel as retain_kernel, time_kernel
from onceflow.log.segments.record_rows import SoundRecords, read_rows
from onceflow.producers import replay_kernel
from onceflow.records import kernels, murmur2_kernel, write_kernels
from onceflow.records.batch import HEADER_SIZE, StoredBatch, seal
from onceflow.records.columns import decode, encode, encode_all
from onceflow.records.interpreted import plain_form
from onceflow.records.partitioning import partition_for_key, partitions_for_keys
from onceflow.records.validate import validate_records
from tests.doses import examples
from tests.property.producers.wild_batches import CONTROLS, KINDS, batch, wild
from tests.property.records.rows import Row, blob, rows_of, to_columns

KERNELS: dict[ModuleType, tuple[str, ...]] = {
    kernels: ("walk", "fill", "fill_headers"),
    write_kernels: ("most_bytes", "write"),
    murmur2_kernel: ("partition_column",),
    retain_kernel: ("locate", "retain"),
    time_kernel: ("find_time",),
    replay_kernel: ("find",),
}
I64 = st.sampled_from([-(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)
far_time = I64 | st.integers(-1, 2**42)
"""Often so far apart that differences and sums leave 64 bits."""
STAMPED = 8
DELETES = st.sampled_from([None, 0, 5, 2**63 - 1])


@contextmanager
def interpreted() -> Iterator[None]:
    """All kernels are plain Python."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in KERNELS.items():
            for name in names:
                patch.setattr(module, name, plain_form(getattr(module, name).py_func))
        yield


def in_both_ways(call: Callable[[], Any]) -> Any:
    """What it returns or raises, the same in both ways."""
    compiled = outcome(call)
    with interpreted():
        plain = outcome(call)
    assert plain == compiled
    return compiled


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RecordError as error:
        return type(error), str(error)


def columns_of(batches: list[StoredBatch]) -> list[Any]:
    columns = decode(batches)
    columns.validate(full=True)
    times: Any = columns.column("timestamp").cast(pa.int64())
    return [columns.drop_columns(["timestamp"]).to_pylist(), times.to_pylist()]


def sealed(section: bytes, count: int, base_timestamp: int, attributes: int = 0) -> StoredBatch:
    return seal(
        bytearray(HEADER_SIZE) + section,
        attributes=attributes,
        last_offset_delta=max(count, 1) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=-base_timestamp - 1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    ).assign(2**62, 0)


def test_all_kernels_are_here() -> None:
    found = {
        module: tuple(
            name
            for name, each in vars(module).items()
            if getattr(each, "_can_compile", True) is False
        )
        for module in KERNELS
    }
    assert found == KERNELS


@given(rows_of(far_time), st.integers(62, 3000))
def test_what_is_written(rows: list[Row], size: int) -> None:
    columns = to_columns(rows)
    in_both_ways(lambda: [bytes(each.buffer) for each in encode_all(columns, max_batch_bytes=size)])
    part = columns.slice(len(rows) // 2)
    in_both_ways(lambda: [bytes(each.buffer) for each in encode_all(part, max_batch_bytes=size)])


@given(rows_of(far_time), I64, st.sampled_from([0, STAMPED]))
def test_what_is_read(rows: list[Row], base_timestamp: int, attributes: int) -> None:
    """Deltas belong to another base timestamp: most sums wrap around."""
    section = bytes(encode(to_columns(rows)).buffer[HEADER_SIZE:])
    stored = sealed(section, len(rows), base_timestamp, attributes)
    in_both_ways(lambda: columns_of([stored, stored]))
    in_both_ways(lambda: validate_records(stored))


@settings(max_examples=examples(300))
@given(rows_of(far_time), I64, st.data())
def test_what_is_refused(rows: list[Row], base_timestamp: int, data: st.DataObject) -> None:
    section = bytearray(encode(to_columns(rows)).buffer[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(1, 3))):
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    stored = sealed(bytes(section), len(rows), base_timestamp)
    in_both_ways(lambda: columns_of([stored]))
    in_both_ways(lambda: validate_records(stored))


@settings(max_examples=examples(300))
@given(st.binary(max_size=300), st.integers(0, 50), I64)
def test_random_sections(section: bytes, count: int, base_timestamp: int) -> None:
    stored = sealed(section, count, base_timestamp)
    in_both_ways(lambda: columns_of([stored]))
    in_both_ways(lambda: validate_records(stored))


@given(rows_of(far_time), I64, st.sampled_from([0, STAMPED]), DELETES, st.randoms())
def test_what_compaction_reads_and_leaves(
    rows: list[Row], base_timestamp: int, attributes: int, horizon: int | None, rand: Random
) -> None:
    section = bytes(encode(to_columns(rows)).buffer[HEADER_SIZE:])
    stored = sealed(section, len(rows), base_timestamp, attributes)
    in_both_ways(lambda: [list(each) for each in read_rows([stored, stored])])
    keep = bytearray(rand.choice([0, 1]) for _ in rows)
    keep[rand.randrange(len(rows))] = 1
    in_both_ways(
        lambda: bytes(with_records(stored, keep, max_timestamp=0, delete_horizon=horizon).buffer)
    )


@given(rows_of(far_time), I64, st.sampled_from([0, STAMPED]), I64, st.integers(0, 3))
def test_what_is_found_by_time(
    rows: list[Row], base_timestamp: int, attributes: int, wanted: int, first: int
) -> None:
    section = bytes(encode(to_columns(rows)).buffer[HEADER_SIZE:])
    stored = sealed(section, len(rows), base_timestamp, attributes)

    def found() -> list[int]:
        records, place = SoundRecords(), array("q", (-1, 0))
        records.add(stored)
        records.check()
        time_kernel.find_time(records.table, wanted, 2**62 + first, place.buffer_info()[0])
        return list(place)

    in_both_ways(found)


@given(st.lists(blob, max_size=50), st.integers(1, 2**31 - 1))
def test_where_keys_belong(keys: list[bytes | None], partitions: int) -> None:
    column: Any = pa.array([b"before", *keys], pa.binary()).slice(1)
    found = in_both_ways(lambda: partitions_for_keys(column, partitions).to_pylist())
    assert found == [None if key is None else partition_for_key(key, partitions) for key in keys]


@pytest.mark.parametrize("kinds", [KINDS, CONTROLS])
@given(st.randoms(use_true_random=False))
def test_which_producers_a_log_has(kinds: list[str], rand: Random) -> None:
    log = bytearray()
    for number, shape in enumerate(wild(rand, kinds)):
        log += batch(shape).assign(10 * number, 0).buffer
    if rand.random() < 0.5:
        log[rand.randrange(len(log))] = rand.randrange(256)
    in_both_ways(lambda: noted(log))


def noted(log: bytearray) -> tuple[list[int], list[int], array[int]]:
    """All that the kernel writes."""
    data = bytearray(log)
    slots, found, result = (
        array("q", bytes(8 * size))
        for size in (replay_kernel.SLOTS, replay_kernel.FOUND, replay_kernel.RESULT)
    )
    where = addressof(c_char.from_buffer(data))
    rooms = (each.buffer_info()[0] for each in (slots, found, result))
    replay_kernel.find(where, len(data), *rooms)
    return list(result), list(found[: result[1]]), slots
