"""A few records in plain Python: for internal topics and small batches of a producer, where loading
or calling compiled code costs more.

Bulk work is for `columns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from onceflow.errors import NewerRecord, RecordError, RecordMalformed
from onceflow.records.batch import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Codec,
    NewBatch,
    StoredBatch,
    seal,
)
from onceflow.records.compression import decompress
from onceflow.records.scalar import parse_record

_LARGEST: Final = 255
"""Kafka counts kinds and versions up from 0, one by one: a number above this was never one, and the
bytes that it was read from are no record."""


def unknown_number(what: str, number: int, newest: int) -> RecordError:
    """The error for a kind or a version that is not in the range from 0 to `newest`."""
    told = f"{what} {number} is not known, only those from 0 to {newest} are"
    return NewerRecord(told) if newest < number <= _LARGEST else RecordMalformed(told)


_NOTHING: Final[Mapping[int, bytes]] = MappingProxyType({})


class PlainRecord(NamedTuple):
    """A record without headers."""

    key: bytes | None
    value: bytes | None


def write_records(
    records: Sequence[PlainRecord],
    timestamp_ms: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> NewBatch:
    """One uncompressed batch, all of one time."""
    count = len(records)
    return seal(
        write_section(
            [record.value for record in records],
            [(0, timestamp_ms)],
            {number: each.key for number, each in enumerate(records) if each.key is not None},
        ),
        attributes=Codec.NONE | (TRANSACTIONAL_BIT if transactional else 0),
        last_offset_delta=count - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )


def write_section(
    values: Sequence[bytes | None],
    times: Sequence[tuple[int, int]],
    keys: Mapping[int, bytes] = _NOTHING,
    headers: Mapping[int, bytes] = _NOTHING,
) -> bytearray:
    """Room for a batch's header, then the records; times count from the first one's.

    `times` pairs each time with the number of the first record that has it, in ascending order:
    most records come in the same millisecond as the one before. `keys` and `headers` map the number
    of a record to its key and to the bytes that `write_headers` made, for records that have any.
    """
    lengths = None if keys or headers else _lengths(values)
    if lengths is None:
        parts = _all_parts(values, times, keys, headers)
    else:
        parts = _lone_parts(cast(Sequence[bytes], values), lengths, times)
    return bytearray().join((_ROOM, *parts))


def _lengths(values: Sequence[bytes | None]) -> list[int] | None:
    """None when one of them is."""
    try:
        return list(map(len, cast(Sequence[bytes], values)))
    except TypeError:
        return None


def _runs(times: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int, int]]:
    """First and end of the records that have the same time, and by how much that is later than the
    first one's."""
    ends = [first for first, _ in times[1:]]
    for (first, time), end in zip(times, [*ends, count], strict=True):
        yield first, end, time - times[0][1]


