"""For each API a harmless request, good in every version that the API has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.steps import RANGE, batch, commit_fields, join_alone, produce_fields
from tests.interop.broker.raw.world import World

Fields = dict[str, Any]
TOPIC_RESOURCE: Final = 2
METADATA_TOPIC: Final = "__cluster_metadata"


def produce(world: World, version: int) -> Fields:
    fields = produce_fields(world.topic, batch(b"version %d" % version))
    fields["topic_data"][0]["topic_id"] = world.topic_id
    return fields


def fetch(world: World, version: int) -> Fields:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topic = {"topic": world.topic, "topic_id": world.topic_id, "partitions": [part]}
    waits = {"replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20}
    return {**waits, "topics": [topic]}


def list_offsets(world: World, version: int) -> Fields:
    parts = [{"partition_index": 0, "timestamp": timestamp} for timestamp in (-1,)]
    topics = [{"name": world.topic, "partitions": parts}]
    return {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}


def metadata(world: World, version: int) -> Fields:
    # Before version 4 there is no way to ask for a topic without making it.
    names = (world.topic, world.names("absent")) if version >= 4 else (world.topic,)
    asked = [{"name": name, "topic_id": None} for name in names]
    return {"topics": asked, "allow_auto_topic_creation": False}


def offset_commit(world: World, version: int) -> Fields:
    return commit_fields(
        world.group,
        world.topic,
        version,
        generation=world.joined["generation_id"],
        member=world.joined["member_id"],
    )


def offset_fetch(world: World, version: int) -> Fields:
    topics = [{"name": world.topic, "partition_indexes": [0, 1]}]
    group = {"group_id": world.group, "member_id": None, "member_epoch": -1, "topics": topics}
    return {**group, "groups": [group], "require_stable": True}


def find_coordinator(world: World, version: int) -> Fields:
    return {"key": world.group, "key_type": 0, "coordinator_keys": [world.group]}


def join_group(world: World, version: int) -> Fields:
    return {
        "group_id": world.names(f"join-{version}"),
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": f"instance-{version}" if version >= 5 else None,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "reason": "because",
    }


def member(world: World, version: int) -> Fields:
    return {
        "group_id": world.group,
        "generation_id": world.joined["generation_id"],
        "member_id": world.joined["member_id"],
        "group_instance_id": None,
    }


def sync_group(world: World, version: int) -> Fields:
    protocol = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    return {**member(world, version), **protocol}


def leave_group(world: World, version: int) -> Fields:
    group = world.names(f"leave-{version}")
    joined = join_alone(world.connection, group)
    identity = {"member_id": joined["member_id"], "group_instance_id": None, "reason": "done"}
    return {"group_id": group, "member_id": joined["member_id"], "members": [identity]}


def describe_groups(world: World, version: int) -> Fields:
    groups = [world.group, world.names("absent")]
    return {"groups": groups, "include_authorized_operations": True}


def delete_groups(world: World, version: int) -> Fields:
    return {"groups_names": [world.group, world.names("absent")]}


def api_versions(world: World, version: int) -> Fields:
    return {"client_software_name": "raw-probe", "client_software_version": "1.0"}


def create_topics(world: World, version: int) -> Fields:
    rows = []
    for label, count in ((f"created-{version}", 2), ("zero", 0)):
        config = {"name": "retention.ms", "value": "60000"}
        row = {"name": world.names(label), "num_partitions": count, "replication_factor": 1}
        rows.append({**row, "assignments": [], "configs": [config]})
    return {"topics": rows, "timeout": 10_000, "validate_only": True}


def delete_topics(world: World, version: int) -> Fields:
    absent = world.names("absent")
    topics = [{"name": absent, "topic_id": None}]
    return {"topic_names": [absent], "topics": topics, "timeout": 10_000}


def delete_records(world: World, version: int) -> Fields:
    parts = [{"partition_index": 0, "offset": version + 1}, {"partition_index": 9, "offset": 1}]
    return {"topics": [{"name": world.topic, "partitions": parts}], "timeout": 10_000}


def offset_for_leader_epoch(world: World, version: int) -> Fields:
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    return {"replica_id": -1, "topics": [{"topic": world.topic, "partitions": [part]}]}


def describe_configs(world: World, version: int) -> Fields:
    keys = ["retention.ms", "cleanup.policy", "max.message.bytes", "compression.type"]
    rows = [
        {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": keys}
        for name in (world.topic, world.names("absent"))
    ]
    return {"resources": rows, "include_synonyms": False, "include_documentation": False}


def create_partitions(world: World, version: int) -> Fields:
    names = (world.topic, world.names("absent"))
    rows = [{"name": name, "count": 3, "assignments": None} for name in names]
    return {"topics": rows, "timeout": 10_000, "validate_only": True}


def incremental_alter_configs(world: World, version: int) -> Fields:
    config = {"name": "retention.ms", "config_operation": 0, "value": "1000000"}
    rows = [
        {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": [config]}
        for name in (world.topic, world.names("absent"))
    ]
    return {"resources": rows, "validate_only": True}


def offset_delete(world: World, version: int) -> Fields:
    topics = [{"name": world.topic, "partitions": [{"partition_index": 0}]}]
    return {"group_id": world.group, "topics": topics}


def describe_cluster(world: World, version: int) -> Fields:
    return {"include_cluster_authorized_operations": False, "endpoint_type": 1}


def alter_configs(world: World, version: int) -> Fields:
    config = {"name": "retention.ms", "value": "1000000"}
    rows = [
        {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": [config]}
        for name in (world.topic, world.names("absent"))
    ]
    return {"resources": rows, "validate_only": True}


def describe_log_dirs(world: World, version: int) -> Fields:
    asked = [{"topic": name, "partitions": [0]} for name in (world.topic, world.names("absent"))]
    return {"topics": asked}


def elect_leaders(world: World, version: int) -> Fields:
    asked = [{"topic": name, "partitions": [0]} for name in (world.topic, world.names("absent"))]
    return {"election_type": 0, "topic_partitions": asked, "timeout": 10_000}


def alter_partition_reassignments(world: World, version: int) -> Fields:
    here = [{"partition_index": 0, "replicas": [1]}]
    topics = [{"name": name, "partitions": here} for name in (world.topic, world.names("absent"))]
    return {"topics": topics, "timeout": 10_000, "allow_replication_factor_change": False}


def describe_quorum(world: World, version: int) -> Fields:
    return {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}


def update_features(world: World, version: int) -> Fields:
    update = {"feature": "transaction.version", "max_version_level": 2, "upgrade_type": 1}
    updates = [{**update, "allow_downgrade": False}]
    return {"feature_updates": updates, "timeout": 10_000, "validate_only": True}


def describe_topic_partitions(world: World, version: int) -> Fields:
    topics = [{"name": name} for name in sorted((world.topic, world.names("absent")))]
    return {"topics": topics, "response_partition_limit": 10, "cursor": None}


BENIGN: Final[dict[ApiKey, Callable[[World, int], Fields]]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: member,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: lambda world, version: {"states_filter": [], "types_filter": []},
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda world, version: {"topics": None, "timeout": 1},
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
    ApiKey.UPDATE_FEATURES: update_features,
    ApiKey.LIST_CONFIG_RESOURCES: lambda world, version: {"resource_types": [TOPIC_RESOURCE]},
}
