"""The topics in which the broker keeps groups and transactions: clients may read them, no more."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.broker.topics.internal_logs import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from onceflow.broker.topics.metadata_log import METADATA_TOPIC
from onceflow.group.records import OffsetKey, OffsetValue, encode_key, encode_offset
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    RawClient,
    Running,
    batch,
    play,
    simulated_broker,
)
from tests.unit.broker.txn.transactional_requests import (
    Who,
    add,
    again,
    commit_offset,
    committed_offset,
    ended,
    ensure_partition,
    markers,
    produce as produce_as,
    ready,
    sent,
    states,
    wrote,
)

own = pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
SETTINGS: dict[str, Any] = {
    "offsets_topic_num_partitions": 7,
    "transaction_state_log_num_partitions": 7,
}
GROUPS = [f"group {number}" for number in range(30)]
"""Enough to have some in each partition."""


async def made(client: RawClient) -> Who:
    """Both topics, with something in them."""
    await client.create("orders")
    who = await ready(client, "t")
    assert await commit_offset(client, who, "g", "orders", 1) == "NONE"
    return await ended(client, who, commit=True)


async def commits_of_all_groups(client: RawClient) -> set[str]:
    """What OffsetCommit answers to each of them."""
    part = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    found = set()
    for group in GROUPS:
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": "orders", "partitions": [part]}],
        }
        answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, fields)
        found.add(answer["topics"][0]["partitions"][0]["error_code"])
    return found


async def configs_of(client: RawClient, topic: str) -> dict[str, str]:
    row = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [row]})
    return {each["name"]: each["value"] for each in answer["results"][0]["configs"]}


# --- creation ------------------------------------------------------------------------------------


async def create(
    client: RawClient,
    topic: str,
    count: int = -1,
    *,
    validate_only: bool = False,
    assignments: Any = (),
    **configs: str | None,
) -> Any:
    """What CreateTopics answers; dots in the names of configs are written as underscores."""
    row = {
        "name": topic,
        "num_partitions": count,
        "replication_factor": -1,
        "assignments": assignments,
        "configs": [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()],
    }
    fields = {"topics": [row], "timeout": 1000, "validate_only": validate_only}
    return (await client.ask(ApiKey.CREATE_TOPICS, 7, fields))["topics"][0]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "fewer partitions": ({"count": 3}, "INVALID_PARTITIONS"),
    "more partitions": ({"count": 8}, "INVALID_PARTITIONS"),
    "placed partitions": (
        {"assignments": [{"partition_index": 0, "broker_ids": [1]}]},
        "INVALID_PARTITIONS",
    ),
    "another policy": ({"cleanup_policy": "delete"}, "INVALID_CONFIG"),
    "one more policy": ({"cleanup_policy": "compact,delete"}, "INVALID_CONFIG"),
    "another config": ({"retention_ms": "1000"}, "INVALID_CONFIG"),
    "no value": ({"cleanup_policy": None}, "INVALID_CONFIG"),
    "no config": ({"no_such_config": "1"}, "INVALID_CONFIG"),
}


@own
@pytest.mark.parametrize(("asked", "code"), REFUSED.values(), ids=REFUSED)
def test_an_own_topic_is_not_made_otherwise_than_the_broker_makes_it(
    topic: str, asked: dict[str, Any], code: str
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, **SETTINGS) as running:
            client = await running.client()
            await client.create("orders")
            answer = await create(client, topic, **asked)
            assert (answer["error_code"], answer["topic_id"]) == (code, None)
            assert topic in answer["error_message"]
            assert "the broker's own" in answer["error_message"]
            assert topic not in running.server.node.topics.by_name
            who = await ready(client, "t")
            assert await commit_offset(client, who, "g", "orders", 1) == "NONE"
            await ended(client, who, commit=True)
            assert await commits_of_all_groups(client) == {"NONE"}
        async with again(world, world.disk, **SETTINGS) as (running, client):
            assert len(running.server.node.topics.by_name[topic].partitions) == 7
            assert (await configs_of(client, topic))["cleanup.policy"] == "compact"
            assert await committed_offset(client, "g", "orders") == ("NONE", 1)

    simulate(1, main)


ALIKE: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "as many": {"count": 7},
    "placed": {"assignments": [{"partition_index": n, "broker_ids": [1]} for n in range(7)]},
    "the same policy": {"count": 7, "cleanup_policy": "compact"},
}


@own
@pytest.mark.parametrize("asked", ALIKE.values(), ids=ALIKE)
def test_who_asks_for_an_own_topic_as_it_is_gets_it(topic: str, asked: dict[str, Any]) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        answer = await create(client, topic, validate_only=True, **asked)
        assert (answer["error_code"], answer["num_partitions"]) == ("NONE", 7)
        assert topic not in running.server.node.topics.by_name
        answer = await create(client, topic, **asked)
        assert (answer["error_code"], answer["num_partitions"]) == ("NONE", 7)
        told = {each["name"]: each["value"] for each in answer["configs"]}
        assert told == await configs_of(client, topic)
        assert told["cleanup.policy"] == "compact"
        assert (await create(client, topic, **asked))["error_code"] == "TOPIC_ALREADY_EXISTS"
        assert await commits_of_all_groups(client) == {"NONE"}
        for name in GROUPS:
            who = await ready(client, name)
            assert await commit_offset(client, who, name, "orders", 9) == "NONE"
            await ended(client, who, commit=True)

    play(script, **SETTINGS)


def test_asking_for_own_topics_makes_them_but_never_the_metadata() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, **SETTINGS) as running:
            client = await running.client()
            names = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, METADATA_TOPIC)
            asked = [{"name": name, "topic_id": None} for name in names]
            fields = {"topics": asked, "allow_auto_topic_creation": True}
            await client.ask(ApiKey.METADATA, 12, fields)
            topics = (await client.ask(ApiKey.METADATA, 12, fields))["topics"]
            assert [(row["error_code"], len(row["partitions"])) for row in topics] == [
                ("NONE", 7),
                ("NONE", 7),
                ("UNKNOWN_TOPIC_OR_PARTITION", 0),
            ]
            refused = await client.produce(METADATA_TOPIC, batch(b"a"))
            assert refused["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        async with again(world, world.disk, **SETTINGS) as (running, _):
            assert METADATA_TOPIC not in running.server.node.topics.by_name

    simulate(1, main)


# --- changes -------------------------------------------------------------------------------------


async def grow(client: RawClient, topic: str, validate_only: bool) -> Any:
    row = {"name": topic, "count": 60, "assignments": None}
    fields = {"topics": [row], "timeout": 1000, "validate_only": validate_only}
    return (await client.ask(ApiKey.CREATE_PARTITIONS, 3, fields))["results"][0]


async def alter(client: RawClient, topic: str, validate_only: bool) -> Any:
    change = {"name": "cleanup.policy", "config_operation": 0, "value": "delete"}
    row = {"resource_type": 2, "resource_name": topic, "configs": [change]}
    fields = {"resources": [row], "validate_only": validate_only}
    return (await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields))["responses"][0]


@own
@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("change", [grow, alter])
def test_own_topics_stay_as_they_are(topic: str, change: Any, validate_only: bool) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await made(client)
        before = await configs_of(client, topic)
        answer = await change(client, topic, validate_only)
        assert answer["error_code"] == "INVALID_TOPIC_EXCEPTION"
        assert "the broker's own" in answer["error_message"]
        assert await configs_of(client, topic) == before
        assert len(running.server.node.topics.by_name[topic].partitions) == 7

    play(script, **SETTINGS)


@own
@pytest.mark.parametrize("by_id", [True, False])
def test_own_topics_cannot_be_deleted(topic: str, by_id: bool) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await made(client)
        topic_id = running.server.node.topics.by_name[topic].topic_id
        row = {"name": None if by_id else topic, "topic_id": topic_id if by_id else None}
        asked = {"topics": [row], "timeout": 1000}
        (answer,) = (await client.ask(ApiKey.DELETE_TOPICS, 6, asked))["responses"]
        assert answer["error_code"] == "INVALID_TOPIC_EXCEPTION"
        assert "the broker's own" in answer["error_message"]
        part = {"partition_index": 0, "offset": -1}
        fields = {"topics": [{"name": topic, "partitions": [part]}], "timeout": 1000}
        (cut,) = (await client.ask(ApiKey.DELETE_RECORDS, 2, fields))["topics"][0]["partitions"]
        assert cut["error_code"] == "INVALID_TOPIC_EXCEPTION"
        assert await committed_offset(client, "g", "orders") == ("NONE", 1)
        assert await states(client) == {"t": "CompleteCommit"}

    play(script, **SETTINGS)


# --- records -------------------------------------------------------------------------------------

GOOD = batch(
    encode_offset(OffsetValue(99, -1, "", NOW_MS)), key=encode_key(OffsetKey("g", "orders", 0))
)


@own
@pytest.mark.parametrize("name", ["test", "__admin_client"])
@pytest.mark.parametrize("records", [GOOD, batch(b"no state")], ids=["a record", "no record"])
def test_nobody_writes_to_own_topics(topic: str, name: str, records: bytes) -> None:
    """Whatever a client calls itself: Apache Kafka lets one of a certain name do it."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            await made(await running.client())
            client = await running.client(name)
            topic_id = running.server.node.topics.by_name[topic].topic_id
            for index in range(2):
                before = ensure_partition(running, topic, index).log.end_offset
                answer = await client.produce(topic, records, partition=index)
                assert answer["error_code"] == "INVALID_TOPIC_EXCEPTION"
                assert "the broker's own" in answer["error_message"]
                part = {"index": index, "records": records}
                topics = [{"topic_id": topic_id, "partition_data": [part]}]
                fields: dict[str, Any] = {"topic_data": topics}
                fields |= {"transactional_id": None, "acks": -1, "timeout": 1000}
                answer = await client.ask(ApiKey.PRODUCE, 13, fields)
                (row,) = answer["responses"][0]["partition_responses"]
                assert row["error_code"] == "INVALID_TOPIC_EXCEPTION"
                assert ensure_partition(running, topic, index).log.end_offset == before
        async with again(world, world.disk) as (_, client):
            assert await committed_offset(client, "g", "orders") == ("NONE", 1)
            assert await states(client) == {"t": "CompleteCommit"}

    simulate(1, main)


