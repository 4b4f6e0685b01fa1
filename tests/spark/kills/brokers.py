"""The brokers that are killed under a query: ours, one node of Apache Kafka, three nodes. Who is
killed comes back by itself, while the query already tries to go on."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import onceflow
from onceflow.client.net.cluster import CoordinatorOf
from onceflow.types import TopicPartition
from tests.interop.client.cluster.three_nodes import (
    SETTINGS,
    coordinator_of,
    leader_of,
    until_whole,
    wake_up,
)
from tests.spark.kills.world import OUTPUT_PARTITIONS, World
from tools.apache_kafka import ApacheKafka, ApacheKafkaCluster, Ports, free_ports
from tools.kafka_jars import ensure_kafka_jars

AWAY_S: Final = 3.0
"""A node of three is missed after 2 s: this is long enough for another one to take over."""
EAGER: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


class Role(Enum):
    """What a broker is to a query."""

    ANY = "the broker"
    LEADER = "leads a partition of the output"
    COORDINATOR = "coordinates the transaction"
    GROUP = "coordinates the group"


class Brokers(ABC):
    """Enter to start them."""

    replicas = 1
    roles: frozenset[Role] = frozenset({Role.ANY})

    def __init__(self) -> None:
        self._mending: threading.Thread | None = None
        self._wrong: list[BaseException] = []

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    @abstractmethod
    def kill(self, role: Role, world: World) -> None:
        """Returns when it is gone; it is on its way back then."""

    def until_mended(self) -> None:
        """Returns when all are there; raises what kept them away."""
        if self._mending is not None:
            self._mending.join()
            self._mending = None
        if self._wrong:
            raise self._wrong[0]

    def _mend(self, repair: Callable[[], None]) -> None:
        def run() -> None:
            try:
                repair()
            except BaseException as error:
                self._wrong.append(error)

        self._mending = threading.Thread(target=run, daemon=True)
        self._mending.start()

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._mending is not None:
            self._mending.join()
        self._stop()

    @abstractmethod
    def _stop(self) -> None: ...


class Ours(Brokers):
    """Our broker, in a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._broker = onceflow.Broker(process=True)

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def kill(self, role: Role, world: World) -> None:
        self._broker.kill()
        self._mend(self._broker.restart)

    def __enter__(self) -> Self:
        self._broker.start()
        return self

    def _stop(self) -> None:
        self._broker.stop()


class OneKafka(Brokers):
    """One node of Apache Kafka."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._kafka = ApacheKafka(
            ensure_kafka_jars(), directory, properties=EAGER, ports=Ports(*free_ports(2))
        )

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap

    def kill(self, role: Role, world: World) -> None:
        self._kafka.kill()

        def repair() -> None:
            self._kafka.__enter__()

        self._mend(repair)

    def __enter__(self) -> Self:
        self._kafka.__enter__()
        return self

    def _stop(self) -> None:
        self._kafka.kill()


class ThreeKafkas(Brokers):
    """Three nodes of Apache Kafka, of which one at a time is away."""

    replicas = 3
    roles = frozenset({Role.LEADER, Role.COORDINATOR, Role.GROUP})

    def __init__(self, directory: Path, rand: random.Random) -> None:
        super().__init__()
        self._cluster = ApacheKafkaCluster(ensure_kafka_jars(), directory, properties=SETTINGS)
        self._rand = rand

    @classmethod
    def of(cls, cluster: ApacheKafkaCluster) -> ThreeKafkas:
        """Nodes that run already, and go on running."""
        found = cls.__new__(cls)
        Brokers.__init__(found)
        found._cluster, found._rand = cluster, random.Random(1)
        return found

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self, role: Role, world: World) -> None:
        node_id = self._victim(role, world)
        self._cluster.kill(node_id)

        def repair() -> None:
            threading.Event().wait(AWAY_S)
            self._cluster.restart(node_id)
            until_whole(self._cluster)

        self._mend(repair)

    def _victim(self, role: Role, world: World) -> int:
        if role is Role.COORDINATOR:
            return coordinator_of(self._cluster, world.name, CoordinatorOf.TRANSACTION)
        if role is Role.GROUP:
            return coordinator_of(self._cluster, world.name, CoordinatorOf.GROUP)
        partition = self._rand.randrange(OUTPUT_PARTITIONS)
        return leader_of(self._cluster, TopicPartition(world.output, partition))

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        wake_up(self._cluster)
        return self

    def _stop(self) -> None:
        self._cluster.__exit__(None, None, None)
