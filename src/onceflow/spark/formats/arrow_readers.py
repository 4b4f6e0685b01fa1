"""Ordinary records through Arrow's readers of JSON and CSV, all at once.

Arrow's readers accept what Spark's do not (`0x10`, ` 5`, `nan`, numbers as dates, decimals with too
many digits, several objects in one record). So texts are read as texts where that is so, looked at,
and then cast; and what is not certain to be read as Spark reads it raises `Odd`.

Arrow's reader of decimals must only see texts without an exponent, and up to 38 digits before and
behind the point: it takes others modulo a power of two, and ends the process where an exponent is
-100000000. Those are read into 256 bits, where there is room for all of them with any scale, and
then cast to 128, which looks whether they fit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from onceflow.spark.formats.record import (
    DEEPEST,
    END_OF_INPUT,
    LONGEST_NUMBER,
    SAFE_SIZE,
    Marks,
    NotJson,
    check_limits,
    may_have_long_number,
)
from onceflow.spark.formats.schema import (
    DataType,
    Field,
    ListOf,
    Plain,
    StructOf,
    arrow_schema,
    arrow_type,
)
from onceflow.spark.formats.text import INTEGERS, offset_of_hour

_BLANK: Final = " \t\r\n"
_BYTE_ORDER: Final = "\ufeff".encode()
"""Arrow leaves it out at the beginning of a file of CSV."""
_ODD_IN_CSV: Final = (b"\n", b"\r", b"\0")
_END: Final = END_OF_INPUT.encode()
_SHORTEST_TIME: Final = len("2026-01-02T03:04:05")
_IN_UTC: Final = ("UTC", "Etc/UTC", "Z")
_UNZONED: Final = r"^.{19}(?:[.][0-9]{1,6})?$"
_ZONED: Final = r"^.{19}(?:[.][0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])$"
_HOUR: Final = 3_600_000_000
_PIECE: Final = 1 << 18
_MOST_DIGITS: Final = 38
_ROOM: Final = 76
"""Digits of a decimal of 256 bits: as many before the point as behind it."""


class Odd(Exception):
    """Something is there that only a reader of single records is sure of."""


class JsonReader:
    """Each record begins with `{` and ends with `}`, and there are as many rows as records: then
    each is one object. For behind the last `}` of a record that leaves something open comes the
    `{` of the next one, or the end, where only `,`, `}` or `]` may follow; and inside a text no
    line may end. So a record is one object or several, and several would be more rows."""

    def __init__(self, fields: tuple[Field, ...], zone: str) -> None:
        self._fields = fields
        self._zone = zone
        self._schema = arrow_schema(fields)
        self._read_as = pa.schema([(each.name, _read_as(each.type)) for each in fields])
        self._unsure = _UNSURE_DECIMAL if _has_decimal(fields) else _UNSURE

    def read(self, values: Any) -> pa.Table:
        """Raises `Odd`, or `ArrowInvalid`."""
        texts = values.cast(pa.string())  # which looks whether it is UTF-8
        if not _is_braced(texts):
            texts = pc.ascii_trim(texts, characters=_BLANK)
            if not _is_braced(texts):
                raise Odd
        joined = _joined(texts)
        lines = joined[0].as_buffer()
        if _has(joined, self._unsure) or (_has(joined, _NAN) and _has(joined, f"-{_NAN}")):
            raise Odd
        _check_limits(texts)
        found = pyarrow.json.read_json(
            _file(lines),
            pyarrow.json.ReadOptions(block_size=lines.size + 1, use_threads=False),
            pyarrow.json.ParseOptions(
                explicit_schema=self._read_as, unexpected_field_behavior="ignore"
            ),
        )
        if len(found) != len(values):
            raise Odd
        columns: list[Any] = [
            _converted(one_chunk(found.column(each.name)), each.type, self._zone)
            for each in self._fields
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


class CsvReader:
    """No record has a line break, and its quotes, if it has any, stand around whole cells: so each
    is a line."""

    def __init__(self, fields: tuple[Field, ...], marks: Marks, zone: str) -> None:
        self._fields = fields
        self._marks = marks
        self._zone = zone
        self._schema = arrow_schema(fields)
        self._read_as = {
            each.name: pa.binary() if each.type == Plain("binary") else pa.string()
            for each in fields
        }
        quote, sep, escape = map(_hex, (marks.quote, marks.sep, marks.escape))
        cell = f"(?:[^{sep}{quote}]*|{quote}[^{quote}{escape}]*{quote})"
        self._has_bytes = pa.binary() in self._read_as.values()
        self._line = f"^{cell}(?:{sep}{cell})*$"

    def read(self, values: Any) -> pa.Table:
        """Raises `Odd`, or `ArrowInvalid`."""
        data = _bytes(values)
        if any(each in data for each in _ODD_IN_CSV) or data.startswith(_BYTE_ORDER):
            raise Odd
        if _END[:1] in data and _END in data:  # a single byte is found much faster
            raise Odd
        if not np.diff(_ends(values)).all():
            raise Odd  # an empty line would be a row of nulls
        if self._has_bytes:
            values.cast(pa.string())
        has_quotes = self._marks.quote.encode() in data
        if has_quotes and not pc.all(pc.match_substring_regex(values, self._line)).as_py():
            raise Odd
        lines = _joined(values)[0].as_buffer()
        if has_quotes:
            # Arrow would take an empty cell for a quoted one behind which the file ends.
            lines = pa.py_buffer(lines.to_pybytes() + b"\n")
        found = pyarrow.csv.read_csv(
            _file(lines),
            pyarrow.csv.ReadOptions(
                column_names=list(self._read_as), use_threads=False, block_size=lines.size + 1
            ),
            pyarrow.csv.ParseOptions(
                delimiter=self._marks.sep,
                quote_char=self._marks.quote if has_quotes else False,
                double_quote=False,
                escape_char=False,
                ignore_empty_lines=False,
            ),
            pyarrow.csv.ConvertOptions(
                column_types=self._read_as,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if len(found) != len(values):
            raise Odd
        columns: list[Any] = [
            _cast(one_chunk(found.column(each.name)), each.type, self._zone)
            for each in self._fields
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


def _hex(mark: str) -> str:
    return f"\\x{ord(mark):02x}"


def one_chunk(column: Any) -> Any:
    """A column as one array, with nothing cut off before it."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# --- many records as one file -------------------------------------------------------------------


