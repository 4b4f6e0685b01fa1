"""From partitions and places in a log, as a user names them, to an offset in each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onceflow.cli.common.values import Place, Position
from onceflow.client import Cluster, OffsetRange
from onceflow.client.admin import admin
from onceflow.types import TopicPartition


async def partitions_of(
    cluster: Cluster, wanted: Iterable[tuple[str, list[int]]]
) -> list[TopicPartition]:
    """The named partitions of each topic, all where none is named; raises `TopicNotFound`."""
    partitions = []
    for name, numbers in wanted:
        topic = await cluster.find_topic(name)
        chosen = numbers or [each.partition for each in topic.partitions]
        partitions += [TopicPartition(name, number) for number in chosen]
    return partitions


async def resolve(
    cluster: Cluster, ranges: Mapping[TopicPartition, OffsetRange], position: Position
) -> dict[TopicPartition, int]:
    """The offset of `position` in each partition, moved to where the partition has offsets."""
    match position.place:
        case Place.EARLIEST:
            return {partition: held.earliest for partition, held in ranges.items()}
        case Place.LATEST:
            return {partition: held.latest for partition, held in ranges.items()}
        case Place.TIMESTAMP:
            found = await admin.offsets_at(cluster, ranges, position.number)
            return {partition: within(held, found[partition]) for partition, held in ranges.items()}
        case Place.OFFSET:
            return {partition: within(held, position.number) for partition, held in ranges.items()}


def within(held: OffsetRange, offset: int) -> int:
    """The nearest offset that the partition can be read from."""
    return min(max(offset, held.earliest), held.latest)
