"""A group on three nodes of Apache Kafka, whose coordinator is killed: the members find the next
one, stay in their group, and every record reaches one of them."""

from __future__ import annotations

import asyncio

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.net.cluster import CoordinatorOf
from tests.interop.client.cluster.three_nodes import coordinator_of, until_whole
from tests.interop.client.consumer.polled_consumers import Members, members, until, write
from tests.interop.harness import Names
from tools.apache_kafka import ApacheKafkaCluster

pytestmark = pytest.mark.interop

PARTITIONS = 6
EACH = 60


async def send_and_receive(group: Members, topic: str, total: int) -> None:
    """Returns when so many have come, of all that were sent."""
    await write(group.bootstrap, topic, [b"%d" % number for number in range(EACH)])
    await until(
        lambda: len({(r.partition, r.offset) for each in group.all for r in each.received}),
        lambda count: count == total,
        seconds=90,
    )


@pytest.mark.parametrize(
    "strategy", [pytest.param("range", marks=pytest.mark.long), "cooperative-sticky"]
)
def test_the_coordinator_of_a_group_is_killed(
    three_nodes: ApacheKafkaCluster, strategy: str
) -> None:
    until_whole(three_nodes)
    names = Names.fresh(three_nodes.bootstrap)
    topic, group_id = names("topic"), names("group")

    async def main() -> int:
        async with (
            Admin(three_nodes.bootstrap) as admin,
            members(
                three_nodes.bootstrap,
                group_id,
                [topic],
                partition_assignment_strategy=strategy,
                session_timeout_ms=20_000,
                auto_commit_interval_ms=200,
            ) as group,
        ):
            await admin.create_topic(topic, partitions=PARTITIONS)
            one, other = group.join(), group.join()
            await group.settle(PARTITIONS)

            await send_and_receive(group, topic, EACH)
            node = await asyncio.to_thread(
                coordinator_of, three_nodes, group_id, CoordinatorOf.GROUP
            )
            await asyncio.to_thread(three_nodes.kill, node)
            await send_and_receive(group, topic, 2 * EACH)
            for member in (one, other):
                await member.consumer.commit()
            assert not [word for word, _ in one.heard.words + other.heard.words if word == "lost"]
            assert await group.settle(PARTITIONS) == [3, 3]
            offsets = await admin.committed_offsets(group_id)
            assert sum(offsets.values()) == 2 * EACH
            await group.stop()
            return node

    node = asyncio.run(main())
    three_nodes.restart(node)
    until_whole(three_nodes)
