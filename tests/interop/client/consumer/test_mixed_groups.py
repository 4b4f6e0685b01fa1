"""One group, members of three makes: ours with confluent-kafka and with Apache Kafka's own client,
each of them leading in turn, on both brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from tests.interop.client.consumer.foreign_members import ConfluentMember, ForeignMember, JavaMember
from tests.interop.client.consumer.polled_consumers import Members, members, script, until, write
from tests.interop.harness import Names, Transcript

pytestmark = pytest.mark.interop

PARTITIONS = 6
ALL = frozenset(range(PARTITIONS))


@pytest.fixture(params=["apache_kafka", "onceflow_server"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


async def shared(group: Members, theirs: ForeignMember | None) -> None:
    """Until each partition is with one member, and each member has some."""

    def shares() -> list[frozenset[int]]:
        found = [frozenset(place.partition for place in each.assignment) for each in group.all]
        return [*found, theirs.held] if theirs is not None else found

    def is_even(held: list[frozenset[int]]) -> bool:
        counts = [len(each) for each in held]
        return (
            frozenset().union(*held) == ALL
            and sum(counts) == PARTITIONS
            and max(counts) - min(counts) <= 1
        )

    await until(shares, is_even, seconds=60)


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (ConfluentMember, "range"),
        (ConfluentMember, "cooperative-sticky"),
        pytest.param(JavaMember, "range", marks=pytest.mark.long),
        (JavaMember, "cooperative-sticky"),
    ],
)
def test_members_of_different_makes_share(
    bootstrap: str, kind: Any, strategy: str, kafka_jars: object
) -> None:
    async def work(admin: Admin, names: Names, transcript: Transcript) -> None:
        topic, group_id = names("topic"), names("group")
        await admin.create_topic(topic, partitions=PARTITIONS)
        sent = 0

        async def send() -> int:
            nonlocal sent
            await write(bootstrap, topic, [b"%d" % number for number in range(60)])
            sent += 60
            return sent

        async with members(
            bootstrap, group_id, [topic], partition_assignment_strategy=strategy
        ) as group:
            first = group.join()
            await shared(group, None)
            with kind(bootstrap, group_id, topic, strategy) as theirs:
                # Ours leads, and shares with the other one.
                await shared(group, theirs)
                await send()
                await until(
                    lambda: len(first.received) + theirs.received, lambda count: count == sent
                )
                described = await admin.describe_group(group_id)
                assert (described.protocol, len(described.members)) == (strategy, 2)
                # Theirs leads, alone and then with two of ours.
                await group.leave(first)
                await until(lambda: theirs.held, lambda held: held == ALL, seconds=60)
                others = [group.join(), group.join()]
                await shared(group, theirs)
                await send()
                ours = (first, *others)
                await until(
                    lambda: sum(len(each.received) for each in ours) + theirs.received,
                    lambda count: count == sent,
                )
            await shared(group, None)
            await group.stop()
        offsets = await admin.committed_offsets(group_id)
        assert sum(offsets.values()) == sent

    async def limited(admin: Admin, names: Names, transcript: Transcript) -> None:
        async with asyncio.timeout(240):
            await work(admin, names, transcript)

    script(limited)(bootstrap, Names.fresh(bootstrap), Transcript())
