"""What a task of an Arrow pipeline does: reads its spans, transforms, encodes, and hands the rows
to the sink's own writing; in one process, and nothing of it in the JVM.

Rows stay where they are: a record of source partition p goes to partition p of the sink, modulo the
number of its partitions. So each output partition has one task, as the sink demands. A key must
belong where its row is, unless the pipeline says `partition = "source"`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.client import ReaderSettings
from onceflow.records import HEADERS, one_array, stray_partition
from onceflow.spark.errors import RowRefused
from onceflow.spark.formats import Format, Parser, TableUnusable, encode_values, to_bytes
from onceflow.spark.pipeline.plan import SinkPlan
from onceflow.spark.sink import TARGET, TopicLayout
from onceflow.spark.source import OffsetSpan, ReadTask, worth_tasks

STAYS: Final = "source"
"""As `partition` of a sink: rows stay in the partition of their source, whatever their key."""
READ: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
_OF_RECORD: Final = tuple(f"_{name}" for name in READ if name != "value")
_ERROR: Final = "error"
_REFUSED: Final = "refused by the function"


class FunctionFailed(RowRefused):
    """The function of the pipeline has raised an exception; it would again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowTask:
    """Goes to the workers with every batch."""

    settings: ReaderSettings
    fail_on_data_loss: bool
    parser: Parser
    function: Callable[[pa.Table], Any]
    sink: SinkPlan
    partitions: int
    """Of the sink, as they were when the batch was planned."""
    dead_letters: str | None
    zone: str = "UTC"
    """Of the session: that of times which are written."""

    def rows(self, spans: Iterable[OffsetSpan], layout: TopicLayout) -> Iterator[pa.RecordBatch]:
        """What is to be written, with the number of its output partition in each row."""
        read = ReadTask(self.settings, READ, self.fail_on_data_loss)
        for span, records in read.read_fetched(tuple(spans)):
            yield from self._tried(records, span, layout)

    def targets(self, spans: Iterable[OffsetSpan], layout: TopicLayout) -> list[int]:
        """The output partitions of these spans, but for dead letters."""
        base = layout.bases()[self.sink.topic or ""]
        return sorted({base + span.partition % self.partitions for span in spans})

    def _tried(
        self, records: pa.RecordBatch, span: OffsetSpan, layout: TopicLayout
    ) -> list[pa.RecordBatch]:
        try:
            return list(self._written(records, span, layout))
        except pa.ArrowException as error:
            raise TableUnusable(
                f"rows of {span.topic}-{span.partition} cannot be written as "
                f"{self.sink.format.value}: {error}"
            ) from error

    def _written(
        self, records: pa.RecordBatch, span: OffsetSpan, layout: TopicLayout
    ) -> Iterator[pa.RecordBatch]:
        parsed = self.parser.parse(records.column("value"))
        reasons = dict(parsed.bad)
        if reasons and self.dead_letters is None:
            row, reason = next(iter(sorted(reasons.items())))
            raise RowRefused(f"{_named(records, row)} cannot be used: {reason}. {_ADVICE}")
        table = _with_record(parsed.table, records, parsed.good)
        good, bad = self._called(table, span)
        number = span.partition % self.partitions
        if good.num_rows:
            yield self._encoded(good, number, span, layout)
        reasons |= _reasons(bad, records)
        if reasons:
            yield self._letters(records, reasons, number, layout)

    def _called(self, table: pa.Table, span: OffsetSpan) -> tuple[pa.Table, pa.Table | None]:
        if not table.num_rows:
            return table, None
        try:
            result = self.function(table)
        except Exception as error:
            raise FunctionFailed(_where(error)) from error
        good, bad = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if isinstance(good, pa.RecordBatch):
            good = pa.Table.from_batches([good])
        if not isinstance(good, pa.Table) or not (bad is None or isinstance(bad, pa.Table)):
            raise TableUnusable(
                f"the function returned {type(result).__name__} for {span.topic}-{span.partition}; "
                "it must return a pyarrow.Table, or two: (good, bad)"
            )
        if bad is not None and bad.num_rows and self.dead_letters is None:
            raise TableUnusable(f"the function returned bad rows. {_ADVICE}")
        return good, bad

    # --- the way out ----------------------------------------------------------------------------

    def _encoded(
        self, table: pa.Table, number: int, span: OffsetSpan, layout: TopicLayout
    ) -> pa.RecordBatch:
        sink = self.sink
        own = [name for name in table.column_names if name not in _OF_RECORD]
        columns: dict[str, Any] = {}
        if sink.format is Format.RAW:
            columns = {name: _column(table, name) for name in ("key", "headers") if name in own}
            own = [name for name in own if name not in columns]
        columns["value"] = encode_values(
            table.select(own), sink.format, sink.format_options, self.zone
        )
        if sink.key is not None:
            columns["key"] = to_bytes(_column(table, sink.key), zone=self.zone)
        if sink.headers:
            columns["headers"] = _headers(table, sink.headers, self.zone)
        if "key" in columns and sink.partition != STAYS:
            self._check_keys(columns["key"], number, span)
        return _batch(columns, layout.bases()[sink.topic or ""] + number)

    def _check_keys(self, keys: Any, number: int, span: OffsetSpan) -> None:
        stray = stray_partition(keys, self.partitions, number)
        if stray is not None:
            raise RowRefused(
                f"a row of {span.topic}-{span.partition} has a key that belongs to partition "
                f"{stray} of {self.sink.topic}, and rows of an Arrow pipeline stay in "
                f'partition {number}. Set sink.partition = "source" if that is right; to place '
                "rows by another key use sql or python"
            )

    def _letters(
        self, records: pa.RecordBatch, reasons: Mapping[int, str], number: int, layout: TopicLayout
    ) -> pa.RecordBatch:
        """The records as they were read, with headers that say why and from where."""
        there = layout.counts()[self.dead_letters or ""]
        if number >= there:
            raise RowRefused(
                f"{self.dead_letters!r} has {there} partitions and {self.sink.topic!r} has "
                f"{self.partitions} by now: an Arrow pipeline needs as many for dead letters"
            )
        rows = sorted(reasons)
        taken = records.take(pa.array(rows, pa.int64()))
        headers = [
            [
                *(kept or ()),
                {"key": "error", "value": reasons[row].encode()},
                {"key": "source.topic", "value": topic.encode()},
                {"key": "source.partition", "value": str(partition).encode()},
                {"key": "source.offset", "value": str(offset).encode()},
            ]
            for row, kept, topic, partition, offset in zip(
                rows,
                *(taken.column(name).to_pylist() for name in ("headers", *_PLACE)),
                strict=True,
            )
        ]
        columns = {
            "key": taken.column("key"),
            "value": taken.column("value"),
            "headers": pa.array(headers, HEADERS),
        }
        return _batch(columns, layout.bases()[self.dead_letters or ""] + number)


