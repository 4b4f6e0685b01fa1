"""confluent-kafka, aiokafka and kafka-python alter the configs of topics and of the broker, each in
the way that it has; and kafka-python asks what else there is to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import (
    ConfigResource as AiokafkaResource,
    ConfigResourceType as AiokafkaType,
)
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by its stubs  # type: ignore[attr-defined]  # likewise
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource as ConfluentResource,
)

from onceflow.wire.api import ApiKey
from tests.interop.broker.clients.client_kafka_python import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    TopicPartition,
)
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.raw.raw_client import RawConnection, error_name
from tests.interop.broker.raw.steps import batch, produce
from tests.interop.harness import Compare, Names, Script, Transcript, eventually

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    # That of confluent-kafka, which sends AlterConfigs.
    pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning"),
]

TOPIC, BROKER = 2, 4
HERE: Final = "1"
BROKER_KEY: Final = "compression.lz4.level"
Alter = Callable[[int, str, Mapping[str, str]], str]
"""Gives a resource these configs, and no others; the code that it is answered with."""


def values(bootstrap: str, kind: int, name: str, *keys: str) -> list[str | None]:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": [*keys]}
    with RawConnection(bootstrap) as connection:
        (found,) = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [row]})["results"]
    by_name = {each["name"]: each["value"] for each in found["configs"]}
    return [by_name[key] for key in keys]


def alterations(
    alter: Alter, names: Names, transcript: Transcript, *, keeps_others: bool = False
) -> None:
    """What every client can do: all configs of a resource at once. One that `keeps_others` looks
    first what is set, and says it again."""
    topic, keys = ready_topic(names), ("retention.ms", "segment.bytes")
    at = names.bootstrap

    def seen(expected: list[str]) -> list[str | None]:
        return eventually(lambda: values(at, TOPIC, topic, *keys), lambda found: found == expected)

    transcript.note("one", alter(TOPIC, topic, {"retention.ms": "1000"}))
    transcript.note("one: then", seen(["1000", "1073741824"]))
    transcript.note("another", alter(TOPIC, topic, {"segment.bytes": "2000000"}))
    transcript.note("another: then", seen(["1000" if keeps_others else "604800000", "2000000"]))
    transcript.note("no number", alter(TOPIC, topic, {"retention.ms": "x"}))
    transcript.note("unknown", alter(TOPIC, topic, {"no.such": "1"}))
    transcript.note("absent", alter(TOPIC, names("absent"), {"retention.ms": "1"}))
    try:
        transcript.note("broker", alter(BROKER, HERE, {BROKER_KEY: "5"}))
        level = eventually(lambda: values(at, BROKER, HERE, BROKER_KEY), lambda each: each == ["5"])
        transcript.note("broker: then", level)
        transcript.note("read-only", alter(BROKER, HERE, {"num.partitions": "5"}))
        transcript.note("in hours", alter(BROKER, HERE, {"log.retention.hours": "5"}))
    finally:
        transcript.note("taken back", alter(BROKER, HERE, {}))
        level = eventually(lambda: values(at, BROKER, HERE, BROKER_KEY), lambda each: each == ["9"])
        transcript.note("taken back: then", level)


def aiokafka(bootstrap: str, names: Names, transcript: Transcript) -> None:
    def alter(kind: int, name: str, configs: Mapping[str, str]) -> str:
        async def ask() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                resource = AiokafkaResource(AiokafkaType(kind), name, dict(configs))
                return await admin.alter_configs([resource])
            finally:
                await admin.close()

        rows = [row for answer in asyncio.run(ask()) for row in answer.resources]
        return error_name(rows[0][0])

    alterations(alter, names, transcript)


def confluent(bootstrap: str, names: Names, transcript: Transcript) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": "0"})

    def answered(futures: Mapping[Any, Any]) -> str:
        (future,) = futures.values()
        try:
            future.result()
        except KafkaException as error:
            return str(error.args[0].name())
        return "NONE"

    def alter(kind: int, name: str, configs: Mapping[str, str]) -> str:
        resource = ConfluentResource(ConfluentResource.Type(kind), name, set_config=dict(configs))
        return answered(admin.alter_configs([resource]))

    alterations(alter, names, transcript)
    for operation, value in ((AlterConfigOpType.SET, "5"), (AlterConfigOpType.DELETE, None)):
        entry = ConfigEntry(BROKER_KEY, value, incremental_operation=operation)
        resource = ConfluentResource(
            ConfluentResource.Type.BROKER, HERE, incremental_configs=[entry]
        )
        transcript.note(f"{operation.name}", answered(admin.incremental_alter_configs([resource])))
    cluster = admin.describe_cluster(include_authorized_operations=True).result()
    transcript.note("operations", sorted(each.name for each in cluster.authorized_operations))


def kafka_python(bootstrap: str, names: Names, transcript: Transcript) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def alter(kind: int, name: str, configs: Mapping[str, str]) -> str:
        act = admin.alter_configs if configs else admin.reset_configs
        given = dict(configs) or {BROKER_KEY: ""}
        resource = ConfigResource(ConfigResourceType(kind), name, given)
        try:
            answer = act([resource], raise_on_unknown=False, incremental=False)
        except Exception as error:
            return type(error).__name__
        ((outcome,),) = [list(each.values()) for each in answer.values()]
        return str(outcome).partition(":")[0]

    try:
        alterations(alter, names, transcript, keeps_others=True)
    finally:
        admin.close()


def kafka_python_tools(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = ready_topic(names, partitions=2)
    with RawConnection(bootstrap) as connection:
        assert produce(connection, topic, batch(b"a", b"b"))["error_code"] == "NONE"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        for label, ask in _questions(admin, topic).items():
            try:
                transcript.note(label, ask())
            except Exception as error:
                transcript.note(label, type(error).__name__)
    finally:
        admin.close()


def _questions(admin: Any, topic: str) -> dict[str, Callable[[], Any]]:
    place = TopicPartition(topic, 0)

    def sizes() -> Any:
        (here,) = admin.describe_log_dirs({topic: [0, 1]})
        return _rows(here["log_dirs"][0]["topics"][0]["partitions"])

    def elected() -> Any:
        answer = admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
        (row,) = answer.replica_election_results[0].partition_result
        return error_name(row.error_code)

    def quorum() -> Any:
        (described,) = admin.describe_metadata_quorum()["topics"][0]["partitions"]
        return [described["leader_id"], len(described["current_voters"]), described["error"]]

    return {
        "log dirs": sizes,
        "elect": elected,
        "quorum": quorum,
        "resources": lambda: topic in admin.list_config_resources(["TOPIC"])["topic"],
        "features": lambda: admin.describe_features()["transaction.version"]["finalized"],
        "update": lambda: admin.update_features({"transaction.version": 2}, validate_only=True),
        "stay": lambda: str(admin.alter_partition_reassignments({place: [1]})),
        "move": lambda: str(admin.alter_partition_reassignments({place: [7]})),
        "reassignments": admin.list_partition_reassignments,
        "operations": lambda: admin.describe_cluster()["authorized_operations"],
    }


def _rows(partitions: Any) -> list[list[Any]]:
    keys = ("partition_index", "partition_size", "offset_lag", "is_future_key")
    return sorted([[each[key] for key in keys] for each in partitions])


SCRIPTS: tuple[Script, ...] = (aiokafka, confluent, kafka_python, kafka_python_tools)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_tools_of(script: Script, compare: Compare) -> None:
    compare(script)
