"""What Apache Kafka 4.4 added, and what tools ask: over the wire, on a broker of our own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from onceflow.testing.world import World
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, batch, play
from tests.unit.broker.txn.transactional_requests import committed_offset, ended, ready

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


@pytest.mark.parametrize(
    ("cluster", "node", "code"),
    [
        ("ours", 1, "NONE"),
        ("ours", 2, "REBOOTSTRAP_REQUIRED"),
        ("another", 1, "REBOOTSTRAP_REQUIRED"),
        (None, 2, "NONE"),
        ("another", -1, "NONE"),
        (None, -1, "NONE"),
    ],
)
def test_a_client_that_meant_another_broker_is_told_so(
    cluster: str | None, node: int, code: str
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        meant = running.server.node.topics.cluster_id if cluster == "ours" else cluster
        fields = {**SOFTWARE, "cluster_id": meant, "node_id": node}
        answer = await client.ask(ApiKey.API_VERSIONS, 5, fields)
        assert answer["error_code"] == code
        assert bool(answer["api_keys"]) is (code == "NONE")

    play(script)


def test_why_a_group_is_not_deleted_is_told_in_words() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        for version in (2, 3):
            fields = {"groups_names": ["absent"]}
            (row,) = (await client.ask(ApiKey.DELETE_GROUPS, version, fields))["results"]
            assert row["error_code"] == "GROUP_ID_NOT_FOUND"
            assert row.get("error_message") == ("there is no such group" if version > 2 else None)

    play(script)


def test_a_topic_to_delete_goes_by_its_name_or_by_its_id() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        topic_id = await client.create("orders")
        for name, identity in ((None, None), ("orders", topic_id)):
            fields = {"topics": [{"name": name, "topic_id": identity}], "timeout": 1000}
            (row,) = (await client.ask(ApiKey.DELETE_TOPICS, 6, fields))["responses"]
            assert row["error_code"] == "INVALID_REQUEST"
        assert "orders" in running.server.node.topics.by_name

    play(script)


def test_offsets_by_topic_id_are_part_of_a_transaction() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        topic_id = await client.create("orders")
        who = await ready(client, "t")

        def by_id(identity: UUID) -> dict[str, Any]:
            part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": None}
            return {"topic_id": identity, "partitions": [{**part, "committed_leader_epoch": -1}]}

        fields = {
            "transactional_id": "t",
            "group_id": "g",
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [by_id(UUID(int=99)), by_id(topic_id)],
        }
        answer = await client.ask(ApiKey.TXN_OFFSET_COMMIT, 6, fields)
        told = [(row["topic_id"], row["partitions"][0]["error_code"]) for row in answer["topics"]]
        assert told == [(str(UUID(int=99)), "UNKNOWN_TOPIC_ID"), (str(topic_id), "NONE")]
        await ended(client, who, commit=True)
        assert await committed_offset(client, "g", "orders") == ("NONE", 7)

    play(script)


def test_log_dirs_tell_how_large_partitions_are() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", partitions=2)
        data = batch(b"x" * 100)
        assert (await client.produce("orders", data))["error_code"] == "NONE"
        (row,) = (await client.ask(ApiKey.DESCRIBE_LOG_DIRS, 5, {"topics": None}))["results"]
        (topic,) = [each for each in row["topics"] if each["name"] == "orders"]
        assert [each["partition_size"] for each in topic["partitions"]] == [len(data), 0]
        assert row["usable_bytes"] <= row["total_bytes"]

    play(script)


def test_the_metadata_log_is_described_as_it_is() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        await client.create("orders")
        answer = await client.ask(ApiKey.DESCRIBE_QUORUM, 2, {"topics": [topic]})
        (partition,) = answer["topics"][0]["partitions"]
        (voter,) = partition["current_voters"]
        assert partition["high_watermark"] == voter["log_end_offset"] > 0
        assert answer["nodes"][0]["listeners"][0]["port"] == running.server.node.address.port

    play(script)


def test_an_answer_does_not_repeat_a_long_name_for_each_partition() -> None:
    """Else a request of 100 KB would ask for 20 MB."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        name, indexes = "x" * 30_000, list(range(1000))
        asked: dict[str, Any] = {"election_type": 0, "timeout": 0}
        asked |= {"topic_partitions": [{"topic": name, "partitions": indexes}]}
        client.send(ApiKey.ELECT_LEADERS, 2, asked)
        assert len(await client.receive_frame()) < 200_000
        parts = [{"partition_index": index, "replicas": [1]} for index in indexes]
        asked = {"timeout": 0, "topics": [{"name": name, "partitions": parts}]}
        asked |= {"allow_replication_factor_change": True}
        client.send(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, asked)
        assert len(await client.receive_frame()) < 200_000

    play(script)
