"""Reads one record in plain Python: for markers, and to explain why a record is malformed.

The compiled kernels only say that a record is wrong. `parse_record` reads that one record again,
field by field, and names the first rule it breaks.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from onceflow.errors import RecordMalformed

_INT_BYTES = 5
_LONG_BYTES = 10
# A record may hold millions of headers; naming the bad one is not worth reading them all slowly.
_HEADERS_EXPLAINED = 1000


class ScalarRecord(NamedTuple):
    """The parts of one record; `end` is the position behind it."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    header_count: int
    end: int


class _Reader:
    """A position in a records section that only moves forward, and only inside `end`."""

    __slots__ = ("end", "position", "section", "what")

    def __init__(self, section: memoryview, position: int) -> None:
        self.section = section
        self.position = position
        self.end = len(section)
        self.what = "record length"

    def fail(self, problem: str) -> NoReturn:
        raise RecordMalformed(f"{self.what} {problem} at byte {self.position} of the section")

    def varint(self, what: str, longest: int = _INT_BYTES) -> int:
        self.what = what
        raw = 0
        size = 0
        byte = 0x80
        while byte >= 0x80:
            if size == longest:
                self.fail(f"takes more than {longest} bytes")
            if self.position + size >= self.end:
                self.fail("is cut off")
            byte = self.section[self.position + size]
            raw |= (byte & 0x7F) << (7 * size)
            size += 1
        if raw >> (32 if longest == _INT_BYTES else 64):
            self.fail("does not fit its type")
        self.position += size
        return (raw >> 1) ^ -(raw & 1)

    def take(self, size: int) -> bytes:
        if size < 0:
            self.fail(f"is negative ({size})")
        if size > self.end - self.position:
            self.fail(f"{size} exceeds the {self.end - self.position} bytes left")
        start = self.position
        self.position += size
        return bytes(self.section[start : self.position])

    def nullable(self, what: str) -> bytes | None:
        size = self.varint(what)
        return None if size == -1 else self.take(size)


def parse_record(section: memoryview, position: int) -> ScalarRecord:
    """The record at `position`; raises `RecordMalformed`, which names the fault and its place."""
    reader = _Reader(section, position)
    size = reader.varint("record length")
    if not 0 < size <= len(section) - reader.position:
        reader.fail(f"{size} does not fit the {len(section) - reader.position} bytes left")
    reader.end = reader.position + size
    reader.what = "record attributes"
    if section[reader.position] != 0:
        reader.fail("are not zero")
    reader.position += 1
    timestamp_delta = reader.varint("timestamp delta", _LONG_BYTES)
    offset_delta = reader.varint("offset delta")
    key = reader.nullable("key length")
    value = reader.nullable("value length")
    header_count = reader.varint("header count")
    if not 0 <= header_count <= reader.end - reader.position:
        reader.fail(f"{header_count} does not fit the {reader.end - reader.position} bytes left")
    for _ in range(min(header_count, _HEADERS_EXPLAINED)):
        _parse_header(reader)
    if header_count <= _HEADERS_EXPLAINED and reader.position != reader.end:
        reader.what = "record length"
        reader.fail(f"leaves {reader.end - reader.position} bytes unread")
    return ScalarRecord(timestamp_delta, offset_delta, key, value, header_count, reader.end)


def _parse_header(reader: _Reader) -> None:
    size = reader.varint("header key length")
    key = reader.take(size)
    try:
        key.decode()
    except UnicodeDecodeError:
        reader.what = "header key"
        reader.fail("is not UTF-8")
    reader.nullable("header value length")


def explain(section: memoryview, position: int, record: int, base_offset: int) -> RecordMalformed:
    """The error for what a kernel found wrong; `record` is -1 when all records were sound."""
    where = f"in the batch at offset {base_offset}"
    if record < 0:
        return RecordMalformed(
            f"{len(section) - position} bytes follow the last record, "
            f"at byte {position} of the section, {where}"
        )
    try:
        parsed = parse_record(section, position)
    except RecordMalformed as problem:
        return RecordMalformed(f"record {record} {where}: {problem}")
    if parsed.header_count > _HEADERS_EXPLAINED:
        return RecordMalformed(
            f"record {record} {where}: one of its {parsed.header_count} headers is malformed, "
            f"record at byte {position} of the section"
        )
    return RecordMalformed(
        f"record {record} {where}: offset delta {parsed.offset_delta} at byte {position} of the "
        "section is not above the one before it and within the batch"
    )
