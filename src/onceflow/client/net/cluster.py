"""The brokers of a cluster, a connection to each that is needed, its leaders and coordinators.

Starts from the bootstrap addresses, in order, with those that failed at the end. Metadata is kept
until it is old or a response shows that it is out of date; `retrying` then refreshes it and tries
again. When many tasks need the same metadata at the same time, one request serves them all. After a
fork the child opens connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from onceflow.client.address import BrokerAddress
from onceflow.client.codec import (
    GROUP,
    TRANSACTION,
    UNKNOWN_EPOCH,
    find_coordinator_request,
    metadata_request,
)
from onceflow.client.errors import (
    LOST,
    BrokerError,
    ConnectionClosed,
    ConnectionLost,
    NoSuchPartition,
    NotKafka,
    TopicNotFound,
)
from onceflow.client.net.cluster_settings import ClusterSettings
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.net.pool import (
    ConnectionLane as ConnectionLane,
    Pool,
    SingleFlight,
)
from onceflow.client.net.retry import RetryPolicy
from onceflow.client.net.retrying import retrying
from onceflow.client.net.view import (
    NO_LEADER,
    ClusterView,
    KnownTopic,
    LearnedTopics,
    leader_in,
    no_leader,
)
from onceflow.client.types import TopicMetadata
from onceflow.runtime import Net, Rand, RealNet, RealRand
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey

T = TypeVar("T")

_FIRST_LOOK_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
"""Between two looks at a topic that is being created."""


class CoordinatorOf(IntEnum):
    """The kinds of coordinator, with the protocol's numbers."""

    GROUP = GROUP
    TRANSACTION = TRANSACTION


