"""Our Produce and Fetch in every version, coordinators and features, on every broker."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import pytest

from onceflow.client.admin import admin
from onceflow.client.codec.fetch import FetchFrom, read_fetch, write_fetch
from onceflow.client.codec.produce import read_produce, write_produce
from onceflow.client.codec.versions import SPOKEN
from onceflow.client.errors.requests import BrokerError
from onceflow.client.net.cluster import Cluster, ConnectionLane, CoordinatorOf
from onceflow.client.settings.clients import ClientSettings
from onceflow.records.batch import iter_stored
from onceflow.records.plain import PlainRecord, read_records, write_records
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.interop.harness import BROKERS, Names

pytestmark = pytest.mark.interop

ALL_REPLICAS: Final = -1
WAIT_MS: Final = 10_000


@pytest.fixture(params=BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Each broker in its turn."""
    found: str = request.getfixturevalue(request.param)
    return found


def cluster_of(bootstrap: str) -> Cluster:
    settings = ClientSettings.of(bootstrap_servers=bootstrap)
    return Cluster(settings.bootstrap_servers, settings.cluster())


def versions(key: ApiKey) -> range:
    return range(SPOKEN[key].oldest, SPOKEN[key].newest + 1)


async def produce(cluster: Cluster, version: int, topic: str, value: bytes) -> int:
    """The offset that a record got in partition 1."""
    connection = await cluster.broker(await cluster.leader(TopicPartition(topic, 1)))
    batch = write_records([PlainRecord(b"key", value)], 1_700_000_000_000)
    body = write_produce(
        version,
        {topic: [(1, batch.buffer)]},
        transactional_id=None,
        acks=ALL_REPLICAS,
        timeout_ms=WAIT_MS,
    )
    answer = await connection.submit(ApiKey.PRODUCE, version, body)
    (result,) = read_produce(version, answer)
    assert result.partition == TopicPartition(topic, 1)
    if result.error:  # Apache Kafka's leader may not know yet that it is the one
        raise BrokerError(result.error, ApiKey.PRODUCE.name, topic, result.message)
    return result.base_offset


async def fetch(cluster: Cluster, version: int, topic: str, count: int) -> list[bytes | None]:
    """All values of partition 1, which are `count`."""
    leader = await cluster.leader(TopicPartition(topic, 1))
    connection = await cluster.broker(leader, lane=ConnectionLane.FETCH)
    body = write_fetch(
        version,
        {topic: [FetchFrom(1, 0, 1 << 20)]},
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        read_committed=True,
    )
    found = read_fetch(version, await connection.submit(ApiKey.FETCH, version, (body,)))
    (answer,) = found.partitions
    assert (found.error, answer.error, answer.partition) == (0, 0, TopicPartition(topic, 1))
    assert (answer.high_watermark, answer.last_stable_offset) == (count, count)
    assert answer.aborted == ()
    return [record.value for batch in iter_stored(answer.records) for record in read_records(batch)]


def test_every_version_of_produce_and_fetch_is_understood(bootstrap: str) -> None:
    async def main() -> None:
        topic = Names.fresh(bootstrap)("versions")
        async with cluster_of(bootstrap) as cluster:
            await admin.create_topic(cluster, topic, partitions=2)
            values = [b"%d" % version for version in versions(ApiKey.PRODUCE)]
            offsets = [
                await cluster.retrying(partial(produce, cluster, version, topic, value))
                for version, value in zip(versions(ApiKey.PRODUCE), values, strict=True)
            ]
            assert offsets == list(range(len(values)))
            for version in versions(ApiKey.FETCH):
                assert await fetch(cluster, version, topic, len(values)) == values
            await admin.delete_topic(cluster, topic)

    asyncio.run(main())


def test_transactions_are_of_the_newest_level_and_have_a_coordinator(bootstrap: str) -> None:
    async def main() -> None:
        async with cluster_of(bootstrap) as cluster:
            assert await cluster.transaction_version() == 2
            name = Names.fresh(bootstrap)("id")

            async def find() -> str:
                return str((await cluster.coordinator(name, CoordinatorOf.TRANSACTION)).address)

            assert await cluster.retrying(find) == bootstrap

    asyncio.run(main())
