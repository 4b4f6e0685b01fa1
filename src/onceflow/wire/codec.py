"""Messages to and from bytes, through the message library, whose classes are loaded when needed.

Reading checks every length against the remaining bytes before it allocates anything; bytes that are
not a message raise `MessageMalformed`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any

from onceflow.runtime import message_library
from onceflow.wire.api import ApiKey
from onceflow.wire.primitives import cut_string
from onceflow.wire.reader import read_message

_ANY_NUMBER = 1 << 62
_SUFFIX = {"request": "Request", "response": "Response"}
NEWER_THAN_THE_LIBRARY = frozenset(
    ((ApiKey.API_VERSIONS, 5), (ApiKey.DELETE_GROUPS, 3), (ApiKey.TXN_OFFSET_COMMIT, 6))
)


@cache
def message_class(key: ApiKey, version: int, kind: str) -> type:
    """The class of a `request` or `response` of one version."""
    with message_library:
        if (key, version) in NEWER_THAN_THE_LIBRARY:
            module = import_module(f"onceflow.wire.newer.{key.schema}_v{version}")
        else:
            module = import_module(f"kio.schema.{key.schema}.v{version}.{kind}")
    found: type = getattr(module, key.title + _SUFFIX[kind])
    return found


@cache
def _writer(message: Any) -> Any:
    with message_library:
        from kio.serial import entity_writer

    return entity_writer(message)


def prepare_writing(message: type) -> None:
    """Does now what the first `encode` of such a message would do: loads modules."""
    _writer(message)


def decode(
    message: type, buffer: memoryview, at: int = 0, *, most_elements: int = _ANY_NUMBER
) -> Any:
    """The message that starts at `at`."""
    value, _ = read_message(message, buffer, at, most_elements)
    return value


def encode(value: Any) -> bytes:
    """The bytes of a message. A text that is too long for an older version's string is cut: it must
    not cost the whole response."""
    message: Any = type(value)
    try:
        return _written(message, value)
    except Exception as error:
        if not _is_too_long(error):
            raise
        return _written(message, _with_cut_strings(value))


def _is_too_long(error: Exception) -> bool:
    with message_library:
        from kio.serial.errors import OutOfBoundValue

    return isinstance(error, OutOfBoundValue)


def _written(message: Any, value: Any) -> bytes:
    buffer = BytesIO()
    _writer(message)(buffer, value)
    return buffer.getvalue()


def _with_cut_strings(value: Any) -> Any:
    if isinstance(value, str):
        return cut_string(value)
    if isinstance(value, tuple):
        return tuple(_with_cut_strings(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {each.name: getattr(value, each.name) for each in fields(value)}
        return replace(value, **{name: _with_cut_strings(each) for name, each in changed.items()})
    return value
