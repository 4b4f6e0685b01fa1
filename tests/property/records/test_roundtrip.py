"""Records survive the way through bytes, here and through the readers and writers of others."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from hypothesis import given, settings, strategies as st

from onceflow.errors import RecordError
from onceflow.records.batch import HEADER_SIZE, Codec, NewBatch, StoredBatch, iter_stored, seal
from onceflow.records.columns import decode, encode, encode_all
from onceflow.records.compression import compress, decompress
from onceflow.records.validate import validate_records
from tests.doses import examples
from tests.property.records.rows import Row, rows_of, to_columns

with warnings.catch_warnings():
    # kafka-python reads its own schemas in a way that Python deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords as PyRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

# The first call loads or compiles the kernels.
unhurried = settings(deadline=None)


# kafka-python needs libraries for the other codecs that are not wanted here.
PY_CODECS = [Codec.NONE, Codec.GZIP]

plain_time = st.integers(-1, 2**42)
any_time = plain_time | st.integers(-(2**63), 2**63 - 1)


def to_rows(columns: pa.RecordBatch) -> list[Row]:
    columns.validate(full=True)
    times: list[Any] = columns.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]], time)
        for row, time in zip(columns.drop_columns(["timestamp"]).to_pylist(), times, strict=True)
    ]


def read_with(reader: Any, data: bytes) -> list[Row]:
    batches = reader(data)
    rows = []
    while (batch := batches.next_batch()) is not None:
        rows += [(r.key, r.value, list(r.headers), r.timestamp) for r in batch]
    return rows


@unhurried
@given(rows_of(any_time), st.sampled_from(Codec), st.integers(0, 2**40))
def test_what_is_encoded_is_decoded(rows: list[Row], codec: Codec, offset: int) -> None:
    batch = NewBatch.parse(encode(to_columns(rows), codec=codec).buffer)
    summary = validate_records(batch)
    assert summary.records == len(rows)
    assert summary.max_timestamp == batch.header.max_timestamp == max(row[3] for row in rows)
    assert summary.null_keys == sum(row[0] is None for row in rows)
    assert summary.value_bytes == sum(len(row[1] or b"") for row in rows)
    assert summary.headers == sum(len(row[2]) for row in rows)
    columns = decode([batch.assign(offset, 0)])
    assert to_rows(columns) == rows
    assert columns.column("offset").to_pylist() == [*range(offset, offset + len(rows))]


@unhurried
@given(rows_of(any_time), st.sampled_from(Codec), st.integers(62, 3000))
def test_splitting_loses_nothing(rows: list[Row], codec: Codec, size: int) -> None:
    data = bytearray()
    for batch in encode_all(to_columns(rows), max_batch_bytes=size, codec=codec):
        assert batch.header.record_count == 1 or codec or batch.header.size <= size
        stored = batch.assign(100 + sum(b.header.record_count for b in iter_stored(data)), 0)
        data += stored.buffer
    columns = decode(list(iter_stored(data, expected_base_offset=100)))
    assert to_rows(columns) == rows
    assert columns.column("offset").to_pylist() == [*range(100, 100 + len(rows))]


@unhurried
@given(rows_of(plain_time), st.sampled_from(Codec))
def test_aiokafka_reads_what_we_write(rows: list[Row], codec: Codec) -> None:
    assert read_with(AioRecords, bytes(encode(to_columns(rows), codec=codec).buffer)) == rows


@unhurried
@given(rows_of(plain_time), st.sampled_from(PY_CODECS))
def test_kafka_python_reads_what_we_write(rows: list[Row], codec: Codec) -> None:
    assert read_with(PyRecords, bytes(encode(to_columns(rows), codec=codec).buffer)) == rows


def build_with(builder: Any, rows: list[Row], codec: Codec) -> bytes:
    batch = builder(2, int(codec), 0, -1, -1, -1, 1 << 22)
    for index, (key, value, headers, timestamp) in enumerate(rows):
        batch.append(index, timestamp, key, value, headers)
    return bytes(batch.build())


@unhurried
@given(rows_of(st.integers(0, 2**42)), st.sampled_from(Codec))
def test_we_read_what_aiokafka_writes(rows: list[Row], codec: Codec) -> None:
    data = build_with(AioBuilder, rows, codec)
    assert to_rows(decode([NewBatch.parse(bytearray(data)).assign(0, 0)])) == rows


@unhurried
@given(rows_of(st.integers(0, 2**42)), st.sampled_from(PY_CODECS))
def test_we_read_what_kafka_python_writes(rows: list[Row], codec: Codec) -> None:
    data = build_with(PyBuilder, rows, codec)
    assert to_rows(decode([NewBatch.parse(bytearray(data)).assign(0, 0)])) == rows


def sealed(section: bytes, count: int, codec: Codec = Codec.NONE) -> StoredBatch:
    return seal(
        bytearray(HEADER_SIZE) + section,
        attributes=codec,
        last_offset_delta=max(count, 1) - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    ).assign(0, 0)


@unhurried
@given(st.binary(max_size=300), st.integers(0, 50), st.sampled_from(Codec))
def test_random_sections_are_refused_or_read_never_worse(
    section: bytes, count: int, codec: Codec
) -> None:
    batch = sealed(section, count, codec)
    try:
        columns = decode([batch])
    except RecordError:
        with pytest.raises(RecordError):
            validate_records(batch)
    else:
        columns.validate(full=True)
        assert columns.num_rows == validate_records(batch).records == count


@settings(unhurried, max_examples=examples(300))
@given(rows_of(any_time), st.data())
def test_a_changed_byte_under_a_true_checksum_is_refused_or_read(
    rows: list[Row], data: st.DataObject
) -> None:
    section = bytearray(encode(to_columns(rows)).buffer[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(1, 3))):
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    batch = sealed(bytes(section), len(rows))
    try:
        columns = decode([batch])
    except RecordError:
        with pytest.raises(RecordError, match=r"at byte|promises"):
            validate_records(batch)
    else:
        columns.validate(full=True)
        assert columns.num_rows == len(rows)


@unhurried
@given(st.binary(max_size=5000), st.integers(1, 200), st.sampled_from(Codec))
def test_codecs_round_trip_up_to_the_limit(data: bytes, times: int, codec: Codec) -> None:
    data *= times
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, limit=max(len(data), 1))) == data


@unhurried
@given(st.binary(max_size=200), st.sampled_from([c for c in Codec if c]))
def test_random_streams_are_refused_or_read(data: bytes, codec: Codec) -> None:
    with contextlib.suppress(RecordError):
        assert len(decompress(codec, data, limit=1 << 20)) <= 1 << 20
