"""What a blocking `send` gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from onceflow.blocking.loop import LoopThread
from onceflow.blocking.twin import C_co, Twin

P = ParamSpec("P")
T = TypeVar("T")


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

    def __init__(self, loop: LoopThread, promise: Awaitable[T]) -> None:
        self._loop = loop
        self._promise = promise

    def result(self, timeout_s: float | None = None) -> T:
        """Where it is; raises why it is nowhere, or `TimeoutError`."""

        async def wait() -> T:
            return await self._promise

        return self._loop.run(wait(), timeout_s)


def promising(
    method: Callable[Concatenate[C_co, P], Coroutine[Any, Any, Awaitable[T]]],
) -> Callable[Concatenate[Twin[C_co], P], Receipt[T]]:
    """The twin of an async method that gives a receipt."""

    @wraps(method)
    def call(self: Twin[C_co], /, *args: P.args, **named: P.kwargs) -> Receipt[T]:
        return Receipt(self._loop, self._loop.run(method(self._client, *args, **named)))

    return call
