"""Leaks to plant in a broker, each of which a soak must find."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from functools import wraps
from types import MappingProxyType
from typing import Any, Final

from onceflow.broker.server import Server
from onceflow.broker.topics.topics import Topics
from onceflow.broker.txn.markers import Markers
from onceflow.runtime.disk import Access

_MEMORY_BYTES: Final = 40_000
_FILE_BYTES: Final = 400_000


def _before(owner: Any, name: str, act: Callable[[Any], object]) -> None:
    """Does something more whenever a method is called."""
    honest = getattr(owner, name)

    @wraps(honest)
    def more(self: Any, *arguments: Any, **options: Any) -> Any:
        act(self)
        return honest(self, *arguments, **options)

    setattr(owner, name, more)


def table() -> None:
    """Entries for each transaction that has ended in a partition: more and more, so that also a
    machine that becomes slower on the way sees them grow."""
    numbers = itertools.count(1)
    _before(
        Markers,
        "write",
        lambda self: vars(self).setdefault("ended", []).extend([1] * next(numbers)),
    )


def memory() -> None:
    """Bytes for each of them, in no table that a census knows."""
    kept: list[bytearray] = []
    _before(Markers, "write", lambda _: kept.append(bytearray(_MEMORY_BYTES)))


def descriptor() -> None:
    """One for each connection."""
    _before(Server, "_connected", lambda _: os.open(os.devnull, os.O_RDONLY))


def thread() -> None:
    """One for each topic."""
    never = threading.Event()
    _before(Topics, "make", lambda _: threading.Thread(target=never.wait, daemon=True).start())


def disk() -> None:
    """A file for each topic that is deleted."""
    numbers = itertools.count()

    def leave(topics: Any) -> None:
        file = topics._store._disk.open(f"left-{next(numbers)}", Access.CREATE)
        file.pwrite(0, bytes(_FILE_BYTES))

    _before(Topics, "delete", leave)


LEAKS: Final = MappingProxyType(
    {each.__name__: each for each in (table, memory, descriptor, thread, disk)}
)
