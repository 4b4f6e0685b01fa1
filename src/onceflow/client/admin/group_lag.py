"""How far a group is behind what readers of committed records can have, in records.

Offsets are not records: markers of transactions and aborted records have them too. So what is
behind is read and counted, as long as it is not too much; else each offset is taken for a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from onceflow.client.consumer import PartitionLag, count_records
from onceflow.client.errors import ClientError
from onceflow.client.net import Cluster
from onceflow.client.offsets import list_offsets
from onceflow.client.settings import ReaderSettings
from onceflow.client.types import EARLIEST, LATEST, TopicPartition

COUNTED: Final = 10_000
"""Offsets of a partition that are worth reading for it."""
_NO_WAIT_MS: Final = 50


async def lag_behind(
    cluster: Cluster, committed: Mapping[TopicPartition, int], *, count_up_to: int | None = COUNTED
) -> dict[TopicPartition, PartitionLag]:
    """From these offsets on. What is no more than `count_up_to` offsets is counted; None: all."""
    stable, end, start = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(committed, LATEST), read_committed=True),
        list_offsets(cluster, dict.fromkeys(committed, LATEST)),
        list_offsets(cluster, dict.fromkeys(committed, EARLIEST)),
    )
    found: dict[TopicPartition, PartitionLag] = {}
    for partition, offset in committed.items():
        first, last = max(offset, start[partition].offset), stable[partition].offset
        span = max(0, last - first)
        counted = None
        if span and (count_up_to is None or span <= count_up_to):
            counted = await _count(cluster, partition, first, last)
        found[partition] = PartitionLag(
            records=span if counted is None else counted,
            is_exact=not span or counted is not None,
            held_back=max(0, end[partition].offset - last),
        )
    return found


async def _count(cluster: Cluster, partition: TopicPartition, first: int, last: int) -> int | None:
    """None where they cannot be read: no right to, or gone meanwhile."""
    settings = ReaderSettings(fetch_max_wait_ms=_NO_WAIT_MS)
    try:
        return await count_records(cluster, settings, partition, first, last)
    except ClientError:
        return None
