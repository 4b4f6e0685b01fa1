"""What a request is told that names one thing twice: Apache Kafka folds some and refuses others.

Not asked for: a marker for one partition twice, which Apache Kafka never answers; records for one
partition twice, of which it drops the first; and what it describes as often as it is asked to,
which can be far more than the request (tests/unit/broker/handlers/test_named_twice.py has ours).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import ConnectionClosed, RawConnection
from tests.interop.broker.raw.requests import TOPIC_RESOURCE
from tests.interop.broker.raw.steps import commit_fields, fetch_fields
from tests.interop.broker.raw.transactions import wait_for_coordinators
from tests.interop.broker.raw.world import World, stable
from tests.interop.harness import Compare, Names, Transcript

pytestmark = pytest.mark.interop

Fields = dict[str, Any]


def fetch(world: World) -> Fields:
    fields = fetch_fields(world.topic, 0)
    rows = fields["topics"][0]["partitions"]
    rows.append({**rows[0], "fetch_offset": 99})
    return fields


def fetch_in_two_topics(world: World) -> Fields:
    fields = fetch_fields(world.topic, 99)
    fields["topics"].append(fetch_fields(world.topic, 0)["topics"][0])
    return fields


def list_offsets(world: World) -> Fields:
    rows = [{"partition_index": 0, "timestamp": time} for time in (-1, -2)]
    topics = [{"name": world.topic, "partitions": rows}]
    return {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}


def metadata(world: World) -> Fields:
    asked = [{"name": world.topic, "topic_id": None}] * 3
    absent = [{"name": world.names("absent"), "topic_id": None}] * 2
    return {"topics": asked + absent, "allow_auto_topic_creation": False}


def metadata_by_id(world: World) -> Fields:
    asked = [{"name": None, "topic_id": world.topic_id}] * 2
    return {"topics": asked, "allow_auto_topic_creation": False}


def offset_commit(world: World) -> Fields:
    fields = commit_fields(
        world.group,
        world.topic,
        5,
        generation=world.joined["generation_id"],
        member=world.joined["member_id"],
    )
    rows = fields["topics"][0]["partitions"]
    rows.append({**rows[0], "committed_offset": 6})
    return fields


def offset_commit_in_two_topics(world: World) -> Fields:
    fields = offset_commit(world)
    fields["topics"] *= 2
    return fields


def find_coordinator(world: World) -> Fields:
    return {"key_type": 0, "coordinator_keys": [world.group] * 2}


def delete_groups(world: World) -> Fields:
    return {"groups_names": [world.group] * 2 + [world.names("absent")] * 2}


def leave_group(world: World) -> Fields:
    who = {"member_id": world.joined["member_id"], "group_instance_id": None, "reason": "done"}
    return {"group_id": world.group, "members": [who] * 2}


def delete_topics(world: World) -> Fields:
    return {"topics": [{"name": world.topic, "topic_id": None}] * 2, "timeout": 10_000}


def delete_topics_by_id(world: World) -> Fields:
    return {"topics": [{"name": None, "topic_id": world.topic_id}] * 2, "timeout": 10_000}


def delete_topics_both_ways(world: World) -> Fields:
    ways = [{"name": None, "topic_id": world.topic_id}, {"name": world.topic, "topic_id": None}]
    return {"topics": ways, "timeout": 10_000}


def delete_absent_topics(world: World) -> Fields:
    absent = {"name": world.names("absent"), "topic_id": None}
    return {"topics": [absent] * 2, "timeout": 10_000}


def create_topics(world: World) -> Fields:
    row = {"name": world.names("new"), "num_partitions": 1, "replication_factor": 1}
    return {"topics": [{**row, "assignments": [], "configs": []}] * 2, "timeout": 10_000}


def create_partitions(world: World) -> Fields:
    rows = [{"name": world.topic, "count": count, "assignments": None} for count in (3, 4)]
    return {"topics": rows, "timeout": 10_000, "validate_only": True}


def delete_records(world: World) -> Fields:
    rows = [{"partition_index": 0, "offset": offset} for offset in (1, 2)]
    return {"topics": [{"name": world.topic, "partitions": rows}], "timeout": 10_000}


def offset_for_leader_epoch(world: World) -> Fields:
    row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    return {"replica_id": -1, "topics": [{"topic": world.topic, "partitions": [row] * 2}]}


def describe_configs(world: World) -> Fields:
    row = {"resource_type": TOPIC_RESOURCE, "configuration_keys": ["retention.ms"] * 2}
    rows = [{**row, "resource_name": name} for name in (world.topic, world.names("absent"))]
    return {"resources": rows, "include_synonyms": False, "include_documentation": False}


def incremental_alter_configs(world: World) -> Fields:
    config = {"name": "retention.ms", "config_operation": 0, "value": "1000000"}
    row = {"resource_type": TOPIC_RESOURCE, "resource_name": world.topic, "configs": [config]}
    return {"resources": [row] * 2, "validate_only": True}


def incremental_alter_one_config(world: World) -> Fields:
    fields = incremental_alter_configs(world)
    fields["resources"] = fields["resources"][:1]
    fields["resources"][0]["configs"] *= 2
    return fields


def offset_delete(world: World) -> Fields:
    rows = [{"partition_index": 0}, {"partition_index": 0}]
    return {"group_id": world.group, "topics": [{"name": world.topic, "partitions": rows}]}


def list_transactions(world: World) -> Fields:
    return {
        "state_filters": ["Nonsense", "Nonsense"],
        "producer_id_filters": [1, 1],
        "duration_filter": -1,
        "transactional_id_pattern": "",
    }


def describe_topic_partitions(world: World) -> Fields:
    return {"topics": [{"name": world.topic}] * 2, "response_partition_limit": 10, "cursor": None}


TWICE: Final[tuple[tuple[ApiKey, int, Callable[[World], Fields]], ...]] = (
    (ApiKey.FETCH, 12, fetch),
    (ApiKey.FETCH, 12, fetch_in_two_topics),
    (ApiKey.LIST_OFFSETS, 7, list_offsets),
    (ApiKey.METADATA, 12, metadata),
    (ApiKey.METADATA, 12, metadata_by_id),
    (ApiKey.OFFSET_COMMIT, 8, offset_commit),
    (ApiKey.OFFSET_COMMIT, 8, offset_commit_in_two_topics),
    (ApiKey.FIND_COORDINATOR, 6, find_coordinator),
    (ApiKey.CREATE_TOPICS, 7, create_topics),
    (ApiKey.CREATE_PARTITIONS, 3, create_partitions),
    (ApiKey.DELETE_RECORDS, 2, delete_records),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, offset_for_leader_epoch),
    (ApiKey.DESCRIBE_CONFIGS, 4, describe_configs),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, incremental_alter_configs),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, incremental_alter_one_config),
    (ApiKey.LIST_TRANSACTIONS, 1, list_transactions),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, describe_topic_partitions),
    (ApiKey.LEAVE_GROUP, 5, leave_group),
    (ApiKey.OFFSET_DELETE, 0, offset_delete),
    (ApiKey.DELETE_GROUPS, 2, delete_groups),
    (ApiKey.DELETE_TOPICS, 6, delete_absent_topics),
    (ApiKey.DELETE_TOPICS, 6, delete_topics_both_ways),
    (ApiKey.DELETE_TOPICS, 6, delete_topics),
    (ApiKey.DELETE_TOPICS, 6, delete_topics_by_id),
)


def one_thing_twice(bootstrap: str, names: Names, transcript: Transcript) -> None:
    with RawConnection(bootstrap) as connection:
        wait_for_coordinators(connection)
        world = World.make(connection, names)
        for api, version, fields in TWICE:
            with RawConnection(bootstrap) as other:
                try:
                    answer: Any = stable(other.ask(api, version, fields(world)), bootstrap)
                except ConnectionClosed:
                    answer = "closed"
            transcript.note(f"{api.name} v{version} {fields.__name__}", answer)


def test_one_thing_twice(compare: Compare) -> None:
    compare(one_thing_twice)
