"""Fetch, by hand: the answer is a few head bytes around spans of files that are never copied.

Versions 4 to 18. Version 12 is flexible; from version 13 on topics are named by id alone; from
version 15 on a follower would say who it is in a tagged field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from onceflow.errors import MessageMalformed
from onceflow.wire.primitives import (
    INT32,
    Budget,
    count,
    read_count,
    read_text,
    read_uvarint,
    skip_tags,
    uvarint,
)
from onceflow.wire.produce import TopicRef, read_topic, topic_bytes

FETCH_FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
_SESSION_FROM = 7
_LEADER_EPOCH_FROM = 9
_RACK_FROM = 11
_LOG_START_FROM = 5
_REPLICA_ID_UNTIL = 14
CONSUMER = -1

# replica_id (until v14), max_wait, min_bytes, max_bytes, isolation, [v7+ session id, session epoch]
_TOP = {
    (True, False): struct.Struct(">iiiib"),
    (True, True): struct.Struct(">iiiibii"),
    (False, True): struct.Struct(">iiibii"),
}
# partition, [v9+ leader epoch], fetch offset, [v12+ last fetched epoch], [v5+ log start], max bytes
_PARTITION_FORMS = {
    "plain": struct.Struct(">iqi"),
    "log start": struct.Struct(">iqqi"),
    "leader epoch": struct.Struct(">iiqqi"),
    "fetched epoch": struct.Struct(">iiqiqi"),
}
_HEAD = struct.Struct(">ihqq")
_HEAD_WITH_START = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_NO_REPLICA = b"\xff\xff\xff\xff"


class BytesSource(Protocol):
    """Records to be sent: a span of a file."""

    @property
    def length(self) -> int: ...


class FetchPartition(NamedTuple):
    """From where one partition is to be read."""

    partition: int
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """A Fetch request."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicRef, list[FetchPartition]]]


class FetchResult(NamedTuple):
    """The answer for one partition."""

    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions, for readers of committed data."""
    records: BytesSource | None = None
    diverging_epoch: tuple[int, int] | None = None


class FetchResponse(NamedTuple):
    """A Fetch response; an error here is one of the session, not of a partition."""

    topics: list[tuple[TopicRef, list[FetchResult]]]
    error: int = 0


Part: TypeAlias = bytes | BytesSource


def read_fetch_request(buffer: memoryview, at: int, version: int) -> FetchRequest:
    """The request whose body begins at `at`."""
    flexible = version >= FETCH_FLEXIBLE_FROM
    replica_id, at, top = _read_top(buffer, at, version)
    topic_count, at = read_count(flexible, buffer, at)
    budget = Budget()
    budget.spend(topic_count)
    topics = []
    form = _partition_form(version)
    for _ in range(topic_count):
        topic, at = read_topic(version >= TOPIC_IDS_FROM, flexible, buffer, at)
        partition_count, at = read_count(flexible, buffer, at)
        budget.spend(partition_count)
        partitions = []
        for _ in range(partition_count):
            if at + form.size > len(buffer):
                raise MessageMalformed(f"a partition to fetch is cut off at byte {at}")
            partitions.append(_partition(form.unpack_from(buffer, at), version))
            at += form.size
            if flexible:
                at = skip_tags(buffer, at)
        topics.append((topic, partitions))
        if flexible:
            at = skip_tags(buffer, at)
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = top
    if version >= TOPIC_IDS_FROM + 2:
        replica_id = _replica_state(buffer, _skip_forgotten(buffer, at, version))
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation == 1,
        session_id,
        session_epoch,
        topics,
    )


def _read_top(buffer: memoryview, at: int, version: int) -> tuple[int, int, tuple[int, ...]]:
    with_replica, with_session = version <= _REPLICA_ID_UNTIL, version >= _SESSION_FROM
    form = _TOP[with_replica, with_session]
    if at + form.size > len(buffer):
        raise MessageMalformed(f"the request is cut off at byte {at}")
    values: tuple[int, ...] = form.unpack_from(buffer, at)
    replica_id = CONSUMER
    if with_replica:
        replica_id, *rest = values
        values = tuple(rest)
    if not with_session:
        values += (0, -1)
    return replica_id, at + form.size, values


def _partition_form(version: int) -> struct.Struct:
    if version >= FETCH_FLEXIBLE_FROM:
        return _PARTITION_FORMS["fetched epoch"]
    if version >= _LEADER_EPOCH_FROM:
        return _PARTITION_FORMS["leader epoch"]
    return _PARTITION_FORMS["log start" if version >= _LOG_START_FROM else "plain"]


def _partition(values: tuple[int, ...], version: int) -> FetchPartition:
    if version >= FETCH_FLEXIBLE_FROM:
        partition, leader_epoch, offset, fetched_epoch, _, max_bytes = values
        return FetchPartition(partition, leader_epoch, offset, fetched_epoch, max_bytes)
    if version >= _LEADER_EPOCH_FROM:
        partition, leader_epoch, offset, _, max_bytes = values
        return FetchPartition(partition, leader_epoch, offset, -1, max_bytes)
    return FetchPartition(values[0], -1, values[1], -1, values[-1])


def _skip_forgotten(buffer: memoryview, at: int, version: int) -> int:
    """Past the forgotten topics (without sessions there is nothing to forget) and the rack."""
    topic_count, at = read_count(True, buffer, at)
    Budget().spend(topic_count)
    for _ in range(topic_count):
        _, at = read_topic(version >= TOPIC_IDS_FROM, True, buffer, at)
        partition_count, at = read_count(True, buffer, at)
        at = skip_tags(buffer, at + 4 * max(partition_count, 0))
    _, at = read_text(True, buffer, at)
    return at


def _replica_state(buffer: memoryview, at: int) -> int:
    """The follower's id in tagged field 1, if there is one."""
    if at < len(buffer) and buffer[at] == 0:
        return CONSUMER
    number, at = read_uvarint(buffer, at)
    for _ in range(min(number, len(buffer))):
        tag, at = read_uvarint(buffer, at)
        size, at = read_uvarint(buffer, at)
        if tag == 1 and at + 4 <= len(buffer):
            replica_id: int = INT32.unpack_from(buffer, at)[0]
            return replica_id
        at += size
    return CONSUMER


