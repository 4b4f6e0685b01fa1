"""Which partition of `__transaction_state` keeps a transactional id: Kafka's choice."""

from __future__ import annotations

from functools import lru_cache

from onceflow.records import LONGEST_KEPT, partition_by_hash


def partition_for(transactional_id: str, partitions: int) -> int:
    """The partition of `partitions` that keeps the transactional id."""
    of = _kept if len(transactional_id) <= LONGEST_KEPT else partition_by_hash
    return of(transactional_id, partitions)


# Asked four times for each transaction; the hash is a walk over the text.
_kept = lru_cache(maxsize=1000)(partition_by_hash)
