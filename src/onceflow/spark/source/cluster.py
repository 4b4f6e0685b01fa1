"""What the driver's side of a source asks of a cluster, blocking: which partitions there are, where
they begin and end, and whether new records have come.

One connection to each broker for the life of a query, opened when it is first needed. Requests are
retried for `default.api.timeout.ms`: a query survives a broker that comes back within that time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from onceflow.client import (
    EARLIEST,
    LATEST,
    ClientError,
    Cluster,
    FetchAnswer,
    NoSuchPartition,
    ReaderSettings,
    TopicMetadata,
    TopicNotFound,
    fetch,
    list_offsets,
    list_topics,
)
from onceflow.spark.source.offsets import Offsets
from onceflow.spark.source.option_values import Assign, Selection, Subscribe, SubscribePattern
from onceflow.types import TopicPartition

T = TypeVar("T")

_ONE_BYTE: Final = 1
"""Asked for when only the waiting matters; brokers send one whole batch all the same."""
_BROKERS_SHARE: Final = 0.9
"""Of the time to wait, so that the answer is there when the time is up."""


class Ends(Protocol):
    """What planning needs to know of a cluster."""

    @property
    def ids(self) -> Mapping[str, str]:
        """Of the topics whose partitions were asked for last, where brokers know any."""
        ...

    def partitions(
        self, selection: Selection, known: Collection[TopicPartition] = ()
    ) -> set[TopicPartition]: ...
    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]: ...
    def ids_of_brokers(self, topics: Collection[str]) -> Sequence[Mapping[str, str]]: ...
    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def latest(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def log_ends(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def at_times(self, times: Mapping[TopicPartition, int]) -> Offsets: ...
    def wait(self, positions: Offsets, seconds: float) -> None: ...
    def sleep(self, seconds: float) -> None: ...


class SourceCluster:
    """For one thread. `close` ends the connections; a call after it opens them again."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings
        self._runner: asyncio.Runner | None = None
        self._cluster: Cluster | None = None
        self.ids: Mapping[str, str] = {}

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self._disconnect())
            self._runner.close()
            self._runner = None

    def partitions(
        self, selection: Selection, known: Collection[TopicPartition] = ()
    ) -> set[TopicPartition]:
        """What is there of the partitions that are selected. Raises `TopicNotFound` for a topic
        and `NoSuchPartition` for a partition that is named and not there, unless it is `known`
        from before: then it was deleted, and the caller knows what that means."""
        topics = self._run(lambda cluster: _selected(cluster, selection, frozenset(known)))
        self.ids = _ids(topics)
        there = _places(topics)
        if not isinstance(selection, Assign):
            return there
        for partition in sorted(selection.partitions - there - set(known)):
            raise NoSuchPartition(
                f"partition {partition} is assigned, but does not exist; correct the option assign"
            )
        return there & selection.partitions

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Of those that are there."""
        known = frozenset(TopicPartition(topic, 0) for topic in topics)
        return _ids(self._run(lambda cluster: _named(cluster, sorted(topics), known)))

    def ids_of_brokers(self, topics: Collection[str]) -> Sequence[Mapping[str, str]]:
        """What each broker that can be reached says of the ids of topics. One that is cut off from
        the controller says for a while what was so before."""
        return self._run(lambda cluster: _ids_of_brokers(cluster, sorted(topics)))

    def partition_count(self, topic: str) -> int:
        """Of a topic that need not be one that is read. Raises `TopicNotFound`."""
        (found,) = self._run(lambda cluster: _named(cluster, [topic], frozenset()))
        return len(found.partitions)

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The first offset that each log holds."""
        return self.at_times(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset behind the last that may be read: of committed records, the last stable
        one."""
        return self.at_times(dict.fromkeys(partitions, LATEST))

    def log_ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset behind the last, open transactions included."""
        return self._offsets(dict.fromkeys(partitions, LATEST), read_committed=False)

    def at_times(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset of a time or later that may be read; -1 where there is none."""
        return self._offsets(times, read_committed=self._settings.read_committed)

    def _offsets(self, times: Mapping[TopicPartition, int], *, read_committed: bool) -> Offsets:
        if not times:
            return {}
        found = self._run(
            lambda cluster: list_offsets(cluster, times, read_committed=read_committed)
        )
        return {partition: each.offset for partition, each in found.items()}

    def wait(self, positions: Offsets, seconds: float) -> None:
        """Returns when something is to be read from one of these positions on, or the time is up;
        what fails here fails again, and is dealt with, when it is asked for in earnest."""
        self._run(lambda cluster: _wait(cluster, positions, seconds, self._settings))

    def sleep(self, seconds: float) -> None:
        """Nothing, for a while."""
        self._run(lambda cluster: asyncio.sleep(seconds))

    def _run(self, ask: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._ask(ask))

    async def _ask(self, ask: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        if self._cluster is None:
            settings = self._settings
            self._cluster = Cluster(settings.bootstrap_servers, settings.cluster())
        return await ask(self._cluster)

    async def _disconnect(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


async def _selected(
    cluster: Cluster, selection: Selection, known: frozenset[TopicPartition]
) -> list[TopicMetadata]:
    match selection:
        case SubscribePattern(pattern):
            fits = re.compile(pattern).search
            return [
                topic
                for topic in await list_topics(cluster)
                if not topic.is_internal and fits(topic.name)
            ]
        case Subscribe(names):
            return await _named(cluster, names, known)
        case Assign(chosen):
            return await _named(cluster, sorted({partition.topic for partition in chosen}), known)


async def _named(
    cluster: Cluster, names: Iterable[str], known: frozenset[TopicPartition]
) -> list[TopicMetadata]:
    """One after the other only when one is missing: that is rare."""
    wanted = list(names)

    async def attempt() -> list[TopicMetadata]:
        return await cluster.metadata(wanted)

    while wanted:
        try:
            return await cluster.retrying(attempt)
        except TopicNotFound as error:
            if not any(partition.topic == error.topic for partition in known):
                raise
            wanted.remove(error.topic)
    return []


async def _ids_of_brokers(cluster: Cluster, names: Sequence[str]) -> list[dict[str, str]]:
    nodes = cluster.node_ids
    if len(nodes) < 2:  # it has been asked
        return []
    asked = (cluster.metadata_of(node_id, names) for node_id in nodes)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, ClientError):
            raise answer
    return [_ids(answer) for answer in answers if not isinstance(answer, BaseException)]


def _ids(topics: Iterable[TopicMetadata]) -> dict[str, str]:
    return {topic.name: str(topic.topic_id) for topic in topics if topic.topic_id}


def _places(topics: Iterable[TopicMetadata]) -> set[TopicPartition]:
    return {
        TopicPartition(topic.name, each.partition) for topic in topics for each in topic.partitions
    }


async def _wait(
    cluster: Cluster, positions: Offsets, seconds: float, settings: ReaderSettings
) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    if not await _something_comes(cluster, positions, seconds, settings):
        # An error comes at once, and is no reason to ask again at once.
        await asyncio.sleep(max(0.0, deadline - asyncio.get_running_loop().time()))


async def _something_comes(
    cluster: Cluster, positions: Offsets, seconds: float, settings: ReaderSettings
) -> bool:
    """A Fetch to each leader that the broker keeps until there is something; the first answer
    counts."""
    try:
        leaders = await cluster.by_leader(positions)
    except ClientError:
        return False
    chosen = replace(
        settings,
        fetch_max_wait_ms=int(seconds * _BROKERS_SHARE * 1000),
        fetch_min_bytes=_ONE_BYTE,
        max_partition_fetch_bytes=_ONE_BYTE,
    )
    asked = [
        asyncio.create_task(
            fetch(
                cluster,
                leader,
                [(partition, positions[partition]) for partition in led],
                chosen,
                max_bytes=_ONE_BYTE,
            )
        )
        for leader, led in leaders.items()
    ]
    if not asked:
        return False
    done, late = await asyncio.wait(asked, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return any(_has_records(task) for task in done)


def _has_records(task: asyncio.Task[list[FetchAnswer]]) -> bool:
    return task.exception() is None and any(len(answer.records) for answer in task.result())
