"""What a blocking `send` gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from onceflow.blocking.loop import LoopThread
from onceflow.blocking.twin import A_co, Calls
from onceflow.errors import InvariantViolated

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncReceipt(Awaitable[T_co], Protocol[T_co]):
    """What an async `send` gives back."""

    @property
    def is_done(self) -> bool:
        """Whether awaiting it would not wait."""
        ...


class Receipt(Generic[T]):
    """A promise of where a record is, or the rows of a table. It may be asked by nobody or by many;
    what was sent counts either way.

    >>> from onceflow.blocking import Producer
    >>> with Producer(bootstrap) as producer:
    ...     receipts = [producer.send("orders", value) for value in (b"a", b"b")]
    ...     print([receipt.result(timeout_s=10).offset for receipt in receipts])
    [0, 1]
    """

    __slots__ = ("_loop", "_promise")

    def __init__(self, loop: LoopThread, promise: AsyncReceipt[T]) -> None:
        self._loop = loop
        self._promise = promise

    def __repr__(self) -> str:
        return f"<blocking.{repr(self._promise).removeprefix('<')}"

    def result(self, timeout_s: float | None = None) -> T:
        """Where it is; raises why it is nowhere, or `TimeoutError`. Once that is known it can also
        be asked for when the client is closed."""
        if self._promise.is_done:
            return _known(self._promise)

        async def wait() -> T:
            return await self._promise

        return self._loop.run(wait(), timeout_s)


def _known(promise: AsyncReceipt[T]) -> T:
    """What awaiting it gives when there is nothing to wait for."""
    try:
        next(promise.__await__())
    except StopIteration as end:
        found: T = end.value
        return found
    raise InvariantViolated("a receipt that is done waits for something")


def promising(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, AsyncReceipt[T]]],
) -> Callable[Concatenate[Calls[A_co], P], Receipt[T]]:
    """The twin of an async method that gives a receipt."""

    @wraps(method)
    def call(self: Calls[A_co], /, *args: P.args, **named: P.kwargs) -> Receipt[T]:
        return Receipt(self._loop, self._loop.run(method(self._client, *args, **named)))

    return call
