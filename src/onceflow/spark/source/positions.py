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

Places = Collection[TopicPartition]


def resolve_start(
    options: SourceOptions, start: Position, ends: Ends, places: Places, loss: LossRule
) -> Offsets:
    """The first offset to be read of each partition. Offsets that were given and that no log holds
    are data loss; raises `PartitionsDiffer` and `NoOffsetAtTime`."""
    match start:
        case Edge():
            return _edge(start, ends, places)
        case AtOffsets(given):
            _check_places("startingOffsets", given, places)
            return _held(_with_edges(given, ends), given, ends, loss)
        case AtTimes(times):
            asked = _each(times, places, "startingOffsetsByTimestamp")
            # Before the times: a record that comes in between is read, and none is passed over.
            latest = ends.latest(list(asked)) if options.latest_without_match else {}
            found = dict(ends.at_times(asked))
            late = sorted(place for place, offset in found.items() if offset < 0)
            if late and not options.latest_without_match:
                listed = ", ".join(map(str, late))
                raise NoOffsetAtTime(
                    f"partition {listed}: no record is as late as the query is to start; choose an "
                    "earlier time, or set startingOffsetsByTimestampStrategy to latest"
                )
            return {**found, **{place: latest[place] for place in late}}
        case _:
            assert_never(start)


def resolve_end(end: Position, ends: Ends, places: Places) -> Offsets:
    """The offset behind the last one to be read of each partition. Those that were given are taken
    as they are: what is not there yet may come."""
    match end:
        case Edge():
            return _edge(end, ends, places)
        case AtOffsets(given):
            _check_places("endingOffsets", given, places)
            return _with_edges(given, ends)
        case AtTimes(times):
            asked = _each(times, places, "endingOffsetsByTimestamp")
            latest = ends.latest(list(asked))  # before the times: what comes in between is later
            found = ends.at_times(asked)
            return {place: latest[place] if found[place] < 0 else found[place] for place in asked}
        case _:
            assert_never(end)


def _edge(edge: Edge, ends: Ends, places: Places) -> Offsets:
    return ends.earliest(places) if edge is Edge.EARLIEST else ends.latest(places)


def _with_edges(given: Offsets, ends: Ends) -> dict[TopicPartition, int]:
    return {
        **given,
        **ends.earliest([place for place, offset in given.items() if offset == EARLIEST]),
        **ends.latest([place for place, offset in given.items() if offset == LATEST]),
    }


def _held(
    found: Mapping[TopicPartition, int], given: Offsets, ends: Ends, loss: LossRule
) -> Offsets:
    """The offsets, those that were given moved to what there is if `loss` lets them."""
    chosen = [place for place, offset in given.items() if offset >= 0]
    first, last = ends.earliest(chosen), ends.log_ends(chosen)
    loss.report(
        f"partition {place} was to be read from offset {found[place]} on, and holds the offsets "
        f"from {first[place]} up to {last[place]}"
        for place in sorted(chosen)
        if not first[place] <= found[place] <= last[place]
    )
    return {
        **found,
        **{place: min(max(found[place], first[place]), last[place]) for place in chosen},
    }


def _each(
    times: Mapping[TopicPartition, int] | int, places: Places, option: str
) -> Mapping[TopicPartition, int]:
    if isinstance(times, int):
        return dict.fromkeys(places, times)
    _check_places(option, times, places)
    return times


def _check_places(option: str, given: Offsets, places: Places) -> None:
    there = set(places)
    if set(given) == there:
        return
    missing = [f"{place} is not in {option}" for place in sorted(there - set(given))]
    extra = [f"{place} is not read" for place in sorted(set(given) - there)]
    raise PartitionsDiffer(
        f"{option} must name every partition that is read, and no other: "
        f"{'; '.join(missing + extra)}. What is read: {by_topic(dict.fromkeys(there, 0))}"
    )
