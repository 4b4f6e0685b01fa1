"""A cluster for a command, which is plain sequential code: `session.run` does one thing on it.

Between two calls nothing runs, so a command may block on its input or output as long as it likes,
and Ctrl-C always finds it in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from onceflow.client.address import parse_addresses
from onceflow.client.cluster import Cluster

T = TypeVar("T")


class Session(NamedTuple):
    """A connected cluster."""

    runner: asyncio.Runner
    cluster: Cluster

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the client."""
        return self.runner.run(work)


@contextmanager
def connected(bootstrap: str) -> Iterator[Session]:
    """Raises what `Cluster.connect` does; closes all connections at the end."""
    cluster = Cluster(parse_addresses(bootstrap))
    with asyncio.Runner() as runner:
        runner.run(cluster.connect())
        try:
            yield Session(runner, cluster)
        finally:
            cluster.close()
