"""Values of records into Arrow columns, for Arrow pipelines: ordinary records many at a time, by
Arrow's own readers, odd ones one by one (`record`); both give the same rows.

Records that are read together stand in one buffer, a line for each. No record can change how
another is read there, and the readers below say why; where one of them is not sure of a batch, or
Arrow's reader refuses it, the batch is cut into smaller ones, and what is left of those that are
still not clean is read record by record.

Nothing that stands in a record ends a query: one that cannot be read is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa

from onceflow.spark.formats.arrow_readers import CsvReader, JsonReader, Odd
from onceflow.spark.formats.format import Format
from onceflow.spark.formats.record import CsvRecord, JsonRecord, Marks, RecordRefused, Row, text_of
from onceflow.spark.formats.schema import (
    DataType,
    Field,
    ListOf,
    MapOf,
    Plain,
    StructOf,
    arrow_schema,
    nullable,
)

CSV_OPTIONS: Final = ("sep", "quote", "escape")
"""The options of CSV that are understood here, by Spark's names."""
_CUTS: Final = 16
"""Into so many parts a batch is cut in which a record is odd."""
_FEW: Final = 128
_FEW_BYTES: Final = 1 << 16
"""No more records than that, with no more bytes, are read one by one when one of them is odd: that
costs no more than to find out which one it is."""


class Parsed(NamedTuple):
    """The rows that could be read, which those are, and what is wrong with the others."""

    table: pa.Table
    good: list[int] | None
    """None: all."""
    bad: dict[int, str]


def option_problems(form: Format, options: Mapping[str, str]) -> Iterator[str]:
    """What Arrow pipelines cannot do of the options of a format."""
    known = CSV_OPTIONS if form is Format.CSV else ()
    for name, value in options.items():
        if name not in known:
            yield f"format_options has {name!r}, which Arrow pipelines do not know"
        elif len(value) != 1 or not value.isascii() or value in "\r\n\0":
            yield f"format_options has {name} = {value!r}, which must be one ASCII character here"
    marks = marks_of(options)
    if marks.sep in (marks.quote, marks.escape):
        yield f"format_options has sep = {marks.sep!r}, which is also quote or escape"


def marks_of(options: Mapping[str, str]) -> Marks:
    return Marks(**{name: options[name] for name in CSV_OPTIONS if name in options})


@dataclass(frozen=True)
class Parser:
    """Reads the values of one source."""

    format: Format
    fields: tuple[Field, ...]
    options: Mapping[str, str]
    zone: str = "UTC"
    """That of times that name none."""

    def problems(self) -> Iterator[str]:
        """What Arrow cannot read of this source."""
        if self.format is Format.JSON:
            for field in self.fields:
                if missing := _unreadable(field.type):
                    yield f"the schema has {field.name!r}, and Arrow reads no {missing} out of JSON"
        yield from option_problems(self.format, self.options)

    def parse(self, values: Any) -> Parsed:
        """`values` is an array of bytes."""
        if self.format is Format.RAW:
            return Parsed(pa.table({"value": values}), None, {})
        bad: dict[int, str] = {}
        tables = list(self._tables(values, 0, bad))
        good = None if not bad else [row for row in range(len(values)) if row not in bad]
        return Parsed(tables[0] if len(tables) == 1 else pa.concat_tables(tables), good, bad)

    def _tables(self, values: Any, start: int, bad: dict[int, str]) -> Iterator[pa.Table]:
        """The rows of all records; what is wrong with the one at `start` and those behind it is
        put into `bad`."""
        table = self._together(values)
        if table is not None:
            yield table
        elif len(values) == 1 or (len(values) <= _FEW and values.nbytes <= _FEW_BYTES):
            yield self._one_by_one(values, start, bad)
        else:
            size = -(-len(values) // _CUTS)
            for at in range(0, len(values), size):
                yield from self._tables(values.slice(at, size), start + at, bad)

    def _together(self, values: Any) -> pa.Table | None:
        """None when one of them is not ordinary."""
        if not len(values):
            return self._schema.empty_table()
        try:
            if values.null_count and self.format is not Format.TEXT:
                return None
            return self._complete(self._read(values))
        except (pa.ArrowException, Odd):
            return None

    def _complete(self, table: pa.Table) -> pa.Table:
        for field in self.fields:
            if not field.nullable and table.column(field.name).null_count:
                raise Odd
        return table

    def _one_by_one(self, values: Any, start: int, bad: dict[int, str]) -> pa.Table:
        rows: list[Row] = []
        refused: dict[int, str] = {}
        try:
            for number, value in enumerate(values.to_pylist(), start):
                try:
                    rows.append(self._row(value))
                except RecordRefused as error:
                    refused[number] = str(error)
            table = self._table(rows)
        except Exception as error:
            # Nobody has foreseen this: it is the end of one record, and not of the query.
            if len(values) == 1:
                bad[start] = f"the value cannot be read: {type(error).__name__}: {error}"
                return self._schema.empty_table()
            alone = (
                self._one_by_one(values.slice(at, 1), start + at, bad) for at in range(len(values))
            )
            return pa.concat_tables(alone)
        bad |= refused
        return table

    def _table(self, rows: list[Row]) -> pa.Table:
        columns = zip(*rows, strict=True) if rows else ((),) * len(self._schema)
        arrays: list[Any] = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    @cached_property
    def _schema(self) -> pa.Schema:
        if self.format is Format.TEXT:
            return pa.schema([("value", pa.string())])
        return arrow_schema(nullable(self.fields))

    @cached_property
    def _read(self) -> Callable[[Any], pa.Table]:
        match self.format:
            case Format.JSON:
                return JsonReader(nullable(self.fields), self.zone).read
            case Format.CSV:
                return CsvReader(nullable(self.fields), marks_of(self.options), self.zone).read
            case _:
                return lambda values: pa.table({"value": values.cast(pa.string())})

    @cached_property
    def _row(self) -> Callable[[bytes | None], Row]:
        match self.format:
            case Format.JSON:
                return JsonRecord(self.fields, self.zone).row
            case Format.CSV:
                return CsvRecord(self.fields, marks_of(self.options), self.zone).row
            case _:
                return lambda value: (None if value is None else text_of(value),)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made when it is first needed."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _unreadable(kind: DataType) -> str:
    """The name of a type in it that Arrow's reader of JSON does not have."""
    match kind:
        case MapOf():
            return "MAP"
        case Plain("binary"):
            return "BINARY"
        case ListOf(element):
            return _unreadable(element)
        case StructOf(fields):
            return next(filter(None, (_unreadable(each.type) for each in fields)), "")
        case _:
            return ""
