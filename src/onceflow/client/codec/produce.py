"""Produce as a client speaks it, by hand: versions 3 to 12, of which 9 is the first flexible one.

Batches are not copied into a request: it is a list of parts to be sent one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire import (
    INT32,
    PRODUCE_FLEXIBLE_FROM,
    count,
    read_count,
    read_int,
    read_text,
    skip_tags,
    text,
    uvarint,
)

Buffer: TypeAlias = bytes | memoryview

_LOG_START_FROM: Final = 5
_ERROR_TEXT_FROM: Final = 8
_TOP: Final = struct.Struct(">hi")
_RESULT: Final = struct.Struct(">ihqqq")
_RESULT_WITHOUT_START: Final = struct.Struct(">ihqq")
NO_OFFSET: Final = -1


def write_produce(
    version: int,
    topics: Mapping[str, Sequence[tuple[int, Buffer]]],
    *,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
) -> list[Buffer]:
    """The body of a request with one batch for each (partition, batch) of each topic."""
    flexible = version >= PRODUCE_FLEXIBLE_FROM
    tags = b"\x00" if flexible else b""
    parts: list[Buffer] = []
    head = [text(flexible, transactional_id), _TOP.pack(acks, timeout_ms)]
    head.append(count(flexible, len(topics)))
    for topic, batches in topics.items():
        head += (text(flexible, topic), count(flexible, len(batches)))
        for partition, batch in batches:
            size = len(batch)
            head += (INT32.pack(partition), uvarint(size + 1) if flexible else INT32.pack(size))
            parts += (b"".join(head), batch)
            head = [tags]
        head.append(tags)
    head.append(tags)
    parts.append(b"".join(head))
    return parts


class ProduceAnswer(NamedTuple):
    """What became of one batch. `message` is what the broker says about an error, if anything."""

    partition: TopicPartition
    error: int
    base_offset: int
    log_append_time: int
    """-1 where timestamps are those of the producer."""
    log_start_offset: int
    """-1 where the broker does not say."""
    message: str | None


def read_produce(
    version: int, buffer: memoryview, throttled: Callable[[int], None] | None = None
) -> list[ProduceAnswer]:
    """All partitions of an answer; raises `MessageMalformed`. `throttled` is called with the
    milliseconds for which the broker throttled the request."""
    flexible = version >= PRODUCE_FLEXIBLE_FROM
    form = _RESULT if version >= _LOG_START_FROM else _RESULT_WITHOUT_START
    answers = []
    topic_count, at = read_count(flexible, buffer, 0)
    for _ in range(topic_count):
        topic, at = read_text(flexible, buffer, at)
        partition_count, at = read_count(flexible, buffer, at)
        for _ in range(partition_count):
            if at + form.size > len(buffer):
                raise MessageMalformed(f"the answer is cut off at byte {at}")
            number, error, base_offset, append_time, *start = form.unpack_from(buffer, at)
            at += form.size
            message = None
            if version >= _ERROR_TEXT_FROM:
                message, at = _read_reasons(flexible, buffer, at)
            answers.append(
                ProduceAnswer(
                    TopicPartition(topic or "", number),
                    error,
                    base_offset,
                    append_time,
                    start[0] if start else NO_OFFSET,
                    message,
                )
            )
        if flexible:
            at = skip_tags(buffer, at)
    if throttled is not None:
        throttled(read_int(INT32, buffer, at)[0])
    return answers


def _read_reasons(flexible: bool, buffer: memoryview, at: int) -> tuple[str | None, int]:
    """What is said about single records, else about the batch; and the place behind it."""
    reasons = []
    record_errors, at = read_count(flexible, buffer, at)
    for _ in range(record_errors):
        index, at = read_int(INT32, buffer, at)
        reason, at = read_text(flexible, buffer, at)
        if flexible:
            at = skip_tags(buffer, at)
        reasons.append(f"record {index}: {reason}")
    message, at = read_text(flexible, buffer, at)
    if flexible:
        at = skip_tags(buffer, at)
    return "; ".join(reasons) or message, at
