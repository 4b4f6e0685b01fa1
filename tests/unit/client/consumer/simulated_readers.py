"""Readers of a broker inside a test: the real client, on the simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from onceflow.broker.config.settings import ListenAddress as AdvertisedAddress
from onceflow.client.address import BrokerAddress
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.net.cluster import Cluster
from onceflow.client.net.cluster_settings import ClusterSettings
from onceflow.client.net.retry import RetryPolicy
from onceflow.client.settings.consumer import FetcherSettings
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, Running, play

ADVERTISED = AdvertisedAddress("broker", 9092)
"""What the broker is called on the simulated network."""
P0 = TopicPartition("orders", 0)
P1 = TopicPartition("orders", 1)
Reads = Callable[[World, RawClient, Cluster], Awaitable[None]]


def cluster_of(world: World, running: Running, **settings: Any) -> Cluster:
    """A client of the broker."""
    return Cluster(
        [BrokerAddress(*running.address)],
        ClusterSettings(**{"retry": RetryPolicy(total_s=5), **settings}),
        net=running.net,
        rand=world.rand.fork("cluster"),
    )


def read(script: Reads, *, partitions: int = 1, **settings: Any) -> None:
    """Runs a script on a broker with a topic `orders`, in virtual time."""

    async def whole(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", partitions)
        async with cluster_of(world, running) as cluster:
            await script(world, client, cluster)

    play(whole, **{"advertise": ADVERTISED, **settings})


@asynccontextmanager
async def fetcher(
    world: World, cluster: Cluster, positions: dict[TopicPartition, int | None], **settings: Any
) -> AsyncIterator[Fetcher]:
    """Reads from these positions on."""
    made = Fetcher(cluster, FetcherSettings.of(**settings), rand=world.rand.fork("fetcher"))
    async with made:
        made.assign(positions)
        yield made


async def values(reader: Fetcher, *, wait_s: float = 2.0) -> list[bytes]:
    """The values of all records that come until none does for a while."""
    found: list[Any] = []
    while (table := await reader.next_table(wait_s)) is not None:
        found += table.column("value").to_pylist()
    return found
