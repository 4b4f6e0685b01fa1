"""Who is responsible: coordinators, leaders, features; asked once for all, and again when due."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.errors.requests import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionClosed,
    TopicNotFound,
)
from onceflow.client.net.cluster import Cluster, ConnectionLane, CoordinatorOf
from onceflow.client.net.cluster_settings import ClusterSettings
from onceflow.client.net.pool import SingleFlight
from onceflow.client.net.retry import TRANSACTIONAL, Backoff, RetryPolicy
from onceflow.runtime.net import RealListener, RealNet
from onceflow.testing.rand import SimRand
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.client.net.scripted_cluster import BOTH, ORDERS, OTHER, simulate, topics_answer
from tests.unit.client.scripted_broker import (
    ADDRESS,
    NO_TIME,
    FakeBroker,
    listen,
    metadata,
    new,
    with_features,
)

KeysAndVersions = list[tuple[ApiKey, int]]


def coordinator(node_id: int) -> Any:
    address = BOTH[node_id]
    found = new(ApiKey.FIND_COORDINATOR, "response", "Coordinator")(
        key="t",
        node_id=node_id,
        host=address.host,
        port=address.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )
    return new(ApiKey.FIND_COORDINATOR, "response")(throttle_time=NO_TIME, coordinators=(found,))


async def start(world: World, answers: dict[ApiKey, Any]) -> tuple[KeysAndVersions, ...]:
    """Two brokers that answer alike."""
    first = await listen(world.net.host("broker"), answers)
    return first, await listen(world.net.host("other"), answers, port=OTHER.port)


def times(seen: KeysAndVersions, key: ApiKey) -> int:
    return [each for each, _ in seen].count(key)


def test_a_coordinator_is_remembered_by_kind_until_it_is_forgotten() -> None:
    kinds: list[int] = []
    nodes = iter((1, 2, 2, 1))

    def find(version: int, request: Any) -> Any:
        kinds.append(request.key_type)
        return coordinator(next(nodes))

    async def program(world: World, cluster: Cluster) -> None:
        about = {ApiKey.METADATA: topics_answer({}), ApiKey.FIND_COORDINATOR: find}
        await start(world, about)
        await cluster.connect()
        for _ in range(3):
            assert (await cluster.coordinator("t")).address == ADDRESS
            found = await cluster.coordinator("t", CoordinatorOf.TRANSACTION)
            assert found.address == OTHER
        assert kinds == [0, 1]
        cluster.forget_coordinator("t", CoordinatorOf.TRANSACTION)
        assert (await cluster.coordinator("t", CoordinatorOf.TRANSACTION)).address == OTHER
        assert (await cluster.coordinator("t")).address == ADDRESS
        assert kinds == [0, 1, 1]
        await cluster.refresh()
        await cluster.coordinator("t")
        assert kinds == [0, 1, 1, 0]

    simulate(program)


def test_many_who_need_the_same_ask_once() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        about = {
            ApiKey.METADATA: topics_answer({"orders": {0: 1}}),
            ApiKey.FIND_COORDINATOR: lambda *_: coordinator(1),
        }
        seen, _ = await start(world, about)
        await cluster.connect()
        await asyncio.gather(*(cluster.leader(ORDERS) for _ in range(20)))
        await asyncio.gather(*(cluster.coordinator("t") for _ in range(20)))
        await asyncio.gather(*(cluster.refresh() for _ in range(20)))
        assert times(seen, ApiKey.API_VERSIONS) == 1
        assert times(seen, ApiKey.FIND_COORDINATOR) == 1
        assert times(seen, ApiKey.METADATA) == 3  # to connect, for the leader, to refresh

    simulate(program)


def test_who_is_cancelled_while_waiting_disturbs_nobody() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        seen, _ = await start(world, {ApiKey.METADATA: topics_answer({"orders": {0: 1}})})
        first = asyncio.create_task(cluster.leader(ORDERS))
        second = asyncio.create_task(cluster.leader(ORDERS))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 1
        assert first.cancelled()
        assert times(seen, ApiKey.METADATA) == 1

    simulate(program)


def test_closing_tells_those_who_wait_and_does_not_cancel_them() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        await start(world, {ApiKey.METADATA: lambda *_: None})
        waiting = asyncio.create_task(cluster.refresh())
        await asyncio.sleep(1)
        cluster.close()
        with pytest.raises(ConnectionClosed):
            await waiting

    simulate(program)


def test_what_fails_fails_for_all_who_wait_and_is_tried_again_by_the_next() -> None:
    async def main() -> None:
        flights = SingleFlight()
        runs: list[int] = []

        async def work() -> int:
            runs.append(1)
            await asyncio.sleep(0)
            if len(runs) == 1:
                raise ConnectionResetError
            return 7

        both = await asyncio.gather(
            *(flights.run("key", work) for _ in range(2)), return_exceptions=True
        )
        assert [type(each) for each in both] == [ConnectionResetError] * 2
        assert await flights.run("key", work) == 7
        assert len(runs) == 2

    asyncio.run(main())


def test_metadata_that_is_old_is_asked_for_again_and_used_when_nobody_answers() -> None:
    leaders = {0: 1}

    async def program(world: World, cluster: Cluster) -> None:
        seen, _ = await start(world, {ApiKey.METADATA: topics_answer({"orders": leaders})})
        assert await cluster.leader(ORDERS) == 1
        leaders[0] = 2
        await asyncio.sleep(200)
        assert await cluster.leader(ORDERS) == 1
        await asyncio.sleep(200)
        assert await cluster.leader(ORDERS) == 2
        assert times(seen, ApiKey.METADATA) == 2
        world.net.kill("broker")
        world.net.kill("other")
        await asyncio.sleep(400)
        assert await cluster.leader(ORDERS) == 2
        with pytest.raises(BrokerUnreachable):
            await cluster.refresh()

    simulate(program)


def test_a_topic_that_is_gone_does_not_stand_in_the_way_of_others() -> None:
    topics = {"orders": {0: 1}, "payments": {0: 1}}

    async def program(world: World, cluster: Cluster) -> None:
        await start(world, {ApiKey.METADATA: topics_answer(topics)})
        for name in topics:
            await cluster.topic(name)
        del topics["payments"]
        await cluster.refresh()
        assert await cluster.leader(ORDERS) == 1
        with pytest.raises(TopicNotFound):
            await cluster.topic("payments")

    simulate(program)


def test_a_leader_is_known_without_asking_once_it_was_asked_for() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        topics = {"orders": {0: 2, 1: -1}}
        await start(world, {ApiKey.METADATA: topics_answer(topics)})
        assert cluster.known_leader(ORDERS) is None
        await cluster.leader(ORDERS)
        assert cluster.known_leader(ORDERS) == 2
        assert cluster.known_leader(TopicPartition("orders", 1)) is None
        assert cluster.known_leader(TopicPartition("orders", 2)) is None
        with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
            await cluster.leader(TopicPartition("orders", 1))

    simulate(program)


def test_an_address_that_failed_is_tried_last() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        about = {ApiKey.METADATA: topics_answer({})}
        await listen(world.net.host("other"), about, port=OTHER.port)
        await cluster.connect()
        cluster.close()
        first = await listen(world.net.host("broker"), about)
        await cluster.connect()
        assert first == []

    simulate(program, (ADDRESS, OTHER))


def test_fetches_that_wait_have_a_connection_of_their_own() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        seen, _ = await start(world, {ApiKey.METADATA: topics_answer({})})
        await cluster.connect()
        shared, fetching = (
            await cluster.broker(1),
            await cluster.broker(1, lane=ConnectionLane.FETCH),
        )
        assert shared is not fetching
        assert shared is await cluster.broker(1)
        assert fetching is await cluster.broker(1, lane=ConnectionLane.FETCH)
        assert times(seen, ApiKey.API_VERSIONS) == 2
        shared.close()
        assert (await cluster.any_broker()) is not fetching

    simulate(program)


# --- features -----------------------------------------------------------------------------------


def test_the_level_of_transactions_is_what_the_newest_finalized_features_say() -> None:
    offers: Iterator[Any] = iter(
        (
            with_features({"transaction.version": 2}, 5),
            with_features({"transaction.version": 1}, 4),
            with_features({"transaction.version": 1}, 6),
        )
    )

    async def program(world: World, cluster: Cluster) -> None:
        answers = {
            ApiKey.API_VERSIONS: lambda *_: next(offers),
            ApiKey.METADATA: topics_answer({}),
        }
        await start(world, answers)
        assert await cluster.transaction_version() == 2
        assert dict(cluster.features) == {"transaction.version": 2}
        await cluster.connect()
        await cluster.broker(2)  # which lags behind
        assert await cluster.transaction_version() == 2
        await cluster.broker(2, lane=ConnectionLane.FETCH)
        assert await cluster.transaction_version() == 1

    simulate(program)


@pytest.mark.parametrize("offer", [with_features({"transaction.version": 2}, -1), None])
def test_versions_of_apis_alone_never_mean_newer_transactions(offer: Any) -> None:
    async def program(world: World, cluster: Cluster) -> None:
        answers = {} if offer is None else {ApiKey.API_VERSIONS: lambda *_: offer}
        await start(world, answers)
        connection = await cluster.any_broker()
        assert connection.version_of(ApiKey.PRODUCE) == 12
        assert await cluster.transaction_version() == 0

    simulate(program)


# --- pauses and processes -----------------------------------------------------------------------


def test_pauses_double_up_to_the_longest_a_little_apart() -> None:
    backoff = Backoff(TRANSACTIONAL, SimRand(1))
    pauses = [backoff.next_s() for _ in range(8)]
    for pause, middle in zip(pauses, (5, 10, 20, 40, 80, 100, 100, 100), strict=True):
        assert 0.8 * middle <= 1000 * pause <= 1.2 * middle
    assert len(set(pauses)) == 8
    backoff.reset()
    assert backoff.next_s() <= 0.006


def test_trying_again_can_have_a_policy_of_its_own() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        await start(world, {ApiKey.METADATA: topics_answer({})})
        tries: list[float] = []

        async def attempt() -> None:
            tries.append(world.clock.monotonic())
            code = ErrorCode.CONCURRENT_TRANSACTIONS
            raise BrokerError(code, ApiKey.END_TXN.name, "transactional id 't'")

        with pytest.raises(ClientError):
            await cluster.retrying(attempt, RetryPolicy(1.0, 0.005, 0.1))
        assert tries[1] - tries[0] < 0.01
        assert 0.8 < tries[-1] - tries[0] <= 1.0

    simulate(program)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_cluster_opens_connections_anew_in_a_child() -> None:
    async def open_all() -> tuple[RealListener, KeysAndVersions, Cluster]:
        seen: KeysAndVersions = []
        here: dict[int, BrokerAddress] = {}
        answers = {ApiKey.METADATA: lambda *_: metadata({}, here)}
        listener = await RealNet().listen("127.0.0.1", 0, lambda: FakeBroker(answers, seen))
        here[1] = BrokerAddress(listener.host, listener.port)
        cluster = Cluster([here[1]], ClusterSettings(connect_timeout_s=5, request_timeout_s=5))
        await cluster.connect()
        return listener, seen, cluster

    async def ended(child: int) -> int:
        _, status = await asyncio.to_thread(os.waitpid, child, 0)  # the broker is served meanwhile
        return os.waitstatus_to_exitcode(status)

    with asyncio.Runner() as runner:
        listener, seen, cluster = runner.run(open_all())
        child = os.fork()
        if child == 0:
            os._exit(_refreshes(cluster))
        assert runner.run(ended(child)) == 0
        assert times(seen, ApiKey.API_VERSIONS) == 2
        runner.run(cluster.refresh())
        assert times(seen, ApiKey.API_VERSIONS) == 2  # the parent's is as it was
        cluster.close()
        runner.run(listener.close())


def _refreshes(cluster: Cluster) -> int:
    """In the child: its exit status."""

    async def main() -> None:
        await cluster.refresh()
        cluster.close()

    try:
        asyncio.run(main())
    except BaseException:
        return 1
    return 0
