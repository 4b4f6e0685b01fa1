"""Produce, by hand: records stay slices of the frame, and an answer costs microseconds.

Versions 3 to 13. Version 9 is flexible; version 13 names topics by id alone.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from uuid import UUID

from onceflow.errors import MessageMalformed
from onceflow.wire.primitives import (
    INT16,
    INT32,
    LONGEST_NAME,
    MOST_ELEMENTS,
    check_string,
    count,
    read_int,
    read_text,
    read_uvarint,
    skip_tags,
    text,
)

PRODUCE_FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
_LOG_START_FROM = 5
_ERROR_TEXT_FROM = 8
_NO_TIME = -1
_KNOWN_TOPICS = 4096
"""The size of the caches of topic names and ids: nearly all requests are about a few topics."""
_MOST_RECORD_ERRORS = 1000
"""Over all partitions of a response. The first ones show the fault; each carries a text."""
_TOP = struct.Struct(">hii")
_FLEXIBLE_TOP = struct.Struct(">hi")
_PARTITION = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqqq")
_RESULT_WITHOUT_START = struct.Struct(">ihqq")

_ONE = count(False, 1), count(True, 1)
"""The number of elements of most arrays, in both forms."""

TopicRef: TypeAlias = str | UUID
"""A topic as the request names it: by name, or by id in the newest versions."""


class PartitionRecords(NamedTuple):
    """The records to append to one partition."""

    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """A Produce request; the records are slices of the frame and may be patched in place."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicRef, list[PartitionRecords]]]


class ProduceResult(NamedTuple):
    """The answer for one partition."""

    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time: int = _NO_TIME
    log_start_offset: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()


ProduceResponse: TypeAlias = list[tuple[TopicRef, list[ProduceResult]]]


def read_produce_request(buffer: memoryview, at: int, version: int) -> ProduceRequest:
    """The request whose body begins at `at`."""
    try:
        if version < PRODUCE_FLEXIBLE_FROM:
            return _read_fixed(buffer, at)
        return _read_flexible(buffer, at, version >= TOPIC_IDS_FROM)
    except (struct.error, IndexError) as error:  # fields that the buffer ends before
        raise MessageMalformed(f"a Produce request of {len(buffer)} bytes is cut off") from error


