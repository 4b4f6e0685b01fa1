"""What scripts over clients share: the list of clients, a client for one run, topics made ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.interop.broker.clients.client_aiokafka import Aiokafka
from tests.interop.broker.clients.client_confluent import Confluent
from tests.interop.broker.clients.client_kafka_python import KafkaPython
from tests.interop.broker.clients.face import Client
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import create_topic
from tests.interop.harness import Names, Script, Transcript

ClientScript = Callable[[Client, Names, Transcript], None]
CLIENTS: Final[tuple[type[Client], ...]] = (Confluent, Aiokafka, KafkaPython)


def with_client(make: type[Client], script: ClientScript) -> Script:
    """The script, run with a client of its own; its name says which."""

    def run(bootstrap: str, names: Names, transcript: Transcript) -> None:
        client = make(bootstrap)
        try:
            script(client, names, transcript)
        finally:
            client.close()

    run.__name__ = f"{make.__name__}:{script.__name__}"
    return run


def ready_topic(
    names: Names,
    label: str = "topic",
    *,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> str:
    """The name of a new topic, of which every partition can be used at once."""
    topic = names(label)
    with RawConnection(names.bootstrap) as connection:
        create_topic(connection, topic, partitions=partitions, configs=configs)
    return topic
