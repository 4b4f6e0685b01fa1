"""Rows that go through a shuffle as bytes come out as they went in, however Spark cuts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from onceflow.records.arrow import HEADERS
from onceflow.records.partitioning import partition_for_key
from onceflow.spark.sink.claims import ClaimClient
from onceflow.spark.sink.routing import TARGET, TopicLayout, split
from onceflow.spark.sink.shuffle import (
    PACKED_NAMES,
    PART,
    PART_BYTES,
    PacketsBroken,
    _by_way,
    _packet,
    pack,
    report_as_packet,
    unpack,
)
from onceflow.spark.sink.task_plan import REPORT, Report, reports_from_bytes, reports_to_bytes

DOOR = ClaimClient("nowhere", 1, "")
EPOCH = (1, 0)
PARTITIONS = 7
LAYOUT = TopicLayout((("out", PARTITIONS),))


def packed(keys: list[bytes], tasks: int, value: bytes = b"") -> pa.Table:
    """All that one task before the shuffle gives to Spark."""
    values = [b"%d %s" % (number, value) for number in range(len(keys))]
    rows = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values)})
    return pa.Table.from_batches(pack(LAYOUT, DOOR, EPOCH, tasks, [rows]))


def of_way(parts: pa.Table, way: int, at_once: int) -> list[pa.RecordBatch]:
    """What the shuffle brings to one task, in batches of so many values."""
    mine = [number for number, each in enumerate(parts["way"].to_pylist()) if each == way]
    return parts.take(pa.array(mine, pa.int64())).combine_chunks().to_batches(max_chunksize=at_once)


@given(
    st.lists(st.integers(0, 300) | st.integers(65_000, 66_000) | st.just(2**31 - 1), min_size=1),
    st.integers(1, 50),
)
def test_rows_are_ordered_by_their_ways_and_then_by_their_targets(
    targets: list[int], tasks: int
) -> None:
    order, ways = _by_way(np.array(targets, np.int32), tasks)
    wanted = sorted(range(len(targets)), key=lambda row: (targets[row] % tasks, targets[row]))
    assert order.tolist() == wanted
    assert ways.tolist() == [targets[row] % tasks for row in wanted]


@settings(deadline=None)  # the first call loads what is compiled
@given(
    st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=40),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 1000]),
    st.sampled_from([0, 300, 3 * PART_BYTES]),
)
def test_every_row_comes_to_its_task_in_order(
    keys: list[bytes], tasks: int, at_once: int, size: int
) -> None:
    parts = packed(keys, tasks, b"x" * size)
    assert tuple(parts.column_names) == PACKED_NAMES
    found: dict[int, list[int]] = {}
    for way in range(tasks):
        for batch in unpack(of_way(parts, way, at_once)):
            for target, rows in split(batch):
                assert target % tasks == way
                values: list[Any] = rows.column("value").to_pylist()
                numbers = [int(each.split()[0]) for each in values]
                found.setdefault(target, []).extend(numbers)
    wanted: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        wanted.setdefault(partition_for_key(key, PARTITIONS), []).append(number)
    assert found == wanted


def test_no_value_is_large() -> None:
    parts = packed([b"a"] * 50, 1, b"x" * PART_BYTES)
    assert parts.num_rows > 50
    values: list[Any] = parts["part"].to_pylist()
    assert max(map(len, values)) == PART_BYTES


@pytest.mark.parametrize("kept", [slice(None, None, -1), slice(1, None), slice(None, -1)])
def test_parts_that_are_missing_or_out_of_order_are_refused(kept: slice) -> None:
    parts = of_way(packed([b"a"] * 50, 1, b"x" * PART_BYTES), 0, 1)
    with pytest.raises(PacketsBroken):
        list(unpack(parts[kept]))


def test_reports_are_the_same_when_they_are_collected() -> None:
    reports = [Report(0, 1, -1, 3, -1), Report(0, 1, 7, 3, 2)]
    batch = pa.record_batch({REPORT: pa.array([reports_to_bytes(reports)])})
    (row,) = report_as_packet(batch).to_pylist()
    assert reports_from_bytes(row[PART]) == reports


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_packet_has_room_for_any_rows(start: int, length: int) -> None:
    """Also for a part of a batch, with rows that lack keys and have headers."""
    headers = [[{"key": "k" * each, "value": None}] * (each % 3) for each in range(40)]
    rows = pa.record_batch(
        {
            "key": pa.array([None if each % 5 else b"k" * each for each in range(40)], pa.binary()),
            "value": pa.array([b"v" * each for each in range(40)]),
            "headers": pa.array(headers, HEADERS),
            TARGET: pa.array(range(40), pa.int32()),
        }
    ).slice(start, length)
    with pa.ipc.open_stream(_packet(rows)) as stream:
        assert stream.read_all().to_pylist() == rows.to_pylist()
