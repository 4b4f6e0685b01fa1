"""Consumers of a broker inside a test: the real client on the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from onceflow.client.consumer.consumer import Consumer, RebalanceListener
from onceflow.client.consumer.fetched import Record
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, Running, batch, play
from tests.unit.client.consumer.simulated_readers import ADVERTISED

GROUP = "shop"
Program = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A broker with a topic `orders`, and hosts for consumers."""

    def __init__(self, world: World, running: Running, client: RawClient) -> None:
        self.world = world
        self.running = running
        self.client = client
        self._hosts = 0

    def consumer(self, host: str | None = None, **settings: Any) -> Consumer:
        """Not started yet; on a host of its own."""
        self._hosts += 1
        name = host or f"consumer-{self._hosts}"
        host_of_broker, port = self.running.address
        return Consumer(
            f"{host_of_broker}:{port}",
            net=self.world.net.host(name),
            rand=self.world.rand.fork(name),
            **{"auto_offset_reset": "earliest", "session_timeout_ms": 10_000, **settings},
        )

    def member(self, host: str | None = None, **settings: Any) -> Consumer:
        return self.consumer(host, group_id=GROUP, **settings)

    async def produce(self, *values: bytes, partition: int = 0) -> None:
        answer = await self.client.produce("orders", batch(*values), partition=partition)
        assert answer["error_code"] == "NONE", answer


def stage(program: Program, *, partitions: int = 1, **settings: Any) -> None:
    """Runs a program, in virtual time."""

    async def whole(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", partitions)
        await program(Stage(world, running, client))

    few = {"advertise": ADVERTISED, "group_initial_rebalance_delay_ms": 0}
    play(whole, **{**few, **settings})


class Heard(RebalanceListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.words: list[tuple[str, list[int]]] = []

    def note(self, word: str, partitions: Collection[TopicPartition]) -> None:
        self.words.append((word, [each.partition for each in partitions]))

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.note("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.note("revoked", partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.note("lost", partitions)


async def read(consumer: Consumer, count: int) -> list[Record]:
    """Polls until there are so many."""
    found: list[Record] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            found += await consumer.poll(1)
    return found


async def hold(consumer: Consumer, count: int) -> None:
    """Polls until it has so many partitions."""
    async with asyncio.timeout(120):
        while len(consumer.assignment) != count:
            await consumer.poll(0.1)


class Polling:
    """Somebody who polls all the time."""

    def __init__(self, consumer: Consumer) -> None:
        self.received: list[Record] = []
        self._consumer = consumer
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            self.received += await self._consumer.poll(0.1)

    async def until(self, good: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not good():
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
