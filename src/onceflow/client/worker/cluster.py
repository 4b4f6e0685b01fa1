"""A cluster as blocking clients see it: leaders, coordinators, and a connection to each of them.

Metadata is fetched once, and again when a response shows that it is out of date. A forked child
drops the connections of its parent and opens its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from onceflow.client.codec import (
    VERSIONS,
    Leaders,
    read_find_coordinator,
    read_metadata,
    write_find_coordinator,
    write_metadata,
)
from onceflow.client.errors import (
    Action,
    AnswerMalformed,
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    NotKafka,
    action_for,
)
from onceflow.client.net import Backoff, BrokerAddress, RetryPolicy, VersionRange
from onceflow.client.settings import ClientSettings
from onceflow.client.transactions import is_worth_it
from onceflow.client.worker.connection import BlockingConnection, Buffer
from onceflow.errors import MessageMalformed
from onceflow.runtime import Clock, Rand
from onceflow.types import TopicPartition
from onceflow.wire import TRANSACTION_V2, ApiKey, ErrorCode, error_code

T = TypeVar("T")

_NO_LEADER: Final = -1
_OLDER_PROTOCOL: Final = 1


class BlockingCluster:
    """Opens what it needs when it is needed. All deadlines are of the monotonic clock."""

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
        self._bootstrap = tuple(bootstrap)
        self._settings = settings
        self._clock = clock
        self._rand = rand
        self._tls = settings.security.tls_context()
        self._known = Leaders({}, {}, {}, {})
        self._connections: dict[BrokerAddress, BlockingConnection] = {}
        self._spare: dict[BrokerAddress, BlockingConnection] = {}
        """For other requests to a broker while batches to it are in flight."""
        self._coordinators: dict[tuple[int, str], BrokerAddress] = {}
        self._brokers = set(bootstrap if are_brokers else ())
        """Addresses known to be brokers: one that hangs up is going down, or coming up."""
        self._pid = os.getpid()
        self._is_closed = False

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
        for address in dict.fromkeys((*self._bootstrap, *self._known.brokers.values())):
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
        if partition not in self._known.leaders:
            self.refresh({partition.topic}, deadline)
        node_id = self._known.leaders.get(partition)
        address = self._known.brokers.get(_NO_LEADER if node_id is None else node_id)
        if address is None:
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            code = missing if node_id is None else ErrorCode.LEADER_NOT_AVAILABLE
            code = error_code(self._known.topics.get(partition.topic, 0)) or code
            self._known.leaders.pop(partition, None)
            raise BrokerError(code, ApiKey.METADATA.name, f"partition {partition}")
        return self._connect(address, deadline)

    def refresh(self, topics: Iterable[str], deadline: float) -> None:
        """Fetches the leaders of some topics' partitions again."""
        self._learn(self.any_broker(deadline), topics, deadline)

    def _learn(
        self, connection: BlockingConnection, topics: Iterable[str], deadline: float
    ) -> None:
        metadata = self._metadata(connection, topics, deadline)
        kept = {
            partition: leader
            for partition, leader in self._known.leaders.items()
            if partition.topic not in metadata.topics
        }
        self._brokers |= set(metadata.brokers.values())
        ids = {name: each for name, each in self._known.ids.items() if name not in metadata.topics}
        self._known = Leaders(
            metadata.brokers,
            self._known.topics | metadata.topics,
            kept | metadata.leaders,
            ids | metadata.ids,
        )

    def _metadata(
        self, connection: BlockingConnection, topics: Iterable[str], deadline: float
    ) -> Leaders:
        body = write_metadata(topics)
        return self.ask(connection, ApiKey.METADATA, body, read_metadata, deadline)

    def known_topic_id(self, topic: str) -> str | None:
        """As it was when the topic was last asked about."""
        return self._known.ids.get(topic)

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
        for address in set(self._known.brokers.values()):
            with suppress(ClientError):
                metadata = self._metadata(self._connect(address, deadline), [topic], deadline)
                said |= {*metadata.ids.values()}
        return said

    def partition_count(self, topic: str) -> int:
        """As it was when the topic was last asked about; 0 when it was not there."""
        return sum(partition.topic == topic for partition in self._known.leaders)

    def coordinator(
        self, kind: int, name: str, deadline: float, *, refind: bool
    ) -> BlockingConnection:
        """The connection to the coordinator of a group or a transactional id."""
        if refind:
            self._coordinators.pop((kind, name), None)
        address = self._coordinators.get((kind, name))
        if address is None:
            connection = self.any_broker(deadline)
            body = write_find_coordinator(kind, name)
            key = ApiKey.FIND_COORDINATOR
            answer = self.ask(connection, key, body, read_find_coordinator, deadline)
            if answer.error:
                raise BrokerError(
                    answer.error, key.name, f"coordinator of {name!r}", answer.message
                )
            self._coordinators[kind, name] = address = answer.address
            self._brokers.add(address)
        return self._connect(address, deadline)

    def transaction_version(self, deadline: float) -> int:
        """2 where the cluster has finalized it, else 1: the older protocol."""
        level = self.any_broker(deadline).features.get("transaction.version", 0)
        return TRANSACTION_V2 if level >= TRANSACTION_V2 else _OLDER_PROTOCOL

    def ask(
        self,
        connection: BlockingConnection,
        key: ApiKey,
        body: Buffer,
        read: Callable[[memoryview], T],
        deadline: float,
    ) -> T:
        """One of the messages of `codec.cluster`, and its response."""
        version = VERSIONS[key]
        connection.version_of(key, VersionRange(version, version))
        answer = connection.ask(key, version, (body,), self.soon(deadline))
        return understood(connection, key, lambda: read(answer))

    def trying(self, attempt: Callable[[float, bool], T], policy: RetryPolicy) -> T:
        """Retries a request that may be sent twice, until it works or time is up. `attempt` gets
        the deadline, and whether it has to look up the leader or coordinator again."""
        deadline = self._clock.monotonic() + policy.total_s
        backoff = Backoff(policy, self._rand)
        refind = False
        while True:
            try:
                return attempt(deadline, refind)
            except ClientError as error:
                pause_s = backoff.next_s()
                if not is_worth_it(error) or self._clock.monotonic() + pause_s >= deadline:
                    raise
                refind = action_for(error) is Action.REFRESH
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
        # nothing for the parent.
        if self._pid != os.getpid():
            self.disconnect()
            self._pid = os.getpid()


def understood(connection: BlockingConnection, key: ApiKey, read: Callable[[], T]) -> T:
    """The result of `read`; where that fails, closes the connection and raises `AnswerMalformed`:
    bytes that cannot be read leave no place to go on from."""
    try:
        return read()
    except MessageMalformed as error:
        connection.close()
        raise AnswerMalformed(
            f"{connection.address} answers {key.name} wrongly: {error}"
        ) from error


def not_sent(error: ClientError) -> ClientError:
    """Marks an error from before the request was sent: the broker has certainly not applied it.
    Never for a later one: a commit that may have been applied would be taken for a failed one."""
    error.outcome = "not applied"
    return error
