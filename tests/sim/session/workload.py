"""Sessions that copy a topic while members are killed and cut off, the broker loses its power, and
their own work fails now and then; in one simulated world.

Each partition is copied to the partition of the same number. A partition is only with one member at
a time, and the next one begins when the transaction of the one before has ended: so the copy has
not only every record once, it has them in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from onceflow.client.address import BrokerAddress
from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.requests import ClientError
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import offset_ranges
from onceflow.client.producer.producer import Producer
from onceflow.client.session.session import Session
from onceflow.testing.faults import NetFaults
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.sim.client.programs import ADDRESS
from tests.sim.client.workload import Broker

PARTITIONS: Final = 3
RECORDS: Final = 240
GROUP: Final = "workers"
LONGEST_S: Final = 1_000.0
BAD: Final = NetFaults(
    split_chance=0.05, refuse_chance=0.05, reset_chance=0.02, lose_response_chance=0.01
)
SETTINGS: Final[dict[str, Any]] = {
    "group_id": GROUP,
    "topics": ["in"],
    "max_poll_records": 7,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 700,
    "max_poll_interval_ms": 20_000,
    "request_timeout_ms": 2_000,
    "socket_connection_setup_timeout_ms": 2_000,
    "default_api_timeout_ms": 10_000,
    "delivery_timeout_ms": 8_000,
    "transaction_timeout_ms": 20_000,
}


IMPATIENT: Final[dict[str, Any]] = {
    "session_timeout_ms": 30_000,
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": 2_000,
}
"""Gives up on answers long before the group gives up on the member."""


SLOW: Final[dict[str, Any]] = {"transaction_timeout_ms": 950}
"""Now and then a broker aborts a transaction whose member has done nothing wrong, and stays one."""


class Shape(NamedTuple):
    """How the members are set up, and how much goes wrong."""

    strategy: str = "range"
    interval_ms: int = 0
    static: bool = False
    settings: Mapping[str, Any] = {}
    strikes: int = 8


class Failed(Exception):
    """The work of a member, now and then."""


class Outcome(NamedTuple):
    """What is to be compared."""

    copied: dict[int, list[bytes]]
    """By partition, as readers of committed records see it."""
    expected: dict[int, list[bytes]]
    committed: dict[int, int]


class Team:
    """The members, and who troubles them and their broker."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.world = world
        self.rand = world.rand.fork("team")
        self.broker = Broker(world)
        self._shape = shape
        self._lives = 0
        self._hosts: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dying: list[asyncio.Task[None]] = []
        self._asleep: set[str] = set()

    # --- members --------------------------------------------------------------------------------

    def start(self, instance: str) -> None:
        self._lives += 1
        host = self._hosts[instance] = f"{instance}-{self._lives}"
        self._tasks[instance] = self.world.loop.create_task(self._live(instance, host))

    async def _live(self, instance: str, host: str) -> None:
        """As a supervisor would have it: started again whatever it ends with."""
        while self._hosts.get(instance) == host:
            try:
                await self._work(instance, host)
            except (ClientError, Failed):
                await asyncio.sleep(0.5)

    async def _work(self, instance: str, host: str) -> None:
        name = "group_instance_id" if self._shape.static else "instance"
        session = Session(
            str(ADDRESS),
            net=self.world.net.host(host),
            clock=self.world.clock,
            rand=self.world.rand.fork(host),
            partition_assignment_strategy=self._shape.strategy,
            commit_interval_ms=self._shape.interval_ms,
            **{**SETTINGS, **self._shape.settings, name: instance},
        )
        async with session:
            async for batch, txn in session:
                fails_at = self.rand.randrange(200)
                for number, record in enumerate(batch):
                    if number == fails_at:
                        raise Failed
                    await txn.send("out", record.value, partition=record.partition)
                await asyncio.sleep(self.rand.uniform(0.0, 1.0))
                while host in self._asleep:
                    await asyncio.sleep(0.05)

    def kill(self, instance: str) -> None:
        """As by kill -9: nothing that it would still like to say is heard."""
        host = self._hosts.pop(instance)
        self.world.net.kill(host)
        self.world.net.partition(host, "broker")
        task = self._tasks.pop(instance)
        task.cancel()
        self._dying.append(task)

    async def stop(self) -> None:
        self._hosts.clear()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._dying, return_exceptions=True)

    # --- trouble --------------------------------------------------------------------------------

    async def strike(self) -> None:
        instance = sorted(self._hosts)[self.rand.randrange(len(self._hosts))]
        kinds = (self._restart, self._replace, self._cut_off, self._stop, self._power_cut)
        await kinds[self.rand.randrange(len(kinds))](instance)

    async def _restart(self, instance: str) -> None:
        self.kill(instance)
        self.start(instance)

    async def _replace(self, instance: str) -> None:
        """Nobody of that name comes back: what it has left open ends by its timeout."""
        self.kill(instance)
        self.start(f"{instance}'")

    async def _cut_off(self, instance: str) -> None:
        host = self._hosts[instance]
        self.world.net.partition(host, "broker")
        await asyncio.sleep(self.rand.uniform(1.0, 12.0))
        self.world.net.join(host, "broker")

    async def _stop(self, instance: str) -> None:
        """As by SIGSTOP: it goes on in the midst of its work, when others may have done it."""
        host = self._hosts[instance]
        self._asleep.add(host)
        self.world.net.partition(host, "broker")
        await asyncio.sleep(self.rand.uniform(5.0, 15.0))
        self.world.net.join(host, "broker")
        self._asleep.discard(host)

    async def _power_cut(self, instance: str) -> None:
        self.broker.crash()
        await asyncio.sleep(self.rand.uniform(0.01, 4.0))
        await self.broker.start()


