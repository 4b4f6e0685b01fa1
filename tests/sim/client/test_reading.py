"""The real client on a bad network, before a broker that stops and comes back: every committed
record is delivered once and in order, and nothing else is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.consumer.ranges import read_range
from onceflow.client.net.cluster import Cluster
from onceflow.client.net.cluster_settings import ClusterSettings
from onceflow.client.net.retry import RetryPolicy
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.settings.consumer import FetcherSettings
from onceflow.testing.faults import NetFaults
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, Running, batch, simulated_broker
from tests.unit.broker.txn.transactional_requests import ended, ready, wrote
from tests.unit.client.consumer.simulated_readers import ADVERTISED, P0, P1

ROUNDS = 30
BAD = NetFaults(
    split_chance=0.1,
    refuse_chance=0.1,
    reset_chance=0.03,
    half_close_chance=0.01,
    lose_response_chance=0.01,
)
SMALL: dict[str, Any] = {"max_partition_fetch_bytes": 300, "fetch_queued_max_bytes": 2000}
PATIENT = ClusterSettings(retry=RetryPolicy(total_s=600), request_timeout_s=2, connect_timeout_s=2)
Seen = dict[TopicPartition, list[int]]


async def fill(world: World, client: RawClient) -> Seen:
    """Transactions that end one way or the other, and records outside; what is to be seen."""
    rand = world.rand.fork("log")
    expected: Seen = {P0: [], P1: []}
    who = await ready(client, "t")
    for _ in range(ROUNDS):
        choice = rand.randrange(3)
        place = (P0, P1)[rand.randrange(2)]
        if choice == 2:
            answer = await client.produce("orders", batch(b"plain"), partition=place.partition)
            expected[place].append(int(answer["base_offset"]))
            continue
        first = await wrote(client, who, "orders", b"a", b"b", partition=place.partition)
        who = await ended(client, who, commit=choice == 1)
        if choice == 1:
            expected[place] += [first, first + 1]
    return expected


def cluster_of(world: World, running: Running) -> Cluster:
    return Cluster(
        [BrokerAddress(*running.address)], PATIENT, net=running.net, rand=world.rand.fork("cluster")
    )


async def read_by(fetcher: Fetcher, rand: Any, expected: Seen) -> Seen:
    seen: Seen = {P0: [], P1: []}
    while any(len(seen[each]) < len(expected[each]) for each in seen):
        if rand.randrange(4) == 0:
            paused = [(P0, P1)[rand.randrange(2)]]
            fetcher.pause(paused)
            await asyncio.sleep(0.05)
            fetcher.resume(paused)
        for record in await fetcher.next_records(5, max_records=1 + rand.randrange(6)):
            seen[TopicPartition(record.topic, record.partition)].append(record.offset)
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_each_committed_record_is_delivered_once(seed: int) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, advertise=ADVERTISED) as running:
            client = await running.client()
            await client.create("orders", 2)
            expected = await fill(world, client)
            world.net.set_faults(BAD)
            cluster = cluster_of(world, running)
            rand = world.rand.fork("reader")
            fetcher = Fetcher(cluster, FetcherSettings.of(**SMALL), rand=world.rand.fork("fetcher"))
            async with fetcher:
                fetcher.assign({P0: 0, P1: 0})
                assert await read_by(fetcher, rand, expected) == expected
                assert await fetcher.next_records(3) == []
            cluster.close()
            world.net.set_faults(NetFaults())

    run(seed, main)


@pytest.mark.parametrize("seed", range(4))
def test_ranges_are_exact_on_a_bad_network(seed: int) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, advertise=ADVERTISED) as running:
            client = await running.client()
            await client.create("orders", 2)
            expected = (await fill(world, client))[P0]
            end = (await client.list_offset("orders", -1))["offset"]
            world.net.set_faults(BAD)
            cluster = cluster_of(world, running)
            cut = world.rand.fork("cut").randrange(end)
            settings = ReaderSettings.of(max_partition_fetch_bytes=300)
            found: list[Any] = []
            for start, stop in ((0, cut), (cut, end)):
                tables = read_range(cluster, P0, start, stop, settings=settings, timeout_s=600)
                async for table in tables:
                    found += table.column("offset").to_pylist()
            assert found == expected
            cluster.close()
            world.net.set_faults(NetFaults())

    run(seed, main)


def test_reading_goes_on_when_the_broker_comes_back() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, advertise=ADVERTISED) as running:
            client = await running.client()
            await client.create("orders", 2)
            await client.produce("orders", batch(b"a"))
            cluster = cluster_of(world, running)
            fetcher = Fetcher(cluster, FetcherSettings(), rand=world.rand.fork("fetcher"))
            fetcher.assign({P0: 0})
            assert [each.value for each in await fetcher.next_records(5)] == [b"a"]
        assert await fetcher.next_records(5) == []
        async with simulated_broker(world, advertise=ADVERTISED) as running:
            client = await running.client()
            await client.produce("orders", batch(b"b"))
            assert [each.value for each in await fetcher.next_records(30)] == [b"b"]
            await fetcher.close()
            cluster.close()

    run(3, main)
