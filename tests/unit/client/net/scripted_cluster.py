"""Two brokers that answer by script, and a client that asks them for the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from onceflow.client.address import BrokerAddress
from onceflow.client.net.cluster import Cluster
from onceflow.client.net.cluster_settings import ClusterSettings
from onceflow.client.net.retry import RetryPolicy
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from tests.unit.client.scripted_broker import ADDRESS, metadata

ORDERS = TopicPartition("orders", 0)


OTHER = BrokerAddress("other", 9093)


BOTH = {1: ADDRESS, 2: OTHER}


PATIENCE = 10.0


Program = Callable[[World, Cluster], Awaitable[None]]


def simulate(program: Program, bootstrap: tuple[BrokerAddress, ...] = (ADDRESS,)) -> None:
    """Runs a program that starts its brokers itself, then connects the cluster it is given."""

    async def main(world: World) -> None:
        cluster = Cluster(
            bootstrap,
            ClusterSettings(retry=RetryPolicy(total_s=PATIENCE)),
            net=world.net.host("client"),
            rand=world.rand.fork("client"),
        )
        await program(world, cluster)
        cluster.close()

    run(1, main)


def topics_answer(topics: Mapping[str, Mapping[int, int]]) -> Callable[[int, Any], Any]:
    """Metadata of two brokers: of all topics, or of those that are asked for."""

    def answer(version: int, request: Any) -> Any:
        if request.topics is None:
            return metadata(topics, BOTH)
        return metadata({each.name: topics.get(each.name, {}) for each in request.topics}, BOTH)

    return answer