async def prepare(team: Team) -> dict[int, list[bytes]]:
    net = team.world.net.host("admin")
    expected: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    async with (
        Admin(str(ADDRESS), net=net) as admin,
        Producer(str(ADDRESS), net=net, clock=team.world.clock) as producer,
    ):
        for topic in ("in", "out"):
            await admin.create_topic(topic, partitions=PARTITIONS)
        for number in range(RECORDS):
            value, partition = b"%d" % number, number % PARTITIONS
            expected[partition].append(value)
            await producer.send("in", value, partition=partition)
        await producer.flush()
    return expected


async def offsets(team: Team) -> dict[int, int]:
    async with Admin(str(ADDRESS), net=team.world.net.host("admin")) as admin:
        found = await admin.committed_offsets(GROUP)
    return {place.partition: offset for place, offset in found.items()}


async def written(team: Team) -> dict[int, list[bytes]]:
    """What readers of committed records see of the copy."""
    places = [TopicPartition("out", number) for number in range(PARTITIONS)]
    copied: dict[int, list[bytes]] = {}
    net = team.world.net.host("judge")
    async with Cluster([BrokerAddress(*ADDRESS)], net=net) as cluster:
        ends = await offset_ranges(cluster, places, read_committed=True)
        for place in places:
            found: list[Any] = []
            first, last = ends[place].earliest, ends[place].latest
            async for table in read_range(cluster, place, first, last):
                found += table.column("value").to_pylist()
            copied[place.partition] = found
    return copied


def workload(shape: Shape) -> Callable[[World], Awaitable[Outcome]]:
    """What to run in a world."""

    async def main(world: World) -> Outcome:
        team = Team(world, shape)
        await team.broker.start()
        expected = await prepare(team)
        for instance in ("a", "b", "c"):
            team.start(instance)
        world.net.set_faults(BAD)
        for _ in range(shape.strikes):
            await asyncio.sleep(team.rand.uniform(0.2, 3.0))
            await team.strike()
        world.net.set_faults(NetFaults())
        async with asyncio.timeout(LONGEST_S):
            while sum((await offsets(team)).values()) < RECORDS:
                await asyncio.sleep(1)
        await team.stop()
        # What the killed have left open is over.
        await asyncio.sleep(SETTINGS["transaction_timeout_ms"] / 1000 + 5)
        outcome = Outcome(await written(team), expected, await offsets(team))
        await team.broker.stop()
        return outcome

    return main


SHAPES: Final = {
    "eager": Shape(),
    "cooperative": Shape("cooperative-sticky"),
    "static": Shape(static=True),
    "impatient": Shape(settings=IMPATIENT),
    "slow": Shape(settings=SLOW, strikes=1),
    "shared transactions": Shape(interval_ms=1_500),
    "cooperative, shared": Shape("cooperative-sticky", interval_ms=1_500),
}
