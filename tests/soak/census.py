"""Counts what a running broker holds in memory: every table of every object of ours, by name.

Nobody has to say which tables there are, so a new one cannot be forgotten. The census walks from
the server through everything that can be reached. `ProducerTable._open` is the sum over all objects
of that class; `#ProducerTable` says how many there are. `blocks` is all that Python has allocated,
whoever holds it.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any, Final

from onceflow.broker.server import Server

BYTES: Final = " (bytes)"
"""Behind the name of what is not a table but bytes."""
_OURS: Final = "onceflow."
_TABLES: Final = (dict, list, set, frozenset, deque, tuple)
_BYTES: Final = (bytes, bytearray, memoryview)
_CACHE: Final = type(functools.lru_cache(lambda: None))


class Census:
    """Made before the server is; counts from any thread."""

    def __init__(self) -> None:
        self._roots: list[object] = []
        honest = Server.__init__

        @functools.wraps(honest)
        def noted(server: Server, *arguments: Any, **options: Any) -> None:
            honest(server, *arguments, **options)
            self._roots += [server, asyncio.get_running_loop()]

        setattr(Server, "__init__", noted)  # noqa: B010  # mypy guards methods

    def count(self) -> Counter[str]:
        """What there is now."""
        counts: Counter[str] = Counter()
        for name, module in list(sys.modules.items()):
            if name.startswith(_OURS):
                _count_tables(counts, name, list(vars(module).items()))
        seen: set[int] = set()
        waiting = list(self._roots)
        while waiting:
            each = waiting.pop()
            if id(each) not in seen:
                seen.add(id(each))
                waiting += _visit(counts, each)
        counts["blocks"] = sys.getallocatedblocks()
        return counts


def _visit(counts: Counter[str], each: object) -> Iterable[object]:
    """Counts one object; what it leads to."""
    if isinstance(each, dict):
        return [*list(each.keys()), *list(each.values())]
    if isinstance(each, _TABLES):
        return list(each)
    if isinstance(each, MethodType):
        return [each.__self__]
    if isinstance(each, functools.partial):
        return [each.func, each.args, each.keywords]
    if isinstance(each, FunctionType):
        return list(_closure(each))
    kind = type(each)
    is_loop = isinstance(each, asyncio.BaseEventLoop)
    if not is_loop and not kind.__module__.startswith(_OURS):
        return _of_handle(each) if isinstance(each, asyncio.Handle) else []
    attributes = list(_attributes(kind, each))
    name = "EventLoop" if is_loop else kind.__qualname__
    counts[f"#{name}"] += 1
    _count_tables(counts, name, attributes)
    return [value for _, value in attributes]


def _count_tables(counts: Counter[str], name: str, attributes: list[tuple[str, Any]]) -> None:
    for attribute, value in attributes:
        if attribute.startswith("__"):
            continue
        if isinstance(value, _TABLES):
            counts[f"{name}.{attribute}"] += len(value)
        elif isinstance(value, _BYTES):
            counts[f"{name}.{attribute}{BYTES}"] += len(value)
        elif isinstance(value, _CACHE) and value.cache_info().maxsize is None:
            counts[f"{name}.{attribute}"] += value.cache_info().currsize


def _attributes(kind: type, holder: object) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(holder, "__dict__", {}).items())
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            value = getattr(holder, slot, None)
            if value is not None:
                yield slot, value


def _of_handle(handle: asyncio.Handle) -> list[object]:
    """What a timer will call."""
    return [getattr(handle, "_callback", None), getattr(handle, "_args", None)]


def _closure(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty yet
            continue
