"""Arrow columns into the values of records: JSON and CSV as Spark writes them, whole columns at a
time."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.records.arrow import one_array
from onceflow.spark.pipeline_plan import Format
from onceflow.spark.sink_errors import RowRefused

_ODD_IN_JSON: Final = r'["\\\x00-\x1f]'
_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NOTHING: Final = pa.scalar("")


class TableUnusable(RowRefused):
    """A function has returned something that cannot be written."""


def encode_values(table: pa.Table, form: Format, options: Mapping[str, str]) -> Any:
    """An array of bytes, one for each row. Raises `TableUnusable`."""
    if form in (Format.TEXT, Format.RAW):
        return to_bytes(only_column(table), form)
    if not table.num_columns:
        raise TableUnusable("the function returned a table without columns")
    columns = {name: one_array(table.column(name)) for name in table.column_names}
    if form is Format.JSON:
        return _json_rows(columns).cast(pa.binary())
    return _csv_rows(columns, options.get("sep", ",")).cast(pa.binary())


def only_column(table: pa.Table) -> Any:
    """The column `value`, or the only one."""
    name = "value" if table.num_columns != 1 else table.column_names[0]
    if name not in table.column_names:
        raise TableUnusable(
            f"the function returned the columns {', '.join(table.column_names)}, and none of them "
            "is called value"
        )
    return one_array(table.column(name))


def to_bytes(array: Any, form: Format = Format.TEXT) -> Any:
    """Text and bytes as they are, all else as text."""
    if pa.types.is_binary(array.type):
        return array
    if pa.types.is_string(array.type):
        return array.cast(pa.binary())
    if form is Format.RAW:
        raise TableUnusable(f"the column value is of type {array.type}; raw takes text or bytes")
    return _texts(array).cast(pa.binary())


# --- JSON ---------------------------------------------------------------------------------------


def _json_rows(columns: Mapping[str, Any]) -> Any:
    """Fields that are null are left out, as Spark does."""
    pieces = []
    for name, array in columns.items():
        label = pa.scalar(f",{json.dumps(name, ensure_ascii=False)}:")
        piece = pc.binary_join_element_wise(label, _json_texts(array), _NOTHING)
        pieces.append(pc.fill_null(piece, ""))
    joined = pc.binary_join_element_wise(*pieces, _NOTHING)
    inside = pc.utf8_slice_codeunits(joined, 1)
    return pc.binary_join_element_wise(pa.scalar("{"), inside, pa.scalar("}"), _NOTHING)


def _json_texts(array: Any) -> Any:
    kind = array.type
    if pa.types.is_nested(kind):
        texts = [None if each is None else _dumped(each) for each in array.to_pylist()]
        return pa.array(texts, pa.string())
    texts = _texts(array)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return texts
    if pa.types.is_floating(kind):
        is_number = pc.is_finite(array)
        return pc.if_else(is_number, texts, pc.binary_join_element_wise('"', texts, '"', ""))
    return pc.binary_join_element_wise(pa.scalar('"'), _escaped(texts), pa.scalar('"'), _NOTHING)


def _dumped(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """What JSON has no type for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return _times(pa.array([value]))[0].as_py()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TableUnusable(f"a {type(value).__name__} cannot be written as JSON")


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


def _csv_rows(columns: Mapping[str, Any], separator: str) -> Any:
    """Nulls are empty; what would be read as something else is quoted."""
    cells = []
    for name, array in columns.items():
        if pa.types.is_nested(array.type):
            raise TableUnusable(f"the column {name} is of type {array.type}, which CSV cannot hold")
        texts = pc.fill_null(_texts(array), "")
        escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        quoted = pc.binary_join_element_wise(pa.scalar('"'), escaped, pa.scalar('"'), _NOTHING)
        cells.append(pc.if_else(_needs_quotes(texts, separator), quoted, texts))
    if len(cells) == 1:
        return cells[0]
    return pc.binary_join_element_wise(*cells, pa.scalar(separator))


def _needs_quotes(texts: Any, separator: str) -> Any:
    found = pc.match_substring(texts, separator)
    for mark in ('"', "\n", "\r"):
        found = pc.or_(found, pc.match_substring(texts, mark))
    return found


# --- one value ----------------------------------------------------------------------------------


def _texts(array: Any) -> Any:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _times(array)
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
    """Those that are no numbers by Spark's names."""
    texts = array.cast(pa.string())
    is_odd = pc.fill_null(pc.invert(pc.is_finite(array)), False)
    if not pc.any(is_odd).as_py():
        return texts
    names = [_NO_NUMBERS[text] for text in texts.filter(is_odd).to_pylist()]
    return pc.replace_with_mask(texts, is_odd, pa.array(names, pa.string()))


def _times(array: Any) -> Any:
    """To the millisecond, as Spark writes them; of a zone, in UTC."""
    zone = "UTC" if array.type.tz else None
    moments = array.cast(pa.timestamp("ms", zone), safe=False)
    texts = pc.strftime(moments, format="%Y-%m-%dT%H:%M:%S")
    return pc.binary_join_element_wise(texts, pa.scalar("Z" if zone else ""), _NOTHING)
