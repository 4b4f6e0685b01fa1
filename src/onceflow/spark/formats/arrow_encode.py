"""Arrow columns into the values of records: JSON, CSV and text as Spark writes them, whole columns
at a time, those inside of lists, structs and maps too."""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.records import one_array
from onceflow.spark.errors import RowRefused
from onceflow.spark.formats.arrow_parse import marks_of
from onceflow.spark.formats.format import Format
from onceflow.spark.formats.record import Marks
from onceflow.spark.formats.text import offset_of_moment

_ODD_IN_JSON: Final = r'["\\\x00-\x1f]'
_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_IN_NUMBERS: Final = frozenset(string.ascii_letters + string.digits + "+-.: ")
"""What numbers, times and the like are made of."""
_NOTHING: Final = pa.scalar("")
_HOUR: Final = 3_600_000_000
_LEAST: Final = pa.scalar(1e-3)
_MOST: Final = pa.scalar(1e7)
"""Between these two Java writes numbers without an exponent."""


class TableUnusable(RowRefused):
    """A function has returned something that cannot be written."""


def encode_values(
    table: pa.Table, form: Format, options: Mapping[str, str], zone: str = "UTC"
) -> Any:
    """An array of bytes, one for each row. Raises `TableUnusable`."""
    if form in (Format.TEXT, Format.RAW):
        return to_bytes(only_column(table), form, zone)
    if not table.num_columns:
        raise TableUnusable("the function returned a table without columns")
    columns = {name: _usual(one_array(table.column(name))) for name in table.column_names}
    if form is Format.JSON:
        return _json_rows(columns, zone).cast(pa.binary())
    return _csv_rows(columns, marks_of(options), zone).cast(pa.binary())


def only_column(table: pa.Table) -> Any:
    """The column `value`, or the only one."""
    name = "value" if table.num_columns != 1 else table.column_names[0]
    if name not in table.column_names:
        raise TableUnusable(
            f"the function returned the columns {', '.join(table.column_names)}, and none of them "
            "is called value"
        )
    return one_array(table.column(name))


def to_bytes(array: Any, form: Format = Format.TEXT, zone: str = "UTC") -> Any:
    """Text and bytes as they are, all else as text, as a cast in Spark makes it."""
    array = _usual(array)
    if pa.types.is_binary(array.type):
        return array
    if pa.types.is_string(array.type):
        return array.cast(pa.binary())
    if form is Format.RAW:
        raise TableUnusable(f"the column value is of type {array.type}; raw takes text or bytes")
    if pa.types.is_nested(array.type):
        raise TableUnusable(
            f"a column is of type {array.type}; a text can only be made of one value"
        )
    if pa.types.is_timestamp(array.type):
        return _cast_times(array, zone).cast(pa.binary())
    if pa.types.is_decimal(array.type):
        texts = [None if each is None else f"{each:f}" for each in array.to_pylist()]
        return pa.array(texts, pa.string()).cast(pa.binary())
    return _texts(array, zone).cast(pa.binary())


