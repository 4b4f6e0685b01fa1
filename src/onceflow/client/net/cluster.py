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
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from onceflow.client.errors import (
    LOST,
    BrokerError,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    NoSuchPartition,
    NotKafka,
    TopicNameInvalid,
    TopicNotFound,
)
from onceflow.client.net.address import BrokerAddress
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.net.pool import (
    ClusterSettings as ClusterSettings,
    ConnectionLane as ConnectionLane,
    Pool,
    SingleFlight,
)
from onceflow.client.net.retry import RetryPolicy, retrying
from onceflow.client.types import PartitionMetadata, TopicMetadata
from onceflow.runtime import Net, Rand, RealNet, RealRand, message_library
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode

T = TypeVar("T")

_NO_LEADER: Final = -1
_NO_SUCH_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_FIRST_LOOK_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
"""Between two looks at a topic that is being created."""
_TRANSACTION_VERSION: Final = "transaction.version"
_NOTHING_KNOWN: Final[Mapping[str, int]] = MappingProxyType({})


class CoordinatorOf(IntEnum):
    """The kinds of coordinator, with the protocol's numbers."""

    GROUP = 0
    TRANSACTION = 1


class _Known(NamedTuple):
    topic: TopicMetadata
    since: float


class _Answer(NamedTuple):
    """The metadata of the requested topics."""

    topics: list[TopicMetadata]
    missing: list[str]
    refused: ClientError | None