def write_fetch_response(response: FetchResponse, version: int) -> list[Part]:
    """The body of the answer: bytes and spans, to be sent one after the other."""
    flexible = version >= FETCH_FLEXIBLE_FROM
    tags = b"\x00" if flexible else b""
    parts: list[Part] = []
    head = [b"\x00\x00\x00\x00"]  # never throttled
    if version >= _SESSION_FROM:
        head.append(struct.pack(">hi", response.error, 0))
    head.append(count(flexible, len(response.topics)))
    for topic, results in response.topics:
        head += (topic_bytes(flexible, topic), count(flexible, len(results)))
        for result in results:
            head.append(_result_head(result, version, flexible))
            if result.records is not None and result.records.length:
                parts += (b"".join(head), result.records)
                head = []
            head.append(_result_tags(result, flexible))
        head.append(tags)
    head.append(tags)
    parts.append(b"".join(head))
    return parts


def _result_head(result: FetchResult, version: int, flexible: bool) -> bytes:
    """All of a partition's answer in front of the records, their length included."""
    index, error, high_watermark, stable, log_start, aborted, records, _ = result
    if version >= _LOG_START_FROM:
        start = _HEAD_WITH_START.pack(index, error, high_watermark, stable, log_start)
    else:
        start = _HEAD.pack(index, error, high_watermark, stable)
    if aborted is None:
        start += b"\x00" if flexible else b"\xff\xff\xff\xff"
    else:
        tags = b"\x00" if flexible else b""
        pairs = [_ABORTED.pack(*pair) + tags for pair in aborted]
        start += count(flexible, len(pairs)) + b"".join(pairs)
    if version >= _RACK_FROM:
        start += _NO_REPLICA
    return start + count(flexible, records.length if records is not None else 0)


def _result_tags(result: FetchResult, flexible: bool) -> bytes:
    if not flexible:
        return b""
    if result.diverging_epoch is None:
        return b"\x00"
    body = struct.pack(">iq", *result.diverging_epoch) + b"\x00"
    return b"\x01\x00" + uvarint(len(body)) + body
