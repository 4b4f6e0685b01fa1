"""Sessions on three nodes of Apache Kafka, whose coordinators are killed: of the group, and of a
transactional id. The sessions find the next ones, and each record is copied once."""

from __future__ import annotations

import asyncio

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.net.cluster import CoordinatorOf
from onceflow.client.session.session import Session
from tests.doses import some_long
from tests.interop.client.cluster.three_nodes import coordinator_of, until_whole
from tests.interop.client.session.copying_sessions import Copying
from tests.interop.harness import Names
from tools.apache_kafka import ApacheKafkaCluster

pytestmark = pytest.mark.interop

PARTITIONS = 3
EACH = 60
SECONDS = 90.0


async def copy_for_ever(world: Copying, session: Session) -> None:
    async with session:
        async for batch, txn in session:
            for record in batch:
                await txn.send(world.out, record.value, partition=record.partition)


async def all_copied(world: Copying, admin: Admin) -> None:
    async with asyncio.timeout(SECONDS):
        while sum(await world.offsets(admin)) < len(world.expected()):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", some_long(CoordinatorOf, CoordinatorOf.GROUP))
def test_a_coordinator_is_killed(three_nodes: ApacheKafkaCluster, kind: CoordinatorOf) -> None:
    until_whole(three_nodes)
    world = Copying(Names.fresh(three_nodes.bootstrap), PARTITIONS)

    async def main() -> int:
        async with Admin(three_nodes.bootstrap) as admin:
            await world.prepare(admin, EACH)
            sessions = [
                world.session(instance=name, max_poll_records=5, session_timeout_ms=20_000)
                for name in ("a", "b")
            ]
            tasks = [asyncio.create_task(copy_for_ever(world, each)) for each in sessions]
            await all_copied(world, admin)
            is_group = kind is CoordinatorOf.GROUP
            name = world.group_id if is_group else sessions[0].transactional_id
            node = await asyncio.to_thread(coordinator_of, three_nodes, name, kind)
            await world.write(EACH)
            await asyncio.to_thread(three_nodes.kill, node)
            await world.write(EACH)
            await all_copied(world, admin)
            for session in sessions:
                session.stop()
            await asyncio.wait_for(asyncio.gather(*tasks), SECONDS)
            return node

    node = asyncio.run(main())
    three_nodes.restart(node)
    until_whole(three_nodes)
    assert world.visible() == world.expected()
