"""Bytes to messages: readers made from the message classes' own schemas.

The message library's own reader allocates whatever a count in the message asks for before it looks
at the remaining bytes: 20 hostile bytes end the whole process. This reader checks every count and
every length against the remaining bytes before it makes anything of them, and all arrays of a
message together against a budget.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import Field, fields
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, TypeAlias
from uuid import UUID

from onceflow.errors import MessageMalformed
from onceflow.wire.error_codes import ErrorCode, error_code
from onceflow.wire.primitives import Budget, check_string, read_uvarint
from onceflow.wire.schema import default_value, is_array, is_optional, message_class_in

Read: TypeAlias = Callable[[memoryview, int, Budget], tuple[Any, int]]
"""From a buffer and a place in it to a value and the place behind it."""

_ZERO_UUID = UUID(int=0)


def read_message(message: type, buffer: memoryview, at: int, most_elements: int) -> tuple[Any, int]:
    """The message that starts at `at`, and the place behind it. Raises `MessageMalformed`."""
    return _message_reader(message)(buffer, at, Budget(most_elements))


@cache
def _message_reader(message: type) -> Read:
    """Made once for each class."""
    flexible: bool = message.__flexible__  # type: ignore[attr-defined]  # all messages have it
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    defaults: dict[str, Any] = {}
    for each in fields(message):
        tag = each.metadata.get("tag")
        if tag is None:
            plain.append((each.name, _field_reader(each, flexible)))
        else:
            tagged[tag] = (each.name, _field_reader(each, flexible, is_tagged=True))
            defaults[each.name] = default_value(each)

    def read(buffer: memoryview, at: int, budget: Budget) -> tuple[Any, int]:
        values = dict(defaults)
        for name, reader in plain:
            values[name], at = reader(buffer, at, budget)
        if flexible:
            at = _read_tags(buffer, at, budget, tagged, values)
        return message(**values), at

    return read


def _read_tags(
    buffer: memoryview,
    at: int,
    budget: Budget,
    tagged: dict[int, tuple[str, Read]],
    values: dict[str, Any],
) -> int:
    count, at = read_uvarint(buffer, at)
    budget.spend(_checked(count, buffer, at))
    for _ in range(count):
        tag, at = read_uvarint(buffer, at)
        size, at = read_uvarint(buffer, at)
        end = at + _checked(size, buffer, at)
        if tag in tagged:
            name, reader = tagged[tag]
            values[name], _ = reader(buffer[:end], at, budget)
        at = end
    return at


def _field_reader(field: Field[Any], flexible: bool, *, is_tagged: bool = False) -> Read:
    inner_class = message_class_in(field.type)
    optional = is_optional(field.type)
    if inner_class is not None:
        inner = _message_reader(inner_class)
        if is_array(field.type):
            return partial(_read_array, inner, flexible, optional)
        return partial(_read_nullable, inner) if optional and not is_tagged else inner
    kind = field.metadata["kafka_type"]
    if is_array(field.type):
        return partial(_read_array, _primitive(kind, flexible, optional=False), flexible, optional)
    return _primitive(kind, flexible, optional=optional or field.default is None)


def _read_nullable(inner: Read, buffer: memoryview, at: int, budget: Budget) -> tuple[Any, int]:
    marker, at = _read_number(_INT8, buffer, at)
    return (None, at) if marker < 0 else inner(buffer, at, budget)


def _read_array(
    inner: Read, flexible: bool, optional: bool, buffer: memoryview, at: int, budget: Budget
) -> tuple[Any, int]:
    count, at = _read_length(flexible, _INT32, buffer, at)
    if count < 0:
        if optional:
            return None, at
        raise MessageMalformed(f"an array that may not be null is, at byte {at}")
    items = []
    # Before the loop: a count of some millions, of a byte each, would stop the broker for seconds.
    budget.spend(_checked(count, buffer, at))
    for _ in range(count):
        item, at = inner(buffer, at, budget)
        items.append(item)
    return tuple(items), at


def _read_length(
    flexible: bool, fixed: struct.Struct, buffer: memoryview, at: int
) -> tuple[int, int]:
    """A length or count; -1 is null."""
    if flexible:
        length, at = read_uvarint(buffer, at)
        return length - 1, at
    return _read_number(fixed, buffer, at)


def _checked(count: int, buffer: memoryview, at: int) -> int:
    """Every element takes a byte at least."""
    if count > len(buffer) - at:
        raise MessageMalformed(
            f"{count} bytes or elements are announced at byte {at} and {len(buffer) - at} are left"
        )
    return count


def _read_number(kind: struct.Struct, buffer: memoryview, at: int) -> tuple[Any, int]:
    end = at + kind.size
    if end > len(buffer):
        raise MessageMalformed(f"the message is cut off at byte {at}")
    return kind.unpack_from(buffer, at)[0], end


def _read_fixed(kind: struct.Struct, buffer: memoryview, at: int, _: Budget) -> tuple[Any, int]:
    return _read_number(kind, buffer, at)


def _read_bytes(
    flexible: bool, prefix: struct.Struct, optional: bool, buffer: memoryview, at: int, _: Budget
) -> tuple[bytes | None, int]:
    length, at = _read_length(flexible, prefix, buffer, at)
    if length < 0:
        if optional:
            return None, at
        raise MessageMalformed(f"a field that may not be null is, at byte {at}")
    end = at + _checked(length, buffer, at)
    return bytes(buffer[at:end]), end


def _read_string(
    flexible: bool, optional: bool, buffer: memoryview, at: int, budget: Budget
) -> tuple[str | None, int]:
    data, end = _read_bytes(flexible, _INT16, optional, buffer, at, budget)
    if data is None:
        return None, end
    check_string(len(data), at)
    try:
        return data.decode(), end
    except UnicodeDecodeError as error:
        raise MessageMalformed(f"a string at byte {at} is not UTF-8") from error


def _read_uuid(buffer: memoryview, at: int, _: Budget) -> tuple[UUID | None, int]:
    _checked(16, buffer, at)
    value = UUID(bytes=bytes(buffer[at : at + 16]))
    return None if value == _ZERO_UUID else value, at + 16


def _read_error_code(buffer: memoryview, at: int, _: Budget) -> tuple[ErrorCode, int]:
    value, at = _read_number(_INT16, buffer, at)
    return error_code(value), at


def _read_datetime(buffer: memoryview, at: int, _: Budget) -> tuple[datetime, int]:
    value, end = _read_number(_INT64, buffer, at)
    try:
        return _EPOCH + timedelta(milliseconds=value), end
    except OverflowError as error:
        raise MessageMalformed(f"a time of {value} ms at byte {at}") from error


def _read_milliseconds(
    kind: struct.Struct, buffer: memoryview, at: int, _: Budget
) -> tuple[timedelta, int]:
    value, end = _read_number(kind, buffer, at)
    try:
        return timedelta(milliseconds=value), end
    except OverflowError as error:
        raise MessageMalformed(f"a duration of {value} ms at byte {at}") from error


def _read_bool(buffer: memoryview, at: int, _: Budget) -> tuple[bool, int]:
    value, at = _read_number(_INT8, buffer, at)
    return value != 0, at


_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_FIXED = {
    "int8": _INT8,
    "int16": _INT16,
    "int32": _INT32,
    "int64": _INT64,
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "float64": struct.Struct(">d"),
}
_OTHER: dict[str, Read] = {
    "bool": _read_bool,
    "uuid": _read_uuid,
    "error_code": _read_error_code,
    "timedelta_i32": partial(_read_milliseconds, _INT32),
    "timedelta_i64": partial(_read_milliseconds, _INT64),
    "datetime_i64": _read_datetime,
}


def _primitive(kind: str, flexible: bool, *, optional: bool) -> Read:
    if kind in _FIXED:
        return partial(_read_fixed, _FIXED[kind])
    if kind == "string":
        return partial(_read_string, flexible, optional)
    if kind in ("bytes", "records"):
        return partial(_read_bytes, flexible, _INT32, optional)
    return _OTHER[kind]
