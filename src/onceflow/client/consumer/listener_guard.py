"""Code that is called by somebody who waits for it, and must not ask that one to wait for itself.

It is known by a context variable, so also in tasks and threads that it starts: but only until the
caller has gone on. What they do afterwards is their own affair.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class _Call(Generic[T]):
    """One of them. Every task that begins meanwhile has a copy of the variable, and none of them
    can be told to forget it: so it is told to the call itself."""

    __slots__ = ("caller",)

    def __init__(self, caller: T) -> None:
        self.caller: T | None = caller


class ListenerGuard(Generic[T]):
    """By which of several callers."""

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
