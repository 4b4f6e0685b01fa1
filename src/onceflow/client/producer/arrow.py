"""Arrow tables into batches, by partition, through compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.client.errors import NoSuchPartition
from onceflow.client.producer.batch import RecordInvalid
from onceflow.records import Codec, NewBatch, encode_all, one_array, partitions_for_keys

_WRITTEN = ("key", "value", "timestamp", "headers")
_BATCHES_OF_PIECE = 4
"""Enough that what a piece costs besides its bytes does not count; a millisecond or two of work."""


def encoded_by_partition(
    table: pa.Table | pa.RecordBatch,
    partitions: int,
    *,
    partition: int | None,
    sticky: int,
    max_batch_bytes: int,
    codec: Codec,
    now_ms: int,
) -> Iterator[tuple[int, list[NewBatch]]]:
    """Batches and their partition, rows in the table's order, a piece at a time: each is made when
    it is asked for, so that a loop has its turn between them. A row goes to `partition`, else to
    what its column of that name says, else where its key belongs, else to `sticky`."""
    rows = table.combine_chunks() if isinstance(table, pa.Table) else table
    if "value" not in rows.schema.names:
        raise RecordInvalid(f"a table needs a column 'value'; it has {rows.schema.names}")
    columns = rows.select([name for name in rows.schema.names if name in _WRITTEN])
    for number, part in _parts(rows, columns, partitions, partition, sticky):
        for piece in _pieces(part, _BATCHES_OF_PIECE * max_batch_bytes):
            yield (
                number,
                encode_all(piece, max_batch_bytes=max_batch_bytes, codec=codec, now_ms=now_ms),
            )


def highest_partition(table: pa.Table | pa.RecordBatch, partition: int | None) -> int:
    """Of those that are named for its rows; -1 when none is. Raises `RecordInvalid`."""
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise RecordInvalid(
            f"what send_table sends is a {type(table).__name__}; pass an Arrow table, such as "
            "pyarrow.table({'value': [b'paid']})"
        )
    if partition is not None:
        return partition
    if "partition" not in table.schema.names or not table.num_rows:
        return -1
    named: int | None = pc.max(one_array(table.column("partition")).cast(pa.int32())).as_py()
    return -1 if named is None else named


def _pieces(part: pa.Table | pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Its rows, in pieces of about so many bytes."""
    for chunk in part.to_batches() if isinstance(part, pa.Table) else [part]:
        count = -(-chunk.nbytes // most_bytes)
        rows = max(-(-chunk.num_rows // max(count, 1)), 1)
        for first in range(0, chunk.num_rows, rows):
            yield chunk.slice(first, rows)


def _parts(
    rows: pa.Table | pa.RecordBatch,
    columns: pa.Table | pa.RecordBatch,
    partitions: int,
    partition: int | None,
    sticky: int,
) -> Iterator[tuple[int, pa.Table | pa.RecordBatch]]:
    if partition is not None:
        if not 0 <= partition < partitions:
            raise NoSuchPartition(
                f"the topic has no partition {partition}; it has {partitions}, counted from 0"
            )
        yield partition, columns
        return
    numbers = _numbers(rows, partitions, sticky)
    if numbers is None:
        yield sticky, columns
        return
    wanted: list[int] = sorted(pc.unique(numbers).to_pylist())
    wrong = [each for each in wanted if not 0 <= each < partitions]
    if wrong:
        raise RecordInvalid(f"there are {partitions} partitions, and a row is for {wrong[0]}")
    for each in wanted:
        yield each, columns.filter(pc.equal(numbers, pa.scalar(each, pa.int32())))


def _numbers(rows: pa.Table | pa.RecordBatch, partitions: int, sticky: int) -> Any:
    """The partition of each row; None when all may go to one."""
    names = rows.schema.names
    if "partition" in names:
        given = one_array(rows.column("partition")).cast(pa.int32())
        if given.null_count == 0:
            return given
        return pc.coalesce(given, _by_key(rows, partitions, sticky))
    return _by_key(rows, partitions, sticky) if "key" in names else None


def _by_key(rows: pa.Table | pa.RecordBatch, partitions: int, sticky: int) -> Any:
    if "key" not in rows.schema.names:
        return pa.array([sticky] * rows.num_rows, pa.int32())
    keys = one_array(rows.column("key")).cast(pa.binary())
    filled: Any = pc.fill_null(keys, b"")
    by_key = partitions_for_keys(filled, partitions)
    return pc.if_else(pc.is_valid(keys), by_key, pa.scalar(sticky, pa.int32()))
