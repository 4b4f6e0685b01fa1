"""Transactions with the clients that others wrote: what they see on our broker is what they see on
Apache Kafka, errors included."""

from __future__ import annotations

import pytest

from tests.interop.broker.clients.face import Place
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.clients.transactional import (
    TXN_CLIENTS,
    TxnClient,
    TxnScript,
    heard,
    with_client,
)
from tests.interop.broker.raw.transactions import Probe
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


def look(
    client: TxnClient, transcript: Transcript, label: str, place: Place, counts: tuple[int, int]
) -> None:
    """What readers of both kinds get; `counts`: how many committed records there are, and all."""
    for count, committed in zip(counts, (True, False), strict=True):
        records, position = client.read(place, count, committed=committed)
        kind = "committed" if committed else "all"
        transcript.note(f"{label}, {kind}", {"records": records, "position": position})
        assert len(records) == count


def idempotent(client: TxnClient, names: Names, transcript: Transcript) -> None:
    """Idempotent producers: several batches, several partitions, two producers."""
    topic = ready_topic(names, partitions=2)
    one, two = client.producer(None), client.producer(None)
    for number in range(8):
        values = [b"%d %d" % (number, each) for each in range(3)]
        sent = one.send(topic, values, partition=number % 2)
        transcript.note(f"batch {number}", sent)
    transcript.note("another", two.send(topic, [b"x", b"y"]))
    one.drop()
    two.drop()
    for partition in range(2):
        records, position = client.read((topic, partition), 12, committed=False)
        transcript.note(f"partition {partition}", [records, position])


def transactions(client: TxnClient, names: Names, transcript: Transcript) -> None:
    """Commit, abort, nothing at all, and again: two partitions, readers of both kinds."""
    topic = ready_topic(names, partitions=2)
    producer = client.producer(names("id"))
    steps = [("a", 2, True), ("b", 3, False), ("", 0, True), ("", 0, False), ("c", 1, True)]
    for label, count, commit in steps:
        producer.begin()
        for partition in range(2 if count else 0):
            values = [f"{label}{number}".encode() for number in range(count)]
            transcript.note(f"send {label}", producer.send(topic, values, partition=partition))
        if commit:
            producer.commit()
        else:
            producer.abort()
        transcript.note(f"{label} commit={commit}", "done")
    look(client, transcript, "partition 1", (topic, 1), (3, 6))
    producer.begin()
    transcript.note("open", producer.send(topic, [b"open"]))
    look(client, transcript, "open", (topic, 0), (3, 7))
    with Probe(names.bootstrap, names, transcript) as probe:
        probe.note("ends", probe.ends((topic, 0)))
        probe.note("state", probe.described(names("id"))["transaction_state"])
    producer.abort()
    producer.drop()


def fenced(client: TxnClient, names: Names, transcript: Transcript) -> None:
    """A second producer of the same name: what the first has open is aborted, and it is told."""
    topic = ready_topic(names)
    for last_act in ("send", "commit", "begin"):
        old = client.producer(names(last_act))
        old.begin()
        transcript.note("old", old.send(topic, [b"old"]))
        if last_act == "begin":
            old.commit()
        new = client.producer(names(last_act))
        new.begin()
        transcript.note("new", new.send(topic, [b"new"]))
        new.commit()
        if last_act == "begin":
            transcript.note("old: begin", heard(old.begin))
        if last_act != "commit":
            transcript.note(f"old: {last_act}, send", heard(old.send, topic, [b"zombie"]))
        transcript.note(f"old: {last_act}, commit", heard(old.commit))
        old.drop()
        new.drop()
    look(client, transcript, "end", (topic, 0), (4, 6))


def offsets(client: TxnClient, names: Names, transcript: Transcript) -> None:
    """Offsets that are sent with a transaction are committed with it, or not at all."""
    topic, group = ready_topic(names, partitions=2), names("group")
    producer = client.producer(names("id"))
    with Probe(names.bootstrap, names, transcript) as probe:
        for number, commit in enumerate((True, False, True)):
            producer.begin()
            producer.send(topic, [b"%d" % number])
            producer.send_offsets({(topic, 0): 10 + number, (topic, 1): 20 + number}, group)
            for partition in range(2):
                place = (topic, partition)
                transcript.note("open", probe.committed(group, place))
                transcript.note("stable", probe.committed(group, place, stable_only=True))
            if commit:
                producer.commit()
            else:
                producer.abort()
            probe.settle_name(names("id"))
            for partition in range(2):
                found = probe.committed(group, (topic, partition), stable_only=True)
                transcript.note(f"{number} commit={commit}", found)
                assert found[2] == 10 * (partition + 1) + (0, 0, 2)[number]
        producer.begin()
        producer.send_offsets({(topic, 0): 99}, group)
        producer.commit()
        probe.settle_name(names("id"))
        transcript.note("only offsets", probe.committed(group, (topic, 0), stable_only=True))
    producer.drop()


def many(client: TxnClient, names: Names, transcript: Transcript) -> None:
    """Twelve transactions in a row, as fast as the client can: nothing stands in their way."""
    topic = ready_topic(names)
    producer = client.producer(names("id"))
    for number in range(12):
        producer.begin()
        producer.send(topic, [b"%d" % number])
        if number % 3 == 2:
            producer.abort()
        else:
            producer.commit()
    producer.drop()
    look(client, transcript, "end", (topic, 0), (8, 12))


SCRIPTS_OF_CLIENTS: tuple[TxnScript, ...] = (
    idempotent,
    transactions,
    fenced,
    offsets,
    many,
)
SCRIPTS = tuple(with_client(make, script) for script in SCRIPTS_OF_CLIENTS for make in TXN_CLIENTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_transactions_of_clients(script: Script, compare: Compare) -> None:
    compare(script)
