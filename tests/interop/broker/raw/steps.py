"""Steps that raw scripts share: topics that are ready to be used, batches, groups that exist."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.harness import eventually

# Recent enough to be out of reach of retention, which looks at the times of records; the same
# for all brokers in a run.
START_MS: Final = int(time.time() - 3600) * 1000
NOT_YET: Final = {
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
}
# Apache Kafka reads what members subscribe to; bytes that are no subscription can leave the join
# of a "consumer" group without any answer.
NO_TOPICS: Final = struct.pack(">hii", 0, 0, -1)
RANGE: Final = [{"name": "range", "metadata": NO_TOPICS}]


def batch(*values: bytes | None, start_ms: int = START_MS, key: bytes | None = b"k") -> bytes:
    """A batch as aiokafka builds it, one record a millisecond."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for number, value in enumerate(values):
        headers = [("h", b"%d" % number)]
        assert builder.append(number, start_ms + number, key, value, headers) is not None
    return bytes(builder.build())


def with_crc(data: bytes) -> bytes:
    """The batch with its checksum made right again, after its bytes were changed."""
    return data[:17] + struct.pack(">I", crc32c.crc32c(data[21:])) + data[21:]


def values_in(records: bytes | None) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record in what a fetch brought."""
    found = []
    memory = MemoryRecords(records or b"")
    while memory.has_next():
        found += [(record.offset, record.value) for record in memory.next_batch()]
    return found


def create_topic(
    connection: RawConnection,
    name: str,
    *,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Makes a topic, and returns when its partitions can be read and written."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    answer = connection.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
    assert answer["topics"][0]["error_code"] == "NONE", answer
    eventually(
        lambda: [list_offset(connection, name, -1, partition=p) for p in range(partitions)],
        lambda answers: all(answer["error_code"] == "NONE" for answer in answers),
    )


def topic_id(connection: RawConnection, name: str) -> Any:
    answer = connection.ask(ApiKey.METADATA, 12, {"topics": [{"name": name, "topic_id": None}]})
    return uuid.UUID(answer["topics"][0]["topic_id"])


def list_offset(
    connection: RawConnection, topic: str, timestamp: int, *, partition: int = 0, version: int = 7
) -> Any:
    asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
    answer = connection.ask(
        ApiKey.LIST_OFFSETS, version, fields | {"isolation_level": 0, "timeout": 5000}
    )
    return answer["topics"][0]["partitions"][0]


def produce_fields(topic: str, records: bytes | None, *, acks: int = -1) -> dict[str, Any]:
    part = {"index": 0, "records": records}
    topics = [{"name": topic, "partition_data": [part]}]
    return {"transactional_id": None, "acks": acks, "timeout": 10_000, "topic_data": topics}


def produce(connection: RawConnection, topic: str, records: bytes | None, *, acks: int = -1) -> Any:
    """What Produce v9 answers for the one partition."""
    answer = connection.ask(ApiKey.PRODUCE, 9, produce_fields(topic, records, acks=acks))
    return answer["responses"][0]["partition_responses"][0]


def fetch_fields(
    topic: str, offset: int, *, epoch: int = -1, max_bytes: int = 1 << 20, **more: Any
) -> dict[str, Any]:
    part = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "partition_max_bytes": max_bytes,
    }
    fields = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 24}
    return {**fields, "topics": [{"topic": topic, "partitions": [part]}], **more}


def fetch(connection: RawConnection, topic: str, offset: int, **more: Any) -> Any:
    """What Fetch v12 answers for the one partition."""
    answer = connection.ask(ApiKey.FETCH, 12, fetch_fields(topic, offset, **more))
    return answer["responses"][0]["partitions"][0]


def wait_for_coordinator(connection: RawConnection, group: str) -> None:
    """Returns when the coordinator of the group answers for it. Asking who it is makes it."""
    asked = {"key": group, "key_type": 0}
    eventually(
        lambda: connection.ask(ApiKey.FIND_COORDINATOR, 3, asked)["error_code"],
        lambda error: error not in NOT_YET,
    )
    fields = {"group_id": group, "topics": None, "require_stable": False}
    eventually(
        lambda: connection.ask(ApiKey.OFFSET_FETCH, 7, fields)["error_code"],
        lambda error: error not in NOT_YET,
    )


def join_fields(group: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": RANGE,
        **more,
    }


def join_alone(connection: RawConnection, group: str, *, instance: str | None = None) -> Any:
    """Joins as the only member and syncs; the answer to the join."""
    wait_for_coordinator(connection, group)
    more: dict[str, Any] = {"group_instance_id": instance}
    joined = connection.ask(ApiKey.JOIN_GROUP, 5, join_fields(group, **more))
    if joined["error_code"] == "MEMBER_ID_REQUIRED":
        joined = connection.ask(
            ApiKey.JOIN_GROUP, 5, join_fields(group, joined["member_id"], **more)
        )
    assert joined["error_code"] == "NONE", joined
    synced = connection.ask(ApiKey.SYNC_GROUP, 3, sync_fields(group, joined, instance=instance))
    assert synced["error_code"] == "NONE", synced
    return joined


def sync_fields(group: str, joined: Any, *, instance: str | None = None) -> dict[str, Any]:
    assignment = {"member_id": joined["member_id"], "assignment": b"assignment"}
    return {
        "group_id": group,
        "generation_id": joined["generation_id"],
        "member_id": joined["member_id"],
        "group_instance_id": instance,
        "assignments": [assignment],
    }


def leave(connection: RawConnection, group: str, member: str) -> Any:
    return connection.ask(ApiKey.LEAVE_GROUP, 2, {"group_id": group, "member_id": member})


def commit_fields(
    group: str, topic: str, offset: int, *, generation: int = -1, member: str = "", **more: Any
) -> dict[str, Any]:
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "note",
        **more,
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": topic, "partitions": [part]}],
    }


def commit(connection: RawConnection, group: str, topic: str, offset: int, **more: Any) -> Any:
    """The error that OffsetCommit v8 answers for the one partition."""
    answer = connection.ask(ApiKey.OFFSET_COMMIT, 8, commit_fields(group, topic, offset, **more))
    return answer["topics"][0]["partitions"][0]["error_code"]


def errors_of(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [row["error_code"] for row in rows]