def _usual(array: Any) -> Any:
    """In one of the types that are told apart here."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _usual(array.dictionary_decode())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return array.cast(pa.list_(kind.value_type))
    return array


# --- JSON ---------------------------------------------------------------------------------------


def _json_rows(columns: Mapping[str, Any], zone: str) -> Any:
    """Fields that are null are left out, as Spark does."""
    pieces = []
    for name, array in columns.items():
        label = pa.scalar(f",{json.dumps(name, ensure_ascii=False)}:")
        piece = pc.binary_join_element_wise(label, _json_texts(array, zone), _NOTHING)
        pieces.append(pc.fill_null(piece, ""))
    joined = pc.binary_join_element_wise(*pieces, _NOTHING)
    inside = pc.utf8_slice_codeunits(joined, 1)
    return pc.binary_join_element_wise(pa.scalar("{"), inside, pa.scalar("}"), _NOTHING)


def _json_texts(array: Any, zone: str) -> Any:
    """Null where the value is."""
    array = _usual(array)
    kind = array.type
    if pa.types.is_nested(kind):
        return pc.if_else(array.is_valid(), _json_nested(array, zone), pa.scalar(None, pa.string()))
    texts = _texts(array, zone)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return texts
    if pa.types.is_floating(kind):
        is_number = pc.is_finite(array)
        return pc.if_else(is_number, texts, pc.binary_join_element_wise('"', texts, '"', ""))
    return _in_quotes(texts)


def _json_nested(array: Any, zone: str) -> Any:
    kind = array.type
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return pa.repeat(pa.scalar("{}"), len(array))
        return _json_rows({kind[at].name: array.field(at) for at in range(kind.num_fields)}, zone)
    if pa.types.is_map(kind):
        values = pc.fill_null(_json_texts(array.items, zone), "null")
        names = _in_quotes(to_bytes(array.keys, zone=zone).cast(pa.string()))
        pairs = pc.binary_join_element_wise(names, values, pa.scalar(":"))
        return _joined(array.offsets, pairs, "{}")
    if pa.types.is_list(kind):
        values = pc.fill_null(_json_texts(array.values, zone), "null")
        return _joined(array.offsets, values, "[]")
    raise TableUnusable(f"a column is of type {kind}, which JSON cannot hold")


def _joined(offsets: Any, texts: Any, marks: str) -> Any:
    inside: Any = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return pc.binary_join_element_wise(pa.scalar(marks[0]), inside, pa.scalar(marks[1]), _NOTHING)


def _in_quotes(texts: Any) -> Any:
    return pc.binary_join_element_wise(pa.scalar('"'), _escaped(texts), pa.scalar('"'), _NOTHING)


def _escaped(texts: Any) -> Any:
    """Only rows that need it are touched."""
    is_odd = pc.match_substring_regex(texts, _ODD_IN_JSON)
    if not pc.any(is_odd).as_py():
        return texts
    written = [
        json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(is_odd).to_pylist()
    ]
    return pc.replace_with_mask(texts, pc.fill_null(is_odd, False), pa.array(written, pa.string()))


# --- CSV ----------------------------------------------------------------------------------------


def _csv_rows(columns: Mapping[str, Any], marks: Marks, zone: str) -> Any:
    """Nulls are empty; what would be read as something else is quoted, and so is an empty text."""
    cells = []
    for name, array in columns.items():
        if pa.types.is_nested(array.type) or pa.types.is_binary(array.type):
            raise TableUnusable(f"the column {name} is of type {array.type}, which CSV cannot hold")
        texts = _texts(array, zone)
        if pa.types.is_string(array.type) or _IN_NUMBERS.intersection(marks.all):
            texts = _quoted(texts, marks)
        cells.append(pc.fill_null(texts, ""))
    if len(cells) == 1:
        return cells[0]
    return pc.binary_join_element_wise(*cells, pa.scalar(marks.sep))


def _quoted(texts: Any, marks: Marks) -> Any:
    """Only rows that need it are touched."""
    odd = "".join(f"\\x{ord(each):02x}" for each in (marks.sep, marks.quote, "\n", "\r"))
    is_odd = pc.fill_null(pc.match_substring_regex(texts, f"^$|[{odd}]"), False)
    if not pc.any(is_odd).as_py():
        return texts
    found = texts.filter(is_odd)
    for mark in dict.fromkeys((marks.escape, marks.quote)):
        found = pc.replace_substring(found, mark, marks.escape + mark)
    quote = pa.scalar(marks.quote)
    return pc.replace_with_mask(
        texts, is_odd, pc.binary_join_element_wise(quote, found, quote, _NOTHING)
    )


# --- one value ----------------------------------------------------------------------------------


def _texts(array: Any, zone: str) -> Any:
    kind = array.type
    if pa.types.is_string(kind):
        return array
    if pa.types.is_timestamp(kind):
        return _times(array, zone)
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_binary(kind):
        return pa.array(
            [
                None if each is None else base64.b64encode(each).decode()
                for each in array.to_pylist()
            ],
            pa.string(),
        )
    return array.cast(pa.string())


def _floats(array: Any) -> Any:
    """As Java writes them: `1.0`, `1.0E10`, `NaN`."""
    texts = array.cast(pa.string())
    size = pc.abs(array)
    is_plain: Any = pc.and_(pc.greater_equal(size, _LEAST), pc.less(size, _MOST))
    is_plain = pc.fill_null(is_plain, True)
    whole = pc.fill_null(pc.and_(is_plain, pc.equal(pc.floor(array), array)), False)
    if pc.any(whole).as_py():
        found = pc.binary_join_element_wise(texts.filter(whole), ".0", "")
        texts = pc.replace_with_mask(texts, whole, found)
    if pc.all(is_plain).as_py():
        return texts
    is_odd = pc.invert(is_plain)
    written = [_java(text) for text in texts.filter(is_odd).to_pylist()]
    return pc.replace_with_mask(texts, is_odd, pa.array(written, pa.string()))


def _java(text: str) -> str:
    """Another text of a number that has no place among plain ones."""
    if text in _NO_NUMBERS:
        return _NO_NUMBERS[text]
    sign = "-" if text.startswith("-") else ""
    before, _, exponent = text.lstrip("-").partition("e")
    whole, _, rest = before.partition(".")
    digits = (whole + rest).lstrip("0")
    if not digits:
        return f"{sign}0.0"
    power = len(whole) - 1 + int(exponent or 0) - (len(whole + rest) - len(digits))
    digits = digits.rstrip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def _times(array: Any, zone: str) -> Any:
    """To the millisecond, as Spark writes them, with the distance of their zone from UTC."""
    moments = _floored(array, "millisecond", "ms")
    if not array.type.tz:
        return pc.strftime(moments, format="%Y-%m-%dT%H:%M:%S")
    if zone == "UTC":
        texts = pc.strftime(moments.cast(pa.timestamp("ms", "UTC")), format="%Y-%m-%dT%H:%M:%S")
        return pc.binary_join_element_wise(texts, pa.scalar("Z"), _NOTHING)
    local, ahead = _in_zone(_at_most(moments, pa.timestamp("us", "UTC")), zone)
    texts = pc.strftime(local.cast(pa.timestamp("ms")), format="%Y-%m-%dT%H:%M:%S")
    return pc.binary_join_element_wise(texts, ahead, _NOTHING)


def _cast_times(array: Any, zone: str) -> Any:
    """To the microsecond, without zeros at the end, in the zone of the session."""
    moments = _floored(array, "microsecond", "us")
    if array.type.tz:
        moments, _ = _in_zone(moments.cast(pa.timestamp("us", "UTC")), zone)
    return pc.replace_substring_regex(
        moments.cast(pa.string()), pattern="[.]?0+$|([.][0-9]*[1-9])0*$", replacement="\\1"
    )


def _floored(array: Any, unit: str, short: str) -> Any:
    """A cast alone would round times before 1970 up. Raises `TableUnusable` for a time that is
    too far away."""
    kind: Any = pa.timestamp
    if array.type.unit in ("us", "ns") and array.type.unit != short:
        utc = array.cast(kind(array.type.unit, array.type.tz and "UTC"))
        array = pc.floor_temporal(utc, unit=cast("Any", unit))
    return _at_most(array, kind(short, array.type.tz and "UTC"))


def _at_most(array: Any, kind: Any) -> Any:
    """Times in another unit, if there is room for them."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise TableUnusable(
            f"a column of type {array.type} has a time too far away: {error}"
        ) from None


