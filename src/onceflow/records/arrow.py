"""The border to Arrow: turns columns of any fitting type into the types and addresses that kernels
read.

Casts copy only when the type differs. An address is valid as long as the array it came from lives;
callers keep the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import ColumnsMalformed, ColumnsTooLarge

TIMESTAMP = pa.timestamp("ms", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("item", HEADER, nullable=False))
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
    ]
)


def one_array(column: Any) -> Any:
    """The column as a single array, whatever number of chunks it came in."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)  # joining would copy
    combined: Any = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        raise ColumnsTooLarge("a column holds more bytes than one Arrow array can")
    return combined


def cast(column: Any, target: pa.DataType, name: str, *, safe: bool = True) -> Any:
    """The column as `target`, or an error that names the column."""
    if column.type == target:
        return column
    try:
        return column.cast(target, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if "overflow" in str(error):
            raise ColumnsTooLarge(f"column {name!r} exceeds 2 GiB; send fewer rows") from error
        raise ColumnsMalformed(
            f"column {name!r} of type {column.type} cannot become {target}: {error}"
        ) from error


def to_binary(column: Any, name: str) -> Any:
    """A key or value column as Arrow binary."""
    return cast(one_array(column), pa.binary(), name)


def binary_source(column: Any) -> tuple[int, int, int, int, int]:
    """Offsets, data, end of data, validity (0: no nulls) and first validity bit of a column."""
    validity, offsets, data = column.buffers()
    if offsets is None:
        return 0, 0, 0, 0, 0
    return (
        offsets.address + 4 * column.offset,
        data.address if data is not None else 0,
        data.address + data.size if data is not None else 0,
        validity_address(validity, column),
        column.offset,
    )


def validity_address(validity: Any, column: Any) -> int:
    """Where the validity bits are; 0 when none of them is cleared."""
    return validity.address if validity is not None and column.null_count else 0


@dataclass(frozen=True, slots=True)
class RecordSource:
    """What the write kernels read: `entries` laid out as `layout.Source` says."""

    rows: int
    entries: list[int]
    alive: Sequence[Any]
    """The arrays that the addresses in `entries` point into."""


def record_source(columns: pa.RecordBatch | pa.Table, now_ms: int | None) -> RecordSource:
    """The columns of `RECORD_SCHEMA` that are there; offsets are not asked for."""
    names = set(columns.schema.names)
    if "value" not in names:
        raise ColumnsMalformed(f"there is no column 'value' among {sorted(names)}")
    value = to_binary(columns.column("value"), "value")
    if "key" in names:
        key = to_binary(columns.column("key"), "key")
    else:
        key = pa.nulls(columns.num_rows, pa.binary())
    timestamp = _timestamps(columns, names, now_ms)
    headers = _headers(columns, names)
    header_entries, list_entries, children = _header_entries(headers)
    entries = [
        *binary_source(key),
        *binary_source(value),
        *header_entries,
        timestamp.buffers()[1].address + 8 * timestamp.offset if columns.num_rows else 0,
        *list_entries,
    ]
    # All of them: a cast may have made an array that nothing else holds, and the kernel would read
    # freed memory.
    return RecordSource(columns.num_rows, entries, (key, value, timestamp, headers, children))


def _timestamps(columns: pa.RecordBatch | pa.Table, names: set[str], now_ms: int | None) -> Any:
    """Milliseconds in 64 bits, whatever the type calls them, and `now_ms` where there are none."""
    if "timestamp" in names:
        column = one_array(columns.column("timestamp"))
        if pa.types.is_timestamp(column.type) and column.type.unit != "ms":
            # Finer units lose what Kafka cannot hold; a time without a zone is taken as UTC.
            column = cast(column, pa.timestamp("ms", tz=column.type.tz), "timestamp", safe=False)
        if not pa.types.is_timestamp(column.type):
            column = cast(column, pa.int64(), "timestamp")
    else:
        column = pa.nulls(columns.num_rows, pa.int64())
    if not column.null_count:
        return column
    if now_ms is None:
        raise ColumnsMalformed("there are rows without a timestamp; pass now_ms for those")
    return pc.fill_null(column.cast(pa.int64()), pa.scalar(now_ms, pa.int64()))


def _headers(columns: pa.RecordBatch | pa.Table, names: set[str]) -> Any:
    """The headers column, or None when no row has any."""
    if "headers" not in names:
        return None
    column = one_array(columns.column("headers"))
    if pa.types.is_null(column.type) or not columns.num_rows:
        return None
    column = cast(
        column, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])), "headers"
    )
    flat = column.flatten()
    if not len(flat):
        return None
    if flat.null_count or flat.field(0).null_count:
        raise ColumnsMalformed("a header or a header key is null; only its value may be")
    return column


def _header_entries(headers: Any) -> tuple[list[int], list[int], Any]:
    if headers is None:
        return [0] * 10, [0, 0, 0], None
    validity, offsets = headers.buffers()[:2]
    keys, values = headers.values.field(0), headers.values.field(1)
    list_entries = [
        offsets.address + 4 * headers.offset,
        validity_address(validity, headers),
        headers.offset,
    ]
    return [*binary_source(keys), *binary_source(values)], list_entries, (keys, values)
