"""What a field of a message class says of itself: array, optional, another message, its default."""

from __future__ import annotations

from dataclasses import MISSING, Field, is_dataclass
from datetime import timedelta
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)


def is_optional(kind: Any) -> bool:
    """Whether the field may be null."""
    return type(None) in _alternatives(kind)


def is_array(kind: Any) -> bool:
    """Whether the field holds any number of values."""
    return any(get_origin(each) is tuple for each in _alternatives(kind))


def message_class_in(kind: Any) -> type | None:
    """The message class inside a field's type, if there is one."""
    for each in _alternatives(kind):
        if get_origin(each) is tuple:
            return message_class_in(get_args(each)[0])
        if is_dataclass(each) and isinstance(each, type):
            return each
    return None


def default_value(field: Field[Any]) -> Any:
    """What the field holds where a version lacks it."""
    if field.default is not MISSING:
        return field.default
    if is_optional(field.type):
        return None
    if is_array(field.type):
        return ()
    return _zero(field.type)


def _zero(kind: Any) -> Any:
    if issubclass(kind, Enum):
        return kind(0)
    for base, value in ((bool, False), (int, 0), (float, 0.0), (str, ""), (bytes, b"")):
        if issubclass(kind, base):
            return value
    if issubclass(kind, UUID):
        return UUID(int=0)
    return timedelta(0)
