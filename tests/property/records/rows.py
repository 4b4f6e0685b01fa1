"""Records drawn at random, as rows and as columns."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


Header = tuple[str, bytes | None]


Row = tuple[bytes | None, bytes | None, list[Header], int]


blob = st.none() | st.binary(max_size=200) | st.binary(min_size=500, max_size=700)


header = st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=70))


def rows_of(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    row = st.tuples(blob, blob, st.just([]) | st.lists(header, max_size=4), times)
    return st.lists(row, min_size=1, max_size=80)


def to_columns(rows: list[Row]) -> pa.RecordBatch:
    keys, values, headers, times = zip(*rows, strict=True)
    dicts = [[{"key": key, "value": value} for key, value in row] for row in headers]
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(dicts, HEADERS),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
