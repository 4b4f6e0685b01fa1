"""Fetch as a client speaks it, by hand: versions 4 to 12, of which 12 is the flexible one.

Records are slices of the answer and stay so until somebody decodes them. Every request asks for all
its partitions: there are no sessions that broker and client could disagree about.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire import (
    FETCH_FLEXIBLE_FROM,
    INT16,
    INT32,
    count,
    read_count,
    read_int,
    read_slice,
    read_text,
    skip_tags,
    text,
)

_SESSION_FROM: Final = 7
_LEADER_EPOCH_FROM: Final = 9
_RACK_FROM: Final = 11
_LOG_START_FROM: Final = 5
_TOP: Final = struct.Struct(">iiiib")
_NO_SESSION: Final = struct.pack(">ii", 0, -1)
_NOT_A_REPLICA: Final = -1
_UNKNOWN: Final = -1
_HEAD: Final = struct.Struct(">ihqq")
_HEAD_WITH_START: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")


class FetchFrom(NamedTuple):
    """From where, and how much, one partition is to be read."""

    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = _UNKNOWN
    """Of whom the client takes for the leader; -1: it does not know."""


def write_fetch(
    version: int,
    topics: Mapping[str, Sequence[FetchFrom]],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    read_committed: bool,
) -> bytes:
    """The body of a request."""
    flexible = version >= FETCH_FLEXIBLE_FROM
    tags = b"\x00" if flexible else b""
    parts = [_TOP.pack(_NOT_A_REPLICA, max_wait_ms, min_bytes, max_bytes, read_committed)]
    if version >= _SESSION_FROM:
        parts.append(_NO_SESSION)
    parts.append(count(flexible, len(topics)))
    for topic, partitions in topics.items():
        parts += (text(flexible, topic), count(flexible, len(partitions)))
        parts += [_partition(version, each) + tags for each in partitions]
        parts.append(tags)
    if version >= _SESSION_FROM:
        parts.append(count(flexible, 0))  # nothing to be forgotten
    if version >= _RACK_FROM:
        parts.append(text(flexible, ""))
    parts.append(tags)
    return b"".join(parts)


def _partition(version: int, wanted: FetchFrom) -> bytes:
    partition, offset, max_bytes, leader_epoch = wanted
    if version >= FETCH_FLEXIBLE_FROM:
        fields = (partition, leader_epoch, offset, _UNKNOWN, _UNKNOWN, max_bytes)
        return struct.pack(">iiqiqi", *fields)
    if version >= _LEADER_EPOCH_FROM:
        return struct.pack(">iiqqi", partition, leader_epoch, offset, _UNKNOWN, max_bytes)
    if version >= _LOG_START_FROM:
        return struct.pack(">iqqi", partition, offset, _UNKNOWN, max_bytes)
    return struct.pack(">iqi", partition, offset, max_bytes)


class FetchAnswer(NamedTuple):
    """What one partition gave."""

    partition: TopicPartition
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    """-1 where the broker does not say."""
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions; empty unless committed data was asked
    for."""
    records: memoryview
    """Batches, the last of which may be cut off."""
    preferred_read_replica: int
    """Which broker would rather be asked; -1: this one."""


def nothing_of(partition: TopicPartition) -> FetchAnswer:
    """For a partition that is left out of an answer: a broker that slows its readers down (a quota)
    answers so, with no partition at all."""
    return FetchAnswer(partition, 0, -1, -1, -1, (), memoryview(b""), -1)


class FetchAnswers(NamedTuple):
    """An answer; an error here is one of the whole request."""

    error: int
    partitions: list[FetchAnswer]
    throttle_ms: int = 0
    """For how long the broker had it wait: a quota."""


def read_fetch(version: int, buffer: memoryview) -> FetchAnswers:
    """All partitions of an answer; raises `MessageMalformed`."""
    flexible = version >= FETCH_FLEXIBLE_FROM
    throttle_ms, at = read_int(INT32, buffer, 0)
    error = 0
    if version >= _SESSION_FROM:
        error, at = read_int(INT16, buffer, at)
        _, at = read_int(INT32, buffer, at)
    answers = []
    topic_count, at = read_count(flexible, buffer, at)
    for _ in range(topic_count):
        topic, at = read_text(flexible, buffer, at)
        partition_count, at = read_count(flexible, buffer, at)
        for _ in range(partition_count):
            answer, at = _read_partition(version, flexible, topic or "", buffer, at)
            answers.append(answer)
        if flexible:
            at = skip_tags(buffer, at)
    return FetchAnswers(error, answers, throttle_ms)


def _read_partition(
    version: int, flexible: bool, topic: str, buffer: memoryview, at: int
) -> tuple[FetchAnswer, int]:
    form = _HEAD_WITH_START if version >= _LOG_START_FROM else _HEAD
    if at + form.size > len(buffer):
        raise MessageMalformed(f"the answer is cut off at byte {at}")
    number, error, high_watermark, stable, *start = form.unpack_from(buffer, at)
    aborted, at = _read_aborted(flexible, buffer, at + form.size)
    replica = _UNKNOWN
    if version >= _RACK_FROM:
        replica, at = read_int(INT32, buffer, at)
    records, at = read_slice(flexible, INT32, buffer, at)
    if flexible:
        at = skip_tags(buffer, at)
    answer = FetchAnswer(
        TopicPartition(topic, number),
        error,
        high_watermark,
        stable,
        start[0] if start else _UNKNOWN,
        aborted,
        buffer[:0] if records is None else records,
        replica,
    )
    return answer, at


def _read_aborted(
    flexible: bool, buffer: memoryview, at: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    number, at = read_count(flexible, buffer, at)
    pairs = []
    for _ in range(number):
        if at + _ABORTED.size > len(buffer):
            raise MessageMalformed(f"the aborted transactions are cut off at byte {at}")
        producer_id, first_offset = _ABORTED.unpack_from(buffer, at)
        pairs.append((producer_id, first_offset))
        at += _ABORTED.size
        if flexible:
            at = skip_tags(buffer, at)
    return tuple(pairs), at
