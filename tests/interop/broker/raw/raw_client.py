"""The smallest Kafka client: any request, in any version, and the decoded answer.

It shows what other clients hide (error codes, empty lists, default values) and sends what they
would not. Requests are made from plain mappings, `make_request(API, version, fields)`, of which
each version takes the fields that it has; answers become plain mappings again by `plain`.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import socket
import struct
import typing
import uuid
from collections.abc import Mapping
from enum import Enum
from types import TracebackType, UnionType
from typing import Any, Final, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from onceflow.wire.api import ApiKey
from onceflow.wire.codec import NEWER_THAN_THE_LIBRARY, message_class

SOCKET_SECONDS: Final = 20.0
UNIX_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND: Final = datetime.timedelta(milliseconds=1)
Fields = Mapping[str, Any]
_PLAIN: Final = frozenset({int, str, bytes, bool, type(None)})


class ConnectionClosed(ConnectionError):
    """The broker closed the connection instead of answering."""


def make_request(api: int, version: int, fields: Fields) -> Any:
    """A request entity; fields that the version does not have are left out."""
    return _make(_schema(api, version, "request"), fields)


def _schema(api: int, version: int, kind: str) -> Any:
    """The library's class; ours, where it has none yet."""
    if (api, version) in NEWER_THAN_THE_LIBRARY:
        return message_class(ApiKey(api), version, kind)
    return (load_request_schema if kind == "request" else load_response_schema)(api, version)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _make(kind: type[Any], fields: Fields) -> Any:
    hints = _hints(typing.cast(Any, kind))
    given = {}
    for field in dataclasses.fields(kind):
        kafka_type = field.metadata.get("kafka_type")
        if field.name in fields:
            given[field.name] = _value(hints[field.name], kafka_type, fields[field.name])
        elif field.default is dataclasses.MISSING and kafka_type == "bool":
            given[field.name] = False
        elif field.default is dataclasses.MISSING and "tuple" in str(hints[field.name]):
            given[field.name] = ()
    return kind(**given)


def _value(hint: Any, kafka_type: str | None, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        inner = _entity_in(hint)
        return tuple(_make(inner, each) if inner else each for each in value)
    if isinstance(value, Mapping):
        inner = _entity_in(hint)
        assert inner is not None
        return _make(inner, value)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return value * MILLISECOND
    if kafka_type == "datetime_i64":
        return UNIX_EPOCH + value * MILLISECOND
    return value


def _entity_in(hint: Any) -> type[Any] | None:
    """The entity class in `Entity`, `Entity | None`, `tuple[Entity, ...]`."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint
    if typing.get_origin(hint) in (tuple, typing.Union, UnionType):
        for inner in typing.get_args(hint):
            if found := _entity_in(inner):
                return found
    return None


def plain(value: Any) -> Any:
    """Entities as mappings, times as milliseconds, errors by name; bytes stay bytes."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, ErrorCode):
        return value.name.upper()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - UNIX_EPOCH) // MILLISECOND
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def error_name(code: int) -> str:
    name: str = ErrorCode(code).name
    return name.upper()


class RawConnection:
    """One connection to a broker, one request at a time."""

    def __init__(self, bootstrap: str, *, client_id: str = "raw-probe") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SOCKET_SECONDS)
        self._client_id = client_id.encode()
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self, api: int, version: int, fields: Fields) -> Any:
        """The answer to a request, decoded and plain."""
        self.send(api, version, fields)
        return self.receive(api, version)

    def send(self, api: int, version: int, fields: Fields) -> None:
        entity = make_request(api, version, fields)
        body = io.BytesIO()
        entity_writer(type(entity))(body, entity)
        self.send_bytes(api, version, body.getvalue(), flexible=type(entity).__flexible__)

    def receive(self, api: int, version: int) -> Any:
        body = self.receive_bytes()
        kind = _schema(api, version, "response")
        if kind.__flexible__ and api != ApiKey.API_VERSIONS:
            assert body[0] == 0, "tagged fields in a response header"
            body = body[1:]
        answer, size = entity_reader(kind)(body, 0)
        assert size == len(body), f"{len(body) - size} bytes are left over"
        return plain(answer)

    def send_bytes(self, api: int, version: int, body: bytes, *, flexible: bool) -> None:
        """A request of which only the header is known to be well-formed."""
        self._correlation_id += 1
        header = struct.pack(">hhih", api, version, self._correlation_id, len(self._client_id))
        header += self._client_id + (b"\x00" if flexible else b"")
        self.send_frame(header + body)

    def send_frame(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive_bytes(self) -> bytes:
        """The next response, from behind its correlation id."""
        frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        (correlation_id,) = struct.unpack_from(">i", frame)
        assert correlation_id == self._correlation_id
        return frame[4:]

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(size - len(parts))
            except ConnectionResetError:
                part = b""
            if not part:
                raise ConnectionClosed(f"closed after {len(parts)} of {size} bytes")
            parts += part
        return bytes(parts)
