"""Fetched batches as Arrow columns, or as records one by one.

The columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestamp type and headers. Loaded when the first records are there: Arrow takes its time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from onceflow.client.errors import RecordsUnreadable
from onceflow.errors import RecordError
from onceflow.records import (
    HEADERS,
    LOG_APPEND_TIME_BIT,
    TIMESTAMP,
    Portion,
    StoredBatch,
    decode,
    decode_portion,
)
from onceflow.types import TopicPartition

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", TIMESTAMP, nullable=False),
    pa.field("timestamp_type", pa.int32(), nullable=False),
    pa.field("headers", HEADERS, nullable=False),
]
FETCHED_SCHEMA: Final = pa.schema(_FIELDS)
_OFFSET: Final = 4

DECODED_BYTES: Final = 32 << 20
"""About how much becomes one batch of columns, decompressed: what was sent says little about it."""


class Record(NamedTuple):
    """One record. `timestamp` is in milliseconds; `timestamp_type` says who set it: 0 the
    producer, 1 the broker."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


_PLACE: Final = attrgetter("topic", "partition")
Columns: TypeAlias = tuple[Iterable[Any], ...]
_made_record: Final = partial(tuple.__new__, Record)
"""Without the constructor of a named tuple, which is Python and slow."""


def columns_of(
    partition: TopicPartition, batches: Sequence[StoredBatch], first: int, end: int | None = None
) -> pa.RecordBatch:
    """The records of batches of one partition with offsets from `first` on and below `end`; raises
    what `decode` does."""
    return _completed(partition, decode(batches), batches, first, end)


def portion_of(
    partition: TopicPartition,
    batches: Sequence[StoredBatch],
    first: int,
    end: int | None = None,
    *,
    most: int,
    limit: int,
) -> Portion:
    """As `columns_of`, of the first batches only, which are together about `most` bytes when they
    are decompressed, and none more than `limit`. Raises `RecordsUnreadable`, which is about the
    first one."""
    try:
        portion = decode_portion(batches, most, limit=limit)
    except RecordError as error:
        header = batches[0].header
        offset = max(first, header.base_offset)
        raise RecordsUnreadable.of(
            partition, offset, error, next_offset=header.next_offset
        ) from error
    used = batches[: portion.batches]
    return portion._replace(rows=_completed(partition, portion.rows, used, first, end))


def portions_of(
    partition: TopicPartition, batches: Sequence[StoredBatch], first: int, end: int, *, limit: int
) -> Iterator[pa.RecordBatch]:
    """As `columns_of`, one portion after the other."""
    while batches:
        portion = portion_of(partition, batches, first, end, most=DECODED_BYTES, limit=limit)
        batches = batches[portion.batches :]
        if portion.rows.num_rows:
            yield portion.rows


def _completed(
    partition: TopicPartition,
    records: pa.RecordBatch,
    batches: Sequence[StoredBatch],
    first: int,
    end: int | None,
) -> pa.RecordBatch:
    """All columns, of what is wanted of the records of these batches."""
    rows = records.num_rows
    columns = [
        records.column(0),
        records.column(1),
        # Not left to guess the type, for which Arrow looks for other packages every time.
        pa.repeat(pa.scalar(partition.topic, pa.string()), rows),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), rows),
        records.column(4),
        records.column(3),
        _timestamp_types(batches, rows),
        records.column(2),
    ]
    made = pa.RecordBatch.from_arrays(columns, schema=FETCHED_SCHEMA)
    if not rows:
        return made
    starts_early = bool(batches[0].header.base_offset < first)
    if starts_early or (end is not None and batches[-1].header.next_offset > end):
        offsets: Any = records.column(4).to_numpy()
        start = int(np.searchsorted(offsets, first))
        stop = rows if end is None else int(np.searchsorted(offsets, end))
        made = made.slice(start, max(0, stop - start))
    return made


def _timestamp_types(batches: Sequence[StoredBatch], rows: int) -> Any:
    """Almost always one for all: a topic's setting."""
    types = [
        (batch.header.attributes & LOG_APPEND_TIME_BIT) // LOG_APPEND_TIME_BIT for batch in batches
    ]
    if len(set(types)) <= 1:
        return pa.repeat(pa.scalar(types[0] if types else 0, pa.int32()), rows)
    counts = [batch.header.record_count for batch in batches]
    return pa.array(np.repeat(np.array(types, np.int32), counts))


def offset_at(batch: pa.RecordBatch, row: int) -> int:
    """The offset of one row."""
    offset: int = batch.column(_OFFSET)[row].as_py()
    return offset


def firsts_of(
    found: Record | list[Record] | dict[TopicPartition, list[Record]] | pa.Table,
) -> dict[TopicPartition, int]:
    """The first offset of each partition that is among them, in order within each."""
    firsts: dict[TopicPartition, int] = {}
    if isinstance(found, pa.Table):
        for batch in found.to_batches():  # each of one partition
            if batch.num_rows:
                place = TopicPartition(batch.column(2)[0].as_py(), batch.column(3)[0].as_py())
                firsts.setdefault(place, offset_at(batch, 0))
        return firsts
    if isinstance(found, dict):
        found = list(chain.from_iterable(found.values()))
    records = [found] if isinstance(found, Record) else found
    for name, rows in groupby(records, key=_PLACE):
        firsts.setdefault(TopicPartition(*name), next(rows).offset)
    return firsts


def records_of(batches: Iterable[pa.RecordBatch]) -> list[Record]:
    """The rows of columns of `FETCHED_SCHEMA`."""
    rows = [records_in(values_of(batch)) for batch in batches]
    with _no_collection():
        return list(chain.from_iterable(rows))


@contextmanager
def _no_collection() -> Iterator[None]:
    """While a list of records is made no garbage is looked for, as none of them can be garbage yet:
    a collection for every 700 and now and then one of all there is took half of the time of a poll.
    (From Python 3.12 on no call into C is interrupted by one, and making that list is one call.)"""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def values_of(batch: pa.RecordBatch) -> Columns:
    """The columns of one partition as values of Python, in the order of a record's fields."""
    if not batch.num_rows:
        return ((),)
    column = batch.column
    return (
        repeat(column(2)[0].as_py()),
        repeat(column(3)[0].as_py()),
        column(_OFFSET).to_numpy().tolist(),
        column(5).view(pa.int64()).to_numpy().tolist(),
        column(6).to_numpy().tolist(),
        _bytes(column(0)),
        _bytes(column(1)),
        _headers(column(7)),
    )


def records_in(columns: Columns) -> Iterator[Record]:
    """Each is made when it is asked for. A caller that goes through many and keeps none so never
    has many, and the garbage collector does not look at them again and again."""
    return map(_made_record, zip(*columns, strict=False))  # some of them have no end


def _bytes(column: Any) -> Iterable[bytes | None]:
    """The values, made by Arrow all at once: much faster than one by one."""
    if column.null_count == len(column):
        return repeat(None)
    found: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def _headers(column: Any) -> Iterable[tuple[tuple[str, bytes | None], ...]]:
    if not len(column.flatten()):
        return repeat(())
    return [tuple((each["key"], each["value"]) for each in row) for row in column.to_pylist()]
