"""A cluster as blocking clients see it: leaders, coordinators, and a connection to each of them.

Metadata is fetched once, and again when a response shows that it is out of date. A forked child
drops the connections of its parent and opens its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from onceflow.client.address import BrokerAddress
from onceflow.client.codec import (
    MetadataResponse,
    Request,
    find_coordinator_request,
    metadata_request,
)
from onceflow.client.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    NotKafka,
)
from onceflow.client.net import (
    Attempts,
    ClusterView,
    RetryPolicy,
    no_leader,
)
from onceflow.client.settings import ClientSettings
from onceflow.client.worker.connection import BlockingConnection
from onceflow.runtime import Clock, Rand
from onceflow.types import TopicPartition
from onceflow.wire import TRANSACTION_V2, ApiKey, ErrorCode, error_code

T = TypeVar("T")

_OLDER_PROTOCOL: Final = 1


class BlockingCluster:
    """Opens what it needs when it is needed. All deadlines are of the monotonic clock.

    Threads may share one as far as they ask by `trying`, one attempt at a time. A transaction has
    one of its own: its end must not wait until another thread's broker has been given up.
    """

    def __init__(
        self,
        bootstrap: Sequence[BrokerAddress],
        settings: ClientSettings,
        clock: Clock,
        rand: Rand,
        *,
        are_brokers: bool = False,
    ) -> None:
        """`are_brokers`: these addresses are known to be brokers, not only configured."""
        self._view = ClusterView(bootstrap)
        self._settings = settings
        self._clock = clock
        self._rand = rand
        self._tls = settings.security.tls_context()
        self._connections: dict[BrokerAddress, BlockingConnection] = {}
        self._spare: dict[BrokerAddress, BlockingConnection] = {}
        """For other requests to a broker while batches to it are in flight."""
        self._brokers = set(bootstrap if are_brokers else ())
        """Addresses known to be brokers: one that hangs up is going down, or coming up."""
        self._leaderless: set[TopicPartition] = set()
        """Partitions that had no leader when it was last asked for: they are looked up anew."""
        self._pid = os.getpid()
        self._is_closed = False
        self._turn = threading.Lock()

    def close(self) -> None:
        """Closes it for good. Other threads that still use it get `ConnectionClosed`, and cannot
        open a connection that would never be closed."""
        self._is_closed = True
        self.disconnect()

    def disconnect(self) -> None:
        """Closes all connections; the next request opens a new one."""
        for connection in (*self._connections.values(), *self._spare.values()):
            connection.close()
        self._connections.clear()
        self._spare.clear()

    def soon(self, deadline: float) -> float:
        """The deadline of one request: its own time, and no more than is left."""
        limit_s = self._settings.request_timeout_ms / 1000
        return min(deadline, self._clock.monotonic() + limit_s)

    def any_broker(self, deadline: float) -> BlockingConnection:
        """An idle connection, else one to the first known broker that can be reached."""
        self._leave_fork_behind()
        for connection in (*self._connections.values(), *self._spare.values()):
            if connection.is_open and not connection.in_flight:
                return connection
        errors = []
        for address in self._view.addresses():
            busy = self._connections.get(address)
            try:
                if busy is None or not busy.is_open:
                    return self._connect(address, deadline)
                return self._opened(self._spare, address, deadline)
            except (BrokerUnreachable, ConnectionLost, NotKafka) as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise BrokerUnreachable("no broker can be reached: " + "; ".join(map(str, errors)))

    def leader(self, partition: TopicPartition, deadline: float) -> BlockingConnection:
        """The connection to a partition's leader; raises a retriable error when there is none."""
        node_id = self._view.leader(partition)
        if node_id is None or partition in self._leaderless:
            self.refresh({partition.topic}, deadline)
            node_id = self._view.leader(partition)
        if node_id is None:
            code = self._view.error_of(partition.topic) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(error_code(code), ApiKey.METADATA.name, f"partition {partition}")
        address = self._view.brokers.get(node_id)
        if address is None:
            self._leaderless.add(partition)
            raise no_leader(partition)
        return self._connect(address, deadline)

    def refresh(self, topics: Iterable[str], deadline: float) -> MetadataResponse:
        """Fetches the leaders of some topics' partitions again."""
        return self._learn(self.any_broker(deadline), topics, deadline)

    def _learn(
        self, connection: BlockingConnection, topics: Iterable[str], deadline: float
    ) -> MetadataResponse:
        metadata = self.ask(connection, metadata_request(topics), deadline)
        self._view.learn(metadata, self._clock.monotonic())
        self._brokers |= set(metadata.brokers.values())
        names = {topic.name for _, topic in metadata.topics}
        self._leaderless = {each for each in self._leaderless if each.topic not in names}
        return metadata

    def known_topic_id(self, topic: str) -> str | None:
        """As it was when the topic was last asked about."""
        known = self._view.topic(topic)
        return str(known.topic.topic_id) if known and known.topic.topic_id else None

    def topic_id(self, partition: TopicPartition, deadline: float) -> str | None:
        """The topic's id as the partition's leader knows it now; None without topic or id."""
        return self.topic_ids([partition], deadline)[partition]

    def topic_ids(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> dict[TopicPartition, str | None]:
        """As `topic_id`, asked once of each leader for all of these that it leads."""
        led: dict[BlockingConnection, list[TopicPartition]] = {}
        for partition in partitions:
            led.setdefault(self.leader(partition, deadline), []).append(partition)
        ids: dict[TopicPartition, str | None] = {}
        for connection, portion in led.items():
            self._learn(connection, sorted({partition.topic for partition in portion}), deadline)
            ids |= {partition: self.known_topic_id(partition.topic) for partition in portion}
        return ids

    def topic_ids_of_brokers(self, topic: str, deadline: float) -> set[str]:
        """The ids that the reachable brokers give for the topic. A broker that is cut off from the
        controller goes on giving an old one for a while."""
        said = set()
        for address in set(self._view.brokers.values()):
            with suppress(ClientError):
                connection = self._connect(address, deadline)
                metadata = self.ask(connection, metadata_request([topic]), deadline)
                said |= {str(each.topic_id) for _, each in metadata.topics if each.topic_id}
        return said

    def partition_count(self, topic: str) -> int:
        """As it was when the topic was last asked about; 0 when it was not there."""
        known = self._view.topic(topic)
        return 0 if known is None else len(known.topic.partitions)

    def coordinator(
        self, kind: int, name: str, deadline: float, *, refind: bool
    ) -> BlockingConnection:
        """The connection to the coordinator of a group or a transactional id."""
        if refind:
            self._view.forget_coordinator(kind, name)
        address = self._view.coordinator_address(kind, name)
        if address is None:
            request = find_coordinator_request(kind, name)
            found = self.ask(self.any_broker(deadline), request, deadline)
            self._view.learn_coordinator(kind, name, found)
            address = found.address
            self._brokers.add(address)
        return self._connect(address, deadline)

    def transaction_version(self, deadline: float) -> int:
        """2 where the cluster has finalized it, else 1: the older protocol."""
        self.any_broker(deadline)
        level = self._view.transaction_version
        return TRANSACTION_V2 if level >= TRANSACTION_V2 else _OLDER_PROTOCOL

    def ask(self, connection: BlockingConnection, request: Request[T], deadline: float) -> T:
        """The response to a request, within the time of one."""
        return connection.ask(request, self.soon(deadline))

    def trying(self, attempt: Callable[[float, bool], T], policy: RetryPolicy) -> T:
        """Retries a request that may be sent twice, until it works or time is up. `attempt` gets
        the deadline, and whether it has to look up the leader or coordinator again."""
        self._leave_fork_behind()
        attempts: Attempts | None = None
        while True:
            with self._turn:
                # Time in which another thread had its turn is not the broker's.
                attempts = attempts or Attempts(policy, self._clock.monotonic, self._rand)
                try:
                    return attempt(attempts.deadline, attempts.must_refresh)
                except ClientError as error:
                    pause_s = attempts.pause_after((error,))
            time.sleep(pause_s)

    def _connect(self, address: BrokerAddress, deadline: float) -> BlockingConnection:
        self._leave_fork_behind()
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self._opened(self._connections, address, deadline)
            self._brokers.add(address)
        return connection

    def _opened(
        self, kept: dict[BrokerAddress, BlockingConnection], address: BrokerAddress, deadline: float
    ) -> BlockingConnection:
        """A new connection, in place of an earlier one."""
        if (before := kept.pop(address, None)) is not None:
            before.close()
        self._check_not_closed()
        connection = kept[address] = self._open(address, deadline)
        self._view.learn_features(connection.offer)
        # Again, once it is kept: another thread may have closed all while this one was opened, and
        # would never close this one.
        self._check_not_closed()
        return connection

    def _check_not_closed(self) -> None:
        if self._is_closed:
            self.disconnect()
            raise ConnectionClosed("the client was closed meanwhile", outcome="not applied")

    def _open(self, address: BrokerAddress, deadline: float) -> BlockingConnection:
        limit_s = self._settings.socket_connection_setup_timeout_ms / 1000
        try:
            return BlockingConnection.open(
                address,
                min(deadline, self._clock.monotonic() + limit_s),
                clock=self._clock,
                rand=self._rand,
                client_id=self._settings.client_id,
                security=self._settings.security,
                tls=self._tls,
            )
        except NotKafka as error:
            if address not in self._brokers:
                raise
            raise ConnectionLost(str(error), outcome="not applied") from error

    def _leave_fork_behind(self) -> None:
        # Two processes on one socket would read each other's responses. Closing the copy ends
        # nothing for the parent. A thread of the parent may have had its turn, and is not here.
        if self._pid != os.getpid():
            self.disconnect()
            self._turn = threading.Lock()
            self._pid = os.getpid()


def not_sent(error: ClientError) -> ClientError:
    """Marks an error from before the request was sent: the broker has certainly not applied it.
    Never for a later one: a commit that may have been applied would be taken for a failed one."""
    error.outcome = "not applied"
    return error