def _lone_parts(
    values: Sequence[bytes], lengths: Sequence[int], times: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Of records that have neither key nor headers, four parts each: a tenth of a microsecond for
    one, because all of a kind are put in their places at once."""
    count = len(values)
    parts = [b""] * (4 * count)
    parts[1::4] = _NUMBERS.up_to(count)
    parts[2::4] = map(_LEADS.__getitem__, lengths)
    parts[3::4] = values
    for first, end, delta in _runs(times, count):
        while first < end:
            number_size = len(_VARINTS[first])
            until = min(end, 1 << (7 * number_size - 1))  # where numbers become a byte longer
            starts = _STARTS[delta, number_size]
            parts[4 * first : 4 * until : 4] = map(starts.__getitem__, lengths[first:until])
            first = until
    parts[0] = parts[0][len(_NO_HEADERS) :]  # before the first record none ends
    parts.append(_NO_HEADERS)
    return parts


def _all_parts(
    values: Sequence[bytes | None],
    times: Sequence[tuple[int, int]],
    keys: Mapping[int, bytes],
    headers: Mapping[int, bytes],
) -> list[bytes]:
    parts: list[bytes] = []
    varint = _VARINTS
    for first, end, delta in _runs(times, len(values)):
        fronts = _FRONTS[delta]
        for number, value in enumerate(values[first:end], first):
            front, key, tail = fronts[number], keys.get(number), headers.get(number, _NO_HEADERS)
            name = _NULL if key is None else varint[len(key)] + key
            if value is None:
                length, value = _NULL, b""
            else:
                length = varint[len(value)]
            size = len(front) + len(name) + len(length) + len(value) + len(tail)
            parts += (varint[size], front, name, length, value, tail)
    return parts


def write_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The headers of one record: how many, then each."""
    parts = [_VARINTS[len(headers)]]
    for key, value in headers:
        name = key.encode()
        parts += (_VARINTS[len(name)], name)
        parts += (_NULL,) if value is None else (_VARINTS[len(value)], value)
    return b"".join(parts)


def read_records(batch: StoredBatch) -> Iterator[PlainRecord]:
    """Keys and values of a batch, in order."""
    for _, record in read_placed(batch):
        yield record


def read_placed(batch: StoredBatch) -> Iterator[tuple[int, PlainRecord]]:
    """The records of a batch, each with its offset: compaction leaves gaps between them."""
    header = batch.header
    section = memoryview(batch.buffer)[HEADER_SIZE:]
    if header.codec is not Codec.NONE:
        section = memoryview(decompress(header.codec, section))
    at = 0
    for _ in range(header.record_count):
        record = parse_record(section, at)
        at = record.end
        yield header.base_offset + record.offset_delta, PlainRecord(record.key, record.value)


class _Varints(dict[int, bytes]):
    """Zigzag varints; the short ones are kept, because the same few come again in every batch."""

    def __missing__(self, value: int) -> bytes:
        raw = (value << 1) ^ (value >> 63)
        rest = raw
        out = bytearray()
        while rest >= 0x80:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
        encoded = bytes(out)
        if raw < _KEPT:
            self[value] = encoded
        return encoded


class _Numbers:
    """From 0 on; as many are kept as the longest batch had."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def up_to(self, count: int) -> list[bytes]:
        kept = self._kept
        if len(kept) < count:  # a new list: another thread may be reading the old one
            self._kept = kept = list(map(_VARINTS.__getitem__, range(2 * count)))
        return kept[:count]


class _Leads(dict[int, bytes]):
    """The bytes before the value of a record without a key, by the value's length."""

    def __missing__(self, length: int) -> bytes:
        lead = _NULL + _VARINTS[length]
        if length < _KEPT:
            self[length] = lead
        return lead


class _Starts(dict[int, bytes]):
    """The bytes before the number of a record that has neither key nor headers, by the length of
    its value: the end of the record before, size, attributes and time."""

    def __init__(self, timestamp_delta: int, number_size: int) -> None:
        self._start = b"\0" + _VARINTS[timestamp_delta]
        self._rest = len(self._start) + number_size + len(_NO_HEADERS)

    def __missing__(self, length: int) -> bytes:
        start = _NO_HEADERS + _VARINTS[self._rest + len(_LEADS[length]) + length] + self._start
        if length < _KEPT:
            self[length] = start
        return start


class _StartsByTime(dict[tuple[int, int], _Starts]):
    """By time and by the size of the number; those of a batch's first few milliseconds are kept,
    because nearly all records come in them."""

    def __missing__(self, key: tuple[int, int]) -> _Starts:
        starts = _Starts(*key)
        if 0 <= key[0] < _KEPT_MILLISECONDS:
            self[key] = starts
        return starts


class _Fronts(dict[int, bytes]):
    """The bytes before the key of a record with a given time, by its number in the batch:
    attributes, time and number."""

    def __init__(self, timestamp_delta: int) -> None:
        self._start = b"\0" + _VARINTS[timestamp_delta]

    def __missing__(self, number: int) -> bytes:
        front = self._start + _VARINTS[number]
        if number < _KEPT_NUMBERS:
            self[number] = front
        return front


class _FrontsByTime(dict[int, _Fronts]):
    """As `_StartsByTime`."""

    def __missing__(self, timestamp_delta: int) -> _Fronts:
        fronts = _Fronts(timestamp_delta)
        if 0 <= timestamp_delta < _KEPT_MILLISECONDS:
            self[timestamp_delta] = fronts
        return fronts


_KEPT = 1 << 14
_KEPT_NUMBERS = 1024
_KEPT_MILLISECONDS = 16
_VARINTS = _Varints()
_NUMBERS = _Numbers()
_LEADS = _Leads()
_STARTS = _StartsByTime()
_FRONTS = _FrontsByTime()
_NULL = b"\x01"
_NO_HEADERS = b"\0"
_ROOM = bytes(HEADER_SIZE)
