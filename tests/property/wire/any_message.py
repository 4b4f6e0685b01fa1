"""Any message of any version, made from what its class says of its fields."""

from __future__ import annotations

from dataclasses import Field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as TheirErrorCode
from kio.serial import entity_reader, entity_writer

from onceflow.broker.router import SERVED
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import message_class
from onceflow.wire.schema import is_array, is_optional, message_class_in

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MS = 86_400_000 * 365 * 100


class Kind(NamedTuple):
    """One message of the protocol, as the broker may meet or send it."""

    key: ApiKey
    version: int
    kind: str

    @property
    def message(self) -> type:
        return message_class(*self)

    def __str__(self) -> str:
        return f"{self.key.schema}-v{self.version}-{self.kind}"


def kinds(*, kind: str | None = None, without: frozenset[ApiKey] = frozenset()) -> list[Kind]:
    """All that is served, in every version."""
    return [
        Kind(key, version, each)
        for key, served in SERVED.items()
        for version in range(served.lowest, served.highest + 1)
        for each in ("request", "response")
        if key not in without and kind in (None, each)
    ]


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _milliseconds(low: int, high: int) -> st.SearchStrategy[timedelta]:
    return st.integers(low, high).map(lambda number: timedelta(milliseconds=number))


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _signed(8),
    "int16": _signed(16),
    "int32": _signed(32),
    "int64": _signed(64),
    "uint16": st.integers(0, (1 << 16) - 1),
    "string": TEXT,
    "bytes": st.binary(max_size=12),
    "records": st.binary(max_size=12),
    "error_code": st.sampled_from(TheirErrorCode),
    "timedelta_i32": _milliseconds(-(2**31), 2**31 - 1),
    "timedelta_i64": _milliseconds(-_MOST_MS, _MOST_MS),
    "datetime_i64": _milliseconds(0, _MOST_MS).map(lambda since: _EPOCH + since),
    "uuid": st.uuids(),  # never all zeros, the protocol's way to say that there is none
}


@cache
def messages(message: Any) -> st.SearchStrategy[Any]:
    """Instances of a message class."""
    return st.builds(message, **{each.name: _values(each) for each in fields(message)})


def _values(field: Field[Any]) -> st.SearchStrategy[Any]:
    inner = message_class_in(field.type)
    values = messages(inner) if inner is not None else _PRIMITIVES[field.metadata["kafka_type"]]
    if is_array(field.type):
        values = st.lists(values, max_size=3).map(tuple)
    return st.none() | values if is_optional(field.type) else values


def their_bytes(value: Any) -> bytes:
    """A message as the message library writes it."""
    buffer = BytesIO()
    entity_writer(type(value))(buffer, value)
    return buffer.getvalue()


def their_reading(message: Any, data: bytes) -> Any:
    """A message as the message library reads it, when that takes all of the bytes."""
    value, size = entity_reader(message)(data, 0)
    if size != len(data):
        raise AssertionError(f"{len(data) - size} of {len(data)} bytes are left over")
    return value


def int_of(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
