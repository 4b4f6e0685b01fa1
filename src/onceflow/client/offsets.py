"""Where partitions begin and end, and what their offset was at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from onceflow.client.cluster import Cluster, check
from onceflow.client.model import EARLIEST, LATEST, OffsetRange, TimedOffset, TopicPartition
from onceflow.wire.api import ApiKey

NOT_A_REPLICA: Final = -1


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, TimedOffset]:
    """For each partition the first offset whose timestamp is not before the one that is given, in
    milliseconds; or its first offset (`EARLIEST`) or the one behind its last (`LATEST`)."""

    async def attempt() -> dict[TopicPartition, TimedOffset]:
        leaders = await cluster.by_leader(wanted)
        parts = await asyncio.gather(
            *(_ask(cluster, leader, wanted, led) for leader, led in leaders.items())
        )
        return {partition: offset for part in parts for partition, offset in part.items()}

    return await cluster.retrying(attempt)


async def _ask(
    cluster: Cluster,
    leader: int,
    wanted: Mapping[TopicPartition, int],
    partitions: list[TopicPartition],
) -> dict[TopicPartition, TimedOffset]:
    from kio.schema.list_offsets.v7.request import (
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )

    topics = tuple(
        ListOffsetsTopic(
            name=topic,
            partitions=tuple(
                ListOffsetsPartition(
                    partition_index=number, timestamp=wanted[TopicPartition(topic, number)]
                )
                for number in numbers
            ),
        )
        for topic, numbers in by_topic(partitions).items()
    )
    connection = await cluster.broker(leader)
    request = ListOffsetsRequest(replica_id=NOT_A_REPLICA, isolation_level=0, topics=topics)
    answer = await connection.request(ApiKey.LIST_OFFSETS, request)
    return dict(_offsets(answer))


def _offsets(answer: Any) -> Iterable[tuple[TopicPartition, TimedOffset]]:
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            check(ApiKey.LIST_OFFSETS, each, f"partition {partition}")
            yield partition, TimedOffset(each.offset, each.timestamp)


async def offset_ranges(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """The first and the next offset of each partition."""
    partitions = list(partitions)
    # One after the other: an end that was taken first could lie before the start.
    earliest = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    latest = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return {
        partition: OffsetRange(earliest[partition].offset, latest[partition].offset)
        for partition in partitions
    }


async def offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """From where to read in order to see all that is not older; the end where nothing is."""
    partitions = list(partitions)
    latest = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    found = await list_offsets(cluster, dict.fromkeys(partitions, timestamp_ms))
    return {
        partition: found[partition].offset if found[partition].offset >= 0 else end.offset
        for partition, end in latest.items()
    }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of the partitions of each topic, the way requests name them."""
    grouped: dict[str, list[int]] = {}
    for partition in partitions:
        grouped.setdefault(partition.topic, []).append(partition.partition)
    return grouped
