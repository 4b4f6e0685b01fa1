"""Folds the bytes of a log into a table: a start does this with the part behind the last snapshot.

There are two ways through the same bytes, with the same result. The plain one hands every batch to
`ProducerTable.apply`. For a long log a compiled loop first finds the batches that matter: the
latest few of each producer, the first ones of transactions, and markers. Loading numba for that
loop takes longer than replaying most logs, so only a long log makes a start load it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

from onceflow.producers.table import ProducerTable
from onceflow.records import (
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_PREFIX,
    StoredBatch,
    parse_marker,
    read_header,
)
from onceflow.runtime import loading

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_SAMPLE = 32
_WORTH_COMPILED = 100_000
"""From so many batches on it pays to load numba."""


def replay(table: ProducerTable, data: bytes | memoryview, remaining: int = 0) -> int:
    """Applies all whole batches at the start of `data`; returns the number of bytes they take.

    `data` is part of a log that recovery found sound, and all of it is durable: a transaction that
    ended in it is stable. `remaining` is the number of bytes that follow these, which helps to
    choose the way. Raises a `RecordError` for a malformed header or marker.
    """
    view = memoryview(data)
    if _batches(view, remaining) < _WORTH_COMPILED:
        return replay_plain(table, view)
    return replay_compiled(table, view)


def replay_plain(table: ProducerTable, view: memoryview) -> int:
    """Batch by batch."""
    position, size, end = 0, len(view), 0
    while size - position >= HEADER_SIZE:
        (length,) = _LENGTH.unpack_from(view, position + _LENGTH_AT)
        after = position + LENGTH_PREFIX + length
        if after > size:
            break
        end = _apply(table, view, position)
        position = after
    if end:
        table.settle(end)
    return position


def replay_compiled(table: ProducerTable, view: memoryview) -> int:
    """Only the batches that matter, found by a compiled loop."""
    # A program that forks while this thread imports would leave the child with a half-loaded numpy.
    with loading:
        import numpy

        from onceflow.producers import replay_kernel as kernel

    address = numpy.frombuffer(view, numpy.uint8).ctypes.data
    found = array("q", bytes(8 * kernel.FOUND))
    slots = bytes(8 * kernel.SLOTS)
    result = array("q", bytes(8 * kernel.RESULT))
    position, consumed = 0, 1
    while consumed and position < len(view):
        room = array("q", slots)
        kernel.find(
            address + position,
            len(view) - position,
            room.buffer_info()[0],
            found.buffer_info()[0],
            result.buffer_info()[0],
        )
        consumed, count, _ = result
        # In log order, each once: the loop notes a batch when it knows that it matters.
        _apply_all(table, view, (position + at for at in sorted(set(found[:count]))))
        position += consumed
    # The loop stops at a batch that is not whole or not sound; the plain way finds out which.
    return position + replay_plain(table, view[position:])


def _apply_all(table: ProducerTable, view: memoryview, positions: Iterable[int]) -> None:
    end = 0
    for position in positions:
        end = _apply(table, view, position)
    if end:
        table.settle(end)


def _apply(table: ProducerTable, view: memoryview, position: int) -> int:
    """The offset behind the batch."""
    header = read_header(view, position)
    marker = None
    if header.attributes & CONTROL_BIT and header.record_count:
        marker = parse_marker(StoredBatch(header, view[position : position + header.size]))
    table.apply(header, marker)
    return header.next_offset


def _batches(view: memoryview, remaining: int) -> int:
    """About how many batches there are, going by the first few."""
    position, seen = 0, 0
    while seen < _SAMPLE and len(view) - position >= HEADER_SIZE:
        (length,) = _LENGTH.unpack_from(view, position + _LENGTH_AT)
        if length < HEADER_SIZE - LENGTH_PREFIX:
            break
        position += LENGTH_PREFIX + length
        seen += 1
    return (len(view) + remaining) * seen // position if position else 0
