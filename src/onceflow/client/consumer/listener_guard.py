"""Tells whether code runs inside a listener, which must not wait for the client that waits for it:
a listener that closes its own consumer would deadlock.

A context variable carries this, so it also holds in tasks and threads that the listener starts, but
only until the listener has returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class _Call(Generic[T]):
    """One call of a listener. Every task that begins meanwhile has a copy of the variable, which
    cannot be reset from outside: so the end is noted in the call, which all copies share."""

    __slots__ = ("caller",)

    def __init__(self, caller: T) -> None:
        self.caller: T | None = caller


class ListenerGuard(Generic[T]):
    """One of these for each kind of caller, such as a rebalancer."""

    def __init__(self, name: str) -> None:
        self._call: ContextVar[_Call[T] | None] = ContextVar(name, default=None)

    @contextmanager
    def by(self, caller: T) -> Iterator[None]:
        """Whatever is called inside is waited for by that one."""
        call = _Call(caller)
        before = self._call.set(call)
        try:
            yield
        finally:
            call.caller = None
            self._call.reset(before)

    def is_by(self, caller: T) -> bool:
        """Whether that one waits now for the code that asks."""
        call = self._call.get()
        return call is not None and call.caller is caller
