"""A cluster for a command, which is plain sequential code: `session.run` does one thing on it.

Between two calls nothing runs, so a command may block on its output as long as it likes, and Ctrl-C
always finds it in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from onceflow.cli.common.signals import run_in
from onceflow.cli.common.values import parse_client_settings
from onceflow.client import ClientSettings, Cluster, parse_addresses

T = TypeVar("T")

_PATIENCE: Final[Mapping[str, object]] = {"default.api.timeout.ms": 30_000}
"""A person waits in front of it."""


class Session(NamedTuple):
    """A connected cluster."""

    runner: asyncio.Runner
    cluster: Cluster

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the client."""
        return run_in(self.runner, work)

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """What `async with` gives, for the time of the block."""
        entered = self.run(_enter(manager))
        try:
            yield entered
        finally:
            self.run(_leave(manager))


async def _enter(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _leave(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)


def all_settings(
    bootstrap: str, given: Sequence[str] | None, chosen: Mapping[str, object] | None = None
) -> dict[str, object]:
    """For a client: what the command has `chosen`, and what the user has set, which wins."""
    parse_addresses(bootstrap)  # says more plainly than the settings what is wrong with it
    user = parse_client_settings(given or ())
    return {**_PATIENCE, "bootstrap.servers": bootstrap, **(chosen or {}), **user}


@contextmanager
def connected(bootstrap: str, given: Sequence[str] | None = None) -> Iterator[Session]:
    """For a command that moves no records. Raises `InvalidSetting`, and what `Cluster.connect`
    does; closes all connections at the end."""
    with connected_by(ClientSettings.of(all_settings(bootstrap, given))) as session:
        yield session


@contextmanager
def connected_by(settings: ClientSettings) -> Iterator[Session]:
    """The same, with settings of any kind of client."""
    cluster = Cluster(settings.bootstrap_servers, settings.cluster())
    with asyncio.Runner() as runner:
        run_in(runner, cluster.connect())
        try:
            yield Session(runner, cluster)
        finally:
            cluster.close()