def _in_zone(moments: Any, zone: str) -> tuple[Any, Any]:
    """Microseconds of UTC as those of the clocks of a zone, and the distance between the two as
    text. Not by Arrow: Python knows how zones go on after 2037."""
    utc = moments.cast(pa.int64()).fill_null(0).to_numpy()
    hours, places = np.unique(utc // _HOUR, return_inverse=True)
    firsts, lasts = (
        np.array([offset_of_moment(zone, hour * _HOUR + at) for hour in hours.tolist()], np.int64)
        for at in (0, _HOUR - 1)
    )
    ahead = firsts[places]
    for at in np.flatnonzero((firsts != lasts)[places]):
        ahead[at] = offset_of_moment(zone, int(utc[at]))
    offsets, places = np.unique(ahead, return_inverse=True)
    texts = pa.array([_distance(each) for each in offsets.tolist()], pa.string())
    is_null = moments.is_null().to_numpy(zero_copy_only=False)
    local = pa.array(utc + ahead, mask=is_null).cast(pa.timestamp("us"))
    return local, texts.take(places)


def _distance(offset: int) -> str:
    """Seconds, which zones had once, are not written."""
    minutes = abs(offset) // 60_000_000
    sign = "-" if offset < 0 else "+"
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}" if minutes else "Z"
