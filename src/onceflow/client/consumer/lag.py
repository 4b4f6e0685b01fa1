"""How far a consumer is behind, in records and not in offsets.

Transaction markers and aborted records have offsets too, and no consumer ever gets them. Of the
records already fetched, only those count that will be returned. Behind them only offsets are known:
each of those counts as a record, unless the caller asks for an exact count, which reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.consumer.ranges import read_range
from onceflow.client.net import Cluster
from onceflow.client.offsets import list_offsets
from onceflow.client.settings import ConsumerSettings, ReaderSettings
from onceflow.client.types import EARLIEST, LATEST
from onceflow.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a consumer is behind in one partition."""

    records: int
    """That can be handed out now and have not been: at most so many, and exactly so many if
    `is_exact`."""
    is_exact: bool
    held_back: int
    """Offsets behind the last stable one, which `read_committed` has to wait for: of transactions
    that are open, and of all that was written since the first of them began."""


async def lags(
    cluster: Cluster,
    settings: ConsumerSettings,
    fetcher: Fetcher,
    untaken: Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition],
    *,
    exact: bool,
) -> dict[TopicPartition, PartitionLag]:
    """Of partitions that are being read. `untaken` are records that were taken from the fetcher and
    not handed out yet."""
    stable, end = await asyncio.gather(
        list_offsets(
            cluster, dict.fromkeys(partitions, LATEST), read_committed=settings.read_committed
        ),
        list_offsets(cluster, dict.fromkeys(partitions, LATEST)),
    )
    start = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    found: dict[TopicPartition, PartitionLag] = {}
    for partition in partitions:
        records, fetched_to = fetcher.ahead(partition)
        first, last = max(fetched_to, start[partition].offset), stable[partition].offset
        unseen = max(0, last - first)
        if exact and unseen:
            unseen = await count_records(cluster, settings, partition, first, last)
        found[partition] = PartitionLag(
            records=untaken.get(partition, 0) + records + unseen,
            is_exact=exact or not unseen,
            held_back=max(0, end[partition].offset - last),
        )
    return found


async def count_records(
    cluster: Cluster, settings: ReaderSettings, partition: TopicPartition, start: int, end: int
) -> int:
    """How many records there are in a range of offsets, by reading it."""
    total = 0
    async for table in read_range(cluster, partition, start, end, settings=settings):
        total += table.num_rows
    return total
