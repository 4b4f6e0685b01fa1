"""How a blocking client is made of an async one: its methods under the same names, with the same
parameters and the same words, each run to its end on the client's thread."""

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
    """What an async client is at least."""

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
    """Something async, and the thread on which it lives; any number of threads may use one."""

    def __init__(self, client: A_co, loop: LoopThread) -> None:
        self._client = client
        self._loop = loop

    def __repr__(self) -> str:
        return f"<blocking.{repr(self._client).removeprefix('<')}"


class Twin(Calls[C_co]):
    """For `with`."""

    def __init__(self, client: C_co) -> None:
        super().__init__(client, LoopThread(f"onceflow {type(client).__name__.lower()}"))

    def start(self) -> None:
        """As entering `with`; raises `BrokerUnreachable` and the like."""
        if self._loop.is_running:
            self._loop.check()  # before it waits for others
        with self._loop.starting():
            self._start()

    def _start(self) -> None:
        life = self._loop.start()
        try:
            self._loop.run(self._client.__aenter__(), life=life)
        except BaseException as error:
            if life is not None:  # it may have started all the same
                end = partial(self._client.__aexit__, type(error), error, None)
                self._loop.stop(end, life=life)
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
        life = self._loop.life
        if life is None:
            return
        if in_a_listener.is_by(self._loop):
            name = type(self).__name__.lower()
            raise WrongUse(f"a {name} cannot be closed by its listener, for which it waits")
        self._loop.check(life)
        end = partial(self._client.__aexit__, kind, error, traceback)
        try:
            # In the life in which it was called: one that another thread has begun since goes on.
            self._loop.run(end(), life=life)
        except BaseException as problem:
            if isinstance(problem, NotRunning | CancelledError) and self._loop.life is not life:
                return  # another thread has closed it meanwhile
            # Whoever was interrupted does not wait, and the client is closed all the same.
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
    """The twin of a method that only looks or sets something: done where nothing else is at the
    same time."""

    @wraps(method)
    def call(self: Calls[A_co], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.call(lambda: method(self._client, *args, **named))

    return call
