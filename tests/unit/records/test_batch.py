"""Batch headers: what is read, what is refused, what is patched."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from onceflow.checksum import crc32c
from onceflow.errors import (
    BatchChecksumMismatch,
    BatchMalformed,
    BatchTruncated,
    RecordError,
    TimestampTypeRefused,
)
from onceflow.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    Codec,
    NewBatch,
    StoredBatch,
    TimestampType,
    iter_stored,
    read_header,
    verify_crc,
)
from onceflow.records.columns import decode, encode

HEADER = struct.Struct(">qiibIhiqqqhii")
ROWS = pa.record_batch(
    {
        "key": pa.array([b"a", None, b""], pa.binary()),
        "value": pa.array([b"one", b"", None], pa.binary()),
        "timestamp": pa.array([1000, 900, 1100], pa.timestamp("ms", tz="UTC")),
    }
)


def new_bytes(**fields: int) -> bytearray:
    """A sound batch with some header fields changed and the checksum made to fit."""
    data = bytearray(encode(ROWS, producer_id=7, producer_epoch=1, base_sequence=5).buffer)
    header = read_header(data)._replace(**fields)
    HEADER.pack_into(data, 0, *header)
    struct.pack_into(">I", data, 17, fields.get("crc", crc32c(data[21:])))
    return data


def test_header_fields_stand_where_kafka_puts_them() -> None:
    data = HEADER.pack(11, 49, 3, 2, 0xDEADBEEF, 0x14, 4, 100, 200, 7, 1, 2147483645, 5)
    header = read_header(b"??" + data, 2)
    assert header == BatchHeader(11, 49, 3, 2, 0xDEADBEEF, 0x14, 4, 100, 200, 7, 1, 2147483645, 5)
    assert (header.size, header.last_offset, header.next_offset) == (61, 15, 16)
    assert header.codec is Codec.ZSTD
    assert header.timestamp_type is TimestampType.CREATE
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.last_sequence == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"magic": 1}, "magic 1"),
        ({"batch_length": 48}, "batch_length 48"),
        ({"batch_length": -1}, "batch_length -1"),
        ({"attributes": 5}, "codec 5"),
        ({"attributes": 7}, "codec 7"),
        ({"attributes": 0x80}, "reserved attribute bits"),
        ({"attributes": -32768}, "reserved attribute bits"),
        ({"last_offset_delta": -1}, "last_offset_delta -1"),
        ({"record_count": -1}, "record_count -1"),
        ({"record_count": 4}, "record_count 4"),
        ({"base_offset": -1}, "base_offset -1"),
        ({"base_offset": 2**63 - 1}, "out of range"),
    ],
)
def test_a_header_that_contradicts_itself_is_malformed(
    fields: dict[str, int], message: str
) -> None:
    with pytest.raises(BatchMalformed, match=message):
        read_header(new_bytes(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_offset": 1}, "base_offset 1"),
        ({"record_count": 0}, "record_count 0"),
        ({"record_count": 2}, "record_count 2"),
        ({"last_offset_delta": 3}, "last_offset_delta 3"),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 0x40}, "delete horizon"),
        ({"base_sequence": -1}, "base_sequence -1"),
        ({"attributes": 0x10, "producer_id": -1}, "needs a producer id"),
    ],
)
def test_what_a_client_may_not_send(fields: dict[str, int], message: str) -> None:
    with pytest.raises(BatchMalformed, match=message):
        NewBatch.parse(new_bytes(**fields))


def test_only_the_broker_sets_log_append_time() -> None:
    with pytest.raises(TimestampTypeRefused):
        NewBatch.parse(new_bytes(attributes=0x08))


def test_a_wrong_checksum_has_its_own_error() -> None:
    with pytest.raises(BatchChecksumMismatch):
        NewBatch.parse(new_bytes(crc=1))
    with pytest.raises(BatchChecksumMismatch):
        StoredBatch.parse(new_bytes(crc=1))


def test_exactly_one_whole_batch() -> None:
    data = new_bytes()
    for wrong in (data + b"\0", data + data):
        with pytest.raises(BatchMalformed, match="exactly one"):
            NewBatch.parse(wrong)
    with pytest.raises(BatchTruncated):
        NewBatch.parse(data[:-1])
    with pytest.raises(BatchTruncated):
        read_header(data, len(data) - 60)


def test_assign_patches_the_clients_own_bytes() -> None:
    data = new_bytes()
    before = bytes(data)
    batch = NewBatch.parse(data).assign(123, 9)
    assert batch.buffer.obj is data
    assert data[21:] == before[21:]
    assert read_header(data) == batch.header
    assert (batch.header.base_offset, batch.header.leader_epoch) == (123, 9)
    assert batch.header.crc == read_header(before).crc
    assert StoredBatch.parse(data, expected_base_offset=123) == batch
    with pytest.raises(BatchMalformed, match="base_offset 123 where 124"):
        StoredBatch.parse(data, expected_base_offset=124)


def test_log_append_time_is_under_the_checksum() -> None:
    data = new_bytes()
    batch = NewBatch.parse(data).assign_log_append_time(5, 0, 7777)
    assert batch.buffer.obj is data
    assert read_header(data) == batch.header
    verify_crc(memoryview(data), batch.header)
    assert batch.header.timestamp_type is TimestampType.LOG_APPEND
    timestamps = decode([batch]).column("timestamp").cast(pa.int64())
    assert timestamps.to_pylist() == [7777] * 3


def test_a_batch_in_read_only_memory_cannot_be_assigned() -> None:
    with pytest.raises((TypeError, ValueError)):
        NewBatch.parse(bytes(new_bytes())).assign(1, 1)


def stored_range(*base_offsets: int) -> bytes:
    return b"".join(
        bytes(NewBatch.parse(new_bytes()).assign(offset, 0).buffer) for offset in base_offsets
    )


def test_a_range_ends_silently_inside_its_last_batch_only() -> None:
    data = stored_range(10, 13, 20)
    size = len(data) // 3
    for length in range(len(data) + 1):
        offsets = [batch.header.base_offset for batch in iter_stored(data[:length])]
        assert offsets == [10, 13, 20][: length // size]


def test_a_range_checks_its_offsets() -> None:
    assert len(list(iter_stored(stored_range(10, 13), expected_base_offset=10))) == 2
    with pytest.raises(BatchMalformed, match="where 9 was expected"):
        list(iter_stored(stored_range(10, 13), expected_base_offset=9))
    with pytest.raises(BatchMalformed, match="goes back"):
        list(iter_stored(stored_range(10, 12)))


@pytest.mark.parametrize("length", [12, 17, 40, 61, 80])
def test_garbage_is_not_taken_for_a_partial_batch(length: int) -> None:
    with pytest.raises(BatchMalformed):
        list(iter_stored(stored_range(0) + b"\x00" * length))


def test_every_truncation_of_a_batch_is_an_error() -> None:
    data = new_bytes()
    for length in range(len(data)):
        for parse in (NewBatch.parse, StoredBatch.parse):
            with pytest.raises(RecordError):
                parse(data[:length])


def test_every_flipped_bit_is_noticed_or_harmless() -> None:
    data = new_bytes()
    sound = decode([StoredBatch.parse(data)]).drop_columns(["offset"])
    harmless = set()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        try:
            records = decode([StoredBatch.parse(flipped)])
        except RecordError:
            continue
        assert records.drop_columns(["offset"]).equals(sound)
        harmless.add(bit // 8)
    assert harmless == {*range(8), *range(12, 16)}


def test_with_an_expected_offset_only_the_leader_epoch_is_free() -> None:
    data = new_bytes()
    for bit in range(64):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        with pytest.raises(RecordError):
            StoredBatch.parse(flipped, expected_base_offset=0)


def test_an_empty_batch_left_by_compaction_is_read() -> None:
    data = new_bytes(record_count=0)[:HEADER_SIZE]
    struct.pack_into(">i", data, 8, HEADER_SIZE - 12)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    batch = StoredBatch.parse(data)
    assert batch.header.last_offset_delta == 2
    assert decode([batch]).num_rows == 0
