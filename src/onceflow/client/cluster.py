"""The brokers of a cluster, a connection to each that is needed, and who is responsible for what.

Starts from a few addresses, tried in order. What the cluster said about its brokers and topics is
kept until an answer shows that it is out of date; `retrying` then asks anew and tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from onceflow.client.address import Address
from onceflow.client.connection import Connection
from onceflow.client.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    NoSuchPartition,
    NotKafka,
    TopicNotFound,
)
from onceflow.client.model import Partition, Topic, TopicPartition
from onceflow.client.retry import RetryPolicy, retrying
from onceflow.runtime.net import Net, RealNet
from onceflow.runtime.rand import Rand, RealRand
from onceflow.wire.api import ApiKey

T = TypeVar("T")

GROUP_KEY: Final = 0
_NO_LEADER: Final = -1
_NO_SUCH_TOPIC: Final = ("UNKNOWN_TOPIC_OR_PARTITION", "INVALID_TOPIC_EXCEPTION")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How patient a client is, and what it calls itself."""

    client_id: str = "onceflow"
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class Cluster:
    """Connected by `connect`, or by entering it with `async with`."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        settings: ClusterSettings | None = None,
        *,
        net: Net | None = None,
        rand: Rand | None = None,
    ) -> None:
        self.settings = settings or ClusterSettings()
        self._bootstrap = tuple(bootstrap)
        self._net = net or RealNet()
        self._rand = rand or RealRand()
        self._addresses: dict[int, Address] = {}
        self._controller = -1
        self._topics: dict[str, Topic] = {}
        self._connections: dict[Address, Connection] = {}
        self._locks: dict[Address, asyncio.Lock] = {}

    async def connect(self) -> None:
        """Reaches one broker and learns of the others."""
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
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def node_ids(self) -> list[int]:
        """The brokers that were alive when the cluster was last asked."""
        return sorted(self._addresses)

    # --- connections ----------------------------------------------------------------------------

    async def any_broker(self) -> Connection:
        """One that is connected, else the first of the known ones that can be reached."""
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        errors: list[ClientError] = []
        for address in dict.fromkeys((*self._bootstrap, *self._addresses.values())):
            try:
                return await self._connect(address)
            except (BrokerUnreachable, NotKafka) as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise BrokerUnreachable("no broker can be reached: " + "; ".join(map(str, errors)))

    async def broker(self, node_id: int) -> Connection:
        """The connection to a broker that the metadata has named."""
        address = self._addresses.get(node_id)
        if address is None:
            raise ConnectionLost(f"broker {node_id} is not among the cluster's live brokers")
        try:
            return await self._connect(address)
        except NotKafka as error:
            # A broker named it as its peer: more likely it is just going down.
            raise ConnectionLost(str(error)) from error

    async def controller(self) -> Connection:
        """Who takes changes of topics; brokers of today pass them on, so any will do."""
        if self._controller in self._addresses:
            return await self.broker(self._controller)
        return await self.any_broker()

    async def leader(self, partition: TopicPartition) -> int:
        """The id of the broker that leads a partition."""
        topic = await self.topic(partition.topic)
        for each in topic.partitions:
            if each.partition == partition.partition and each.leader != _NO_LEADER:
                return each.leader
            if each.partition == partition.partition:
                raise _error(ApiKey.METADATA, "leader_not_available", f"partition {partition}")
        raise NoSuchPartition(
            f"topic {topic.name!r} has no partition {partition.partition}; "
            f"it has {len(topic.partitions)}, counted from 0"
        )

    async def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        """The partitions, grouped by the broker that leads them."""
        grouped: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            grouped.setdefault(await self.leader(partition), []).append(partition)
        return grouped

    async def coordinator(self, group_id: str) -> Connection:
        """The broker that looks after a group."""
        from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest

        connection = await self.any_broker()
        answer = await connection.request(
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=(group_id,)),
        )
        for found in answer.coordinators:
            check(ApiKey.FIND_COORDINATOR, found, f"group {group_id!r}")
            address = Address(found.host, found.port)
            self._addresses[found.node_id] = address
            return await self._connect(address)
        raise _error(ApiKey.FIND_COORDINATOR, "coordinator_not_available", f"group {group_id!r}")

    async def _connect(self, address: Address) -> Connection:
        async with self._locks.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open:
                connection = await Connection.open(
                    self._net,
                    address,
                    client_id=self.settings.client_id,
                    connect_timeout_s=self.settings.connect_timeout_s,
                    request_timeout_s=self.settings.request_timeout_s,
                )
                self._connections[address] = connection
        return connection

    # --- metadata -------------------------------------------------------------------------------

    async def metadata(self, names: Iterable[str] | None) -> list[Topic]:
        """Asks for topics (None: all) and for the brokers; never makes a topic by asking.

        Raises `TopicNotFound` for the first name that is not there.
        """
        from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

        connection = await self.any_broker()
        wanted = None
        if names is not None:
            wanted = tuple(MetadataRequestTopic(topic_id=None, name=name) for name in names)
        answer = await connection.request(
            ApiKey.METADATA,
            MetadataRequest(
                topics=wanted,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ),
        )
        self._addresses = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        self._controller = answer.controller_id
        topics = []
        for found in answer.topics:
            if found.error_code.name.upper() in _NO_SUCH_TOPIC:
                self.forget(found.name)
                raise TopicNotFound(found.name, await self._topic_names())
            check(ApiKey.METADATA, found, f"topic {found.name!r}")
            topics.append(_topic(found))
            self._topics[found.name] = topics[-1]
        return topics

    async def topic(self, name: str) -> Topic:
        """A topic, as it was when it was last asked for; raises `TopicNotFound`."""
        if name not in self._topics:
            await self.metadata([name])
        return self._topics[name]

    async def find_topic(self, name: str) -> Topic:
        """`topic`, tried again while brokers choose a leader."""

        async def attempt() -> Topic:
            return await self.topic(name)

        return await self.retrying(attempt)

    async def _topic_names(self) -> list[str]:
        return [topic.name for topic in await self.metadata(None) if not topic.is_internal]

    def forget(self, name: str) -> None:
        """Drops what is known of a topic that is gone."""
        self._topics.pop(name, None)

    async def refresh(self) -> None:
        """Asks anew for everything that is known."""
        names = list(self._topics)
        self._topics.clear()
        await self.metadata(names)

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """`attempt`, again and again while its error is worth it and time is not up."""
        return await retrying(attempt, self.refresh, self.settings.retry, self._rand)


def check(key: ApiKey, part: Any, subject: str) -> None:
    """Raise a `BrokerError` if this part of an answer carries one."""
    if part.error_code.value:
        message = getattr(part, "error_message", None)
        raise BrokerError(part.error_code, key.name, subject, message)


def _error(key: ApiKey, name: str, subject: str) -> BrokerError:
    from kio.schema.errors import ErrorCode

    return BrokerError(ErrorCode[name], key.name, subject)


def _topic(found: Any) -> Topic:
    partitions = sorted(found.partitions, key=lambda each: int(each.partition_index))
    return Topic(
        name=found.name,
        topic_id=found.topic_id,
        is_internal=found.is_internal,
        partitions=tuple(
            Partition(
                partition=each.partition_index,
                leader=each.leader_id,
                replicas=tuple(each.replica_nodes),
                in_sync=tuple(each.isr_nodes),
            )
            for each in partitions
        ),
    )
