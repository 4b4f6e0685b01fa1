"""Three nodes of Apache Kafka as tests see them: topics over all of them, who is responsible for
what, when they are whole again, and what a client of others reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition as Place

from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import ClientError
from onceflow.client.net.cluster import CoordinatorOf
from onceflow.client.producer.producer import Producer
from onceflow.types import TopicPartition
from tests.interop.decided import until_decided
from tests.interop.harness import Names, eventually
from tools.apache_kafka import NODE_IDS, ApacheKafkaCluster

T = TypeVar("T")

WHOLE_SECONDS: Final = 90.0
READ_SECONDS: Final = 60.0
SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A node that is gone is missed after 2 s and not after 9; most of a kill is this waiting.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "300",
    # Enough for each node to look after some, and quick to be read again by the next one.
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
}


def wake_up(cluster: ApacheKafkaCluster) -> None:
    """Makes the topics that brokers keep for themselves, which they do when first asked."""
    until_whole(cluster)
    names = Names.fresh(cluster.bootstrap)
    place = TopicPartition(new_topic(names, partitions=len(NODE_IDS)), 0)

    async def main() -> None:
        async with (
            Producer(names.bootstrap, transactional_id=names("id")) as producer,
            producer.transaction() as transaction,
        ):
            await transaction.send(place.topic, b"good morning")
            await transaction.send_offsets({place: 1}, names("group"))

    asyncio.run(main())
    until_whole(cluster)


# --- topics -------------------------------------------------------------------------------------


def new_topic(
    names: Names,
    label: str = "topic",
    *,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> str:
    """As `ready_topic`, on any number of nodes, with as many replicas as the brokers are set to."""

    async def main(admin: Admin) -> str:
        return (await admin.create_topic(names(label), partitions=partitions, configs=configs)).name

    return ask(names.bootstrap, main)


def new_places(names: Names, label: str, partitions: int = 1) -> list[TopicPartition]:
    """The same, as the scripts of workers want it."""
    name = new_topic(names, label, partitions=partitions)
    return [TopicPartition(name, number) for number in range(partitions)]


# --- who and whether ----------------------------------------------------------------------------


def ask(bootstrap: str, question: Callable[[Admin], Awaitable[T]]) -> T:
    """An answer by whoever is alive."""

    async def main() -> T:
        async with Admin(bootstrap) as admin:
            return await question(admin)

    return asyncio.run(main())


def leader_of(cluster: ApacheKafkaCluster, place: TopicPartition) -> int:
    """The node that leads a partition, as far as the others know; -1: none."""

    async def find(admin: Admin) -> int:
        topic = await admin.cluster.find_topic(place.topic)
        return topic.partitions[place.partition].leader

    return ask(cluster.bootstrap, find)


def coordinator_of(cluster: ApacheKafkaCluster, name: str, kind: CoordinatorOf) -> int:
    """The node that looks after a group or a transactional id."""

    async def find(admin: Admin) -> int:
        connection = await admin.cluster.retrying(
            partial(admin.cluster.coordinator, name, kind),
        )
        address = str(connection.address)
        return next(node for node, each in cluster.addresses.items() if each == address)

    return ask(cluster.bootstrap, find)


def until_whole(cluster: ApacheKafkaCluster) -> None:
    """Returns when all nodes are there and have all that was acknowledged."""

    async def what_is_missing(admin: Admin) -> list[str]:
        topics = await admin.list_topics()
        missing = [str(each) for each in NODE_IDS if each not in admin.cluster.node_ids]
        return missing + [
            f"{topic.name}-{each.partition} is in sync on {each.in_sync}"
            for topic in topics
            for each in topic.partitions
            if set(each.in_sync) != set(each.replicas)
        ]

    def missing() -> list[str]:
        try:
            return ask(cluster.bootstrap, what_is_missing)
        except ClientError as error:
            return [str(error)]

    eventually(missing, lambda found: not found, seconds=WHOLE_SECONDS)


# --- what others read ---------------------------------------------------------------------------

Records = dict[int, list[tuple[int, str]]]
"""Of each partition the offsets and values, in the order in which they came."""


def read_committed(bootstrap: str, places: Sequence[TopicPartition]) -> Records:
    """Everything that confluent-kafka sees as a reader of committed records."""
    until_decided(bootstrap)
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    reader.assign([Place(*each, OFFSET_BEGINNING) for each in places])
    found: Records = {each.partition: [] for each in places}
    at_end: set[int] = set()
    while len(at_end) < len(places):
        message = reader.poll(READ_SECONDS)
        assert message is not None, f"the end of {set(found) - at_end} was not reached"
        error, partition = message.error(), message.partition()
        assert partition is not None
        if error is None:
            value: Any = message.value()
            found[partition].append((message.offset() or 0, value.decode()))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            at_end.add(partition)
    reader.close()
    return found


def committed_offset(bootstrap: str, group: str, place: TopicPartition) -> tuple[int, str]:
    """What confluent-kafka finds to be committed, and the note with it; -1001: nothing."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    (found,) = reader.committed([Place(*place)], READ_SECONDS)
    reader.close()
    assert found.error is None, found.error
    return found.offset, found.metadata or ""
