"""A small world for raw probes (a topic with records, a group with an offset and a member), and
answers with everything taken out that is a broker's own: addresses, node ids, cluster ids, the
wording of its messages, the order of rows that stand for a set."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, Final

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import (
    batch,
    commit,
    create_topic,
    join_alone,
    produce,
    topic_id,
)
from tests.interop.harness import Names

VERSIONS: Final[dict[ApiKey, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
"""What both brokers serve: Apache Kafka 4.3.1's ranges, but for two that end earlier with us."""

NODES: Final = frozenset(
    (
        "broker_id",
        "controller_id",
        "isr_nodes",
        "leader_id",
        "node_id",
        "offline_replicas",
        "replica_id",
        "replica_nodes",
    )
)
OF_THE_METADATA_LOG: Final = frozenset(
    (
        "high_watermark",
        "last_caught_up_timestamp",
        "last_fetch_timestamp",
        "leader_epoch",
        "listeners",
        "log_end_offset",
    )
)
OF_THE_DISK: Final = frozenset(("log_dir", "total_bytes", "usable_bytes"))
MESSAGES: Final = frozenset(("error_message", "batch_index_error_message"))


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Names of what is there, and the connection to ask by."""

    connection: RawConnection
    names: Names
    topic: str
    topic_id: uuid.UUID
    group: str
    joined: dict[str, Any]

    @staticmethod
    def make(connection: RawConnection, names: Names) -> World:
        topic, group = names("topic"), names("group")
        create_topic(connection, topic)
        assert produce(connection, topic, batch(b"a", b"b", b"c"))["base_offset"] == 0
        joined = join_alone(connection, group)
        generation, member = joined["generation_id"], joined["member_id"]
        error = commit(connection, group, topic, 2, generation=generation, member=member)
        assert error == "NONE"
        return World(connection, names, topic, topic_id(connection, topic), group, joined)


def without(names: frozenset[str], value: Any) -> Any:
    """The answer without the values of fields that no two brokers have alike."""
    if isinstance(value, dict):
        return {
            key: "<own>" if key in names else without(names, inner) for key, inner in value.items()
        }
    return [without(names, inner) for inner in value] if isinstance(value, list) else value


def stable(value: Any, bootstrap: str) -> Any:
    """The answer with the broker's own names for itself replaced, once they are seen to be fit."""
    host, _, port = bootstrap.partition(":")
    if isinstance(value, dict):
        return {key: _stable_field(key, inner, host, int(port)) for key, inner in value.items()}
    if isinstance(value, list):
        rows = [stable(inner, bootstrap) for inner in value]
        return sorted(rows, key=repr) if rows and isinstance(rows[0], dict) else rows
    return value


def _stable_field(key: str, value: Any, host: str, port: int) -> Any:
    if key in NODES and isinstance(value, int | list):
        return _node(value)
    if key == "cluster_id" and isinstance(value, str):
        assert value
        return "<cluster>"
    if key in MESSAGES:
        return "<message>"
    if key == "host" and value:
        assert value == host
        return "<host>"
    if key == "port" and isinstance(value, int) and value > 0:
        assert value == port
        return "<port>"
    return stable(value, f"{host}:{port}")


def _node(value: Any) -> Any:
    if isinstance(value, list):
        return [_node(inner) for inner in value]
    return "<node>" if value >= 0 else value
