"""What only some clients can do: alter configs, list offsets by kind, change others' groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

from tests.interop.broker.clients import client_kafka_python as kp
from tests.interop.broker.clients.client_confluent import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    Confluent,
    OffsetSpec,
    refused,
)
from tests.interop.broker.clients.face import Message, Reader, Refused
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.raw.steps import START_MS
from tests.interop.harness import Compare, Names, Script, Transcript, eventually

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@contextmanager
def member_of(join: Callable[[], Reader]) -> Iterator[Reader]:
    """A member that has its partitions, and leaves at the end."""
    reader = join()

    def poll() -> int:
        reader.poll(0.1)
        return len(reader.assignment())

    eventually(poll, lambda count: count > 0)
    yield reader
    reader.close()


def result(futures: Any) -> Any:
    """The one result of an admin call of confluent-kafka, or the name of its refusal."""
    (future,) = futures.values()
    try:
        return future.result()
    except KafkaException as error:
        return refused(error.args[0]).name


def confluent_alters_configs(bootstrap: str, names: Names, transcript: Transcript) -> None:
    client, topic = Confluent(bootstrap), ready_topic(names)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    changes = [
        ("retention.ms", AlterConfigOpType.SET, "70000"),
        ("max.message.bytes", AlterConfigOpType.SET, "300"),
        ("cleanup.policy", AlterConfigOpType.APPEND, "compact"),
        ("retention.ms", AlterConfigOpType.SET, "soon"),
        ("no.such", AlterConfigOpType.SET, "1"),
    ]
    for name, operation, value in changes:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        told = result(admin.incremental_alter_configs([resource]))
        transcript.note(f"{name} {operation.name} {value}", told)
    found = eventually(
        lambda: client.configs(topic), lambda found: "compact" in str(found["cleanup.policy"])
    )
    assert found["retention.ms"] == "70000"
    transcript.note("then", {name: found[name] for name, _, _ in changes[:3]})
    large = [Message(b"x" * 400, b"k")]
    eventually(lambda: client.produce(topic, large), lambda told: told == ["MESSAGE_TOO_LARGE"])


def confluent_lists_offsets(bootstrap: str, names: Names, transcript: Transcript) -> None:
    client, topic = Confluent(bootstrap), ready_topic(names)
    times = (0, 50, 20)
    for ms in times:
        client.produce(topic, [Message(b"x", timestamp_ms=START_MS + ms)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    kinds: Any = OffsetSpec
    specs = {
        "earliest": kinds.earliest(),
        "latest": kinds.latest(),
        "max timestamp": kinds.max_timestamp(),
        "at 10": kinds.for_timestamp(START_MS + 10),
        "at 60": kinds.for_timestamp(START_MS + 60),
    }
    for label, spec in specs.items():
        found = result(admin.list_offsets({TopicPartition(topic, 0): spec}))
        transcript.note(label, [found.offset, found.timestamp, found.leader_epoch])
    assert transcript.lines[2][1] == [1, START_MS + 50, 0]


def confluent_describes(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = ready_topic(names, partitions=2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    cluster = admin.describe_cluster().result()
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    transcript.note("controller is a node", cluster.controller.id == cluster.nodes[0].id)
    found = result(admin.describe_topics(TopicCollection([topic])))
    leaders = [(part.id, part.leader.id == cluster.nodes[0].id) for part in found.partitions]
    transcript.note("partitions", leaders)
    transcript.note("internal", found.is_internal)
    absent = TopicCollection([names("absent")])
    transcript.note("absent", result(admin.describe_topics(absent)))


def confluent_changes_groups(bootstrap: str, names: Names, transcript: Transcript) -> None:
    client, topic, group = Confluent(bootstrap), ready_topic(names), names("group")
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def alter(offset: int) -> Any:
        rows = [TopicPartition(topic, 0, offset)]
        asked = [ConsumerGroupTopicPartitions(group, rows)]
        told = result(admin.alter_consumer_group_offsets(asked))
        if isinstance(told, str):
            return told
        return [
            refused(row.error).name if row.error else row.offset for row in told.topic_partitions
        ]

    with member_of(lambda: client.join(group, topic)):
        transcript.note("alter while in use", alter(5))
        transcript.note("delete while in use", result(admin.delete_consumer_groups([group])))
    transcript.note("alter", eventually(lambda: alter(6), lambda told: told == [6]))
    assert client.group_offsets(group) == {(topic, 0): 6}
    transcript.note("delete", result(admin.delete_consumer_groups([group])))
    transcript.note("delete again", result(admin.delete_consumer_groups([group])))
    transcript.note("describe", client.group_state(group))


def told(act: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What kafka-python answers, or the name of the refusal."""
    try:
        return kp.translated(act, *arguments, **options)
    except Refused as refusal:
        return refusal.name


