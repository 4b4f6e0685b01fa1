"""The answer to DescribeProducers, version 0, written by hand: a partition may have a hundred
thousand producers, and an object for each would make everybody wait."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from onceflow.wire.primitives import INT32, count, text

_START = INT32.pack(0)  # never throttled
_PARTITION = struct.Struct(">ihB")  # index, error code, no message
_PRODUCER = struct.Struct(">qiiqiqB")
_NO_TAGS = b"\0"


class ProducerRow(NamedTuple):
    """One producer as it is described; -1 is none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


class DescribedPartition(NamedTuple):
    """The producers of a partition: how many, and as `write_producers` gives them, in parts."""

    partition: int
    error: int
    producer_count: int = 0
    producers: Sequence[bytes] = ()


def write_producers(rows: Sequence[ProducerRow]) -> bytes:
    """Some producers of a partition."""
    return b"".join([_PRODUCER.pack(*row, 0) for row in rows])


def write_describe_producers_response(
    topics: Sequence[tuple[str, Sequence[DescribedPartition]]],
) -> list[bytes]:
    """The whole answer, in parts."""
    parts = [_START + count(True, len(topics))]
    for name, partitions in topics:
        parts.append(text(True, name) + count(True, len(partitions)))
        for index, error, number, producers in partitions:
            parts.append(_PARTITION.pack(index, error, 0) + count(True, number))
            parts += producers
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
    parts.append(_NO_TAGS)
    return parts
