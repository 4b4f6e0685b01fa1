"""Which partition of `__consumer_offsets` keeps a group: Kafka's choice, so its tools agree."""

from __future__ import annotations

from onceflow.records.java_hash import partition_by_hash


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of `partitions` that keeps the group."""
    return partition_by_hash(group_id, partitions)