class Cluster:
    """Connected by `connect`, or by entering it with `async with`.

    >>> from onceflow.client.address import parse_addresses
    >>> async def main() -> None:
    ...     async with Cluster(parse_addresses(bootstrap)) as cluster:
    ...         print((await cluster.find_topic("orders")).partitions[0].leader in cluster.node_ids)
    >>> asyncio.run(main())
    True
    """

    def __init__(
        self,
        bootstrap: Sequence[BrokerAddress],
        settings: ClusterSettings | None = None,
        *,
        net: Net | None = None,
        rand: Rand | None = None,
    ) -> None:
        self.settings = settings or ClusterSettings()
        self._rand = rand or RealRand()
        self._view = ClusterView(bootstrap)
        self._pool = Pool(self.settings, net or RealNet(), self._rand, self._view)
        self._flights = SingleFlight()
        self._is_closed = False

    async def connect(self) -> None:
        """Connects to one broker and learns the addresses of the others."""
        self._is_closed = False
        try:
            await self.metadata([])
        except BaseException:
            self.close()
            raise

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections and opens no more: a task that still runs must not reconnect after
        the application has closed the client."""
        self._is_closed = True
        self._flights.close()
        self._pool.close()

    def check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosed("the client is closed", outcome="not applied")

    @property
    def node_ids(self) -> list[int]:
        """The brokers that were alive in the latest metadata."""
        return sorted(self._view.brokers)

    @property
    def features(self) -> Mapping[str, int]:
        """The finalized feature levels, from the broker with the newest knowledge of them."""
        return self._view.features

    # --- connections ----------------------------------------------------------------------------

    async def any_broker(self) -> BrokerConnection:
        """A connected broker, or else the first known one that can be reached."""
        self.check_open()
        return await self._pool.any()

    async def broker(
        self, node_id: int, *, lane: ConnectionLane = ConnectionLane.SHARED
    ) -> BrokerConnection:
        """The connection to a broker from the metadata."""
        self.check_open()
        address = self._view.address(node_id)
        try:
            return await self._pool.get(address, lane)
        except NotKafka as error:
            # A broker named it as its peer: more likely it is just going down.
            raise ConnectionLost(str(error), outcome="not applied") from error

    async def controller(self) -> BrokerConnection:
        """The broker for changes of topics; today's brokers forward them, so any will do."""
        if self._view.controller in self._view.brokers:
            return await self.broker(self._view.controller)
        return await self.any_broker()

    async def transaction_version(self) -> int:
        """As `ClusterView.transaction_version`, once a broker was asked."""
        if self._view.features_epoch == UNKNOWN_EPOCH:
            await self.any_broker()
        return self._view.transaction_version

    # --- who is responsible ---------------------------------------------------------------------

    async def leader(self, partition: TopicPartition) -> int:
        """The id of the broker that leads a partition."""
        topic = await self.topic(partition.topic)
        leader = leader_in(topic, partition.partition)
        if leader is None:
            raise NoSuchPartition(
                f"topic {topic.name!r} has no partition {partition.partition}; "
                f"it has {len(topic.partitions)}, counted from 0"
            )
        if leader == NO_LEADER:
            raise no_leader(partition)
        return leader

    def known_leader(self, partition: TopicPartition) -> int | None:
        """The leader from the known metadata; None when `leader` would need a request."""
        leader = self._view.leader(partition)
        return None if leader == NO_LEADER else leader

    def known_partitions(self, topic: str) -> int | None:
        """A topic's number of partitions from the known metadata; None without."""
        known = self._view.topic(topic)
        return None if known is None else len(known.topic.partitions)

    def is_old(self, topic: str) -> bool:
        """Whether the topic's metadata is due to be refreshed."""
        known = self._view.topic(topic)
        return known is not None and self._is_old(known)

    def _is_old(self, known: KnownTopic) -> bool:
        return asyncio.get_running_loop().time() - known.since > self.settings.metadata_max_age_s

    async def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        """The partitions, grouped by the broker that leads them."""
        grouped: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            grouped.setdefault(await self.leader(partition), []).append(partition)
        return grouped

    async def coordinator(
        self,
        key: str,
        kind: CoordinatorOf = CoordinatorOf.GROUP,
        *,
        lane: ConnectionLane = ConnectionLane.SHARED,
    ) -> BrokerConnection:
        """The connection to the coordinator of a group or a transactional id."""
        node_id = self._view.coordinator(kind, key)
        if node_id is None:
            node_id = await self._flights.run((kind, key), lambda: self._find(kind, key))
        return await self.broker(node_id, lane=lane)

    def coordinator_at_hand(self, key: str, kind: CoordinatorOf) -> BrokerConnection | None:
        """The open connection to a known coordinator; None when `coordinator` would have to look it
        up or connect."""
        node_id = self._view.coordinator(kind, key)
        address = None if node_id is None else self._view.brokers.get(node_id)
        return None if address is None else self._pool.at_hand(address)

    def forget_coordinator(self, key: str, kind: CoordinatorOf = CoordinatorOf.GROUP) -> None:
        """Forgets a coordinator that has moved; the next call looks it up."""
        self._view.forget_coordinator(kind, key)

    async def _find(self, kind: CoordinatorOf, key: str) -> int:
        connection = await self.any_broker()
        found = await connection.ask(find_coordinator_request(kind, key))
        return self._view.learn_coordinator(kind, key, found)

    # --- metadata -------------------------------------------------------------------------------

    async def metadata(self, names: Iterable[str] | None) -> list[TopicMetadata]:
        """Fetches the metadata of topics (None: all) and brokers; never creates a topic by it.

        Raises `TopicNotFound` for the first topic that does not exist.
        """
        asked = None if names is None else tuple(sorted(set(names)))
        answer = await self._flights.run(("metadata", asked), lambda: self._ask_metadata(asked))
        if answer.missing:
            raise TopicNotFound(answer.missing[0], await self.topic_names())
        if answer.refused is not None:
            raise answer.refused
        return answer.topics

    async def missing(self, names: Iterable[str], *, create: bool) -> list[str]:
        """The topics that do not exist. `create`: brokers with `auto.create.topics.enable` create
        them, and still report them as missing the first time."""
        asked = tuple(sorted(set(names)))

        async def attempt() -> list[str]:
            key = ("missing", asked, create)
            answer = await self._flights.run(key, lambda: self._ask_metadata(asked, create=create))
            if answer.refused is not None:
                raise answer.refused
            return answer.missing

        return await self.retrying(attempt)

    async def await_topic(self, name: str, patience_s: float, *, create: bool) -> None:
        """Returns when a topic exists, or after `patience_s`; `create` as in `missing`."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + patience_s, _FIRST_LOOK_S
        while await self.missing([name], create=create) and loop.time() + pause <= until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _ask_metadata(
        self, names: tuple[str, ...] | None, *, create: bool = False
    ) -> LearnedTopics:
        connection = await self.any_broker()
        response = await connection.ask(metadata_request(names, create=create))
        return self._view.learn(response, asyncio.get_running_loop().time())

    async def metadata_of(self, node_id: int, names: Iterable[str]) -> list[TopicMetadata]:
        """The metadata that this one broker has, without the topics that it does not know. It is
        not kept: the broker may be cut off from the others."""
        connection = await self.broker(node_id)
        response = await connection.ask(metadata_request(names))
        return [topic for error, topic in response.topics if not error]

    async def topic(self, name: str) -> TopicMetadata:
        """A topic's metadata, at most `metadata_max_age_s` old while brokers can be reached; raises
        `TopicNotFound`."""
        known = self._view.topic(name)
        if known is not None:
            if not self._is_old(known):
                return known.topic
            try:
                await self._ask_known()
            except LOST:  # old metadata is better than none
                return known.topic
            known = self._view.topic(name)
            if known is not None:
                return known.topic
        (metadata,) = await self.metadata([name])
        return metadata

    async def find_topic(self, name: str) -> TopicMetadata:
        """`topic`, tried again while brokers choose a leader."""

        async def attempt() -> TopicMetadata:
            return await self.topic(name)

        return await self.retrying(attempt)

    async def topic_names(self) -> list[str]:
        """The names of all topics but internal ones."""
        return [topic.name for topic in await self.metadata(None) if not topic.is_internal]

    def forget(self, name: str) -> None:
        """Drops the metadata of a topic that is gone."""
        self._view.forget_topic(name)

    async def refresh(self) -> None:
        """Refreshes the metadata of all known topics, forgets those that are gone, and all
        coordinators."""
        self._view.forget_coordinators()
        await self._ask_known()

    async def _ask_known(self) -> None:
        """Raises nothing for a topic that is gone: it may be another task's."""
        asked = tuple(sorted(self._view.topics))
        await self._flights.run(("metadata", asked), lambda: self._ask_metadata(asked))

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], policy: RetryPolicy | None = None
    ) -> T:
        """Retries `attempt` while its error is worth it and time is not up."""
        return await retrying(attempt, self.refresh, policy or self.settings.retry, self._rand)


def check(key: ApiKey, part: Any, subject: str) -> None:
    """Raise a `BrokerError` if this part of an answer carries one."""
    error = error_in(key, part, subject)
    if error is not None:
        raise error


def error_in(key: ApiKey, part: Any, subject: str) -> BrokerError | None:
    """The error that this part of an answer carries."""
    if not part.error_code.value:
        return None
    return BrokerError(part.error_code, key.name, subject, getattr(part, "error_message", None))
