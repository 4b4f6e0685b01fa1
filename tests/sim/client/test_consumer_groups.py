"""Groups on a bad network, with members that are cut off, killed and started again: committing
after the work does everything at least once, and in transactions, fenced by the generation, exactly
once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.consumer.fetched import Record
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.requests import AbortableError, ClientError
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import offset_ranges
from onceflow.client.producer.producer import Producer
from onceflow.testing.faults import NetFaults
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import Running, simulated_broker
from tests.unit.client.consumer.simulated_readers import ADVERTISED

PARTITIONS: Final = 4
MEMBERS: Final = ("a", "b", "c")
VALUES: Final = [b"%d" % number for number in range(400)]
BAD: Final = NetFaults(
    split_chance=0.05, refuse_chance=0.05, reset_chance=0.02, lose_response_chance=0.01
)
SETTINGS: Final[dict[str, Any]] = {
    "group_id": "workers",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "max_poll_records": 7,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 700,
    "max_poll_interval_ms": 20_000,
    "request_timeout_ms": 2_000,
    "socket_connection_setup_timeout_ms": 2_000,
    "default_api_timeout_ms": 10_000,
}
SEEDS: Final = (0, 3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 4)))
STRATEGIES: Final = ("range", "cooperative-sticky")
LONGEST_S: Final = 3_000.0
Work = Callable[["Team", str, Consumer], Awaitable[None]]


class Team:
    """Members of a group, and who troubles them."""

    def __init__(self, world: World, running: Running, strategy: str, work: Work) -> None:
        self.world = world
        self.bootstrap = f"{running.address[0]}:{running.address[1]}"
        self.done: Counter[bytes] = Counter()
        self.rand = world.rand.fork("team")
        self._strategy = strategy
        self._work = work
        self._incarnations = 0
        self.hosts: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dying: list[asyncio.Task[None]] = []

    def start(self, member: str) -> None:
        self._incarnations += 1
        self.hosts[member] = f"{member}-{self._incarnations}"
        task = self.world.loop.create_task(self._live(member, self.hosts[member]))
        self._tasks[member] = task

    async def _live(self, member: str, host: str) -> None:
        while self.hosts.get(member) == host:  # a cancelled program may end with another error
            consumer = Consumer(
                self.bootstrap,
                net=self.world.net.host(host),
                rand=self.world.rand.fork(host),
                partition_assignment_strategy=self._strategy,
                **SETTINGS,
            )
            try:
                async with consumer:
                    consumer.subscribe(["in"])
                    await self._work(self, member, consumer)
            except ClientError:
                await asyncio.sleep(0.5)

    def kill(self, member: str) -> None:
        """As by kill -9: nothing that it would still like to say is heard."""
        host = self.hosts.pop(member)
        self.world.net.kill(host)
        self.world.net.partition(host, "broker")
        task = self._tasks.pop(member)
        task.cancel()
        self._dying.append(task)

    async def trouble(self) -> None:
        """Now and then one is cut off, perhaps for longer than its session, or killed and started
        again."""
        for _ in range(8):
            await asyncio.sleep(self.rand.uniform(0.5, 3.0))
            member = MEMBERS[self.rand.randrange(len(MEMBERS))]
            if self.rand.randrange(2):
                self.kill(member)
                self.start(member)
            else:
                host = self.hosts[member]
                self.world.net.partition(host, "broker")
                await asyncio.sleep(self.rand.uniform(4.0, 12.0))
                self.world.net.join(host, "broker")

    async def stop(self) -> None:
        self.hosts.clear()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._dying, return_exceptions=True)


def behind(records: list[Record]) -> dict[TopicPartition, int]:
    return {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}


async def commit_after(team: Team, member: str, consumer: Consumer) -> None:
    while True:
        records = await consumer.poll(1)
        for record in records:
            team.done[record.value or b""] += 1
        if records:
            await asyncio.sleep(team.rand.uniform(0.0, 2.0))
        # Also when there is nothing new: the last one may have been refused, and an older one may
        # have come late.
        with suppress(ClientError):
            await consumer.commit()


async def in_transactions(team: Team, member: str, consumer: Consumer) -> None:
    """Each poll's records become records of `out`, together with their offsets."""
    async with Producer(
        team.bootstrap,
        net=team.world.net.host(team.hosts[member]),
        clock=team.world.clock,
        rand=team.rand.fork(member),
        transactional_id=member,
        transaction_timeout_ms=60_000,
        delivery_timeout_ms=30_000,
        request_timeout_ms=2_000,
    ) as producer:
        await producer.init_transactions()
        await consumer.poll(0)
        while True:
            records = await consumer.poll(1)
            if not records:
                continue
            try:
                async with producer.transaction() as transaction:
                    for record in records:
                        await transaction.send("out", record.value, partition=0)
                    await asyncio.sleep(team.rand.uniform(0.0, 2.0))
                    await transaction.send_offsets(behind(records), consumer.group_metadata())
            except AbortableError:
                await consumer.rewind()


async def prepare(team: Team, running: Running) -> None:
    async with (
        Admin(team.bootstrap, net=running.net) as admin,
        Producer(team.bootstrap, net=running.net, clock=team.world.clock) as producer,
    ):
        await admin.create_topic("in", partitions=PARTITIONS)
        await admin.create_topic("out", partitions=1)
        for number, value in enumerate(VALUES):
            await producer.send("in", value, partition=number % PARTITIONS)
        await producer.flush()


async def all_committed(team: Team, running: Running) -> None:
    """Returns when the group has committed everything."""
    async with Admin(team.bootstrap, net=running.net) as admin:
        async with asyncio.timeout(LONGEST_S):
            while sum((await admin.committed_offsets("workers")).values()) < len(VALUES):
                await asyncio.sleep(1)


def play(seed: int, strategy: str, work: Work, judge: Callable[[Team, list[bytes]], None]) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(
            world, advertise=ADVERTISED, group_initial_rebalance_delay_ms=0
        ) as running:
            team = Team(world, running, strategy, work)
            await prepare(team, running)
            for member in MEMBERS:
                team.start(member)
            world.net.set_faults(BAD)
            await team.trouble()
            world.net.set_faults(NetFaults())
            await all_committed(team, running)
            await team.stop()
            judge(team, await written(running))

    run(seed, main)


async def written(running: Running) -> list[bytes]:
    """What readers of committed records see of `out`."""
    place = TopicPartition("out", 0)
    async with Cluster([BrokerAddress(*running.address)], net=running.net) as cluster:
        ends = (await offset_ranges(cluster, [place], read_committed=True))[place]
        found: list[Any] = []
        async for table in read_range(cluster, place, ends.earliest, ends.latest):
            found += table.column("value").to_pylist()
        return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_committing_after_the_work_does_everything_at_least_once(seed: int, strategy: str) -> None:
    def judge(team: Team, out: list[bytes]) -> None:
        assert set(team.done) == set(VALUES)

    play(seed, strategy, commit_after, judge)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_in_transactions_everything_is_done_exactly_once(seed: int, strategy: str) -> None:
    def judge(team: Team, out: list[bytes]) -> None:
        assert Counter(out) == Counter(VALUES)

    play(seed, strategy, in_transactions, judge)
