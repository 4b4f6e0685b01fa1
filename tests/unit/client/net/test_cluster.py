"""A cluster of brokers: where a client starts, whom it asks, and when it asks again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.address import parse_addresses
from onceflow.client.admin import admin
from onceflow.client.admin.groups import read_assignment
from onceflow.client.errors.requests import (
    Action,
    BrokerError,
    BrokerUnreachable,
    ConnectionClosed,
    ConnectionLost,
    GroupNotEmpty,
    NoSuchPartition,
    NotKafka,
    TopicNotFound,
    action_for,
)
from onceflow.client.net.cluster import Cluster
from onceflow.client.types import EARLIEST, GroupOffset, OffsetRange
from onceflow.errors import InvalidSetting
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.client.net.scripted_cluster import ORDERS, OTHER, PATIENCE, simulate, topics_answer
from tests.unit.client.scripted_broker import ADDRESS, CLOSE, NO_TIME, listen, new


def offsets_answer(error: Any = ErrorCode.NONE, offset: int = 7) -> Any:
    """A ListOffsets answer for `ORDERS`."""
    topic = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsTopicResponse")
    partition = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsPartitionResponse")
    found = partition(partition_index=0, error_code=error, timestamp=-1, offset=offset)
    return new(ApiKey.LIST_OFFSETS, "response")(
        throttle_time=NO_TIME, topics=(topic(name="orders", partitions=(found,)),)
    )


def test_addresses_are_tried_in_order_until_one_answers() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        seen = await listen(
            world.net.host("other"), {ApiKey.METADATA: topics_answer({})}, port=9093
        )
        await cluster.connect()
        assert [key for key, _ in seen] == [ApiKey.API_VERSIONS, ApiKey.METADATA]
        assert cluster.node_ids == [1, 2]

    simulate(program, (ADDRESS, OTHER))


def test_when_none_answers_all_are_named() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        with pytest.raises(BrokerUnreachable, match=r"broker:9092.*other:9093"):
            await cluster.connect()

    simulate(program, (ADDRESS, OTHER))


def test_a_partition_is_asked_of_its_leader_and_of_the_new_one_after_a_move() -> None:
    leaders = {0: 1}

    def old_leader(version: int, request: Any) -> Any:
        leaders[0] = 2
        return offsets_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def program(world: World, cluster: Cluster) -> None:
        about = {ApiKey.METADATA: topics_answer({"orders": leaders})}
        first = await listen(world.net.host("broker"), {**about, ApiKey.LIST_OFFSETS: old_leader})
        second = await listen(
            world.net.host("other"),
            {**about, ApiKey.LIST_OFFSETS: lambda *_: offsets_answer()},
            port=9093,
        )
        await cluster.connect()
        found = await admin.list_offsets(cluster, {ORDERS: EARLIEST})
        assert found[ORDERS].offset == 7
        assert [key for key, _ in first].count(ApiKey.LIST_OFFSETS) == 1
        assert [key for key, _ in second].count(ApiKey.LIST_OFFSETS) == 1

    simulate(program)


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_asking_again_ends_when_time_is_up(error: Any) -> None:
    async def program(world: World, cluster: Cluster) -> None:
        seen = await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: topics_answer({"orders": {0: 1}}),
                ApiKey.LIST_OFFSETS: lambda *_: offsets_answer(error),
            },
        )
        await cluster.connect()
        started = world.clock.monotonic()
        with pytest.raises(BrokerError) as raised:
            await admin.list_offsets(cluster, {ORDERS: EARLIEST})
        assert raised.value.code == error.value
        assert PATIENCE - 2 < world.clock.monotonic() - started < PATIENCE + 1
        # The pauses grow: not a flood of questions.
        assert 10 < [key for key, _ in seen].count(ApiKey.LIST_OFFSETS) < 25

    simulate(program)


def test_what_cannot_get_better_is_not_asked_again() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        seen = await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: topics_answer({"orders": {0: 1}}),
                ApiKey.LIST_OFFSETS: lambda *_: offsets_answer(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED
                ),
            },
        )
        await cluster.connect()
        with pytest.raises(BrokerError, match=r"not allowed.*TOPIC_AUTHORIZATION_FAILED"):
            await admin.list_offsets(cluster, {ORDERS: EARLIEST})
        assert [key for key, _ in seen].count(ApiKey.LIST_OFFSETS) == 1

    simulate(program)


def test_a_lost_connection_is_opened_again() -> None:
    answers = iter((CLOSE, CLOSE, offsets_answer()))

    async def program(world: World, cluster: Cluster) -> None:
        await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: topics_answer({"orders": {0: 1}}),
                ApiKey.LIST_OFFSETS: lambda *_: next(answers),
            },
        )
        await cluster.connect()
        assert (await admin.list_offsets(cluster, {ORDERS: EARLIEST}))[ORDERS].offset == 7

    simulate(program)


def test_many_at_once_share_one_connection() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        seen = await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: topics_answer({"orders": {0: 1}}),
                ApiKey.LIST_OFFSETS: lambda *_: offsets_answer(),
            },
        )
        asked = [admin.list_offsets(cluster, {ORDERS: EARLIEST}) for _ in range(10)]
        await asyncio.gather(*asked)
        assert [key for key, _ in seen].count(ApiKey.API_VERSIONS) == 1

    simulate(program)


def test_a_missing_topic_is_told_with_those_of_nearly_that_name() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        topics = {"orders": {0: 1}, "payments": {0: 1}}
        await listen(world.net.host("broker"), {ApiKey.METADATA: topics_answer(topics)})
        await cluster.connect()
        with pytest.raises(TopicNotFound, match=r"no topic 'ordesr'; did you mean 'orders'\?"):
            await cluster.find_topic("ordesr")
        with pytest.raises(TopicNotFound, match=r"no topic 'zebra'$"):
            await cluster.find_topic("zebra")
        with pytest.raises(NoSuchPartition, match=r"no partition 3; it has 1"):
            await cluster.leader(TopicPartition("orders", 3))

    simulate(program)


def test_a_topic_that_is_gone_hides_no_other() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        topics = {"orders": {0: 1}, "payments": {0: 1}}
        await listen(world.net.host("broker"), {ApiKey.METADATA: topics_answer(topics)})
        await cluster.connect()
        for name in ("orders", "payments"):
            await cluster.topic(name)
        del topics["orders"]
        topics["payments"] = {0: 1, 1: 1}
        await asyncio.sleep(cluster.settings.metadata_max_age_s + 1)
        assert len((await cluster.topic("payments")).partitions) == 2
        with pytest.raises(TopicNotFound, match="no topic 'orders'"):
            await cluster.topic("orders")

    simulate(program)


def test_a_closed_client_opens_no_connections() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        await listen(world.net.host("broker"), {ApiKey.METADATA: topics_answer({"orders": {0: 1}})})
        await cluster.connect()
        cluster.close()
        for again in (cluster.any_broker(), cluster.broker(1), cluster.find_topic("orders")):
            with pytest.raises(ConnectionClosed, match="is closed"):
                await again
        await cluster.connect()
        await cluster.find_topic("orders")

    simulate(program)


def coordinator_answer(error: Any = ErrorCode.NONE) -> Any:
    found = new(ApiKey.FIND_COORDINATOR, "response", "Coordinator")(
        key="g",
        node_id=1,
        host=ADDRESS.host,
        port=ADDRESS.port,
        error_code=error,
        error_message=None,
    )
    return new(ApiKey.FIND_COORDINATOR, "response")(throttle_time=NO_TIME, coordinators=(found,))


def commit_answer(error: Any) -> Any:
    topic = new(ApiKey.OFFSET_COMMIT, "response", "OffsetCommitResponseTopic")
    partition = new(ApiKey.OFFSET_COMMIT, "response", "OffsetCommitResponsePartition")
    found = partition(partition_index=0, error_code=error)
    return new(ApiKey.OFFSET_COMMIT, "response")(
        throttle_time=NO_TIME, topics=(topic(name="orders", partitions=(found,)),)
    )


def test_a_coordinator_is_waited_for_and_looked_for_again() -> None:
    found = iter((ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE, ErrorCode.NONE))
    commits = iter((ErrorCode.NOT_COORDINATOR, ErrorCode.NONE))

    async def program(world: World, cluster: Cluster) -> None:
        await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: topics_answer({}),
                ApiKey.FIND_COORDINATOR: lambda *_: coordinator_answer(next(found)),
                ApiKey.OFFSET_COMMIT: lambda *_: commit_answer(next(commits)),
            },
        )
        await admin.commit_offsets(cluster, "g", {ORDERS: 5})
        assert next(found, None) is None
        assert next(commits, None) is None

    simulate(program)


def test_committing_for_a_group_that_is_in_use_is_told_in_those_words() -> None:
    async def program(world: World, cluster: Cluster) -> None:
        await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: topics_answer({}),
                ApiKey.FIND_COORDINATOR: lambda *_: coordinator_answer(),
                ApiKey.OFFSET_COMMIT: lambda *_: commit_answer(ErrorCode.UNKNOWN_MEMBER_ID),
            },
        )
        with pytest.raises(GroupNotEmpty, match="'g' has members"):
            await admin.commit_offsets(cluster, "g", {ORDERS: 5})

    simulate(program)


def test_the_table_of_errors() -> None:
    assert action_for(ConnectionLost("gone")) is Action.REFRESH
    assert action_for(NotKafka("http")) is Action.FAIL
    for code, action in (
        (ErrorCode.NOT_COORDINATOR, Action.REFRESH),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Action.RETRY),
        (ErrorCode.INVALID_CONFIG, Action.FAIL),
    ):
        assert action_for(BrokerError(code, "FETCH", "it")) is action


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:9092", ["127.0.0.1:9092"]),
        ("a, b:1 ,", ["a:9092", "b:1"]),
        ("[::1]:9093,[::1]", ["[::1]:9093", "[::1]:9092"]),
    ],
)
def test_addresses(text: str, addresses: list[str]) -> None:
    assert [str(each) for each in parse_addresses(text)] == addresses


@pytest.mark.parametrize(
    "text", ["", ",", ":9092", "a:0", "a:65536", "a:b", "http://a:9092", "a:", "a:" + "9" * 5000]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"127\.0\.0\.1:9092"):
        parse_addresses(text)


def test_lag_counts_what_is_there_and_not_committed() -> None:
    def lag(committed: int | None, held: OffsetRange | None) -> int | None:
        return GroupOffset(ORDERS, committed, held, None).lag

    assert lag(4, OffsetRange(0, 10)) == 6
    assert lag(4, OffsetRange(7, 10)) == 3  # what retention took cannot be read any more
    assert lag(12, OffsetRange(0, 10)) == 0
    assert lag(None, OffsetRange(0, 10)) is None
    assert lag(4, None) is None


def test_an_assignment_is_read_and_an_unknown_one_shows_nothing() -> None:
    data = b"\x00\x01\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02"
    assert read_assignment(data + b"\xff\xff\xff\xff") == (ORDERS, TopicPartition("orders", 2))
    assert read_assignment(b"\x00\x01\x7f\xff\xff\xff") == ()