_PLACE: Final = ("topic", "partition", "offset")
_ADVICE: Final = "Add [dead_letters] with a topic for such records"


def _with_record(table: pa.Table, records: pa.RecordBatch, good: list[int] | None) -> pa.Table:
    """The columns of the schema, and those of the record."""
    of_record = records if good is None else records.take(pa.array(good, pa.int64()))
    for name in READ:
        if name != "value":
            table = table.append_column(f"_{name}", of_record.column(name))
    return table


def _reasons(bad: pa.Table | None, records: pa.RecordBatch) -> dict[int, str]:
    """Which records a function does not want, and why."""
    if bad is None or not bad.num_rows:
        return {}
    if "_offset" not in bad.column_names:
        raise TableUnusable("bad rows need the column _offset: it says which record they are")
    rows: Any = pc.index_in(bad.column("_offset"), value_set=records.column("offset"))
    reasons = [_REFUSED] * bad.num_rows
    if _ERROR in bad.column_names:
        errors = bad.column(_ERROR).to_pylist()
        reasons = [_REFUSED if each is None else str(each) for each in errors]
    if rows.null_count:
        raise TableUnusable("a bad row has an _offset that is none of the rows it was made of")
    return dict(zip(rows.to_pylist(), reasons, strict=True))


def _column(table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        raise TableUnusable(
            f"there is no column {name!r}; the function returned {', '.join(table.column_names)}"
        )
    return one_array(table.column(name))


def _headers(table: pa.Table, headers: Mapping[str, str], zone: str) -> Any:
    values = {
        name: to_bytes(_column(table, column), zone=zone).to_pylist()
        for name, column in headers.items()
    }
    return pa.array(
        [
            [{"key": name, "value": value} for name, value in zip(values, row, strict=True)]
            for row in zip(*values.values(), strict=True)
        ],
        HEADERS,
    )


def _batch(columns: Mapping[str, Any], target: int) -> pa.RecordBatch:
    rows = len(columns["value"])
    targets = pa.repeat(pa.scalar(target, pa.int32()), rows)
    return pa.record_batch({**columns, TARGET: targets})


def _where(error: Exception) -> str:
    """What was raised, and the last line of the function that led to it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    at = f" ({frames[0].filename}, line {frames[0].lineno})" if frames else ""
    return f"the function raised {type(error).__name__}: {error}{at}"


def _named(records: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (records.column(name)[row].as_py() for name in _PLACE)
    return f"the record at offset {offset} of {topic}-{partition}"


# --- who reads what -----------------------------------------------------------------------------


def shared_out(
    spans: Sequence[OffsetSpan], targets: int, tasks: int
) -> list[tuple[OffsetSpan, ...]]:
    """The spans of each task, of about one size: those with the same target are in one task."""
    by_target: dict[int, list[OffsetSpan]] = {}
    for span in spans:
        by_target.setdefault(span.partition % targets, []).append(span)
    count = min(worth_tasks(spans, tasks), len(by_target))
    shares: list[list[OffsetSpan]] = [[] for _ in range(count)]
    sizes = [0] * len(shares)
    for group in sorted(by_target.values(), key=lambda group: -sum(span.size for span in group)):
        least = sizes.index(min(sizes))
        shares[least] += group
        sizes[least] += sum(span.size for span in group)
    return [tuple(sorted(share)) for share in shares]
