"""A request that names one thing many times: it is told of it once where that is more than a name,
and refused where it would be done twice."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.testing.world import World
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, batch, play

TIMES = 50
TOPIC = 2


def offset_fetch(topic: str, group: str) -> dict[str, Any]:
    topics = [{"name": topic, "partition_indexes": [0] * TIMES}] * TIMES
    wanted = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    return {"groups": [wanted], "require_stable": False}


def offset_fetch_of_groups(topic: str, group: str) -> dict[str, Any]:
    wanted = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}
    return {"groups": [wanted] * TIMES, "require_stable": True}


ASKED: dict[str, tuple[ApiKey, int, Any, str, list[Any]]] = {
    "Metadata": (
        ApiKey.METADATA,
        12,
        lambda topic, group: {
            "topics": [{"name": topic, "topic_id": None}] * TIMES,
            "allow_auto_topic_creation": False,
        },
        "topics",
        ["NONE"],
    ),
    "OffsetFetch": (ApiKey.OFFSET_FETCH, 8, offset_fetch, "groups", ["NONE"]),
    "OffsetFetch of groups": (
        ApiKey.OFFSET_FETCH,
        8,
        offset_fetch_of_groups,
        "groups",
        ["NONE"],
    ),
    "DescribeGroups": (
        ApiKey.DESCRIBE_GROUPS,
        6,
        lambda topic, group: {
            "groups": [group] * TIMES,
            "include_authorized_operations": False,
        },
        "groups",
        ["NONE"],
    ),
    "DescribeConfigs": (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        lambda topic, group: {
            "resources": [
                {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
            ]
            * TIMES,
            "include_synonyms": True,
            "include_documentation": True,
        },
        "results",
        ["NONE"],
    ),
    "DescribeProducers": (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        lambda topic, group: {
            "topics": [{"name": topic, "partition_indexes": [0] * TIMES}] * TIMES
        },
        "topics",
        [],
    ),
    "DescribeTransactions": (
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        lambda topic, group: {"transactional_ids": ["nobody"] * TIMES},
        "transaction_states",
        ["TRANSACTIONAL_ID_NOT_FOUND"],
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_for_many_times_is_told_once(name: str) -> None:
    api, version, fields, rows, codes = ASKED[name]

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.produce("orders", batch(b"a"))
        part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * 4000}
        commit = {
            "group_id": "readers",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": "orders", "partitions": [part]}],
        }
        committed = await client.ask(ApiKey.OFFSET_COMMIT, 8, commit)
        assert committed["topics"][0]["partitions"][0]["error_code"] == "NONE"
        client.send(api, version, fields("orders", "readers"))
        answer = await client.receive(api, version)
        found = answer[rows]
        if codes:
            assert [each["error_code"] for each in found] == codes
        for row in found[:1]:
            for topic in [*row.get("topics", ()), row]:
                assert len(topic.get("partitions") or [0]) == 1
        assert str(answer).count("m" * 4000) <= 1

    play(script)


def test_a_marker_for_one_partition_is_written_once() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        marker = {
            "producer_id": 7,
            "producer_epoch": 0,
            "transaction_result": False,
            "coordinator_epoch": 0,
            "topics": [{"name": "orders", "partition_indexes": [0] * TIMES}],
        }
        answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
        assert len(answer["markers"][0]["topics"][0]["partitions"]) == 1
        assert (await client.list_offset("orders", -1))["offset"] <= 1

    play(script)