def _joined(values: Any) -> Any:
    """An array of one: all values, each with a line break behind it but the last."""
    ends = pa.array([0, len(values)], pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(ends, values), pa.scalar(b"\n", values.type))


def _has(joined: Any, pattern: str) -> bool:
    return bool(pc.match_substring_regex(joined, pattern)[0].as_py())


def _file(lines: Any) -> Any:
    return pa.BufferReader(lines)


def _bytes(values: Any) -> bytes:
    """Of all values, one behind the other."""
    first, last = _ends(values)[[0, -1]]
    data = values.buffers()[2]
    return b"" if data is None else memoryview(data)[first:last].tobytes()


def _ends(values: Any) -> Any:
    """Where each value begins, and the last ends, in the buffer of its array."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    return offsets[values.offset : values.offset + len(values) + 1]


def _is_braced(texts: Any) -> bool:
    ends = _ends(texts)
    if not (np.diff(ends) > 1).all():
        return False
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    return bool((data[ends[:-1]] == ord("{")).all() and (data[ends[1:] - 1] == ord("}")).all())


_UNSURE: Final = r"Inf[\s,\]}]"
_NAN: Final = r"NaN[\s,\]}]"
"""What Arrow takes for JSON, and Spark does not, the second with a sign. (One expression for both
would have no beginning that can be looked for quickly.)"""
_UNSURE_DECIMAL: Final = (
    rf"{_UNSURE}|[0-9]{{39}}|\\u00[2-6]"
    r'|[\s:,\["][-+]?[0-9.]+[eE][-+]?[0-9]+["\s,\]}]'
)
"""And what may be a decimal that Arrow must not see, also where a digit is written as `\\u0030`."""


_OF_NUMBERS: Final = np.isin(np.arange(256), list(b"-+.0123456789eE"))
"""Of each byte, whether numbers are made of it."""


def _check_limits(texts: Any) -> None:
    """Raises `Odd` where a value may break the limits of single records."""
    ends = _ends(texts)
    largest = np.diff(ends).max()
    if largest <= SAFE_SIZE:
        return
    data = np.frombuffer(texts.buffers()[2], np.uint8)[ends[0] : ends[-1]]
    if may_have_long_number(data) and _longest_number(data) > LONGEST_NUMBER:
        raise Odd
    if _openings(data) - len(texts) < DEEPEST:
        return  # as each value has one
    opening = np.flatnonzero(_opens(data))
    far = opening[DEEPEST:] - opening[:-DEEPEST]
    if far.min(initial=largest) >= largest:
        return  # so many are in no value
    owners = np.searchsorted(ends - ends[0], opening, "right") - 1
    for many in np.unique(owners[DEEPEST:][owners[DEEPEST:] == owners[:-DEEPEST]]):
        try:
            check_limits(texts[int(many)].as_py())
        except NotJson:
            raise Odd from None


def _longest_number(data: Any) -> int:
    """How many characters of numbers follow each other, at most; there is no number at either end.
    A list of numbers has many that `may_have_long_number` cannot tell from a long one."""
    others = np.flatnonzero(~_OF_NUMBERS[data])
    return int(np.diff(others).max(initial=1)) - 1


def _openings(data: Any) -> int:
    """In pieces: what is made of each stays in the processor's cache."""
    starts = range(0, len(data), _PIECE)
    return sum(int(np.count_nonzero(_opens(data[at : at + _PIECE]))) for at in starts)


