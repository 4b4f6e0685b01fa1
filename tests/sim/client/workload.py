"""Clients, a broker, and everything that can go wrong between them, in one simulated world.

`workload(shape)` runs producers with and without transactions and readers at once, while requests
are lost, late, doubled and reordered, connections break, hosts are cut off and the broker crashes
and comes back on what a power cut left. Then the network is healed, late copies get the time to
arrive, everybody has to make progress, and `Result` holds what the programs were told beside what
is in the log.

Run as a program it prints the trace hash of each seed, so that processes can be compared.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from onceflow.broker.config.settings import ListenAddress
from onceflow.broker.server import Runtime, Server
from onceflow.client.admin.admin import Admin
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import sampled_images
from onceflow.testing.faults import NetFaults
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from tests.sim.client.history import NEW, OLD, History
from tests.sim.client.programs import (
    ADDRESS,
    PLACES,
    TRANSACTION_TIMEOUT_MS,
    Hangs,
    Plain,
    Program,
    Reader,
)
from tests.sim.client.proxy import LONGEST_DELAY_S, STRUCK, Proxy
from tests.sim.client.transactors import Transactor, Zombie
from tests.sim.txn.history import Place
from tests.sim.txn.observe import Seen, look
from tests.unit.broker.broker_under_test import RawClient, config

LONGEST_RUN_S: Final = 600.0
"""Of virtual time; what is not done then hangs."""
QUIET_S: Final = LONGEST_DELAY_S + TRANSACTION_TIMEOUT_MS / 1000 + 15.0
"""All copies have arrived, and what was left open has run out of time."""
SETTLED_S: Final = 5.0
"""Nothing is under way any more, even of a client that does not wait for its answers."""
BROKER: Final[dict[str, Any]] = {
    "advertise": ListenAddress(*ADDRESS),
    "journal_first_file_bytes": 64 << 10,
    "journal_largest_file_bytes": 64 << 10,
    "journal_files": 2,
}


class Shape(NamedTuple):
    """How much is done, and how much goes wrong."""

    newer: int = 1
    older: int = 1
    zombies: tuple[int, ...] = (NEW,)
    """Their generations."""
    rivals: tuple[int, ...] = (NEW,)
    """Of each pair of producers with one transactional id the generation."""
    plain: int = 1
    work: int = 4
    """Transactions of each program."""
    chance: float = 0.12
    """That one of the `struck` requests is."""
    struck: frozenset[ApiKey] = STRUCK
    crashes: int = 1
    cuts: int = 1
    """How often a client is cut off from the broker for a while."""
    long_one_in: int = 4
    """Of so many times without a broker one is longer than any program waits."""
    faults: NetFaults = NetFaults(
        delay_s=(0.0002, 0.01),
        split_chance=0.1,
        dribble_chance=0.003,
        refuse_chance=0.03,
        reset_chance=0.004,
        lose_response_chance=0.004,
    )


class Result(NamedTuple):
    """What the programs were told, and what there is."""

    history: History
    seen: Seen


class Broker:
    """A broker that can lose its power and start again on what that left."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rand = world.rand.fork("power")
        self._disk = world.disk
        self._starts = 0
        self._server: Server | None = None

    async def start(self) -> None:
        self._starts += 1
        world = self._world
        # A name of its own: what it draws at random is not what the one before drew.
        rand = world.rand.fork(f"broker {self._starts}")
        runtime = Runtime(
            world.clock, rand, world.net.host("broker"), self._disk, self._background()
        )
        server = Server(config(listen=ListenAddress("localhost", 9092), **BROKER), runtime)
        await server.start()
        self._server = server

    def _background(self) -> SimBackground:
        rand = self._world.rand.fork(f"background {self._starts}")
        started = self._starts

        def later(step: Callable[[], object]) -> None:
            self._world.loop.call_later(rand.uniform(0, 0.005), lambda: self._step(started, step))

        return SimBackground(rand.fork("lanes"), later)

    def _step(self, started: int, step: Callable[[], object]) -> None:
        if started == self._starts and self._server is not None:
            step()

    def crash(self) -> None:
        """From here on it does nothing; of what was not synced some is lost."""
        server, self._server = self._server, None
        self._world.net.kill("broker")
        if server is None:
            return
        for timer in server._timers.values():
            timer.cancel()
        server.node.transactions.close()
        end = len(self._disk.ops)
        images = list(
            sampled_images(
                self._disk, seed=self._rand.randrange(1 << 30), others=2, first=end, last=end
            )
        )
        image = images[self._rand.randrange(len(images))]
        self._disk = image.disk
        self._disk.watch = lambda op: self._world.loop.note("disk", repr(op).encode())

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None


