"""Which partition of `__consumer_offsets` keeps a group: Kafka's choice, so its tools agree."""

from __future__ import annotations

from functools import lru_cache

from onceflow.records.java_hash import partition_by_hash


@lru_cache(maxsize=1000)  # asked for every commit of offsets; the hash is a walk over the text
def partition_for(group_id: str, partitions: int) -> int:
    """The partition of `partitions` that keeps the group."""
    return partition_by_hash(group_id, partitions)
