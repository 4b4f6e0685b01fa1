"""A program of the simulated world: it runs on a host of its own, and can be killed like one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from onceflow.testing.loop import SimulationError
from onceflow.testing.world import World

if TYPE_CHECKING:
    from onceflow.client import Admin, Consumer, Producer, Session

T = TypeVar("T")


class SimProcess:
    """A program under the name of its host: one life after the other.

    `start` runs a coroutine as the program, `kill` ends it as `kill -9` would: none of its
    `finally` blocks run, and nothing that it was about to say is heard. `pause` and `resume` are
    SIGSTOP and SIGCONT. The clients that it makes by `producer`, `consumer`, `session` and `admin`
    live on its host; a program that makes its own takes `client_options` as keywords.
    """

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._lives = 0
        self._task: asyncio.Task[Any] | None = None

    def __repr__(self) -> str:
        state = "running" if self.is_running else "not running"
        return f"<SimProcess {self.name}: {state}>"

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, program: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs it as this process. The task is that of the program: await it for its result; one
        that was killed never ends."""
        if self.is_running:
            program.close()
            raise SimulationError(f"process {self.name} is running already")
        self._lives += 1
        self._task = task = self._world.loop.spawn(self._life, program)
        return task

    def kill(self) -> None:
        """Ends it at once; one that is not running stays so."""
        self._world.loop.kill_process(self._life)
        # The kernel closes its sockets; its peers read the end.
        self._world.net.kill(self.name)
        self._task = None

    def pause(self) -> None:
        """It does nothing until `resume`, while time passes for everyone else."""
        self._world.loop.stop_process(self._life)

    def resume(self) -> None:
        """It goes on where it was, late for all that came up meanwhile."""
        self._world.loop.continue_process(self._life)

    @property
    def _life(self) -> str:
        return f"{self.name} {self._lives}"

    # --- clients --------------------------------------------------------------------------------

    @property
    def client_options(self) -> dict[str, Any]:
        """What every client takes as keywords to live in this world instead of the real one."""
        world = self._world
        return {
            "net": world.net.host(self.name),
            "clock": world.clock,
            # Of each life its own: what it draws at random is not what the one before drew.
            "rand": world.rand.fork(self._life),
        }

    def producer(self, bootstrap: str | Sequence[str], **settings: Any) -> Producer:
        from onceflow.client import Producer

        return Producer(bootstrap, **self.client_options, **settings)

    def consumer(self, bootstrap: str | Sequence[str], **settings: Any) -> Consumer:
        from onceflow.client import Consumer

        return Consumer(bootstrap, **self.client_options, **settings)

    def session(self, bootstrap: str | Sequence[str], **settings: Any) -> Session:
        from onceflow.client import Session

        return Session(bootstrap, **self.client_options, **settings)

    def admin(self, bootstrap: str, **settings: Any) -> Admin:
        from onceflow.client import Admin

        return Admin(bootstrap, **self.client_options, **settings)
