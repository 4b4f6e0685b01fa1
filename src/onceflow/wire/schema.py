"""What the fields of a message class say of themselves, and one form of each message inside.

The message library has a class for every version of a message. Handlers know the newest only;
`recast` carries a value over to another version's class by field name: older requests are brought
up, answers are brought down. What the other version lacks is left out, what it adds takes its
default. Only where a version has another *shape* does a handler need a translation of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin
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


T = TypeVar("T")

Convert = Callable[[Any], Any]


def recast(value: Any, target: type[T]) -> T:
    """`value`, a message of one version, as the class of another."""
    source: Any = type(value)
    wanted: Any = target
    converted: T = value if source is target else _converter(source, wanted)(value)
    return converted


@cache
def _converter(source: Any, target: Any) -> Convert:
    """Compiled once for each pair of versions."""
    theirs: dict[str, Field[Any]] = {each.name: each for each in fields(source)}
    shared: list[tuple[str, Convert | None]] = []
    fixed: dict[str, Any] = {}
    for each in fields(target):
        if each.name in theirs:
            shared.append((each.name, _field_converter(theirs[each.name], each)))
        else:
            fixed[each.name] = default_value(each)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        arguments = dict(fixed)
        for name, inner in shared:
            item = getattr(value, name)
            arguments[name] = item if inner is None else inner(item)
        return target(**arguments)

    return convert


def _field_converter(source: Field[Any], target: Field[Any]) -> Convert | None:
    old, new = message_class_in(source.type), message_class_in(target.type)
    if old is not None and new is not None:
        inner = _converter(old, new)
        if is_array(target.type):
            missing = None if is_optional(target.type) else ()
            return lambda items: missing if items is None else (*map(inner, items),)
        return inner
    if is_optional(source.type) and not is_optional(target.type):
        default = default_value(target)
        return lambda item: default if item is None else item
    return None
