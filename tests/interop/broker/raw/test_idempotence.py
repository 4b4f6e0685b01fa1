"""Idempotent producers request by request: sequences, repeats and refusals are Apache Kafka's."""

from __future__ import annotations

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.transactions import Identity, Probe, sequenced
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop

LAST_SEQUENCE = 2_147_483_647


def sequences(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Gaps, repeats of the last five batches and of older ones, ranges that only overlap."""
    with Probe(bootstrap, names, transcript) as probe:
        place, who = (probe.topic(), 0), probe.producer(None)
        for number in range(7):
            batch = sequenced(who, number * 2, b"a", b"b")
            probe.note(f"batch {number}", probe.produce(place, batch))
        for number in range(7):
            batch = sequenced(who, number * 2, b"a", b"b")
            probe.note(f"batch {number} again", probe.produce(place, batch))
        for base, size in ((15, 1), (16, 2), (13, 2), (12, 1), (13, 1), (12, 3), (0, 1)):
            batch = sequenced(who, base, *[b"odd"] * size)
            probe.note(f"{size} from {base}", probe.produce(place, batch))
        probe.note("next", probe.produce(place, sequenced(who, 14, b"next")))
        found = probe.fetch(place)
        assert len(found["records"]) == 15
        probe.note("all", found)


def first_sequences(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A producer that the partition does not know may begin anywhere; a new epoch at 0 only."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        for base in (0, 7, LAST_SEQUENCE):
            who = probe.producer(None)
            answer = probe.produce(place, sequenced(who, base, b"first"))
            probe.note(f"first sequence {base}", answer)
        who = probe.producer(None)
        probe.note("at 0", probe.produce(place, sequenced(who, 0, b"a")))
        newer = who.with_epoch(1)
        probe.note("new epoch at 5", probe.produce(place, sequenced(newer, 5, b"b")))
        probe.note("new epoch at 1", probe.produce(place, sequenced(newer, 1, b"b")))
        probe.note("new epoch at 0", probe.produce(place, sequenced(newer, 0, b"c")))
        probe.note("old epoch", probe.produce(place, sequenced(who, 1, b"d")))
        probe.note("old epoch, a repeat", probe.produce(place, sequenced(who, 0, b"a")))
        probe.note("new epoch goes on", probe.produce(place, sequenced(newer, 1, b"e")))
        never = Identity(None, 1 << 60, 3)
        probe.note("an id nobody gave", probe.produce(place, sequenced(never, 4, b"f")))
        for producer_id, epoch, base in ((5, -1, 0), (-1, 0, 0), (5, 0, -1), (-2, 0, 0)):
            batch = sequenced(Identity(None, producer_id, epoch), base, b"g")
            label = f"id {producer_id} epoch {epoch} sequence {base}"
            probe.note(label, probe.produce(place, batch))
        probe.note("end", probe.ends(place))


def wrap(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """After 2147483647 comes 0, inside a batch and between batches; repeats are known there too."""
    with Probe(bootstrap, names, transcript) as probe:
        place, who = (probe.topic(), 0), probe.producer(None)
        near = LAST_SEQUENCE - 3
        steps = [(near, 2), (near + 2, 4), (2, 1)]
        for base, size in (*steps, *steps, (near + 2, 3), (0, 2), (4, 1), (3, 1)):
            batch = sequenced(who, base, *[b"x"] * size)
            probe.note(f"{size} from {base}", probe.produce(place, batch))
        who = probe.producer(None)
        for base, size in ((LAST_SEQUENCE, 1), (LAST_SEQUENCE, 1), (1, 1), (0, 1), (0, 1)):
            batch = sequenced(who, base, *[b"y"] * size)
            probe.note(f"at the edge, {size} from {base}", probe.produce(place, batch))
        probe.note("end", probe.ends(place))


def sequences_by_partition(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Sequences are by partition; one request may bring good and bad ones, and several ids."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=3)
        one, two = probe.producer(None), probe.producer(None)
        assert one.producer_id != two.producer_id
        answer = probe.produce_all([((topic, p), sequenced(one, 0, b"a")) for p in range(3)])
        probe.note("three partitions", answer)
        rows = [((topic, 0), sequenced(one, 1, b"b")), ((topic, 1), sequenced(one, 5, b"b"))]
        probe.note("one good, one bad", probe.produce_all(rows))
        rows = [((topic, 0), sequenced(one, 2, b"c")), ((topic, 1), sequenced(two, 0, b"c"))]
        probe.note("two producers", probe.produce_all(rows))
        for version in range(3, 14):
            batch = sequenced(two, version - 2, b"v")
            probe.note(f"v{version}", probe.produce((topic, 1), batch, version=version))
            probe.note(f"v{version} again", probe.produce((topic, 1), batch, version=version))


def producers_described(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """DescribeProducers: what a partition knows of producers."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=2)
        one, two = probe.producer(None), probe.producer(None)
        probe.produce((topic, 0), sequenced(one, 0, b"a", b"b"))
        probe.produce((topic, 0), sequenced(two, 3, b"a"))
        asked = [
            {"name": topic, "partition_indexes": [0, 1, 2]},
            {"name": names("absent"), "partition_indexes": [0]},
        ]
        answer = probe.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})
        probe.note("producers", answer)
        probe.note("nothing asked", probe.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": []}))


SCRIPTS: tuple[Script, ...] = (
    sequences,
    first_sequences,
    wrap,
    sequences_by_partition,
    producers_described,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_idempotence(script: Script, compare: Compare) -> None:
    compare(script)
