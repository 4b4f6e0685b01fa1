"""The header in front of every request and every response.

A request: api key i16, version i16, correlation id i32, client id (nullable, 16-bit length always),
then tagged fields if the API's version is flexible. A response: the correlation id, then tagged
fields likewise; but never for ApiVersions, whose answer must be readable by every client.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from onceflow.errors import MessageMalformed
from onceflow.wire.api import ApiKey, is_flexible
from onceflow.wire.primitives import cut_string, skip_tags

_START = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """The header of a request, whose body begins at `body_at`."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body_at: int


def read_request_header(frame: memoryview) -> RequestHeader:
    """Raises `MessageMalformed` for bytes that are no header.

    `body_at` is right for the APIs in `ApiKey`; for any other the start of the body is unknown.
    """
    if len(frame) < _START.size:
        raise MessageMalformed(f"a request of {len(frame)} bytes is too short for a header")
    api_key, version, correlation_id, id_length = _START.unpack_from(frame)
    at = _START.size
    client_id = ""
    if id_length >= 0:
        if at + id_length > len(frame):
            raise MessageMalformed(f"client id of {id_length} bytes in {len(frame)} bytes")
        # Cut, because the replacement of a byte that is not UTF-8 takes three.
        client_id = cut_string(str(frame[at : at + id_length], "utf-8", "replace"))
        at += id_length
    if api_key in _KNOWN and is_flexible(ApiKey(api_key), version):
        at = skip_tags(frame, at)
    return RequestHeader(api_key, version, correlation_id, client_id, at)


_KNOWN = frozenset(map(int, ApiKey))


def response_header(key: ApiKey, version: int, correlation_id: int) -> bytes:
    """The bytes in front of a response's body."""
    return _CORRELATION.pack(correlation_id) + response_tags(key, version)


def response_tags(key: ApiKey, version: int) -> bytes:
    """The bytes behind the correlation id: an empty list of tagged fields, or nothing."""
    return b"\x00" if is_flexible(key, version) and key is not ApiKey.API_VERSIONS else b""


def request_header(key: ApiKey, version: int, correlation_id: int, client_id: str) -> bytes:
    """The bytes in front of a request's body."""
    name = client_id.encode()
    start = _START.pack(key, version, correlation_id, len(name)) + name
    return start + b"\x00" if is_flexible(key, version) else start
