"""Values of records into Arrow columns, for Arrow pipelines: many rows at once through Arrow's own
readers, and each row that those refuse found by halving.

What goes through together must be one row for each value: values are wrapped so that none can be
two rows, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from onceflow.spark.formats_schema import (
    DataType,
    Field,
    ListOf,
    MapOf,
    Plain,
    StructOf,
    arrow_schema,
)
from onceflow.spark.pipeline_plan import Format

_WRAPPED: Final = "v"
CSV_OPTIONS: Final[Mapping[str, str]] = {
    "sep": "delimiter",
    "quote": "quote_char",
    "escape": "escape_char",
}
"""The options of CSV that are understood here, by Spark's names, with Arrow's."""


class Parsed(NamedTuple):
    """The rows that could be read, which those are, and what is wrong with the others."""

    table: pa.Table
    good: list[int] | None
    """None: all."""
    bad: dict[int, str]


@dataclass(frozen=True, slots=True)
class Parser:
    """Reads the values of one source."""

    format: Format
    fields: tuple[Field, ...]
    options: Mapping[str, str]

    def problems(self) -> Iterator[str]:
        """What Arrow cannot read of this source."""
        if self.format is Format.JSON:
            for field in self.fields:
                if missing := _unreadable(field.type):
                    yield f"the schema has {field.name!r}, and Arrow reads no {missing} out of JSON"
        known = CSV_OPTIONS if self.format is Format.CSV else {}
        for name in self.options:
            if name not in known:
                yield f"format_options has {name!r}, which Arrow pipelines do not know"

    def parse(self, values: Any) -> Parsed:
        """`values` is an array of bytes."""
        if self.format is Format.RAW:
            return Parsed(pa.table({"value": values}), None, {})
        read = self._reader()
        tables, bad = [], {}
        for row, found in _halved(values, read, 0):
            if isinstance(found, str):
                bad[row] = found
            else:
                tables.append(found)
        if not tables:
            tables = [read(values.slice(0, 0))]
        good = None if not bad else [row for row in range(len(values)) if row not in bad]
        return Parsed(pa.concat_tables(tables), good, bad)

    def _reader(self) -> Callable[[Any], pa.Table]:
        match self.format:
            case Format.JSON:
                return self._json
            case Format.CSV:
                return self._csv
            case _:
                return _text

    def _json(self, values: Any) -> pa.Table:
        schema = arrow_schema(tuple(_nullable(each) for each in self.fields))
        if not len(values):
            return schema.empty_table()
        wrapped = pc.binary_join_element_wise(
            pa.scalar(b'{"v":'), values, pa.scalar(b"}\n"), pa.scalar(b"")
        )
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([(_WRAPPED, pa.struct(list(schema)))]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        )
        block = pyarrow.json.ReadOptions(block_size=max(1 << 20, wrapped.nbytes), use_threads=False)
        found = pyarrow.json.read_json(_file(wrapped), block, options)
        rows: Any = found.column(_WRAPPED).combine_chunks()
        if len(rows) != len(values) or rows.null_count:
            raise pa.ArrowInvalid("it is no object")
        return self._complete(pa.Table.from_arrays(rows.flatten(), schema=schema))

    def _csv(self, values: Any) -> pa.Table:
        schema = arrow_schema(tuple(_nullable(each) for each in self.fields))
        if not len(values):
            return schema.empty_table()
        chosen: dict[str, Any] = {CSV_OPTIONS[name]: text for name, text in self.options.items()}
        lines = pc.binary_join_element_wise(values, pa.scalar(b"\n"), pa.scalar(b""))
        found = pyarrow.csv.read_csv(
            _file(lines),
            pyarrow.csv.ReadOptions(
                column_names=schema.names,
                use_threads=False,
                block_size=max(1 << 20, lines.nbytes),
            ),
            pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False, **chosen),
            pyarrow.csv.ConvertOptions(column_types=schema, strings_can_be_null=True),
        )
        if len(found) != len(values):
            raise pa.ArrowInvalid("it is not one line")
        return self._complete(found.combine_chunks())

    def _complete(self, table: pa.Table) -> pa.Table:
        for field in self.fields:
            if not field.nullable and table.column(field.name).null_count:
                raise pa.ArrowInvalid(f"{field.name} is null")
        return table


def _nullable(field: Field) -> Field:
    return Field(field.name, field.type)


def _text(values: Any) -> pa.Table:
    return pa.table({"value": values.cast(pa.string())})


def _file(array: Any) -> Any:
    """The bytes of all its values behind each other."""
    _, offsets, data = array.buffers()
    ends: Any = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets])
    return pa.BufferReader(data.slice(0, ends[-1].as_py()))


def _halved(
    values: Any, read: Callable[[Any], pa.Table], start: int
) -> Iterator[tuple[int, pa.Table | str]]:
    """Tables of rows that go through together, in order, and what is wrong with each other row."""
    if not len(values):
        return
    try:
        if values.null_count:
            raise pa.ArrowInvalid("the value is null")
        yield start, read(values)
    except pa.ArrowInvalid as error:
        if len(values) == 1:
            yield start, _reason(values[0].as_py(), error)
            return
        half = len(values) // 2
        yield from _halved(values.slice(0, half), read, start)
        yield from _halved(values.slice(half), read, start + half)


def _reason(value: bytes | None, error: Exception) -> str:
    if value is None:
        return "the value is null"
    return f"the value cannot be read: {str(error).splitlines()[0]}"


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
