"""One connection to a leader, or two: who moves to the second, when, and who never does."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.client.net.pool import ConnectionLane
from onceflow.client.producer.sender import LeaderConnections
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, Running, values_in
from tests.unit.client.producer.simulated_producers import play, producer

EVEN, ODD = TopicPartition("t", 0), TopicPartition("t", 1)
LEADER = 7


class Pretended:
    """A connection of which only is asked whether it is open."""

    def __init__(self) -> None:
        self.is_open = True


def connection() -> Any:
    return Pretended()


def lose(connection: Any) -> None:
    connection.is_open = False


def nothing(partition: TopicPartition) -> bool:
    return False


def everything(partition: TopicPartition) -> bool:
    return True


def with_two() -> tuple[LeaderConnections, Any, Any]:
    connections, first, second = LeaderConnections(may_have_two=True), connection(), connection()
    connections.opened(LEADER, ConnectionLane.SHARED, first)
    connections.opened(LEADER, ConnectionLane.SECONDARY, second)
    return connections, first, second


def test_there_is_none_before_one_is_opened_and_after_it_has_failed() -> None:
    connections, first = LeaderConnections(may_have_two=True), connection()
    assert connections.of(EVEN, LEADER, nothing) is None
    connections.opened(LEADER, ConnectionLane.SHARED, first)
    assert connections.of(EVEN, LEADER, nothing) is first
    assert connections.of(ODD, LEADER, nothing) is first
    lose(first)
    assert connections.of(EVEN, LEADER, nothing) is None


def test_every_other_partition_moves_to_the_second() -> None:
    connections, first, second = with_two()
    assert connections.of(EVEN, LEADER, nothing) is first
    assert connections.of(ODD, LEADER, nothing) is second
    assert not connections.lacks_second(LEADER)


def test_a_partition_stays_where_something_of_it_is_under_way() -> None:
    connections, first, second = with_two()
    assert connections.of(ODD, LEADER, everything) is first
    assert connections.of(ODD, LEADER, nothing) is second
    assert connections.of(ODD, LEADER, everything) is second


def test_when_the_second_fails_its_partitions_come_back_once_nothing_is_under_way() -> None:
    connections, first, second = with_two()
    assert connections.of(ODD, LEADER, nothing) is second
    lose(second)
    assert connections.of(ODD, LEADER, everything) is None
    assert connections.of(ODD, LEADER, nothing) is first
    assert connections.lacks_second(LEADER)


def test_where_two_are_not_allowed_none_is_missed() -> None:
    connections, first = LeaderConnections(may_have_two=False), connection()
    connections.opened(LEADER, ConnectionLane.SHARED, first)
    assert not connections.lacks_second(LEADER)
    assert connections.of(ODD, LEADER, nothing) is first


@pytest.mark.parametrize("transactional", [False, True])
def test_a_producer_with_much_to_send_has_two_connections_and_keeps_the_order(
    transactional: bool,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 4)
        settings = {"transactional_id": "shop"} if transactional else {}
        async with producer(world, batch_size=200, max_request_size=400, **settings) as ours:
            if transactional:
                await ours.init_transactions()
                await ours.begin_transaction()
            for number in range(4000):
                await ours.send("t", b"%d" % number, partition=number % 4)
            if transactional:
                await ours.commit_transaction()
            await ours.flush()
            lanes = {lane for _, lane in ours._cluster._pool._connections}
            assert (ConnectionLane.SECONDARY in lanes) is not transactional
        for partition in range(4):
            found = await everything_in(client, partition)
            assert found == [b"%d" % number for number in range(partition, 4000, 4)]

    play(script)


async def everything_in(client: RawClient, partition: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = 0
    while True:
        answer = await client.fetch("t", offset, partitions=[partition])
        rows = values_in(answer["records"])
        if not rows:
            return [value for value in found if value is not None and value.isdigit()]
        found += [value for _, value in rows]
        offset = rows[-1][0] + 1
