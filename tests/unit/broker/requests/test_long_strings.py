"""Strings as long as the protocol allows, and longer ones.

These are refused at the door, as Apache Kafka does, so that no answer has to repeat one that its
version cannot hold.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.schema.list_groups.v0.response import ListedGroup, ListGroupsResponse

from onceflow.broker.requests.refusal import LONGEST_MESSAGE, RequestRefused
from onceflow.broker.router import SERVED, route
from onceflow.errors import MessageMalformed
from onceflow.records import partitioning
from onceflow.runtime.logs import JsonFormatter, TextFormatter
from onceflow.wire import produce as produce_wire
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import decode, encode
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.header import read_request_header
from onceflow.wire.primitives import LONGEST_STRING
from tests.interop.broker.raw.raw_client import make_request
from tests.unit.broker.broker_under_test import RawClient, broker, run

LONG = "é" * (LONGEST_STRING // 2) + "x"
TOO_LONG = LONG + "x"

JOIN: dict[str, Any] = {
    "group_id": "group",
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
    "reason": None,
}
PARTITIONS = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
COMMIT: dict[str, Any] = {
    "group_id": "group",
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "topics": [{"name": "orders", "partitions": PARTITIONS}],
}
PRODUCE: dict[str, Any] = {
    "transactional_id": None,
    "acks": -1,
    "timeout": 1000,
    "topic_data": [{"name": "orders", "partition_data": [{"index": 0, "records": b""}]}],
}
FETCH: dict[str, Any] = {
    "replica_id": -1,
    "max_wait": 0,
    "min_bytes": 0,
    "max_bytes": 1,
    "topics": [{"topic": "orders", "partitions": []}],
}
INIT: dict[str, Any] = {
    "transactional_id": "t",
    "transaction_timeout": 1000,
    "producer_id": -1,
    "producer_epoch": -1,
}

ASKED: list[tuple[ApiKey, int, Mapping[str, Any]]] = [
    (ApiKey.JOIN_GROUP, 9, JOIN | {"group_id": TOO_LONG}),
    (ApiKey.JOIN_GROUP, 9, JOIN | {"member_id": TOO_LONG}),
    (ApiKey.JOIN_GROUP, 9, JOIN | {"group_instance_id": TOO_LONG}),
    (ApiKey.JOIN_GROUP, 9, JOIN | {"protocol_type": TOO_LONG}),
    (ApiKey.JOIN_GROUP, 9, JOIN | {"protocols": [{"name": TOO_LONG, "metadata": b""}]}),
    (ApiKey.OFFSET_COMMIT, 9, COMMIT | {"group_id": TOO_LONG}),
    (ApiKey.OFFSET_COMMIT, 9, COMMIT | {"topics": [{"name": TOO_LONG, "partitions": []}]}),
    (ApiKey.INIT_PRODUCER_ID, 6, INIT | {"transactional_id": TOO_LONG}),
    (ApiKey.PRODUCE, 9, PRODUCE | {"transactional_id": TOO_LONG}),
    (ApiKey.PRODUCE, 9, PRODUCE | {"topic_data": [{"name": TOO_LONG, "partition_data": []}]}),
    (ApiKey.FETCH, 12, FETCH | {"topics": [{"topic": TOO_LONG, "partitions": []}]}),
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": [TOO_LONG]}),
    (ApiKey.DESCRIBE_GROUPS, 6, {"groups": [TOO_LONG]}),
    (ApiKey.API_VERSIONS, 4, {"client_software_name": TOO_LONG, "client_software_version": "1"}),
]


@pytest.mark.parametrize(("key", "version", "fields"), ASKED)
def test_a_longer_string_is_refused(key: ApiKey, version: int, fields: Mapping[str, Any]) -> None:
    way = route(key, version)
    assert way is not None
    with pytest.raises(MessageMalformed, match=f"{LONGEST_STRING + 1} bytes .* {LONGEST_STRING}"):
        way.read(memoryview(encode(make_request(key, version, fields))), 0)


@pytest.mark.parametrize(("key", "version", "fields"), ASKED)
def test_the_longest_string_is_not(key: ApiKey, version: int, fields: Mapping[str, Any]) -> None:
    way = route(key, version)
    assert way is not None
    data = encode(make_request(key, version, fields)).replace(TOO_LONG.encode(), LONG.encode())
    data = data.replace(b"\x81\x80\x02", b"\x80\x80\x02")  # the length, and one
    way.read(memoryview(data), 0)


def test_who_sends_one_is_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            client.send(ApiKey.JOIN_GROUP, 9, JOIN | {"group_id": TOO_LONG})
            await client.closed()

    with caplog.at_level(logging.WARNING, "onceflow"):
        run(main)
    (line,) = [each.getMessage() for each in caplog.records]
    assert f"a string of {LONGEST_STRING + 1} bytes" in line
    assert len(line) < 1000


# --- the longest ones, in every version ----------------------------------------------------------


async def join(client: RawClient, **more: Any) -> Any:
    version = 9
    answer = await client.ask(ApiKey.JOIN_GROUP, version, JOIN | more)
    if answer["error_code"] == "MEMBER_ID_REQUIRED":
        more["member_id"] = answer["member_id"]
        answer = await client.ask(ApiKey.JOIN_GROUP, version, JOIN | more)
    assert answer["error_code"] == "NONE"
    return answer


def test_all_versions_can_tell_of_groups_with_the_longest_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, group_initial_rebalance_delay_ms=0) as running:
            other = await running.client()
            for number, group_instance_id in enumerate((None, LONG)):
                client = await running.client(LONG)
                joined = await join(
                    client,
                    group_id=LONG[:-1] + str(number),
                    group_instance_id=group_instance_id,
                    protocol_type=LONG,
                    protocols=[{"name": LONG, "metadata": b"m"}],
                )
                assert len(joined["member_id"].encode()) <= LONGEST_STRING
                answer = await client.ask(
                    ApiKey.SYNC_GROUP,
                    5,
                    {
                        "group_id": LONG[:-1] + str(number),
                        "generation_id": joined["generation_id"],
                        "member_id": joined["member_id"],
                        "group_instance_id": group_instance_id,
                        "protocol_type": LONG,
                        "protocol_name": LONG,
                        "assignments": [],
                    },
                )
                assert answer["error_code"] == "NONE"
            for version in range(SERVED[ApiKey.LIST_GROUPS].highest + 1):
                fields: dict[str, Any] = {"states_filter": [], "types_filter": []}
                answer = await other.ask(ApiKey.LIST_GROUPS, version, fields)
                assert len(answer["groups"]) == 2
            for version in range(SERVED[ApiKey.DESCRIBE_GROUPS].highest + 1):
                fields = {"groups": [LONG[:-1] + "0", LONG[:-1] + "1"]}
                answer = await other.ask(ApiKey.DESCRIBE_GROUPS, version, fields)
                assert [len(each["members"]) for each in answer["groups"]] == [1, 1]

    run(main)


def test_a_client_id_that_is_no_text_is_as_short_as_one_that_is() -> None:
    """What stands for a byte that is no UTF-8 takes three."""
    frame = b"\x00\x03\x00\x01\x00\x00\x00\x07\x7f\xff" + b"\xff" * LONGEST_STRING + bytes(4)
    header = read_request_header(memoryview(frame))
    assert len(header.client_id.encode()) <= LONGEST_STRING
    assert header.body_at == len(frame) - 4


ERRORS: dict[ApiKey, Mapping[str, Any]] = {
    ApiKey.CREATE_TOPICS: {
        "topics": [
            {
                "name": LONG,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            },
            {
                "name": "wrong",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [{"name": LONG, "value": LONG}, {"name": "segment.ms", "value": LONG}],
            },
        ],
        "timeout": 1000,
    },
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": LONG, "count": 2, "assignments": None}],
        "timeout": 1000,
    },
    ApiKey.DELETE_TOPICS: {
        "topic_names": [LONG],
        "topics": [{"name": LONG, "topic_id": None}],
        "timeout": 1000,
    },
    ApiKey.DESCRIBE_CONFIGS: {
        "resources": [
            {"resource_type": kind, "resource_name": LONG, "configuration_keys": None}
            for kind in (2, 4)
        ]
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            {"resource_type": 2, "resource_name": name, "configs": configs}
            for name in (LONG, "orders")
            for configs in (
                [{"name": LONG, "config_operation": 0, "value": LONG}],
                [{"name": "segment.ms", "config_operation": 2, "value": LONG}],
                [{"name": "segment.ms", "config_operation": 0, "value": LONG}],
            )
        ],
        "validate_only": False,
    },
    ApiKey.DESCRIBE_GROUPS: {"groups": [LONG]},
    ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": [LONG]},
    ApiKey.FIND_COORDINATOR: {"key_type": 7, "key": LONG, "coordinator_keys": [LONG]},
}


@pytest.mark.parametrize("key", ERRORS, ids=lambda key: key.name)
def test_errors_that_tell_of_the_longest_names_are_told_in_every_version(
    key: ApiKey, tmp_path: Path
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders")
            for version in range(SERVED[key].lowest, SERVED[key].highest + 1):
                answer = await client.ask(key, version, ERRORS[key])
                assert _longest(answer) <= LONGEST_STRING

    run(main)


def _longest(answer: Any) -> int:
    if isinstance(answer, str):
        return len(answer.encode())
    values = answer.values() if isinstance(answer, dict) else answer
    return max(
        (_longest(each) for each in values if isinstance(each, str | dict | list)), default=0
    )


def test_a_list_does_not_grow_beyond_what_a_string_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders")
            codes = []
            for start in range(0, 8000, 2000):
                items = ",".join(f"{number}:1" for number in range(start, start + 2000))
                configs = [
                    {
                        "name": "leader.replication.throttled.replicas",
                        "config_operation": 2,
                        "value": items,
                    }
                ]
                resource = {"resource_type": 2, "resource_name": "orders", "configs": configs}
                answer = await client.ask(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS,
                    1,
                    {"resources": [resource], "validate_only": False},
                )
                codes.append(answer["responses"][0]["error_code"])
            assert codes == ["NONE", "NONE", "INVALID_CONFIG", "INVALID_CONFIG"]
            asked = {"resource_type": 2, "resource_name": "orders", "configuration_keys": None}
            for version in (1, 4):
                fields = {"resources": [asked], "include_synonyms": True}
                answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, version, fields)
                assert answer["results"][0]["error_code"] == "NONE"

    run(main)


def test_a_refusal_is_never_longer_than_people_read() -> None:
    refused = RequestRefused(ErrorCode.INVALID_REQUEST, "y" + LONG)
    assert refused.message is not None
    assert len(refused.message) <= LONGEST_MESSAGE
    assert refused.message.endswith("...")
    assert str(refused) == refused.message
    assert RequestRefused(ErrorCode.INVALID_REQUEST, "short").message == "short"


def test_what_does_not_fit_an_older_version_is_cut_and_not_a_failure() -> None:
    """Nothing should come so far; one who asks for a list gets one all the same."""
    groups = (
        ListedGroup(group_id=TOO_LONG, protocol_type=""),
        ListedGroup(group_id="b", protocol_type="x" + TOO_LONG),
    )
    data = encode(ListGroupsResponse(error_code=ErrorCode.NONE, groups=groups))
    first, second = decode(ListGroupsResponse, memoryview(data)).groups
    assert first.group_id == LONG
    assert second.group_id == "b"
    assert second.protocol_type == "x" + "é" * (LONGEST_STRING // 2)


# --- what is kept of them ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "kept"),
    [
        (lambda name: partitioning.coordinator_partition(name, 50), partitioning._cached),
        (lambda name: produce_wire.topic_bytes(True, name), produce_wire._kept),
    ],
)
def test_no_cache_keeps_what_is_longer_than_names_are(ask: Any, kept: Any) -> None:
    kept.cache_clear()
    ask("x" * 249)
    assert kept.cache_info().currsize == 1
    assert ask(LONG) == ask(LONG)
    assert ask("x" * 249) == ask("x" * 249)
    assert kept.cache_info().currsize == 1


@pytest.mark.parametrize("kind", [TextFormatter, JsonFormatter])
def test_a_line_of_the_log_has_an_end(kind: type[logging.Formatter]) -> None:
    record = logging.LogRecord("onceflow.x", logging.INFO, "", 1, "%r failed", (LONG,), None)
    line = kind().format(record)
    assert "ééé" in line
    assert len(line) < 9000
