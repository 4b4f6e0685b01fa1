"""What a task does: reads its spans and gives Spark Arrow batches of about one megabyte.

A process keeps its connections for the next task with the same settings; one that was forked off
opens its own. Records that were deleted since the batch was planned are data loss, too.

Records are fetched by the name of their topic, which may be deleted, recreated and filled in the
meantime: so its id is compared before a span is read, and again when all of it was.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from onceflow.client import BlockingReader, OffsetOutOfRange, Range, ReaderSettings
from onceflow.spark.connection_cache import ConnectionCache
from onceflow.spark.errors import TopicRecreated
from onceflow.spark.source.data_loss import LossRule, deleted
from onceflow.spark.source.offsets import OffsetSpan
from onceflow.spark.source.option_values import HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadTask:
    """How tasks read; sent to the workers with every batch."""

    settings: ReaderSettings
    columns: tuple[str, ...]
    fail_on_data_loss: bool

    def read(self, spans: Sequence[OffsetSpan]) -> Iterator[pa.RecordBatch]:
        """The records of some spans, in order, by Spark's types."""
        for _, records in self.read_fetched(spans):
            yield from _pieces(records)

    def read_fetched(
        self, spans: Sequence[OffsetSpan]
    ) -> Iterator[tuple[OffsetSpan, pa.RecordBatch]]:
        """The records of some spans in the pieces in which they come, each with its span."""
        loss = LossRule(self.fail_on_data_loss)
        with READERS.lease(self.settings) as reader:
            for span, records in _records(reader, spans, loss):
                yield span, spark_columns(records, self.columns)
                _settle(os.getpid())


def _records(
    reader: BlockingReader, spans: Sequence[OffsetSpan], loss: LossRule
) -> Iterator[tuple[OffsetSpan, pa.RecordBatch]]:
    """What there is of spans, where topics still have the same log; else that is data loss. Leaders
    are asked once, behind the last record of all: that finds as much as asking for each span."""
    read: list[OffsetSpan] = []
    for span, then in zip_longest(spans, spans[1:]):
        if _was_recreated(reader, span):
            loss.recreated([span.topic])
            continue
        for records in _records_there(reader, span, loss, _to_ask_ahead(reader, then)):
            yield span, records
        read.append(span)
    if again := _read_from_another_log(reader, read):
        loss.recreated(again)
        # Spark has the rows already, so the task must fail: the next attempt finds the topic gone
        # before it passes anything on.
        raise TopicRecreated(
            f"topic {again[0]!r} was deleted and recreated while it was read: the batch has to "
            "be read again, without it"
        )


def _to_ask_ahead(reader: BlockingReader, then: OffsetSpan | None) -> Range | None:
    """Where a leader has to be asked for the topic first, its connection must be free."""
    if then is None or not then.size:
        return None
    if then.topic_id not in (None, reader.known_topic_id(then.topic)):
        return None
    return Range(then.topic, then.partition, then.start, then.end)


def _was_recreated(reader: BlockingReader, span: OffsetSpan) -> bool:
    wanted = span.topic_id
    if wanted is None or reader.known_topic_id(span.topic) == wanted:
        return False  # if it has changed since, that is seen behind the last record
    return not reader.is_topic(span.topic, span.partition, wanted)


def _read_from_another_log(reader: BlockingReader, spans: Sequence[OffsetSpan]) -> list[str]:
    """Topics, by what the leaders say that have sent the records, whatever other brokers say."""
    wanted = {span.place: span.topic_id for span in spans if span.topic_id is not None}
    if not wanted:
        return []
    said = reader.topic_ids(wanted)
    return sorted(
        {each.topic for each, topic_id in wanted.items() if said[each] not in (None, topic_id)}
    )


def _records_there(
    reader: BlockingReader, span: OffsetSpan, loss: LossRule, then: Range | None
) -> Iterator[pa.RecordBatch]:
    from onceflow.client import offset_at

    left = span
    while left.size > 0:
        try:
            for records in reader.read(*left.place, left.start, left.end, then=then):
                yield records
                left = left._replace(start=offset_at(records, records.num_rows - 1) + 1)
            return
        except OffsetOutOfRange:
            first, last = reader.ends(*left.place)
        if first <= left.start <= last:  # there by now
            continue
        if left.start > last:
            loss.truncated({left.place: (left.start, last)})
            return
        loss.report([deleted(left, first)])
        left = left._replace(start=first)


# --- connections --------------------------------------------------------------------------------

READERS: Final = ConnectionCache(BlockingReader)


@cache
def _settle(pid: int) -> None:
    """Once in a process, when all is loaded: the collector, which Spark's workers run after every
    task, need not look at code and compiled kernels each time."""
    gc.freeze()


# --- columns ------------------------------------------------------------------------------------


@cache
def spark_schema(columns: tuple[str, ...]) -> pa.Schema:
    """What Spark wants to the letter for the columns of its Kafka source."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types: dict[str, pa.DataType] = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS: pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(name, types[name]) for name in columns])


def spark_columns(records: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Columns of `FETCHED_SCHEMA` as Spark has them: some of them, times in microseconds, and no
    headers are null."""
    import pyarrow as pa

    schema = spark_schema(columns)
    made: list[Any] = []
    for name in columns:
        column = records.column(_FETCHED.get(name, name))
        if name == HEADERS:
            column = _headers(column, schema.field(name).type)
        elif name == "timestamp":
            column = column.cast(schema.field(name).type)
        made.append(column)
    return pa.RecordBatch.from_arrays(made, schema=schema)


_FETCHED: Final = {"timestampType": "timestamp_type"}


def _headers(column: Any, wanted: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    offsets = column.offsets.to_numpy()
    if offsets[0] == offsets[-1]:
        return pa.nulls(len(column), wanted)
    header = wanted.value_type
    values = pa.StructArray.from_arrays(
        [column.values.field(0), column.values.field(1)], fields=[header.field(0), header.field(1)]
    )
    return pa.ListArray.from_arrays(
        pa.array(offsets), values, type=wanted, mask=pa.array(np.diff(offsets) == 0)
    )


def _pieces(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Compressed records grow."""
    rows = records.num_rows
    each = max(1, rows * BATCH_BYTES // max(1, records.nbytes))
    for start in range(0, rows, each):
        yield records.slice(start, each)
