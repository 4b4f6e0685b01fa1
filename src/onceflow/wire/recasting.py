"""One form of each message inside: older versions are brought up, answers are brought down.

The message library has a class for every version of a message. Handlers know the newest only;
`recast` carries a value over to another version's class by field name. What the other version lacks
is left out, what it adds takes its default. Only where a version has another *shape* does a handler
need a translation of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from typing import Any, TypeVar

from onceflow.wire.schema import default_value, is_array, is_optional, message_class_in

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
