"""The topics that a query writes to, and how many partitions each has now.

Topics are named by the caller, or by rows. Those that rows name get their numbers in the order in
which they come, and keep them as long as an epoch lasts. Only the driver hands out numbers: if
tasks did, one partition could have two of them, and two tasks could claim it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing

from onceflow.client import BlockingCluster, BrokerError, MetadataResponse, TopicNotFound
from onceflow.runtime import RealClock, RealRand
from onceflow.spark.errors import AttemptRefused
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.preflight import ensure_topic
from onceflow.spark.sink.routing import TopicLayout
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode


class SinkTopics:
    """Used by the driver's thread and by those that answer tasks."""

    def __init__(
        self,
        cluster: BlockingCluster,
        options: SinkOptions,
        *,
        before_use: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        """`before_use` is given the partitions of topics that rows name, before tasks write to
        them."""
        self._cluster = cluster
        self._settings = options.settings
        self._policy = options.settings.retry
        self._before_use = before_use
        self._lock = threading.Lock()
        self._given = frozenset(options.topics)
        self._layout = TopicLayout(tuple((topic, 0) for topic in options.topics))
        self._joined: frozenset[str] = frozenset()
        """The topics that a transaction begins with: those of the last refresh."""
        self.may_grow = True
        """Whether partitions may join a transaction that is open: not in the older protocol."""

    @property
    def layout(self) -> TopicLayout:
        """As it was when it was last refreshed, and what was met since."""
        return self._layout

    @property
    def names(self) -> frozenset[str]:
        return frozenset(topic for topic, _ in self._layout.topics)

    def refresh(self) -> TopicLayout:
        """The topics as they are now; for a new epoch. One that rows have named and that is gone
        is forgotten: perhaps no row names it any more."""
        with self._lock:
            names = [topic for topic, _ in self._layout.topics]
            sizes = self._sizes(names, may_be_gone=set(names) - self._given)
            kept = tuple((topic, sizes[topic]) for topic in names if topic in sizes)
            self._layout = TopicLayout(kept)
            self._joined = frozenset(sizes)
            return self._layout

    def ensure(self, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """All topics, those that a task has met included."""
        with self._lock:
            known = self._layout.counts()
            new = [name for name in dict.fromkeys(names) if name not in known]
            if new:
                self._add(new)
            late = () if self.may_grow else sorted(set(names) - self._joined)
            if late:  # for every task that asks, and each time
                raise AttemptRefused(
                    f"{', '.join(map(repr, late))} can join the next transaction only: the broker "
                    "has transaction.version 1"
                )
            return self._layout.topics

    def _add(self, new: Sequence[str]) -> None:
        for name in new:
            ensure_topic(self._settings, name)
        sizes = self._sizes(new)
        self._before_use(TopicLayout(tuple(sizes.items())).partitions())
        self._layout = self._layout.with_topics([(name, sizes[name]) for name in new])

    def existing(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those of the partitions that this cluster has."""
        topics = {partition.topic for partition in partitions}
        found = self._metadata(topics).topics if topics else ()
        known = {
            TopicPartition(topic.name, each.partition)
            for _, topic in found
            for each in topic.partitions
        }
        return known.intersection(partitions)

    def _sizes(self, names: Collection[str], may_be_gone: Collection[str] = ()) -> dict[str, int]:
        if not names:
            return {}
        found = {each.topic.name: each for each in self._metadata(names).topics}
        counts = {}
        for name in names:
            code: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            counts[name] = 0
            if name in found:
                code, counts[name] = found[name].error, len(found[name].topic.partitions)
            if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                if name not in may_be_gone:
                    raise TopicNotFound(name)
                del counts[name]
                continue
            if code or not counts[name]:
                code = code or ErrorCode.LEADER_NOT_AVAILABLE
                raise BrokerError(code, ApiKey.METADATA.name, f"topic {name!r}")
        return counts

    def _metadata(self, names: Collection[str]) -> MetadataResponse:
        return self._cluster.trying(
            lambda deadline, _: self._cluster.refresh(sorted(names), deadline), self._policy
        )


def count_partitions(options: SinkOptions) -> dict[str, int]:
    """Of each topic that is known before the first row, over connections for this question only."""
    settings = options.settings
    with closing(
        BlockingCluster(settings.bootstrap_servers, settings, RealClock(), RealRand())
    ) as cluster:
        return SinkTopics(cluster, options, before_use=lambda _: None).refresh().counts()
