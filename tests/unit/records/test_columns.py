"""Columns: lies inside a batch get names, and columns of many kinds become records."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from onceflow.errors import (
    BatchMalformed,
    ColumnsMalformed,
    ColumnsTooLarge,
    DecompressedTooLarge,
    RecordMalformed,
)
from onceflow.records.batch import HEADER_SIZE, Codec, NewBatch, StoredBatch, seal
from onceflow.records.columns import (
    RECORD_SCHEMA,
    decode,
    encode,
    encode_all,
)
from onceflow.records.compression import compress
from onceflow.records.validate import validate_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    offset_delta: int = 0,
    *,
    attributes: int = 0,
    timestamp: bytes = b"\0",
    offset: bytes | None = None,
    key: bytes = sized(b"k"),
    value: bytes = sized(b"v"),
    headers: bytes = b"\0",
    size: bytes | None = None,
) -> bytes:
    delta = varint(offset_delta) if offset is None else offset
    body = bytes([attributes]) + timestamp + delta + key + value + headers
    return (varint(len(body)) if size is None else size) + body


def batch_of(
    section: bytes, count: int = 1, *, last: int | None = None, codec: Codec = Codec.NONE
) -> StoredBatch:
    return seal(
        bytearray(HEADER_SIZE) + bytes(compress(codec, section)),
        attributes=codec,
        last_offset_delta=count - 1 if last is None else last,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    ).assign(40, 0)


LIES: list[tuple[str, bytes, int, str]] = [
    ("length too long", record(size=varint(9)), 1, "record 0 .*record length 9"),
    ("length too short", record(size=varint(7)), 1, "record 0 .*"),
    ("length negative", record(size=varint(-5)), 1, "record length -5"),
    ("length zero", record(size=varint(0)), 1, "record length 0"),
    ("length huge", record(size=varint(2**31 - 1)), 1, "record length 2147483647"),
    ("length overlong", record(size=b"\x90\x80\x80\x80\x80\x00"), 1, "more than 5 bytes"),
    ("length over 32 bits", record(size=b"\xff\xff\xff\xff\x1f"), 1, "does not fit its type"),
    ("attributes", record(attributes=1), 1, "attributes are not zero"),
    ("timestamp overlong", record(timestamp=b"\x80" * 10 + b"\0"), 1, "more than 10 bytes"),
    ("timestamp over 64 bits", record(timestamp=b"\xff" * 9 + b"\x02"), 1, "does not fit"),
    ("delta overlong", record(offset=b"\x80" * 5 + b"\0"), 1, "offset delta takes more than 5"),
    ("delta negative", record(-1), 1, "offset delta -1"),
    ("delta beyond the batch", record(1), 1, "offset delta 1"),
    ("delta repeated", record(0) + record(0), 2, "record 1 .*offset delta 0"),
    ("delta backwards", record(1) + record(0), 2, "record 1 .*offset delta 0"),
    ("key length -2", record(key=varint(-2)), 1, "key length is negative"),
    ("key length huge", record(key=varint(2**31 - 1)), 1, "key length 2147483647 exceeds"),
    ("key length least", record(key=varint(-(2**31))), 1, "key length is negative"),
    ("value length -2", record(value=varint(-2)), 1, "value length is negative"),
    ("value length huge", record(value=varint(2**31 - 1)), 1, "value length 2147483647 exceeds"),
    ("header count negative", record(headers=varint(-1)), 1, "header count -1"),
    ("header count huge", record(headers=varint(2**31 - 1)), 1, "header count 2147483647"),
    ("header missing", record(headers=varint(1) + b"\0"), 1, "header value length is cut off"),
    ("header key null", record(headers=varint(1) + b"\x01\0"), 1, "header key length is negative"),
    ("header key least", record(headers=varint(1) + varint(-(2**31)) + b"\0"), 1, "negative"),
    ("header key huge", record(headers=varint(1) + varint(2**30) + b"\0"), 1, "exceeds"),
    ("header value -2", record(headers=varint(1) + b"\0" + varint(-2)), 1, "is negative"),
    ("header value huge", record(headers=varint(1) + b"\0" + varint(2**30)), 1, "exceeds"),
    ("bytes after the headers", record(headers=b"\0\0"), 1, "leaves 1 bytes unread"),
    ("bytes after the records", record() + b"\0", 1, "1 bytes follow the last record"),
    ("record after the records", record() + record(1), 1, "9 bytes follow the last record"),
    ("a record too few", record() + b"\x0c\0\0\2\1\1\0"[:6], 2, "."),
]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(("name", "section", "count", "message"), LIES, ids=[x[0] for x in LIES])
def test_lies_with_a_true_checksum_are_named(
    name: str, section: bytes, count: int, message: str, codec: Codec
) -> None:
    batch = StoredBatch.parse(batch_of(section, count, codec=codec).buffer)
    with pytest.raises((RecordMalformed, BatchMalformed), match=message) as caught:
        decode([batch])
    assert "offset 40" in str(caught.value), name
    with pytest.raises(type(caught.value), match=message):
        validate_records(batch)


@pytest.mark.parametrize(
    "key", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80"]
)
def test_header_keys_are_utf8(key: bytes) -> None:
    batch = batch_of(record(headers=varint(1) + sized(key) + sized(None)))
    for read in (lambda: decode([batch]), lambda: validate_records(batch)):
        with pytest.raises(RecordMalformed, match="header key is not UTF-8"):
            read()


def test_one_bad_header_among_very_many_is_named_without_reading_them_all() -> None:
    headers = varint(5000) + (sized(b"h") + sized(b"v")) * 4999 + sized(b"\xff") + sized(b"v")
    with pytest.raises(RecordMalformed, match="one of its 5000 headers"):
        decode([batch_of(record(headers=headers))])


def test_promised_records_are_held_against_the_bytes_before_anything_is_allocated() -> None:
    batch = batch_of(record(), 2**31 - 1, last=2**31 - 2)
    for read in (lambda: decode([batch]), lambda: validate_records(batch)):
        with pytest.raises(BatchMalformed, match="promises 2147483647 records in 9 bytes"):
            read()


def test_the_bad_batch_of_many_is_named() -> None:
    good = batch_of(record())
    bad = batch_of(record(attributes=1))
    with pytest.raises(RecordMalformed, match="attributes"):
        decode([good, good, bad, good])


def test_a_bomb_in_a_batch() -> None:
    section = record(value=sized(b"\0" * 100_000))
    with pytest.raises(DecompressedTooLarge):
        validate_records(batch_of(section, codec=Codec.ZSTD), limit=50_000)


def test_compaction_may_leave_gaps() -> None:
    batch = batch_of(record(2) + record(7), 2, last=9)
    assert decode([batch]).column("offset").to_pylist() == [42, 47]
    with pytest.raises(RecordMalformed, match="offset delta 10"):
        decode([batch_of(record(2) + record(10), 2, last=9)])


def test_a_varint_may_be_longer_than_it_needs_to_be() -> None:
    assert decode([batch_of(record(timestamp=b"\x80\x80\x00"))]).num_rows == 1


def test_no_batches_give_no_rows() -> None:
    empty = decode([])
    assert empty.num_rows == 0
    assert empty.schema == RECORD_SCHEMA


def read_back(batch: NewBatch) -> list[tuple[Any, ...]]:
    rows = decode([batch.assign(0, 0)])
    rows.validate(full=True)
    stamps = rows.column("timestamp").cast(pa.int64())
    columns = [rows.column(name) for name in ("key", "value", "headers")]
    return list(zip(*(column.to_pylist() for column in (*columns, stamps)), strict=True))


def test_columns_of_many_kinds() -> None:
    expected: list[tuple[Any, ...]] = [(b"a", b"1", [], 5), (None, b"", [], 5), (b"", None, [], 5)]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        columns = {
            "key": pa.array([b"a", None, b""], kind),
            "value": pa.array([b"1", b"", None], kind),
        }
        assert read_back(encode(pa.record_batch(columns), now_ms=5)) == expected
        chunked = pa.concat_tables([pa.table(columns).slice(0, 1), pa.table(columns).slice(1)])
        assert read_back(encode(chunked, now_ms=5)) == expected
    text = pa.record_batch({"value": pa.array(["é", None], pa.large_string())})
    assert read_back(encode(text, now_ms=5)) == [
        (None, "é".encode(), [], 5),
        (None, None, [], 5),
    ]


def test_slices_of_everything() -> None:
    rows = pa.record_batch(
        {
            "key": pa.array([b"x", None, b"a", None, b""], pa.binary()),
            "value": pa.array([None, b"x", None, b"b", b""], pa.binary()),
            "headers": pa.array(
                [
                    [{"key": "skip", "value": b"s"}],
                    [{"key": "h1", "value": None}, {"key": "h2", "value": b""}],
                    None,
                    [],
                    [{"key": "h3", "value": b"three"}],
                ],
                HEADERS,
            ),
            "timestamp": pa.array([1, 2, None, 4, 5], pa.timestamp("ms")),
        }
    )
    everything = read_back(encode(rows, now_ms=99))
    assert [row[3] for row in everything] == [1, 2, 99, 4, 5]
    for start in range(5):
        for length in range(1, 6 - start):
            part = read_back(encode(rows.slice(start, length), now_ms=99))
            assert part == everything[start : start + length]


def test_a_null_list_with_hidden_headers_has_none() -> None:
    offsets = pa.array([0, 1, 2], pa.int32())
    items = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], HEADERS.value_type)
    headers = pa.ListArray.from_arrays(offsets, items, mask=pa.array([True, False]))
    rows = pa.record_batch({"value": pa.array([b"x", b"y"]), "headers": headers})
    assert [row[2] for row in read_back(encode(rows, now_ms=0))] == [
        [],
        [{"key": "b", "value": b"2"}],
    ]


def test_finer_timestamps_are_cut_to_milliseconds() -> None:
    stamps = pa.array([1_999_999, -1], pa.timestamp("us", tz="Europe/Berlin"))
    rows = pa.record_batch({"value": pa.array([b"", b""]), "timestamp": stamps})
    assert [row[3] for row in read_back(encode(rows))] == [1999, 0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.array([b"k"])}, "no column 'value'"),
        ({"value": pa.array([1])}, "'value' of type int64"),
        ({"value": pa.array([b""])}, "pass now_ms"),
        ({"value": pa.array([b""]), "timestamp": pa.array([None], pa.int64())}, "pass now_ms"),
        ({"value": pa.array([b""]), "timestamp": pa.array(["noon"])}, "'timestamp'"),
        (
            {
                "value": pa.array([b""]),
                "timestamp": pa.array([0]),
                "headers": pa.array([[{"key": None, "value": b""}]], HEADERS),
            },
            "header key is null",
        ),
        (
            {
                "value": pa.array([b""]),
                "timestamp": pa.array([0]),
                "headers": pa.array([[None]], HEADERS),
            },
            "header key is null",
        ),
        (
            {"value": pa.array([b""]), "timestamp": pa.array([0]), "headers": pa.array([1])},
            "'headers'",
        ),
    ],
)
def test_columns_that_are_not_records_are_refused(
    columns: dict[str, pa.Array[Any]], message: str
) -> None:
    with pytest.raises(ColumnsMalformed, match=message):
        encode(pa.record_batch(columns))


def test_no_rows_make_no_batch() -> None:
    rows = pa.record_batch({"value": pa.array([], pa.binary())})
    assert encode_all(rows, max_batch_bytes=100) == []
    with pytest.raises(ColumnsMalformed, match="no rows"):
        encode(rows)


def test_splitting_fills_batches_and_runs_sequences_on() -> None:
    rows = pa.record_batch(
        {
            "value": pa.array([bytes([i]) * (i % 50) for i in range(200)] + [b"x" * 5000]),
            "timestamp": pa.array([*range(200), 7], pa.int64()),
        }
    )
    batches = encode_all(
        rows, max_batch_bytes=1000, producer_id=3, producer_epoch=1, base_sequence=2**31 - 20
    )
    assert [batch.header.size > 1000 for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert batches[-1].header.record_count == 1
    for before, after in pairwise(batches):
        assert after.header.base_sequence == (before.header.last_sequence + 1) % 2**31
        first = encode(rows.slice(0, 1)).header.size - HEADER_SIZE
        assert before.header.size + first + 52 > 1000 or after is batches[-1]
    assert sum(batch.header.record_count for batch in batches) == 201
    values = [row[1] for batch in batches for row in read_back(NewBatch.parse(batch.buffer))]
    assert values == rows.column("value").to_pylist()


def test_header_of_an_encoded_batch() -> None:
    rows = pa.record_batch(
        {"value": pa.array([b"a", b"b"]), "timestamp": pa.array([50, 20], pa.int64())}
    )
    batch = encode(
        rows,
        codec=Codec.GZIP,
        producer_id=4,
        producer_epoch=2,
        base_sequence=10,
        transactional=True,
    )
    header = NewBatch.parse(batch.buffer).header
    assert header == batch.header
    assert header.is_transactional
    assert header.codec is Codec.GZIP
    assert (header.base_timestamp, header.max_timestamp) == (50, 50)
    assert validate_records(batch).max_timestamp == 50
    assert struct.unpack_from(">qhi", batch.buffer, 43) == (4, 2, 10)


def test_a_batch_that_changed_after_it_was_parsed_cannot_write_past_its_columns() -> None:
    batch = batch_of(b"".join(record(i) for i in range(500)), 500)
    header = batch.header._replace(record_count=1, last_offset_delta=0)
    with pytest.raises(RecordMalformed):
        decode([StoredBatch(header, batch.buffer)])


@pytest.mark.parametrize("key", [None, b"", b"k" * 200])
def test_lengths_around_every_step_of_the_writer(key: bytes | None) -> None:
    sizes = [*range(70), *range(120, 136), *range(500, 520), 8180, 8191, 8192, 20_000]
    rows = pa.record_batch(
        {
            "key": pa.array([key] * len(sizes), pa.binary()),
            "value": pa.array([bytes([size & 0xFF]) * size for size in sizes], pa.binary()),
            "timestamp": pa.array([(-1) ** row * (1 << row % 63) for row in range(len(sizes))]),
        }
    )
    expected: list[tuple[Any, ...]] = list(
        zip(
            rows.column("key").to_pylist(),
            rows.column("value").to_pylist(),
            [[] for _ in sizes],
            rows.column("timestamp").to_pylist(),
            strict=True,
        )
    )
    for limit in (1, 61, 70, 1000, 9000, 2**31 - 1, 2**40):
        batches = encode_all(rows, max_batch_bytes=limit)
        assert all(
            batch.header.size <= limit or batch.header.record_count == 1 for batch in batches
        )
        whole = [NewBatch.parse(bytearray(batch.buffer)) for batch in batches]
        assert [row for batch in whole for row in read_back(batch)] == expected


def test_more_rows_than_a_short_offset_delta_counts() -> None:
    rows = pa.record_batch(
        {"value": pa.array([b"v"] * 10_000), "timestamp": pa.array([0] * 10_000)}
    )
    batch = encode(rows)
    assert decode([batch.assign(0, 0)]).column("offset").to_pylist() == list(range(10_000))
    # two bytes of lengths, attributes, timestamp, no key, no headers; the value; then the delta
    deltas = 64 * 1 + (8192 - 64) * 2 + (10_000 - 8192) * 3
    assert batch.header.size == HEADER_SIZE + 10_000 * 7 + deltas


def test_offsets_that_run_backwards_write_nothing_past_the_batch() -> None:
    offsets = pa.py_buffer(struct.pack("<4i", 0, 500, 100, 0))
    value = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(bytes(600))])
    rows = pa.record_batch({"value": value, "timestamp": pa.array([0, 0, 0])})
    with pytest.raises(ColumnsTooLarge, match=r"row 0 .*offsets"):
        encode(rows)