@own
@pytest.mark.parametrize("version", [3, 5])
def test_own_topics_do_not_become_part_of_a_transaction(topic: str, version: int) -> None:
    """But for the partition of a group, which AddOffsetsToTxn and TxnOffsetCommit add."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await made(client)
        who = await ready(client, "t")
        refused = await produce_as(client, who, topic, sent(who, 0, b"a"))
        assert refused["error_code"] == "INVALID_TOPIC_EXCEPTION"
        topics = [{"name": name, "partitions": [0]} for name in ("orders", topic)]
        assert await added(client, who, topics, version) == {
            "orders": "OPERATION_NOT_ATTEMPTED",
            topic: "TOPIC_AUTHORIZATION_FAILED",
        }
        assert await states(client) == {"t": "Empty"}
        assert await add(client, who, "orders", 0) == ["NONE"]

    play(script)


async def added(client: RawClient, who: Who, topics: Any, version: int) -> dict[str, str]:
    """What AddPartitionsToTxn answers for partition 0 of each topic."""
    fields: dict[str, Any] = {
        "v3_and_below_transactional_id": who.transactional_id,
        "v3_and_below_producer_id": who.producer_id,
        "v3_and_below_producer_epoch": who.epoch,
        "v3_and_below_topics": topics,
    }
    row = {
        "transactional_id": who.transactional_id,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "verify_only": False,
        "topics": topics,
    }
    fields["transactions"] = [row]
    answer = await client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)
    rows = (
        answer["results_by_topic_v3_and_below"]
        if version < 4
        else answer["results_by_transaction"][0]["topic_results"]
    )
    return {each["name"]: each["results_by_partition"][0]["partition_error_code"] for each in rows}


# --- markers from outside ------------------------------------------------------------------------


async def write_marker(
    client: RawClient, who: Who, topic: str, *, coordinator_epoch: int = 0
) -> str:
    """What WriteTxnMarkers answers about partition 0."""
    row = {
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": coordinator_epoch,
    }
    answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [row]})
    return str(answer["markers"][0]["topics"][0]["partitions"][0]["error_code"])


def test_no_marker_goes_where_no_transaction_can_be() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        who = await made(client)
        before = ensure_partition(running, TRANSACTIONS_TOPIC).log.end_offset
        code = await write_marker(client, who.at(who.epoch + 1), TRANSACTIONS_TOPIC)
        assert code == "INVALID_TOPIC_EXCEPTION"
        assert ensure_partition(running, TRANSACTIONS_TOPIC).log.end_offset == before

    play(script, transaction_state_log_num_partitions=1)


@pytest.mark.parametrize("producer_id", [-1, -(2**63), 7])
@pytest.mark.parametrize("epoch", [-1, -(2**15), 3])
def test_a_marker_is_of_a_producer_that_there_can_be(producer_id: int, epoch: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        code = await write_marker(client, Who(None, producer_id, epoch), "orders")
        is_possible = (producer_id, epoch) == (7, 3)
        assert code == ("NONE" if is_possible else "INVALID_REQUEST")
        assert len(await markers(client, "orders")) == is_possible

    play(script)


def test_an_operator_may_end_what_a_group_waits_for() -> None:
    """A marker in the partition of a group: `kafka-transactions.sh abort` writes it."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a")
        assert await commit_offset(client, who, "g", "orders", 1) == "NONE"
        assert (await committed_offset(client, "g", "orders"))[0] == "UNSTABLE_OFFSET_COMMIT"
        assert await write_marker(client, who, OFFSETS_TOPIC) == "NONE"
        assert await committed_offset(client, "g", "orders") == ("NONE", -1)

    play(script, offsets_topic_num_partitions=1)
