"""A request that is written by hand, and how its response is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from onceflow.client.codec.versions import VersionRange
from onceflow.wire import ApiKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """For any version in a range; every response begins with how long the request was throttled."""

    api: ApiKey
    versions: VersionRange
    write: Callable[[int], bytes]
    """The body in a version."""
    read: Callable[[int, memoryview], T]
    """The response's body in that version; raises `MessageMalformed`."""
