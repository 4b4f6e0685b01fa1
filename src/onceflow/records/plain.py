"""A few records in plain Python: for internal topics and small batches of a producer, where loading
or calling compiled code costs more.

Bulk work is for `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from onceflow.records.batch import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    Codec,
    NewBatch,
    StoredBatch,
    seal,
)
from onceflow.records.compression import decompress
from onceflow.records.scalar import parse_record
from onceflow.records.sequence import NO_SEQUENCE

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

    `times` has each time with the number of the first record that has it, in the order of these:
    most records come in the same millisecond as the one before. Of those that have any, `keys` has
    the key and `headers` what `write_headers` made, by the number of the record.
    """
    runs = _runs(values, times)
    parts = _all_parts(runs, keys, headers) if keys or headers else _lone_parts(runs)
    return bytearray().join((_ROOM, *parts))


_Run: TypeAlias = tuple["_Fronts", Iterable[tuple[int, bytes | None]]]
"""The values of records that have the same time, with their numbers."""


def _runs(values: Sequence[bytes | None], times: Sequence[tuple[int, int]]) -> Iterator[_Run]:
    ends = [first for first, _ in times[1:]]
    for (first, time), end in zip(times, [*ends, len(values)], strict=False):
        yield _FRONTS[time - times[0][1]], enumerate(values[first:end], first)


def _lone_parts(runs: Iterable[_Run]) -> list[bytes]:
    """Of records that have neither key nor headers: a fifth of a microsecond for each."""
    parts: list[bytes] = []
    varint, leads, tail = _VARINTS, _LEADS, _NO_HEADERS
    for fronts, values in runs:
        for number, value in values:
            front = fronts[number]
            if value is None:
                value, lead, size = b"", _NULL + _NULL, len(_NULL + _NULL + tail)
            else:
                lead, size = leads[len(value)]
            parts += (varint[len(front) + size], front, lead, value, tail)
    return parts


def _all_parts(
    runs: Iterable[_Run], keys: Mapping[int, bytes], headers: Mapping[int, bytes]
) -> list[bytes]:
    parts: list[bytes] = []
    varint = _VARINTS
    for fronts, values in runs:
        for number, value in values:
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


class _Leads(dict[int, tuple[bytes, int]]):
    """What stands between the front and the value of a record that has no key, by the length of the
    value; and how many bytes that is, with the value and no headers."""

    def __missing__(self, length: int) -> tuple[bytes, int]:
        lead = _NULL + _VARINTS[length]
        found = lead, len(lead) + length + len(_NO_HEADERS)
        if length < _KEPT:
            self[length] = found
        return found


class _Fronts(dict[int, bytes]):
    """What stands in front of the key of a record with a given time, by its number in the batch:
    attributes, time and number."""

    def __init__(self, timestamp_delta: int) -> None:
        self._start = b"\0" + _VARINTS[timestamp_delta]

    def __missing__(self, number: int) -> bytes:
        front = self._start + _VARINTS[number]
        if number < _KEPT_NUMBERS:
            self[number] = front
        return front


class _FrontsByTime(dict[int, _Fronts]):
    """Those of the first few milliseconds of a batch are kept: nearly all records come in them."""

    def __missing__(self, timestamp_delta: int) -> _Fronts:
        fronts = _Fronts(timestamp_delta)
        if 0 <= timestamp_delta < _KEPT_MILLISECONDS:
            self[timestamp_delta] = fronts
        return fronts


_KEPT = 1 << 14
_KEPT_NUMBERS = 1024
_KEPT_MILLISECONDS = 16
_VARINTS = _Varints()
_LEADS = _Leads()
_FRONTS = _FrontsByTime()
_NULL = b"\x01"
_NO_HEADERS = b"\0"
_ROOM = bytes(HEADER_SIZE)
