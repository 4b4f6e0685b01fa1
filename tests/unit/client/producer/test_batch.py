"""A producer's batch: what is added is what is sent, and the bytes stay what they were."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest

from onceflow.client.producer.batch import (
    RECORD_OVERHEAD,
    Delivered,
    ProducerBatch,
    RecordInvalid,
    checked_bytes,
    checked_headers,
    checked_timestamp,
    split,
)
from onceflow.errors import InvariantViolated
from onceflow.records.batch import Codec, NewBatch, StoredBatch
from onceflow.records.columns import decode, encode
from onceflow.types import TopicPartition
from onceflow.wire.transactions import ProducerIdAndEpoch

PLACE = TopicPartition("t", 3)
WHO = ProducerIdAndEpoch(2**40, 5)


def filled(count: int, *, headers: bool = False) -> ProducerBatch:
    batch = ProducerBatch(PLACE, 1.0)
    for number in range(count):
        key = None if number % 3 == 0 else b"k%d" % number
        value = None if number % 5 == 4 else b"v" * number
        section = checked_headers([("h", b"%d" % number), ("n", None)]) if headers else None
        batch.add(key, value, 1000 + (7 * number) % 11, section, 30)
    return batch


def rows(batch: ProducerBatch) -> dict[str, list[Any]]:
    """As a consumer reads them; the checksum is verified."""
    stored = NewBatch.parse(bytearray(batch.buffer)).assign(40, 0)
    return decode([StoredBatch.parse(stored.buffer)]).to_pydict()


def expected(count: int) -> list[tuple[bytes | None, bytes | None]]:
    return [
        (None if n % 3 == 0 else b"k%d" % n, None if n % 5 == 4 else b"v" * n) for n in range(count)
    ]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [1, 20, 2000])
def test_what_is_added_is_what_is_read(count: int, codec: Codec) -> None:
    batch = filled(count)
    sealed = batch.seal(WHO, 17, codec=codec)
    header = sealed.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 5, 17)
    assert (header.record_count, header.codec) == (count, codec)
    assert not header.is_transactional
    assert header.max_timestamp == max(1000 + (7 * n) % 11 for n in range(count))
    columns = rows(batch)
    assert list(zip(columns["key"], columns["value"], strict=True)) == expected(count)
    stamps = [1000 + (7 * n) % 11 for n in range(count)]
    assert [round(each.timestamp() * 1000) for each in columns["timestamp"]] == stamps


def test_the_kernels_would_write_the_same_bytes() -> None:
    batch = filled(2000)
    expected = by_kernels(batch, transactional=True)
    batch.seal(WHO, 0, transactional=True)
    assert bytes(batch.buffer) == bytes(expected.buffer)


def test_so_they_would_without_keys() -> None:
    batch = ProducerBatch(PLACE, 0.0)
    for number in range(2000):
        value = None if number % 5 == 4 else b"v" * (number % 300)
        batch.add(None, value, 1000 + number // 100, None, 30)
    expected = by_kernels(batch)
    batch.seal(WHO, 0)
    assert bytes(batch.buffer) == bytes(expected.buffer)


def test_times_that_go_back_and_far_apart_are_kept() -> None:
    batch = ProducerBatch(PLACE, 0.0)
    stamps = [10**12, 0, 10**12 + 15, 10**12 + 16, 10**12, 2**62, 1]
    for stamp in stamps:
        batch.add(None, b"v", stamp, None, 30)
    expected = by_kernels(batch)
    batch.seal(WHO, 0)
    assert bytes(batch.buffer) == bytes(expected.buffer)


def by_kernels(batch: ProducerBatch, *, transactional: bool = False) -> NewBatch:
    columns = {
        "key": pa.array(map(batch.keys.get, range(batch.count)), pa.binary()),
        "value": pa.array(batch.values, pa.binary()),
        "timestamp": pa.array(times_of(batch), pa.int64()),
    }
    return encode(
        pa.record_batch(columns),
        producer_id=WHO.producer_id,
        producer_epoch=WHO.epoch,
        base_sequence=0,
        transactional=transactional,
    )


def times_of(batch: ProducerBatch) -> list[int]:
    firsts = dict(batch.times)
    return list(accumulate(range(batch.count), lambda last, n: firsts.get(n, last), initial=-1))[1:]


@pytest.mark.parametrize("count", [2, 200])
def test_headers_come_with_their_records(count: int) -> None:
    batch = filled(count, headers=True)
    batch.seal(WHO, 0)
    assert rows(batch)["headers"] == [
        [{"key": "h", "value": b"%d" % n}, {"key": "n", "value": None}] for n in range(count)
    ]


def test_the_estimate_is_not_below_the_bytes() -> None:
    batch = ProducerBatch(PLACE, 0.0)
    for number in range(100):
        value = b"x" * (number * 40)
        batch.add(None, value, 1000 + number, None, RECORD_OVERHEAD + len(value))
    estimate = batch.size
    batch.seal(WHO, 0)
    assert len(batch.buffer) <= estimate


def test_another_pair_changes_the_header_and_nothing_else() -> None:
    batch = filled(5)
    batch.seal(ProducerIdAndEpoch(7, 0), 100, transactional=True)
    before = bytes(batch.buffer)
    old = batch.buffer
    batch.renumber(ProducerIdAndEpoch(7, 1), 0)
    header = NewBatch.parse(bytearray(batch.buffer)).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 0)
    assert bytes(batch.buffer[61:]) == before[61:]
    assert bytes(old) == before  # a connection may still hold it
    assert batch.sealed is not None
    assert batch.sealed.header.is_transactional
    assert len(rows(batch)["value"]) == 5


def test_what_is_outstanding_is_not_renumbered() -> None:
    batch = filled(1)
    with pytest.raises(InvariantViolated):
        batch.renumber(WHO, 0)
    batch.seal(WHO, 0)
    batch.is_outstanding = True
    with pytest.raises(InvariantViolated):
        batch.renumber(WHO, 0)


def test_a_batch_that_was_written_before_gets_its_producer_when_it_is_sent() -> None:
    import pyarrow as pa

    encoded = encode(pa.record_batch({"value": [b"a", b"b"]}), codec=Codec.ZSTD, now_ms=5)
    batch = ProducerBatch.of_encoded(PLACE, encoded, 1.0)
    assert (batch.count, batch.is_open, batch.size) == (2, False, encoded.header.size)
    header = batch.seal(WHO, 9, transactional=True, codec=Codec.NONE).header
    assert (header.producer_id, header.base_sequence, header.codec) == (2**40, 9, Codec.ZSTD)
    assert header.is_transactional
    assert rows(batch)["value"] == [b"a", b"b"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_halves_share_records_and_sequences_between_them(codec: Codec) -> None:
    batch = filled(7, headers=True)
    batch.seal(WHO, 2**31 - 2, codec=codec)
    whole = rows(batch)
    first, second = split(batch)
    assert (first.count, second.count) == (3, 4)
    assert (first.base_sequence, second.base_sequence) == (2**31 - 2, 1)  # numbers wrap in between
    assert first.producer == second.producer == WHO
    parts = [rows(first), rows(second)]
    for name in ("key", "value", "headers", "timestamp"):
        assert parts[0][name] + parts[1][name] == whole[name]
    assert batch.is_done
    assert [batch.locate(index) for index in (0, 2, 3, 6)] == [
        (first, 0),
        (first, 2),
        (second, 0),
        (second, 3),
    ]
    third, fourth = split(second)
    assert batch.locate(6) == (fourth, 1)
    assert batch.locate(4) == (third, 1)
    with pytest.raises(InvariantViolated):
        batch.locate(7)


def test_a_single_record_cannot_be_split() -> None:
    batch = filled(1)
    batch.seal(WHO, 0)
    with pytest.raises(InvariantViolated):
        split(batch)


def test_a_batch_has_no_bytes_before_it_is_sealed() -> None:
    with pytest.raises(InvariantViolated):
        _ = filled(1).buffer


def test_records_have_offsets_when_the_broker_says_where() -> None:
    assert Delivered(100, -1).offset_of(3) == 103
    assert Delivered(-1, -1).offset_of(3) == -1


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab")])
def test_bytes_of_other_kinds_are_copied(value: bytearray | memoryview) -> None:
    copy = checked_bytes("value", value)
    assert copy == b"ab"
    assert type(copy) is bytes


@pytest.mark.parametrize("value", ["text", 5, [b"a"]])
def test_what_is_not_bytes_is_named(value: object) -> None:
    with pytest.raises(RecordInvalid, match=f"the key of a record is an? {type(value).__name__}"):
        checked_bytes("key", value)


@pytest.mark.parametrize("stamp", [-1, 2**63, 1.5, "1", None])
def test_timestamps_are_milliseconds_in_64_bits(stamp: object) -> None:
    with pytest.raises(RecordInvalid, match="timestamp"):
        checked_timestamp(stamp)
    assert checked_timestamp(True) == 1


@pytest.mark.parametrize(
    "header", [("a", "b"), (b"a", b"b"), ("a",), "ab", ("a", b"b", b"c"), ("\ud800", b"")]
)
def test_headers_are_pairs_of_text_and_bytes(header: object) -> None:
    with pytest.raises(RecordInvalid, match="header"):
        checked_headers([header])
