"""The group APIs as frames, in any version, to a coordinator in the test's hands."""

from __future__ import annotations

from dataclasses import fields as fields_of
from importlib import import_module
from typing import Any

from onceflow.broker.requests.answers import then
from onceflow.broker.requests.client import RequestContext
from onceflow.broker.router import SERVED, route
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import decode, encode, message_class
from onceflow.wire.schema import default_value
from tests.unit.group.coordinator_under_test import Asked


def send(host: Any, key: ApiKey, version: int, **fields: Any) -> Asked[Any]:
    """Sends a request as bytes; what the client reads of the answer."""
    sent = encode(build(message_class(key, version, "request"), fields))
    way = route(key, version)
    assert way is not None
    client = RequestContext(version, "client", "127.0.0.1")
    answer = way.handle(host, client, way.read(memoryview(sent), 0))
    read = message_class(key, version, "response")

    def told(value: Any) -> Any:
        parts = [part for part in way.write(value) if isinstance(part, bytes)]
        return decode(read, memoryview(b"".join(parts)))

    return Asked(then(answer, told))


def build(message: Any, fields: dict[str, Any]) -> Any:
    """A message of some version: the fields that it has, defaults where none is given."""
    known = {each.name: each for each in fields_of(message)}
    return message(**{name: fields.get(name, default_value(each)) for name, each in known.items()})


def nested(key: ApiKey, version: int, kind: str, /, **fields: Any) -> Any:
    """A part of a request."""
    module = import_module(message_class(key, version, "request").__module__)
    return build(getattr(module, kind), fields)


def versions(key: ApiKey) -> list[int]:
    return list(range(SERVED[key].lowest, SERVED[key].highest + 1))
