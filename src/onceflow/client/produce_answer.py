"""The answer to Produce, read by hand: versions 9 to 12, whose fields are the same.

It is the one answer that a producer reads all the time, so it gets a reader of its own.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from onceflow.client.model import TopicPartition
from onceflow.errors import MessageMalformed
from onceflow.wire.primitives import INT32, read_count, read_int, read_text, skip_tags

_RESULT = struct.Struct(">ihqqq")
_FLEXIBLE = True


class PartitionAnswer(NamedTuple):
    """What became of one batch."""

    partition: TopicPartition
    error: int
    base_offset: int
    message: str | None


def read_produce_answer(buffer: memoryview) -> list[PartitionAnswer]:
    """All partitions of the answer whose body is `buffer`."""
    answers = []
    topic_count, at = read_count(_FLEXIBLE, buffer, 0)
    for _ in range(topic_count):
        topic, at = read_text(_FLEXIBLE, buffer, at)
        partition_count, at = read_count(_FLEXIBLE, buffer, at)
        for _ in range(partition_count):
            answer, at = _read_partition(topic or "", buffer, at)
            answers.append(answer)
        at = skip_tags(buffer, at)
    return answers


def _read_partition(topic: str, buffer: memoryview, at: int) -> tuple[PartitionAnswer, int]:
    end = at + _RESULT.size
    if end > len(buffer):
        raise MessageMalformed(f"the answer is cut off at byte {at}")
    number, error, base_offset, _, _ = _RESULT.unpack_from(buffer, at)
    reasons = []
    record_errors, at = read_count(_FLEXIBLE, buffer, end)
    for _ in range(record_errors):
        index, at = read_int(INT32, buffer, at)
        reason, at = read_text(_FLEXIBLE, buffer, at)
        at = skip_tags(buffer, at)
        reasons.append(f"record {index}: {reason}")
    message, at = read_text(_FLEXIBLE, buffer, at)
    at = skip_tags(buffer, at)
    partition = TopicPartition(topic, number)
    return PartitionAnswer(partition, error, base_offset, "; ".join(reasons) or message), at