def _opens(data: Any) -> Any:
    return data | 0x20 == ord("{")  # which makes that of a [


# --- texts into values --------------------------------------------------------------------------


def _read_as(kind: DataType) -> pa.DataType:
    """How Arrow reads it out of JSON: dates and times as texts, it would take numbers for them."""
    match kind:
        case ListOf(element):
            return pa.list_(_read_as(element))
        case StructOf(fields):
            return pa.struct([(each.name, _read_as(each.type)) for each in fields])
        case Plain("date" | "timestamp" | "timestamp_ntz"):
            return pa.string()
        case Plain("decimal", (_, scale)):
            return pa.decimal256(_ROOM, scale)
        case _:
            return arrow_type(kind)


def _has_decimal(fields: tuple[Field, ...]) -> bool:
    return any("decimal256" in str(_read_as(each.type)) for each in fields)


def _converted(array: Any, kind: DataType, zone: str) -> Any:
    """What was read as `_read_as` says, as it is meant."""
    match kind:
        case ListOf(element):
            return pa.ListArray.from_arrays(
                array.offsets,
                _converted(array.values, element, zone),
                type=arrow_type(kind),
                mask=array.is_null(),
            )
        case StructOf(fields):
            children: list[Any] = [
                _converted(array.field(number), each.type, zone)
                for number, each in enumerate(fields)
            ]
            struct: Any = arrow_type(kind)
            return pa.StructArray.from_arrays(children, fields=list(struct), mask=array.is_null())
        case Plain("date" | "timestamp" | "timestamp_ntz"):
            return _cast(array, kind, zone)
        case Plain("float" | "double"):
            return _positive_zero(_finite(array))
        case Plain("decimal"):
            return array.cast(arrow_type(kind))
        case _:
            return array


