"""Which topics a consumer subscribes to, and how many partitions they have by now.

A subscription names topics, which need not exist yet, or a pattern that whole names have to match.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from onceflow.client.errors import TopicNotFound
from onceflow.client.net import Cluster


@dataclass(frozen=True, slots=True)
class Subscription:
    """What the application subscribed to: topics, or a pattern."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    takes_internal: bool = False

    def means(self, topic: str) -> bool:
        """Whether a topic of that name is meant, as far as a name tells."""
        if self.pattern is not None:
            return self.pattern.fullmatch(topic) is not None
        return topic in self.topics


async def meant_topics(cluster: Cluster, subscription: Subscription) -> frozenset[str]:
    """The topics of a subscription now; the cluster is asked only for a pattern."""
    pattern = subscription.pattern
    if pattern is None:
        return subscription.topics

    async def attempt() -> frozenset[str]:
        return frozenset(
            topic.name
            for topic in await cluster.metadata(None)
            if pattern.fullmatch(topic.name)
            and (subscription.takes_internal or not topic.is_internal)
        )

    return await cluster.retrying(attempt)


async def missing_topics(cluster: Cluster, names: Collection[str], *, create: bool) -> list[str]:
    """Why there is nothing to read of each topic that is not there, with what may have been meant;
    the cluster is asked. `create`: brokers may create them, as they do for producers."""
    missing = await cluster.missing(names, create=create)
    if not missing:
        return []
    known = [name for name in await cluster.retrying(cluster.topic_names) if name not in missing]
    return [str(TopicNotFound(name, known)) for name in missing]


async def partition_counts(cluster: Cluster, names: Collection[str]) -> dict[str, int]:
    """How many partitions those of the topics have that exist; the cluster is asked."""

    async def attempt() -> dict[str, int]:
        with suppress(TopicNotFound):  # of the others it has learned all the same
            await cluster.metadata(names)
        counts = {name: cluster.known_partitions(name) for name in names}
        return {name: count for name, count in counts.items() if count is not None}

    return await cluster.retrying(attempt)
