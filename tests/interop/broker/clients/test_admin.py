"""confluent-kafka, aiokafka and kafka-python make, change and remove topics and group offsets."""

from __future__ import annotations

import pytest

from tests.interop.broker.clients.face import Client, Message, read_all, refusal_of
from tests.interop.broker.clients.scripts import CLIENTS, ClientScript, ready_topic, with_client
from tests.interop.harness import Compare, Names, Transcript, eventually

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

CONFIGS = ("cleanup.policy", "compression.type", "max.message.bytes", "retention.ms")


def topics(client: Client, names: Names, transcript: Transcript) -> None:
    """A topic is made, grows, is listed and is gone."""
    topic = names("topic")
    client.create(topic, partitions=2, configs={"retention.ms": "3600000"})
    transcript.note("again", refusal_of(client.create, topic))
    listed = eventually(client.topics, lambda listed: listed.get(topic) == 2)
    assert topic in names.mine(listed)
    client.add_partitions(topic, 3)
    eventually(client.topics, lambda listed: listed.get(topic) == 3)
    transcript.note("fewer partitions", refusal_of(client.add_partitions, topic, 2))
    transcript.note("absent", refusal_of(client.add_partitions, names("absent"), 2))
    client.delete(topic)
    eventually(client.topics, lambda listed: topic not in listed)
    transcript.note("deleted again", refusal_of(client.delete, topic))
    transcript.note("mine", names.mine(client.topics()))


def creation_refusals(client: Client, names: Names, transcript: Transcript) -> None:
    transcript.note("factor 2", refusal_of(client.create, names("a"), factor=2))
    transcript.note("no partition", refusal_of(client.create, names("b"), partitions=0))
    for name in (".", "a b", "x" * 250):
        transcript.note(f"name {name[:3]!r}", refusal_of(client.create, name))
    for key, value in (("no.such", "1"), ("retention.ms", "x"), ("cleanup.policy", "burn")):
        label, configs = f"{key}={value}", {key: value}
        transcript.note(label, refusal_of(client.create, names("c"), configs=configs))
    assert not names.mine(client.topics())


def configs(client: Client, names: Names, transcript: Transcript) -> None:
    configs = {"retention.ms": "3600000", "max.message.bytes": "2000"}
    topic = ready_topic(names, configs=configs)
    found = client.configs(topic)
    assert found["retention.ms"] == "3600000"
    transcript.note("configs", {name: found[name] for name in CONFIGS})
    transcript.note("absent", refusal_of(client.configs, names("absent")))


def delete_records(client: Client, names: Names, transcript: Transcript) -> None:
    topic = ready_topic(names)
    client.produce(topic, [Message(b"%d" % number) for number in range(10)])
    assert client.delete_records(topic, 4) == 4
    transcript.note("offsets", client.offsets(topic))
    received = read_all(client.read(topic), 6)
    assert [record.value for record in received] == [b"%d" % number for number in range(4, 10)]
    transcript.note("too far", refusal_of(client.delete_records, topic, 99))
    transcript.note("all", client.delete_records(topic, -1))
    transcript.note("then", client.offsets(topic))


SCRIPTS: tuple[ClientScript, ...] = (topics, creation_refusals, configs, delete_records)


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_admin(make: type[Client], script: ClientScript, compare: Compare) -> None:
    compare(with_client(make, script))
