"""Which partition of `__transaction_state` keeps a transactional id: Kafka's choice."""

from __future__ import annotations

from functools import lru_cache

from onceflow.records.java_hash import partition_by_hash


@lru_cache(maxsize=1000)  # asked four times for each transaction; the hash is a walk over the text
def partition_for(transactional_id: str, partitions: int) -> int:
    """The partition of `partitions` that keeps the transactional id."""
    return partition_by_hash(transactional_id, partitions)