class Cluster:
    """Connected by `connect`, or by entering it with `async with`.

    >>> from onceflow.client.net.address import parse_addresses
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
        self._bootstrap = tuple(bootstrap)
        self._rand = rand or RealRand()
        self._pool = Pool(self.settings, net or RealNet(), self._rand)
        self._addresses: dict[int, BrokerAddress] = {}
        self._controller = -1
        self._topics: dict[str, _Known] = {}
        self._coordinators: dict[tuple[CoordinatorOf, str], int] = {}
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
        return sorted(self._addresses)

    @property
    def features(self) -> Mapping[str, int]:
        """The finalized feature levels, from the broker with the newest knowledge of them."""
        return self._pool.features

    # --- connections ----------------------------------------------------------------------------

    async def any_broker(self) -> BrokerConnection:
        """A connected broker, or else the first known one that can be reached."""
        self.check_open()
        return await self._pool.any_of((*self._bootstrap, *self._addresses.values()))

    async def broker(
        self, node_id: int, *, lane: ConnectionLane = ConnectionLane.SHARED
    ) -> BrokerConnection:
        """The connection to a broker from the metadata."""
        self.check_open()
        address = self._addresses.get(node_id)
        if address is None:
            raise ConnectionLost(
                f"broker {node_id} is not among the cluster's live brokers", outcome="not applied"
            )
        try:
            return await self._pool.get(address, lane)
        except NotKafka as error:
            # A broker named it as its peer: more likely it is just going down.
            raise ConnectionLost(str(error), outcome="not applied") from error

    async def controller(self) -> BrokerConnection:
        """The broker for changes of topics; today's brokers forward them, so any will do."""
        if self._controller in self._addresses:
            return await self.broker(self._controller)
        return await self.any_broker()

    async def transaction_version(self) -> int:
        """The level of `transaction.version` that the cluster has finalized; 0 when it reports
        none. Partitions may join a transaction implicitly only at level 2, whatever versions the
        broker offers."""
        if self._pool.features_epoch < 0:
            await self.any_broker()
        return self.features.get(_TRANSACTION_VERSION, 0)

    # --- who is responsible ---------------------------------------------------------------------

    async def leader(self, partition: TopicPartition) -> int:
        """The id of the broker that leads a partition."""
        topic = await self.topic(partition.topic)
        leader = _leader(topic, partition.partition)
        if leader is None:
            raise NoSuchPartition(
                f"topic {topic.name!r} has no partition {partition.partition}; "
                f"it has {len(topic.partitions)}, counted from 0"
            )
        if leader == _NO_LEADER:
            code = ErrorCode.LEADER_NOT_AVAILABLE
            raise BrokerError(code, ApiKey.METADATA.name, f"partition {partition}")
        return leader

    def known_leader(self, partition: TopicPartition) -> int | None:
        """The leader from the known metadata; None when `leader` would need a request."""
        known = self._topics.get(partition.topic)
        leader = None if known is None else _leader(known.topic, partition.partition)
        return None if leader == _NO_LEADER else leader

    def known_partitions(self, topic: str) -> int | None:
        """A topic's number of partitions from the known metadata; None without."""
        known = self._topics.get(topic)
        return None if known is None else len(known.topic.partitions)

    def is_old(self, topic: str) -> bool:
        """Whether the topic's metadata is due to be refreshed."""
        known = self._topics.get(topic)
        return known is not None and self._is_old(known)

    def _is_old(self, known: _Known) -> bool:
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
        node_id = self._coordinators.get((kind, key))
        if node_id is None:
            node_id = await self._flights.run((kind, key), lambda: self._find(kind, key))
        return await self.broker(node_id, lane=lane)

    def coordinator_at_hand(self, key: str, kind: CoordinatorOf) -> BrokerConnection | None:
        """The open connection to a known coordinator; None when `coordinator` would have to look it
        up or connect."""
        node_id = self._coordinators.get((kind, key))
        address = None if node_id is None else self._addresses.get(node_id)
        return None if address is None else self._pool.at_hand(address)

    def forget_coordinator(self, key: str, kind: CoordinatorOf = CoordinatorOf.GROUP) -> None:
        """Forgets a coordinator that has moved; the next call looks it up."""
        self._coordinators.pop((kind, key), None)

    async def _find(self, kind: CoordinatorOf, key: str) -> int:
        with message_library:
            from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest

        subject = f"{_SUBJECTS[kind]} {key!r}"
        connection = await self.any_broker()
        answer = await connection.request(
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,)),
        )
        for coordinator in answer.coordinators:
            check(ApiKey.FIND_COORDINATOR, coordinator, subject)
            node_id = int(coordinator.node_id)
            self._addresses[node_id] = BrokerAddress(coordinator.host, coordinator.port)
            self._coordinators[kind, key] = node_id
            return node_id
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        raise BrokerError(code, ApiKey.FIND_COORDINATOR.name, subject)

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
    ) -> _Answer:
        connection = await self.any_broker()
        answer = await connection.request(ApiKey.METADATA, _metadata_request(names, create=create))
        self._addresses = {
            each.node_id: BrokerAddress(each.host, each.port) for each in answer.brokers
        }
        self._controller = answer.controller_id
        now = asyncio.get_running_loop().time()
        result = _Answer([], [], None)
        for topic in answer.topics:
            if topic.error_code.value in _NO_SUCH_TOPIC:
                result.missing.append(topic.name)
            elif topic.error_code.value == ErrorCode.INVALID_TOPIC_EXCEPTION:
                result = result._replace(refused=TopicNameInvalid(topic.name))
            elif topic.error_code.value:
                refusal = (topic.error_code, ApiKey.METADATA.name, f"topic {topic.name!r}")
                result = result._replace(refused=BrokerError(*refusal))
            else:
                result.topics.append(_topic(topic))
                self._topics[topic.name] = _Known(result.topics[-1], now)
                continue
            self.forget(topic.name)
        return result

    async def metadata_of(self, node_id: int, names: Iterable[str]) -> list[TopicMetadata]:
        """The metadata that this one broker has, without the topics that it does not know. It is
        not kept: the broker may be cut off from the others."""
        connection = await self.broker(node_id)
        answer = await connection.request(ApiKey.METADATA, _metadata_request(names))
        return [_topic(topic) for topic in answer.topics if not topic.error_code.value]

    async def topic(self, name: str) -> TopicMetadata:
        """A topic's metadata, at most `metadata_max_age_s` old while brokers can be reached; raises
        `TopicNotFound`."""
        known = self._topics.get(name)
        if known is not None:
            if not self._is_old(known):
                return known.topic
            try:
                await self._ask_known()
            except LOST:  # old metadata is better than none
                return known.topic
            known = self._topics.get(name)
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
        self._topics.pop(name, None)

    async def refresh(self) -> None:
        """Refreshes the metadata of all known topics, forgets those that are gone, and all
        coordinators."""
        self._coordinators.clear()
        await self._ask_known()

    async def _ask_known(self) -> None:
        """Raises nothing for a topic that is gone: it may be another task's."""
        asked = tuple(sorted(self._topics))
        await self._flights.run(("metadata", asked), lambda: self._ask_metadata(asked))

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], policy: RetryPolicy | None = None
    ) -> T:
        """Retries `attempt` while its error is worth it and time is not up."""
        return await retrying(attempt, self.refresh, policy or self.settings.retry, self._rand)


_SUBJECTS: Final = {
    CoordinatorOf.GROUP: "group",
    CoordinatorOf.TRANSACTION: "transactional id",
}


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


def _leader(topic: TopicMetadata, number: int) -> int | None:
    """None when there is no such partition."""
    partitions = topic.partitions
    if 0 <= number < len(partitions) and partitions[number].partition == number:  # as always
        return partitions[number].leader
    return next((each.leader for each in partitions if each.partition == number), None)


def _metadata_request(names: Iterable[str] | None, *, create: bool = False) -> Any:
    with message_library:
        from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

    wanted = None
    if names is not None:
        wanted = tuple(MetadataRequestTopic(topic_id=None, name=name) for name in names)
    return MetadataRequest(
        topics=wanted,
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=False,
    )


def _topic(topic: Any) -> TopicMetadata:
    partitions = sorted(topic.partitions, key=lambda each: int(each.partition_index))
    return TopicMetadata(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionMetadata(
                partition=each.partition_index,
                leader=each.leader_id,
                replicas=tuple(each.replica_nodes),
                in_sync=tuple(each.isr_nodes),
            )
            for each in partitions
        ),
    )
