"""A cluster that is played, for tests of how a stream is planned."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceflow.client.errors.requests import TopicNotFound
from onceflow.client.types import EARLIEST, LATEST
from onceflow.spark.source.offsets import LogEntry, Offsets
from onceflow.spark.source.option_values import Selection
from onceflow.spark.source.options import SourceOptions
from onceflow.spark.source.stream import StreamOffsets
from onceflow.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@dataclass
class PlayedCluster:
    """Logs by their ends; time passes when somebody waits."""

    first: dict[TopicPartition, int]
    last: dict[TopicPartition, int]
    """What may be read."""
    log_end: dict[TopicPartition, int] = field(default_factory=dict)
    """Where open transactions are behind that."""
    now: float = 0.0
    waits: list[float] = field(default_factory=list)
    looked: int = 0
    comes: dict[TopicPartition, int] = field(default_factory=dict)
    """What is there after the next wait."""
    ids: dict[str, str] = field(default_factory=dict)
    others: list[dict[str, str]] = field(default_factory=list)
    """What the brokers say of ids that are not the one that is asked."""
    after_times: Callable[[], None] = lambda: None
    """Happens right after somebody was told offsets of times."""

    def partitions(
        self, selection: Selection, known: Collection[TopicPartition] = ()
    ) -> set[TopicPartition]:
        self.looked += 1
        return set(self.last)

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        there = {place.topic for place in self.last}
        return {name: each for name, each in self._ids_now().items() if name in {*topics} & there}

    def ids_of_brokers(self, topics: Collection[str]) -> Sequence[Mapping[str, str]]:
        return [self.topic_ids(topics), *self.others] if self.others else []

    def _ids_now(self) -> Mapping[str, str]:
        return self.ids

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return {place: self._of(self.first, place) for place in partitions}

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return {place: self._of(self.last, place) for place in partitions}

    def log_ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        return {place: self.log_end.get(place, self.last[place]) for place in partitions}

    def at_times(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """A record a millisecond, its offset the time."""
        found = {}
        for place, time in times.items():
            first, last = self.first[place], self.last[place]
            edge = {EARLIEST: first, LATEST: last}.get(time)
            found[place] = max(first, time) if edge is None and time < last else -1
            found[place] = found[place] if edge is None else edge
        self.after_times()
        return found

    def _of(self, offsets: dict[TopicPartition, int], place: TopicPartition) -> int:
        if place not in offsets:
            raise TopicNotFound(place.topic)
        return offsets[place]

    def wait(self, positions: Offsets, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        self.last |= self.comes
        self.comes = {}

    def sleep(self, seconds: float) -> None:
        self.wait({}, seconds)

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        raise AssertionError("nobody needs the time of day here")

    wall_ns = wall_ms


def options(**more: str) -> SourceOptions:
    return SourceOptions.of({"bootstrap.servers": "x:1", "subscribe": "a", **more})


def stream(cluster: PlayedCluster, **more: str) -> StreamOffsets:
    return StreamOffsets(options(**more), cluster, cluster)


def cluster(*ends: tuple[int, int]) -> PlayedCluster:
    """Topic `a`, with where each partition begins and ends."""
    places = [TopicPartition("a", number) for number in range(len(ends))]
    return PlayedCluster(
        {place: first for place, (first, _) in zip(places, ends, strict=True)},
        {place: last for place, (_, last) in zip(places, ends, strict=True)},
    )


def entry(start: Mapping[str, int], end: Mapping[str, int]) -> LogEntry:
    return {"from": {"a": dict(start)} if start else {}, "to": {"a": dict(end)} if end else {}}


def logged(offset: LogEntry) -> Any:
    """What is left of an offset when Spark has kept it in a file."""
    return json.loads(json.dumps(offset))


EARLY = {"startingOffsets": "earliest"}
