"""How a blocking client is made of an async one: its methods under the same names, with the same
parameters and the same words, each run to its end on the client's thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from onceflow.blocking.loop import LoopThread, NotRunning

P = ParamSpec("P")
T = TypeVar("T")


class Client(Protocol):
    """What an async client is at least."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


C_co = TypeVar("C_co", bound=Client, covariant=True)


class Twin(Generic[C_co]):
    """For `with`; any number of threads may use one."""

    def __init__(self, client: C_co, loop: LoopThread | None = None) -> None:
        """`loop`: the thread of somebody else, on which it lives."""
        self._client = client
        self._is_guest = loop is not None
        self._loop = loop or LoopThread(f"onceflow {type(client).__name__.lower()}")

    def start(self) -> None:
        """As entering `with`; raises `BrokerUnreachable` and the like."""
        if self._is_guest or self._loop.is_running:
            self._loop.run(self._client.__aenter__())
            return
        self._loop.start()
        try:
            self._loop.run(self._client.__aenter__())
        except BaseException as error:  # it may have started all the same
            self._loop.stop(partial(self._client.__aexit__, type(error), error, None))
            raise

    def close(self) -> None:
        """As leaving `with`; a second time it does nothing."""
        self._end(None, None, None)

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._loop.is_running:
            return
        end = partial(self._client.__aexit__, kind, error, traceback)
        try:
            self._loop.run(end())
        except BaseException as problem:
            if isinstance(problem, NotRunning | CancelledError) and self._has_ended():
                return  # another thread has closed it meanwhile
            # Whoever was interrupted does not wait, and the client is closed all the same.
            if not self._is_guest:
                self._loop.stop(end)
            raise
        if not self._is_guest:
            self._loop.stop()

    def _has_ended(self) -> bool:
        return not (self._is_guest or self._loop.is_running)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(kind, error, traceback)


def blocking(
    method: Callable[Concatenate[C_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Twin[C_co], P], T]:
    """The twin of an async method."""

    @wraps(method)
    def call(self: Twin[C_co], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.run(method(self._client, *args, **named))

    return call


def plain(method: Callable[Concatenate[C_co, P], T]) -> Callable[Concatenate[Twin[C_co], P], T]:
    """The twin of a method that only looks or sets something: done where nothing else is at the
    same time."""

    @wraps(method)
    def call(self: Twin[C_co], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.call(lambda: method(self._client, *args, **named))

    return call