def _read_fixed(buffer: memoryview, at: int) -> ProduceRequest:
    transactional_id = None
    if buffer[at] < 0x80:  # else a negative length: there is none, as in most requests
        transactional_id, at = read_text(False, buffer, at)
    else:
        at += 2
    acks, timeout_ms, topic_count = _TOP.unpack_from(buffer, at)
    at += _TOP.size
    topics: list[tuple[TopicRef, list[PartitionRecords]]] = []
    elements = _counted(topic_count, buffer, at, 0)
    for _ in range(topic_count):
        (name_length,) = INT16.unpack_from(buffer, at)
        name, at = _read_name(name_length, buffer, at + 2)
        (partition_count,) = INT32.unpack_from(buffer, at)
        at += 4
        elements = _counted(partition_count, buffer, at, elements)
        partitions = []
        for _ in range(partition_count):
            partition, length = _PARTITION.unpack_from(buffer, at)
            start = at + _PARTITION.size
            at = start + length if length > 0 else start
            partitions.append(_records(partition, length, buffer, start, at))
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_flexible(buffer: memoryview, at: int, by_id: bool) -> ProduceRequest:
    transactional_id = None
    if buffer[at]:
        transactional_id, at = read_text(True, buffer, at)
    else:
        at += 1
    acks, timeout_ms = _FLEXIBLE_TOP.unpack_from(buffer, at)
    topic_count, at = read_uvarint(buffer, at + _FLEXIBLE_TOP.size)
    topics: list[tuple[TopicRef, list[PartitionRecords]]] = []
    elements = _counted(topic_count - 1, buffer, at, 0)
    for _ in range(topic_count - 1):
        topic, at = read_topic(by_id, True, buffer, at)
        partition_count, at = read_uvarint(buffer, at)
        elements = _counted(partition_count - 1, buffer, at, elements)
        partitions = []
        for _ in range(partition_count - 1):
            (partition,) = INT32.unpack_from(buffer, at)
            length, start = read_uvarint(buffer, at + 4)
            at = start + max(length - 1, 0)
            partitions.append(_records(partition, length - 1, buffer, start, at))
            at = at + 1 if buffer[at] == 0 else skip_tags(buffer, at)
        topics.append((topic, partitions))
        at = at + 1 if buffer[at] == 0 else skip_tags(buffer, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _records(
    partition: int, length: int, buffer: memoryview, start: int, end: int
) -> PartitionRecords:
    if end > len(buffer):
        raise MessageMalformed(f"{length} bytes of records where {len(buffer) - start} are left")
    return PartitionRecords(partition, buffer[start:end] if length >= 0 else None)


def _counted(count: int, buffer: memoryview, at: int, before: int) -> int:
    """The elements of all arrays so far. One takes a byte at least."""
    if count > len(buffer) - at:
        raise MessageMalformed(f"{count} elements where {len(buffer) - at} bytes are left")
    if count > MOST_ELEMENTS - before:
        raise MessageMalformed("more elements in one message than the broker allows")
    return before + count if count > 0 else before


def read_topic(by_id: bool, flexible: bool, buffer: memoryview, at: int) -> tuple[TopicRef, int]:
    """A topic's id or name, and the place behind it."""
    if by_id:
        if at + 16 > len(buffer):
            raise MessageMalformed(f"a topic id is cut off at byte {at}")
        return _topic_id(bytes(buffer[at : at + 16])), at + 16
    if flexible:
        length, at = read_uvarint(buffer, at)
        return _read_name(length - 1, buffer, at)
    length, at = read_int(INT16, buffer, at)
    return _read_name(length, buffer, at)


def _read_name(length: int, buffer: memoryview, at: int) -> tuple[str, int]:
    end = at + length
    if length < 0:
        raise MessageMalformed(f"a topic without a name at byte {at}")
    if end > len(buffer):
        raise MessageMalformed(f"{length} bytes at byte {at}, {len(buffer) - at} are left")
    if length > LONGEST_NAME:
        check_string(length, at)
    try:
        return str(buffer[at:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise MessageMalformed(f"a topic's name at byte {at} is not UTF-8") from error


@lru_cache(_KNOWN_TOPICS)
def _topic_id(data: bytes) -> UUID:
    return UUID(bytes=data)


def topic_bytes(flexible: bool, topic: TopicRef) -> bytes:
    """A topic in the form in which the request named it."""
    if isinstance(topic, str) and len(topic) > LONGEST_NAME:
        return text(flexible, topic)  # not cached: its length is the client's choice
    return _kept(flexible, topic)


@lru_cache(_KNOWN_TOPICS)
def _kept(flexible: bool, topic: TopicRef) -> bytes:
    return topic.bytes if isinstance(topic, UUID) else text(flexible, topic)


def write_produce_response(response: ProduceResponse, version: int) -> bytes:
    """The body of the answer."""
    flexible = version >= PRODUCE_FLEXIBLE_FROM
    tags = b"\x00" if flexible else b""
    one = _ONE[flexible]
    parts = [one if len(response) == 1 else count(flexible, len(response))]
    may_name = _MOST_RECORD_ERRORS
    for topic, results in response:
        parts.append(topic_bytes(flexible, topic))
        parts.append(one if len(results) == 1 else count(flexible, len(results)))
        for result in results:
            if result.record_errors:
                result = result._replace(record_errors=result.record_errors[:may_name])
                may_name -= len(result.record_errors)
            parts.append(_result(result, version, flexible))
        parts.append(tags)
    parts.append(b"\x00\x00\x00\x00")  # never throttled
    parts.append(tags)
    return b"".join(parts)


def _result(result: ProduceResult, version: int, flexible: bool) -> bytes:
    partition, error, base_offset, append_time, start_offset, said, record_errors = result
    if version < _LOG_START_FROM:
        return _RESULT_WITHOUT_START.pack(partition, error, base_offset, append_time)
    start = _RESULT.pack(partition, error, base_offset, append_time, start_offset)
    if version < _ERROR_TEXT_FROM:
        return start
    if said is None and not record_errors:  # all went well
        return start + (b"\x01\x00\x00" if flexible else b"\x00\x00\x00\x00\xff\xff")
    tags = b"\x00" if flexible else b""
    errors = [
        INT32.pack(index) + text(flexible, message) + tags for index, message in record_errors
    ]
    message = text(flexible, said)
    return b"".join((start, count(flexible, len(errors)), *errors, message, tags))
