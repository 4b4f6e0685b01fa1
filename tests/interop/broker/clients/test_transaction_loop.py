"""Read, process, write, in transactions: each input has exactly one output, crash or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.interop.broker.clients.face import Place
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.clients.transactional import (
    SECONDS,
    TXN_CLIENTS,
    TxnClient,
    TxnScript,
    with_client,
)
from tests.interop.broker.raw.steps import batch, produce, wait_for_coordinator
from tests.interop.broker.raw.transactions import Probe, sequenced
from tests.interop.harness import Compare, Names, Script, Transcript, eventually

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
RECORDS = 12
"""In each partition of the input."""
CHUNK = 5
"""Records of one transaction."""


def filled(probe: Probe, topic: str, partitions: int) -> None:
    for partition in range(partitions):
        values = [b"%d-%d" % (partition, number) for number in range(RECORDS)]
        records = sequenced(probe.producer(None), 0, *values)
        assert probe.produce((topic, partition), records) == ["NONE", 0]


def resumed(probe: Probe, group: str, place: Place) -> int:
    """Where the group goes on: after what is committed, once no transaction is open on it."""
    _, _, offset = eventually(
        lambda: probe.committed(group, place, stable_only=True),
        lambda answer: answer[1] != "UNSTABLE_OFFSET_COMMIT",
    )
    return max(0, int(offset))


def work(
    client: TxnClient, probe: Probe, place: Place, output: str, *, crash_at: int | None
) -> list[int]:
    """Copies a partition in transactions; a crash comes after all was sent, before the commit."""
    group, partition = probe.names("group"), place[1]
    producer = client.producer(probe.names(f"task-{partition}"))
    start = resumed(probe, group, place)
    records: Sequence[Any] = client.read(place, RECORDS, committed=True)[0][start:]
    done = [start]
    for first in range(0, len(records), CHUNK):
        chunk = records[first : first + CHUNK]
        producer.begin()
        values = [b"copy of " + value for _, value in chunk]
        producer.send(output, values, partition=partition)
        producer.send_offsets({place: chunk[-1][0] + 1}, group)
        if first == crash_at:
            break
        producer.commit()
        done.append(chunk[-1][0] + 1)
    producer.drop()
    return done


def loop_with_a_crash(client: TxnClient, names: Names, transcript: Transcript) -> None:
    """Two partitions, two tasks; both crash in the middle, others with their names go on."""
    source, output = ready_topic(names, "in", partitions=2), ready_topic(names, "out", partitions=2)
    with Probe(names.bootstrap, names, transcript) as probe:
        wait_for_coordinator(probe.connection, names("group"))
        filled(probe, source, 2)
        for partition in range(2):
            place = (source, partition)
            crashed = work(client, probe, place, output, crash_at=CHUNK)
            transcript.note(f"partition {partition}: until the crash", crashed)
            probe.note("state", probe.described(names(f"task-{partition}"))["transaction_state"])
            rest = work(client, probe, place, output, crash_at=None)
            transcript.note(f"partition {partition}: after it", rest)
            probe.settle_name(names(f"task-{partition}"))
            found, position = client.read((output, partition), RECORDS, committed=True)
            transcript.note(f"partition {partition}: copies", [found, position])
            expected = [b"copy of %d-%d" % (partition, number) for number in range(RECORDS)]
            assert [value for _, value in found] == expected
            committed = probe.committed(names("group"), place, stable_only=True)
            transcript.note(f"partition {partition}: committed", committed)
            assert committed[2] == RECORDS


def the_printed_loop(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """The example that articles on Kafka's transactions print, in Java, followed line by line."""
    source, output = ready_topic(names, "in"), ready_topic(names, "out")
    with Probe(bootstrap, names, transcript) as probe:
        assert produce(probe.connection, source, batch(b"a", b"b", b"c"))["error_code"] == "NONE"

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": names("my-id")})
    producer.init_transactions(SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": names("my-group"),
            "isolation.level": "read_committed",
            # Not printed there: the input is older than the group, and the loop must end.
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    copied = 0
    while copied < 3:
        records = consumer.consume(500, 0.2)
        if not records:
            continue
        producer.begin_transaction()
        for record in records:
            producer.produce(output, record.value())
        positions = consumer.position(consumer.assignment())
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(positions, metadata, SECONDS)
        producer.commit_transaction(SECONDS)
        copied += len(records)

    (committed,) = consumer.committed(consumer.assignment(), SECONDS)
    transcript.note("committed", committed.offset)
    assert committed.offset == copied == 3
    consumer.close()
    with Probe(bootstrap, names, transcript) as probe:
        probe.settle_name(names("my-id"))
        found = probe.fetch((output, 0))
        probe.note("copies", [value for _, value in found["records"]][:3])
        probe.note("aborted", found["aborted_transactions"])
        assert [value for _, value in found["records"]][:3] == [b"a", b"b", b"c"]


SCRIPTS_OF_CLIENTS: tuple[TxnScript, ...] = (loop_with_a_crash,)
SCRIPTS: tuple[Script, ...] = (
    *(with_client(make, script) for script in SCRIPTS_OF_CLIENTS for make in TXN_CLIENTS),
    the_printed_loop,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_loops(script: Script, compare: Compare) -> None:
    compare(script)
