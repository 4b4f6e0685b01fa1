"""The frames of one connection: the head of a request, and the body of the response to it.

Bytes and values only: the asyncio stream and the blocking connection send and receive them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from onceflow.errors import MessageMalformed
from onceflow.wire import INT16, INT32, ApiKey, is_flexible, skip_tags

LARGEST_ANSWER: Final = 256 << 20
"""Less than any four letters of ASCII or the start of a TLS alert, taken for a length."""
_LARGEST_CORRELATION_ID: Final = 2**31 - 1
_WORTH_JOINING: Final = 64 << 10
"""Bytes up to which one write of a copy is cheaper than one of several parts."""
_KEY_AND_VERSION: Final = struct.Struct(">hh")

Buffer: TypeAlias = bytes | memoryview


class RequestHead(NamedTuple):
    """The bytes in front of a request's body, around the correlation id."""

    name: str
    before: bytes
    """The numbers of API and version."""
    after: bytes
    """The client's name, and the tagged fields if there are any."""
    answer_has_tags: bool


def request_head(key: ApiKey, version: int, client_id: str) -> RequestHead:
    """The head of a request; the same for each request of that version."""
    is_tagged = is_flexible(key, version)
    after = _named(client_id) + (b"\x00" if is_tagged else b"")
    before = _KEY_AND_VERSION.pack(key, version)
    return RequestHead(key.name, before, after, is_tagged and key is not ApiKey.API_VERSIONS)


def login_head(api: int, version: int, client_id: str) -> RequestHead:
    """That of a login, which comes before anything is agreed on."""
    before = _KEY_AND_VERSION.pack(api, version)
    return RequestHead("a login", before, _named(client_id), answer_has_tags=False)


def _named(client_id: str) -> bytes:
    name = client_id.encode()
    return INT16.pack(len(name)) + name


def next_correlation_id(last: int) -> int:
    return last % _LARGEST_CORRELATION_ID + 1


def framed(head: RequestHead, correlation_id: int, body: Sequence[Buffer]) -> Sequence[Buffer]:
    """The parts of a request in the order in which they are sent; large bodies are not copied."""
    size = len(head.before) + INT32.size + len(head.after) + sum(map(len, body))
    start = b"".join((INT32.pack(size), head.before, INT32.pack(correlation_id), head.after))
    return (b"".join((start, *body)),) if size <= _WORTH_JOINING else (start, *body)


def body_of(frame: memoryview, head: RequestHead) -> memoryview:
    """The body of a response, behind its head; raises `MessageMalformed`."""
    body = frame[INT32.size :]
    return body[skip_tags(body, 0) :] if head.answer_has_tags else body


def correlation_id_of(frame: memoryview) -> int:
    """The request that a frame answers; raises `MessageMalformed`."""
    if len(frame) < INT32.size:
        raise MessageMalformed("a response is too short for its head")
    number: int = INT32.unpack_from(frame)[0]
    return number
