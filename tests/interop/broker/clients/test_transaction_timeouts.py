"""Transactions that outlive their timeout: the broker aborts them, and tells whoever had them open
what Apache Kafka tells. All wait at once, as Apache Kafka looks only every ten seconds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.clients.transactional import TXN_CLIENTS, TxnClient, heard
from tests.interop.broker.raw.steps import wait_for_coordinator
from tests.interop.broker.raw.transactions import (
    TV1_END,
    TV1_PRODUCE,
    TV2_END,
    TV2_OFFSETS,
    TV2_PRODUCE,
    Identity,
    Place,
    Probe,
    sequenced,
)
from tests.interop.harness import Compare, Names, Transcript

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
SHORT_MS = 2_000


def of_client(make: type[TxnClient], act: str, names: Names, topic: str) -> list[Any]:
    """What a client hears that comes back after the timeout, and that it can begin anew."""
    client, name = make(names.bootstrap), names(f"{make.__name__}-{act}")
    told: list[Any] = []
    with Probe(names.bootstrap, names, Transcript()) as probe:
        producer = client.producer(name, timeout_ms=SHORT_MS)
        producer.begin()
        producer.send(topic, [b"too slow"])
        probe.settle_name(name)
        told.append(probe.told(probe.described(name))["producer_epoch"])
        if act == "send":
            told.append(heard(producer.send, topic, [b"too late"]))
        told.append(heard(producer.abort if act == "abort" else producer.commit))
        producer.drop()
        again = client.producer(name)
        again.begin()
        assert isinstance(again.send(topic, [b"anew"])[0], int)
        again.commit()
        again.drop()
        probe.settle_name(name)
        told.append(probe.described(name)["transaction_state"])
    client.close()
    return told


def of_raw_producers(names: Names, place: Place) -> list[tuple[str, Any]]:
    """Each request that may come too late, from clients of both kinds."""
    transcript = Transcript()
    with Probe(names.bootstrap, names, transcript) as probe:
        group = names("group")
        wait_for_coordinator(probe.connection, group)
        acts = ("produce", "add", "offsets", "commit", "abort", "init", "init anew")
        versions = (TV1_END, TV2_END)
        late: dict[tuple[int, str], Identity] = {}
        for version in versions:
            for act in acts:
                who = probe.producer(f"{version} {act}", timeout_ms=SHORT_MS)
                probe.add(who, place)
                first = sequenced(who, 0, b"too slow")
                assert probe.produce(place, first, who=who)[0] == "NONE"
                if version == TV2_END:
                    probe.commit_offset(who, group, place, 7, version=TV2_OFFSETS)
                late[version, act] = who
        for (version, act), who in late.items():
            probe.settle(who)
            row = probe.described(who.transactional_id)
            probe.note(f"v{version} {act}: state", [row["transaction_state"], row["topics"]])
            probe.note(f"v{version} {act}: epoch", row["producer_epoch"])
            probe.note(f"v{version} {act}", too_late(probe, who, act, version, group, place))
        probe.note("offset", probe.committed(group, place, stable_only=True))
    return transcript.lines


def too_late(
    probe: Probe, who: Identity, act: str, version: int, group: str, place: Place
) -> list[Any]:
    produce = TV2_PRODUCE if version == TV2_END else TV1_PRODUCE
    if act == "produce":
        batch = sequenced(who, 1, b"too late")
        return [probe.produce(place, batch, who=who, version=produce)[0]]
    if act == "add":
        return [probe.add(who, place)]
    if act == "offsets":
        added = [probe.add_offsets(who, group)]
        return [*added, probe.commit_offset(who, group, place, 8, version=version)]
    if act in ("commit", "abort"):
        commit = act == "commit"
        return [probe.end(who, commit=commit, version=version) for _ in range(2)]
    if act == "init":
        known = {"producer_id": who.producer_id, "epoch": who.producer_epoch}
        return [probe.init(who.transactional_id, **known), probe.init(who.transactional_id)]
    return [probe.init(who.transactional_id)]


def timeouts(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """One topic for each, so that nothing waits for another's transaction."""
    topics = {make: ready_topic(names, make.__name__) for make in TXN_CLIENTS}
    place = (ready_topic(names, "raw"), 0)
    acts = ("send", "commit", "abort")
    with ThreadPoolExecutor(len(TXN_CLIENTS) * len(acts) + 1) as pool:
        raw = pool.submit(of_raw_producers, names, place)
        clients = {
            f"{make.__name__} {act}": pool.submit(of_client, make, act, names, topic)
            for make, topic in topics.items()
            for act in acts
        }
    transcript.lines += raw.result()
    for label, future in clients.items():
        transcript.note(label, future.result())
    with Probe(bootstrap, names, transcript) as probe:
        probe.note("ends", probe.ends(place))
        assert len(set(probe.ends(place).values())) == 1


SCRIPTS = (timeouts,)


def test_timeouts(compare: Compare) -> None:
    compare(timeouts)