class Trouble:
    """What happens to the broker and to hosts while the programs run."""

    def __init__(self, world: World, history: History, broker: Broker, long_one_in: int) -> None:
        self._world = world
        self._history = history
        self._broker = broker
        self._long_one_in = long_one_in
        self._rand = world.rand.fork("trouble")

    async def crashes(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(self._rand.uniform(0.3, 4.0))
            if self._rand.randrange(4):
                self._history.count("broker crashed")
                self._broker.crash()
            else:
                self._history.count("broker stopped")
                await self._broker.stop()
            await asyncio.sleep(self._away())
            await self._broker.start()

    async def cuts(self, count: int, hosts: Callable[[], list[str]]) -> None:
        for _ in range(count):
            await asyncio.sleep(self._rand.uniform(0.1, 4.0))
            known = hosts()
            if known:
                host = known[self._rand.randrange(len(known))]
                self._history.count("host cut off")
                self._world.net.partition(host, "broker")
                await asyncio.sleep(self._away())
                self._world.net.join(host, "broker")

    def _away(self) -> float:
        if self._rand.randrange(self._long_one_in) == 0:
            return self._rand.uniform(5.0, 9.0)
        return self._rand.uniform(0.01, 1.5)


class Run:
    """One world."""

    def __init__(self, world: World, shape: Shape) -> None:
        self._world = world
        self._shape = shape
        self._history = history = History()
        self._broker = Broker(world)
        rand = world.rand.fork("proxy")
        proxy = Proxy(world.loop, rand, history, chance=shape.chance, struck=shape.struck)
        self._proxy = proxy
        runtime = world, history, proxy
        self._writers: list[Plain | Transactor] = [
            Plain(*runtime, f"plain-{number}") for number in range(shape.plain)
        ]
        generations = [NEW] * shape.newer + [OLD] * shape.older
        for number, generation in enumerate(generations):
            name = f"transactor-{number}"
            self._writers.append(
                Transactor(*runtime, name, transactional_id=name, generation=generation)
            )
        for number, generation in enumerate(shape.zombies):
            name = f"zombie-{number}"
            self._writers.append(
                Zombie(*runtime, name, transactional_id=name, generation=generation)
            )
        for number, generation in enumerate(shape.rivals):
            for side in "ab":
                name = f"rival-{number}-{side}"
                shared = f"rivals-{number}"
                self._writers.append(
                    Transactor(*runtime, name, transactional_id=shared, generation=generation)
                )
        self._readers = [
            Reader(*runtime, "reader", read_committed=True),
            Reader(*runtime, "early reader", read_committed=False),
        ]

    async def main(self) -> Result:
        programs: list[Program] = [*self._writers, *self._readers]
        try:
            async with asyncio.timeout(LONGEST_RUN_S):
                return await self._whole()
        except TimeoutError:
            waiting = "; ".join(f"{each.name} does {each.doing}" for each in programs)
            raise Hangs(f"not done after {LONGEST_RUN_S:g} s: {waiting}") from None

    async def _whole(self) -> Result:
        world, shape = self._world, self._shape
        await self._broker.start()
        await self._make_topics()
        reading = [world.loop.create_task(each.run()) for each in self._readers]
        world.net.set_faults(shape.faults)
        world.net.tap(self._proxy)
        trouble = Trouble(world, self._history, self._broker, shape.long_one_in)
        async with asyncio.TaskGroup() as group:
            group.create_task(trouble.crashes(shape.crashes))
            group.create_task(trouble.cuts(shape.cuts, lambda: list(self._proxy.clients)))
            for writer in self._writers:
                group.create_task(writer.run(shape.work))
        world.net.heal()
        await asyncio.sleep(QUIET_S)
        for writer in self._writers:
            await writer.finish()
        await asyncio.sleep(SETTLED_S)
        seen = await self._look()
        await self._read_on(seen)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for reader in self._readers:
            await reader.close()
        await self._broker.stop()
        return Result(self._history, seen)

    async def _make_topics(self) -> None:
        net = self._world.net.host("admin")
        rand = self._world.rand.fork("admin")
        async with Admin(str(ADDRESS), net=net, rand=rand, clock=self._world.clock) as admin:
            for name, partitions in (("a", 2), ("b", 1)):
                await admin.create_topic(name, partitions=partitions)

    async def _look(self) -> Seen:
        client = await RawClient.connect(
            self._world.net.host("judge"), ListenAddress(*ADDRESS), "judge"
        )
        groups = sorted({each.group for each in self._writers if isinstance(each, Transactor)})
        seen = await look(client, PLACES, groups)
        client.close()
        return seen

    async def _read_on(self, seen: Seen) -> None:
        """Until readers are at the ends of all partitions."""
        for reader in self._readers:
            ends: dict[Place, int] = {
                place: log.last_stable_offset if reader.read.read_committed else log.high_watermark
                for place, log in seen.logs.items()
            }
            while not reader.is_at(ends):
                reader.doing = f"reading up to {ends}"
                await asyncio.sleep(0.05)


def workload(shape: Shape) -> Callable[[World], Awaitable[Result]]:
    """What to run in a world."""

    async def main(world: World) -> Result:
        return await Run(world, shape).main()

    return main


_NOBODY: Final = Shape(newer=0, older=0, zombies=(), rivals=(), plain=0)
SHAPES: Final = {
    "all": Shape(),
    "older": Shape(newer=0, older=2, zombies=(OLD,), rivals=(OLD,), plain=0),
    "plain": _NOBODY._replace(plain=2, work=12, chance=0.2),
    "expiring": _NOBODY._replace(plain=2, work=8, crashes=0, cuts=3, long_one_in=1),
    "struck": _NOBODY._replace(newer=2, work=8, chance=0.35, crashes=0, cuts=0),
    "older ends": _NOBODY._replace(
        older=2, work=14, chance=0.6, struck=frozenset({ApiKey.END_TXN}), crashes=0, cuts=0
    ),
}
"""Those of the tests."""

if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        print(run(seed, workload(SHAPES["all"]))[1])
