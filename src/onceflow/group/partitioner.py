"""Which partition of `__consumer_offsets` keeps a group: Kafka's choice, so its tools agree."""

from __future__ import annotations

from functools import lru_cache

from onceflow.records import LONGEST_KEPT, partition_by_hash


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of `partitions` that keeps the group."""
    of = _kept if len(group_id) <= LONGEST_KEPT else partition_by_hash
    return of(group_id, partitions)


# Asked for every commit of offsets; the hash is a walk over the text.
_kept = lru_cache(maxsize=1000)(partition_by_hash)
