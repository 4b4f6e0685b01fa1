"""Whatever is put into a producer's batch is what the compiled reader finds in its bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from onceflow.client.producer.batch import ProducerBatch, checked_headers, split
from onceflow.records.batch import Codec, NewBatch, StoredBatch
from onceflow.records.columns import decode, encode
from onceflow.types import TopicPartition
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.doses import examples

PLACE = TopicPartition("t", 0)
WHO = ProducerIdAndEpoch(7, 0)

maybe_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=10), maybe_bytes), max_size=3)
# Java knows no earlier or later time, and Arrow shows none: years 1970 to 9999.
timestamps = st.integers(0, 253402300799999)
records = st.tuples(maybe_bytes, maybe_bytes, timestamps, headers)
Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def filled(rows: list[Record]) -> ProducerBatch:
    batch = ProducerBatch(PLACE, 0.0)
    for key, value, timestamp, pairs in rows:
        section = checked_headers(pairs) if pairs else None
        batch.add(key, value, timestamp, section, 0)
    return batch


def read(batch: ProducerBatch) -> list[Record]:
    stored = NewBatch.parse(bytearray(batch.buffer)).assign(5, 0)
    table: Any = decode([StoredBatch.parse(stored.buffer, expected_base_offset=5)])
    columns = table.set_column(3, "timestamp", table["timestamp"].cast("int64")).to_pydict()
    return [
        (key, value, stamp, [(pair["key"], pair["value"]) for pair in pairs])
        for key, value, stamp, pairs in zip(
            columns["key"], columns["value"], columns["timestamp"], columns["headers"], strict=True
        )
    ]


@given(st.lists(records, min_size=1, max_size=30), st.sampled_from(Codec))
@settings(max_examples=examples(100), deadline=None)
def test_what_goes_in_comes_out(rows: list[Record], codec: Codec) -> None:
    batch = filled(rows)
    batch.seal(WHO, 0, codec=codec)
    assert read(batch) == rows


@given(st.lists(records, min_size=2, max_size=30), st.sampled_from(Codec))
@settings(max_examples=examples(50), deadline=None)
def test_halves_are_the_whole(rows: list[Record], codec: Codec) -> None:
    batch = filled(rows)
    batch.seal(WHO, 2**31 - 5, codec=codec)
    first, second = split(batch)
    assert read(first) + read(second) == rows
    assert [batch.locate(number)[0] for number in range(len(rows))] == (
        [first] * first.count + [second] * second.count
    )
    assert second.base_sequence == (first.base_sequence + first.count) % 2**31


@given(st.lists(st.tuples(maybe_bytes, maybe_bytes, timestamps), min_size=1, max_size=30))
@settings(max_examples=examples(100), deadline=None)
def test_plain_python_and_the_kernels_write_the_same(
    rows: list[tuple[bytes | None, bytes | None, int]],
) -> None:
    batch = filled([(*row, []) for row in rows])
    batch.seal(WHO, 0)
    keys, values, stamps = zip(*rows, strict=True)
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array(stamps, pa.int64()),
    }
    by_kernels = encode(
        pa.record_batch(columns),
        producer_id=WHO.producer_id,
        producer_epoch=WHO.epoch,
        base_sequence=0,
    )
    assert bytes(batch.buffer) == bytes(by_kernels.buffer)