def kafka_python_changes_configs(bootstrap: str, names: Names, transcript: Transcript) -> None:
    client, topic = kp.KafkaPython(bootstrap), ready_topic(names)
    admin = kp.KafkaAdminClient(bootstrap_servers=bootstrap)
    for value in ("80000", "soon"):
        resource = kp.ConfigResource(kp.ConfigResourceType.TOPIC, topic, {"retention.ms": value})
        answer = told(admin.alter_configs, [resource])["topic"][topic]
        transcript.note(f"retention.ms={value}", answer.partition(":")[0])
    eventually(lambda: client.configs(topic)["retention.ms"], lambda value: value == "80000")
    resource = kp.ConfigResource(kp.ConfigResourceType.TOPIC, topic, ["retention.ms"])
    transcript.note("reset", told(admin.reset_configs, [resource]))
    eventually(lambda: client.configs(topic)["retention.ms"], lambda value: value == "604800000")
    cluster = told(admin.describe_cluster)
    transcript.note("brokers", len(cluster["brokers"]))
    admin.close()
    client.close()


def kafka_python_changes_groups(bootstrap: str, names: Names, transcript: Transcript) -> None:
    client, topic, group = kp.KafkaPython(bootstrap), ready_topic(names), names("group")
    admin = kp.KafkaAdminClient(bootstrap_servers=bootstrap)
    place = kp.TopicPartition(topic, 0)
    rows = [Message(b"%d" % number, timestamp_ms=START_MS + number) for number in range(5)]
    client.produce(topic, rows)
    with member_of(lambda: client.join(group, topic)) as member:
        member.commit({(topic, 0): 3})
        transcript.note("delete while in use", told(admin.delete_groups, [group]))
        transcript.note("offsets in use", told(admin.delete_group_offsets, group, [place]))
    assert client.group_offsets(group) == {(topic, 0): 3}
    spec = kp.OffsetSpec.EARLIEST
    transcript.note("reset", told(admin.reset_group_offsets, group, {place: spec}))
    assert client.group_offsets(group) == {(topic, 0): 0}
    for kind in ("EARLIEST", "LATEST", "MAX_TIMESTAMP"):
        asked = {place: getattr(kp.OffsetSpec, kind)}
        found = told(admin.list_partition_offsets, asked)
        transcript.note(f"list {kind}", found[place].offset)
    transcript.note("delete offsets", told(admin.delete_group_offsets, group, [place]))
    transcript.note("left", client.group_offsets(group))
    transcript.note("delete", told(admin.delete_groups, [group]))
    transcript.note("delete again", told(admin.delete_groups, [group]))
    admin.close()
    client.close()


SCRIPTS: tuple[Script, ...] = (
    confluent_alters_configs,
    confluent_lists_offsets,
    confluent_describes,
    confluent_changes_groups,
    kafka_python_changes_configs,
    kafka_python_changes_groups,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_more(script: Script, compare: Compare) -> None:
    compare(script)
