"""The real broker in the simulated world: on a named host, on a disk that can lose its power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from onceflow.settings import dotted, text_of
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import sampled_images
from onceflow.testing.disk import SimDisk
from onceflow.testing.loop import SimulationError
from onceflow.testing.world import World

if TYPE_CHECKING:
    from onceflow.broker import Server

_SMALL: Final[Mapping[str, object]] = {
    "data.dir": "simulated",
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
    "reserve.bytes": 0,
    "journal.files": 2,
    "journal.first.file.bytes": 64 << 10,
    "journal.largest.file.bytes": 64 << 10,
}
"""A start costs little, and no group waits for members that do not come."""
_SLOWEST_STEP_SECONDS: Final = 0.005


class SimBroker:
    """A broker of the world, one start after the other on the same disk.

    It is the code that `onceflow serve` runs; only its clock, network, disk, threads and random
    numbers are the world's. Settings go by Kafka's names, with underscores as keywords
    (`num_partitions=3`) or as they are in a mapping.

    `stop` is orderly. After `kill` the disk holds all that was written, as after `kill -9`;
    after `cut_power` all that was synced, and of the rest what the seed says.
    """

    def __init__(
        self,
        world: World,
        settings: Mapping[str, object] | None = None,
        /,
        *,
        host: str = "broker",
        port: int = 9092,
        disk: SimDisk | None = None,
        **more_settings: object,
    ) -> None:
        self.host = host
        self.disk = disk or world.disk
        """What it starts on next; another one after a power cut."""
        self.bootstrap = f"{host}:{port}"
        self._world = world
        self._rand = world.rand.fork(f"power of {host}")
        self._settings = {
            dotted(name): text_of(value)
            for name, value in {
                **_SMALL,
                "listen": f"localhost:{port}",
                "advertise": self.bootstrap,
                **(settings or {}),
                **more_settings,
            }.items()
        }
        self._starts = 0
        self._server: Server | None = None

    def __repr__(self) -> str:
        return f"<SimBroker {self.bootstrap}: {'running' if self.is_running else 'not running'}>"

    @property
    def is_running(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        """Recovers what is on the disk and serves; raises what keeps the broker from it."""
        from onceflow.broker import Runtime, Server, load_config

        if self._server is not None:
            raise SimulationError(f"the broker on {self.host} is running already")
        self._starts += 1
        world = self._world
        # A name of its own: what it draws at random is not what the one before drew.
        rand = world.rand.fork(self._process)
        runtime = Runtime(
            world.clock, rand, world.net.host(self.host), self.disk, self._background()
        )
        server = Server(load_config(self._settings, {}, None), runtime)
        await world.loop.spawn(self._process, server.start())
        self._server = server

    async def stop(self) -> None:
        """An orderly stop."""
        server = self._end()
        await self._world.loop.spawn(self._process, server.stop())
        self._end_process()

    def kill(self) -> None:
        """As by `kill -9`: what the page cache holds stays."""
        self._end()
        self._end_process()
        self.disk.unlock("lock")

    def cut_power(self) -> None:
        """As by a power cut: of what was not synced some is lost, and some of it torn."""
        self._end()
        self._end_process()
        end = len(self.disk.ops)
        seed = self._rand.randrange(1 << 30)
        images = list(sampled_images(self.disk, seed=seed, others=2, first=end, last=end))
        self.start_from(images[self._rand.randrange(len(images))].disk)

    def start_from(self, disk: SimDisk) -> None:
        """The next start is on this disk: an image of a crash, say."""
        if self._server is not None:
            raise SimulationError(f"the broker on {self.host} is running")
        self.disk = disk
        disk.watch = lambda op: self._world.loop.note("disk", repr(op).encode())

    # --- inside ---------------------------------------------------------------------------------

    @property
    def _process(self) -> str:
        return f"{self.host} {self._starts}"

    def _background(self) -> SimBackground:
        rand = self._world.rand.fork(f"background of {self._process}")
        loop = self._world.loop
        return SimBackground(
            rand.fork("lanes"),
            lambda step: loop.call_later(rand.uniform(0, _SLOWEST_STEP_SECONDS), step),
        )

    def _end(self) -> Server:
        server, self._server = self._server, None
        if server is None:
            raise SimulationError(f"the broker on {self.host} is not running")
        return server

    def _end_process(self) -> None:
        self._world.net.kill(self.host)
        self._world.loop.kill_process(self._process)
