"""The receipts that a blocking `send` returns."""

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
    """The receipt that an async `send` returns."""

    @property
    def is_done(self) -> bool:
        """Whether there is an outcome, so that awaiting the receipt returns at once."""
        ...


class Receipt(Generic[T]):
    """Gives the offset of a record, or of a table's rows. Any number of threads may ask for it, or
    none: the records are sent either way.

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
        """Waits for the outcome: the record's offset, or the error for which it failed. Raises
        `TimeoutError` when there is none in time. A known outcome is also available after the
        client was closed."""
        if self._promise.is_done:
            return _known(self._promise)

        async def wait() -> T:
            return await self._promise

        return self._loop.run(wait(), timeout_s)


def _known(promise: AsyncReceipt[T]) -> T:
    """The outcome of a receipt that is done."""
    try:
        next(promise.__await__())
    except StopIteration as end:
        result: T = end.value
        return result
    raise InvariantViolated("a receipt that is done waits for something")


def promising(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, AsyncReceipt[T]]],
) -> Callable[Concatenate[Calls[A_co], P], Receipt[T]]:
    """The twin of an async method that returns a receipt."""

    @wraps(method)
    def call(self: Calls[A_co], /, *args: P.args, **named: P.kwargs) -> Receipt[T]:
        return Receipt(self._loop, self._loop.run(method(self._client, *args, **named)))

    return call
