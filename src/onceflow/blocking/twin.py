"""How a blocking client is made from an async one: methods with the same names, parameters and
docstrings, each run to its end on the client's own thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from onceflow.blocking.handover import in_a_listener
from onceflow.blocking.loop import LoopThread, NotRunning
from onceflow.client import WrongUse

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(Protocol):
    """What a blocking client needs of an async one."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


A_co = TypeVar("A_co", covariant=True)
C_co = TypeVar("C_co", bound=AsyncClient, covariant=True)


class Calls(Generic[A_co]):
    """An async object and the thread on which it lives; any number of threads may call it."""

    def __init__(self, client: A_co, loop: LoopThread) -> None:
        self._client = client
        self._loop = loop

    def __repr__(self) -> str:
        return f"<blocking.{repr(self._client).removeprefix('<')}"


class Twin(Calls[C_co]):
    """The blocking twin of an async client, for `with`."""

    def __init__(self, client: C_co) -> None:
        super().__init__(client, LoopThread(f"onceflow {type(client).__name__.lower()}"))

    def start(self) -> None:
        """Does the same as entering `with`; raises `BrokerUnreachable` and the like."""
        if self._loop.is_running:
            self._loop.check()  # raises before it waits for other threads
        with self._loop.starting():
            self._start()

    def _start(self) -> None:
        life = self._loop.start()
        try:
            self._loop.run(self._client.__aenter__(), life=life)
        except BaseException as error:
            if life is not None:  # an interrupted start may have succeeded
                end = partial(self._client.__aexit__, type(error), error, None)
                self._loop.stop(end, life=life)
            raise

    def close(self) -> None:
        """Does the same as leaving `with`; a second call does nothing."""
        self._end(None, None, None)

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        life = self._loop.life
        if life is None:
            return
        if in_a_listener.is_by(self._loop):
            name = type(self).__name__.lower()
            raise WrongUse(f"a {name} cannot be closed by its listener, for which it waits")
        self._loop.check(life)
        end = partial(self._client.__aexit__, kind, error, traceback)
        try:
            # Ends the life in which it was called, not one that another thread has begun since.
            self._loop.run(end(), life=life)
        except BaseException as problem:
            if isinstance(problem, NotRunning | CancelledError) and self._loop.life is not life:
                return  # another thread has closed it meanwhile
            # An interrupted thread does not wait any longer, but the client is closed.
            self._loop.stop(end, life=life)
            raise
        self._loop.stop(life=life)

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
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Calls[A_co], P], T]:
    """The twin of an async method."""

    @wraps(method)
    def call(self: Calls[A_co], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.run(method(self._client, *args, **named))

    return call


def plain(method: Callable[Concatenate[A_co, P], T]) -> Callable[Concatenate[Calls[A_co], P], T]:
    """The twin of a method that is not async. It runs on the client's thread too, where nothing
    else runs at the same time."""

    @wraps(method)
    def call(self: Calls[A_co], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.call(lambda: method(self._client, *args, **named))

    return call
