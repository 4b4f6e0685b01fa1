"""Where a query or a batch begins and ends: the positions of its options, resolved to offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import assert_never

from onceflow.client import EARLIEST, LATEST
from onceflow.spark.errors import NoOffsetAtTime, PartitionsDiffer
from onceflow.spark.source.cluster import Ends
from onceflow.spark.source.data_loss import LossRule
from onceflow.spark.source.offsets import Offsets, by_topic
from onceflow.spark.source.option_values import AtOffsets, AtTimes, Edge, Position
from onceflow.spark.source.options import SourceOptions
from onceflow.types import TopicPartition

Partitions = Collection[TopicPartition]


def resolve_start(
    options: SourceOptions, start: Position, ends: Ends, partitions: Partitions, loss: LossRule
) -> Offsets:
    """The first offset to be read of each partition. Offsets that were given and that no log holds
    are data loss; raises `PartitionsDiffer` and `NoOffsetAtTime`."""
    match start:
        case Edge():
            return _edge(start, ends, partitions)
        case AtOffsets(given):
            _check_partitions("startingOffsets", given, partitions)
            return _held(_with_edges(given, ends), given, ends, loss)
        case AtTimes(times):
            asked = _each(times, partitions, "startingOffsetsByTimestamp")
            # Before the times: a record that comes in between is read, and none is passed over.
            latest = ends.latest(list(asked)) if options.latest_without_match else {}
            offsets = dict(ends.at_times(asked))
            late = sorted(partition for partition, offset in offsets.items() if offset < 0)
            if late and not options.latest_without_match:
                listed = ", ".join(map(str, late))
                raise NoOffsetAtTime(
                    f"partition {listed}: no record is as late as the query is to start; choose an "
                    "earlier time, or set startingOffsetsByTimestampStrategy to latest"
                )
            return {**offsets, **{partition: latest[partition] for partition in late}}
        case _:
            assert_never(start)


def resolve_end(end: Position, ends: Ends, partitions: Partitions) -> Offsets:
    """The offset behind the last one to be read of each partition. Those that were given are taken
    as they are: what is not there yet may come."""
    match end:
        case Edge():
            return _edge(end, ends, partitions)
        case AtOffsets(given):
            _check_partitions("endingOffsets", given, partitions)
            return _with_edges(given, ends)
        case AtTimes(times):
            asked = _each(times, partitions, "endingOffsetsByTimestamp")
            latest = ends.latest(list(asked))  # before the times: what comes in between is later
            offsets = ends.at_times(asked)
            return {
                partition: latest[partition] if offsets[partition] < 0 else offsets[partition]
                for partition in asked
            }
        case _:
            assert_never(end)


def _edge(edge: Edge, ends: Ends, partitions: Partitions) -> Offsets:
    return ends.earliest(partitions) if edge is Edge.EARLIEST else ends.latest(partitions)


def _with_edges(given: Offsets, ends: Ends) -> dict[TopicPartition, int]:
    return {
        **given,
        **ends.earliest([partition for partition, offset in given.items() if offset == EARLIEST]),
        **ends.latest([partition for partition, offset in given.items() if offset == LATEST]),
    }


def _held(
    offsets: Mapping[TopicPartition, int], given: Offsets, ends: Ends, loss: LossRule
) -> Offsets:
    """The offsets, those that were given moved to what there is if `loss` lets them."""
    chosen = [partition for partition, offset in given.items() if offset >= 0]
    first, last = ends.earliest(chosen), ends.log_ends(chosen)
    loss.report(
        f"partition {partition} was to be read from offset {offsets[partition]} on, and holds the "
        f"offsets from {first[partition]} up to {last[partition]}"
        for partition in sorted(chosen)
        if not first[partition] <= offsets[partition] <= last[partition]
    )
    return {
        **offsets,
        **{
            partition: min(max(offsets[partition], first[partition]), last[partition])
            for partition in chosen
        },
    }


def _each(
    times: Mapping[TopicPartition, int] | int, partitions: Partitions, option: str
) -> Mapping[TopicPartition, int]:
    if isinstance(times, int):
        return dict.fromkeys(partitions, times)
    _check_partitions(option, times, partitions)
    return times


def _check_partitions(option: str, given: Offsets, partitions: Partitions) -> None:
    there = set(partitions)
    if set(given) == there:
        return
    missing = [f"{partition} is not in {option}" for partition in sorted(there - set(given))]
    extra = [f"{partition} is not read" for partition in sorted(set(given) - there)]
    raise PartitionsDiffer(
        f"{option} must name every partition that is read, and no other: "
        f"{'; '.join(missing + extra)}. What is read: {by_topic(dict.fromkeys(there, 0))}"
    )