def _cast(texts: Any, kind: DataType, zone: str) -> Any:
    """Texts as values, as `text` reads them. Raises `Odd` where that is not certain, and
    `ArrowInvalid`."""
    match kind:
        case Plain("string" | "binary"):
            return texts
        case Plain("boolean"):
            return _words(texts)
        case Plain("timestamp" | "timestamp_ntz" as name):
            return _times(texts, zone if name == "timestamp" else None)
        case Plain("date"):
            _of_bytes(texts, b"-", b"9")
            return texts.cast(pa.date32())
        case Plain(name) if name in INTEGERS:
            _of_bytes(texts, b"-", b"9")  # and so no +, no blank and no 0x
            return texts.cast(arrow_type(kind))
        case Plain("float" | "double"):
            _of_bytes(texts, b"+", b"e")
            return _finite(texts.cast(arrow_type(kind)))
        case Plain("decimal", (_, scale)):
            _of_bytes(texts, b"+", b"9")
            if np.diff(_ends(texts)).max(initial=0) > _MOST_DIGITS:
                raise Odd
            return texts.cast(pa.decimal256(_ROOM, scale)).cast(arrow_type(kind))
    raise Odd


def _of_bytes(texts: Any, least: bytes, most: bytes) -> None:
    """Raises `Odd` when there is a byte before the one or behind the other."""
    first, last = _ends(texts)[[0, -1]]
    if first == last:
        return
    data = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    if data.min() < least[0] or data.max() > most[0]:
        raise Odd


def _finite(array: Any) -> Any:
    """Arrow has more names for what is no number than Spark."""
    if not pc.all(pc.is_finite(array), min_count=0).as_py():
        raise Odd
    return array


def _positive_zero(array: Any) -> Any:
    """JSON has no sign for the integer 0, and here it is not known any more which were integers."""
    bits = array.type.bit_width
    kind = np.uint64 if bits == 64 else np.uint32
    if (np.frombuffer(array.buffers()[1], kind) == 1 << bits - 1).any():
        raise Odd
    return array


def _words(texts: Any) -> Any:
    is_true: Any = pc.equal(texts, pa.scalar("true"))
    is_false: Any = pc.equal(texts, pa.scalar("false"))
    if not pc.all(pc.or_(is_true, is_false), min_count=0).as_py():
        raise Odd
    return is_true


def _times(texts: Any, zone: str | None) -> Any:
    """A time has seconds; a zone of None: none may be there."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.timestamp("us", zone and "UTC"))
    _of_bytes(texts, b" ", b"Z")
    ends = _ends(texts)
    sizes = np.diff(ends)
    is_there = sizes > 0
    if np.count_nonzero(is_there) != len(texts) - texts.null_count:
        raise Odd  # an empty text is not null
    shortest = sizes[is_there].min()
    if shortest < _SHORTEST_TIME:
        raise Odd
    last = np.frombuffer(texts.buffers()[2], np.uint8)[ends[1:][is_there] - 1]
    if zone is not None and shortest > _SHORTEST_TIME and (last == ord("Z")).all():
        return texts.cast(pa.timestamp("us", "UTC"))
    return _local(texts) if zone is None else _of_both_kinds(texts, zone)


def _of_both_kinds(texts: Any, zone: str) -> Any:
    """Times that name their zone, and such that do not."""
    is_zoned: Any = pc.match_substring_regex(texts, _ZONED)
    nothing = pa.scalar(None, pa.string())
    zoned: Any = pc.if_else(is_zoned, texts, nothing)
    local: Any = pc.if_else(is_zoned, nothing, texts)
    return pc.coalesce(zoned.cast(pa.timestamp("us", "UTC")), _in_zone(_local(local), zone))


def _local(texts: Any) -> Any:
    if not pc.all(pc.match_substring_regex(texts, _UNZONED), min_count=0).as_py():
        raise Odd
    return texts.cast(pa.timestamp("us"))


def _in_zone(times: Any, zone: str) -> Any:
    """Times of a zone as those of UTC. Not by Arrow: Python knows how zones go on after 2037, and
    single records are read with it."""
    moments = pa.timestamp("us", "UTC")
    if zone in _IN_UTC or times.null_count == len(times):
        return times.cast(moments)
    local = times.cast(pa.int64()).fill_null(0).to_numpy()
    hours, places = np.unique(local // _HOUR, return_inverse=True)
    offsets = [offset_of_hour(zone, hour) for hour in hours.tolist()]
    if None in offsets:
        raise Odd
    moved = local - np.array(offsets, np.int64)[places]
    return pa.array(moved, mask=times.is_null().to_numpy(zero_copy_only=False)).cast(moments)
