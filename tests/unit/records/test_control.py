"""Markers and the small arithmetic: sequences and murmur2."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings, strategies as st

from onceflow.errors import BatchMalformed, ColumnsMalformed, RecordMalformed
from onceflow.records.batch import (
    HEADER_SIZE,
    NO_SEQUENCE,
    NewBatch,
    StoredBatch,
    last_sequence,
    next_sequence,
    seal,
)
from onceflow.records.columns import decode, encode
from onceflow.records.control import Marker, MarkerType, marker, parse_marker
from onceflow.records.partitioning import (
    murmur2,
    partition_for_key,
    partitions_for_keys,
    stray_partition,
)
from onceflow.records.validate import validate_records

with warnings.catch_warnings():
    # kafka-python reads its own schemas in a way that Python deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_reads_back(commit: bool) -> None:
    new = marker(9, 3, commit=commit, coordinator_epoch=12, timestamp_ms=5000)
    batch = StoredBatch.parse(new.assign(77, 2).buffer, expected_base_offset=77)
    kind = MarkerType.COMMIT if commit else MarkerType.ABORT
    assert parse_marker(batch) == Marker(9, 3, kind, 12, 5000)
    assert batch.header.attributes == 0x30
    assert batch.header.base_sequence == NO_SEQUENCE
    assert validate_records(batch).records == 1
    assert decode([batch]).num_rows == 0
    (record,) = MemoryRecords(bytes(batch.buffer)).next_batch()
    assert record.key == b"\0\0\0\1" if commit else b"\0\0\0\0"
    assert record.value == b"\0\0\0\0\0\x0c"


def test_a_client_may_not_send_a_marker() -> None:
    new = marker(9, 3, commit=True, coordinator_epoch=0, timestamp_ms=0)
    with pytest.raises(BatchMalformed, match="control"):
        NewBatch.parse(new.buffer)


def control_batch(key: bytes, value: bytes, attributes: int = 0x30) -> StoredBatch:
    body = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    data = bytearray(HEADER_SIZE) + bytes([2 * len(body)]) + body
    return seal(
        data,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=-1,
        record_count=1,
    ).assign(0, 0)


def test_unknown_control_types_are_passed_over_and_higher_versions_read() -> None:
    assert parse_marker(control_batch(b"\0\0\0\3", b"")) is None
    higher = parse_marker(control_batch(b"\0\5\0\1more", b"\0\5\0\0\0\7more"))
    assert higher is not None
    assert (higher.type, higher.coordinator_epoch) == (MarkerType.COMMIT, 7)


def test_broken_markers_are_named() -> None:
    with pytest.raises(RecordMalformed, match="no type"):
        parse_marker(control_batch(b"\0", b""))
    with pytest.raises(RecordMalformed, match="no value"):
        parse_marker(control_batch(b"\0\0\0\1", b"\0"))
    with pytest.raises(BatchMalformed, match="not one uncompressed control record"):
        parse_marker(control_batch(b"\0\0\0\1", b"\0\0\0\0\0\0", attributes=0))


def test_sequences_wrap_after_the_largest() -> None:
    largest = 2**31 - 1
    assert next_sequence(largest, 1) == 0
    assert next_sequence(largest - 1, 1) == largest
    assert next_sequence(largest, 5) == 4
    assert last_sequence(largest, 0) == largest
    assert last_sequence(largest, 1) == 0
    assert last_sequence(NO_SEQUENCE, 10) == NO_SEQUENCE


@given(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_the_next_sequence_follows_the_last(base: int, count: int) -> None:
    assert next_sequence(base, count) == next_sequence(last_sequence(base, count - 1), 1)


def test_a_batch_across_the_wrap_keeps_counting() -> None:
    rows = pa.record_batch({"value": pa.array([b"x"] * 4)})
    batch = encode(rows, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2, now_ms=0)
    assert batch.header.last_sequence == 1


@settings(deadline=None)  # the first call loads or compiles the kernel
@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(1, 1000))
def test_murmur2_is_everyones(keys: list[bytes | None], partitions: int) -> None:
    known = [key for key in keys if key is not None]
    assert [murmur2(key) for key in known] == [kafka_python_murmur2(key) for key in known]
    column = pa.array([b"skipped", *keys], pa.binary()).slice(1)
    expected = [None if key is None else partition_for_key(key, partitions) for key in keys]
    assert partitions_for_keys(column, partitions).to_pylist() == expected


def test_murmur2_of_kafkas_own_test_vectors() -> None:
    signed = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {key: murmur2(key) for key in signed} == {k: v % 2**32 for k, v in signed.items()}


def test_no_partitions_is_an_error() -> None:
    with pytest.raises(ColumnsMalformed):
        partitions_for_keys(pa.array([b"k"]), 0)


def test_a_key_that_belongs_elsewhere_is_found() -> None:
    keys = [b"%d" % number for number in range(50)]
    home = partition_for_key(keys[0], 3)
    at_home = [key for key in keys if partition_for_key(key, 3) == home]
    stray = next(key for key in keys if partition_for_key(key, 3) != home)
    assert stray_partition(pa.array([], pa.binary()), 3, home) is None
    assert stray_partition(pa.array([*at_home, None]), 3, home) is None
    found = stray_partition(pa.array([None, *at_home, stray, *keys]), 3, home)
    assert found == partition_for_key(stray, 3)
