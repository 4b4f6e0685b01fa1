"""Produce and Fetch in transactions, request by request: what is refused and what is seen are
Apache Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.broker.raw.transactions import (
    TV1_END,
    TV1_PRODUCE,
    TV2_END,
    TV2_PRODUCE,
    Identity,
    Place,
    Probe,
    sequenced,
)
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop

BY_ID = 13
"""From this version on topics go by their ids."""


def views(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Three producers, interleaved: what readers of both kinds see at each step, from anywhere."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        one, two, plain = probe.producer("one"), probe.producer("two"), probe.producer(None)

        def look(label: str) -> None:
            probe.note(label, {"ends": probe.ends(place), "committed": probe.fetch(place)})
            probe.note(f"{label}, everything", probe.fetch(place, isolation=0))

        probe.produce(place, sequenced(plain, 0, b"plain 0"))
        probe.produce(place, sequenced(one, 0, b"one 0", b"one 1"), who=one, version=TV2_PRODUCE)
        look("one is open")
        probe.produce(place, sequenced(plain, 1, b"plain 1"))
        probe.produce(place, sequenced(two, 0, b"two 0"), who=two, version=TV2_PRODUCE)
        probe.produce(place, sequenced(one, 2, b"one 2"), who=one, version=TV2_PRODUCE)
        one = probe.ended(one, commit=False, version=TV2_END)
        look("one is aborted, two is open")
        probe.produce(place, sequenced(one, 0, b"one 3"), who=one, version=TV2_PRODUCE)
        probe.produce(place, sequenced(two, 1, b"two 1"), who=two, version=TV2_PRODUCE)
        two = probe.ended(two, commit=True, version=TV2_END)
        look("two is committed, one is open again")
        one = probe.ended(one, commit=False, version=TV2_END)
        look("all ended")
        for offset in range(probe.end_offset(place) + 1):
            found = probe.fetch(place, offset)
            probe.note(f"aborted, read from {offset}", found["aborted_transactions"])
        probe.note("behind the end", probe.fetch(place, 99))


def versions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A transactional batch in every version of Produce: to a partition that was added, to one
    that was not."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=2)
        for version in range(3, 14):
            who = probe.producer(f"v{version}")
            batch = sequenced(who, 0, b"x")
            probe.add(who, (topic, 0))
            answer = probe.produce((topic, 0), batch, who=who, version=version)
            probe.note(f"v{version} added", answer)
            answer = probe.produce((topic, 1), batch, who=who, version=version)
            probe.note(f"v{version} not added", answer)
            again = probe.produce((topic, 0), batch, who=who, version=version)
            probe.note(f"v{version} again", again)
            probe.note(f"v{version} partitions", probe.described(who.transactional_id)["topics"])
            probe.ended(who, commit=True, version=TV1_END if version < TV2_PRODUCE else TV2_END)
            late = probe.produce((topic, 0), sequenced(who, 1, b"late"), who=who, version=version)
            probe.note(f"v{version} after the end", late)
            late = probe.produce((topic, 0), batch, who=who, version=version)
            probe.note(f"v{version} after the end, a repeat", late)
            probe.note(f"v{version} state", probe.state_of(who))
        for partition in range(2):
            probe.note(f"partition {partition}", probe.ends((topic, partition)))


def wrong_batches(
    who: Identity, other: Identity, base: int
) -> dict[str, tuple[bytes, Identity | None]]:
    """Batches that do not belong, each with who asks; `base` is the next sequence."""
    plain, good = sequenced(who, base, b"x", transactional=False), sequenced(who, base, b"x")
    stranger = who._replace(producer_id=who.producer_id + (1 << 40))
    return {
        "a name, and a batch without transaction": (plain, who),
        "no name, a batch without transaction": (plain, None),
        "no name, a batch with one": (good, None),
        "another's batch": (sequenced(other, 0, b"x"), who),
        "another's name": (good, other),
        "an unknown name": (good, who._replace(transactional_id="unknown")),
        "an empty name": (good, who._replace(transactional_id="")),
        "an old epoch": (sequenced(who.with_epoch(-1), base, b"x"), who),
        "a future epoch": (sequenced(who.with_epoch(1), 0, b"x"), who),
        "a gap": (sequenced(who, 7, b"x"), who),
        "an id nobody gave": (sequenced(stranger, 0, b"x"), who),
    }


def produce_refusals(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Wrong identities and batches that do not belong, by clients of both kinds. Each has a
    producer of its own: Apache Kafka remembers sequences of what it refused."""
    with Probe(bootstrap, names, transcript) as probe:
        place, other = (probe.topic(), 0), probe.producer("other")
        for version in (10, TV1_PRODUCE, TV2_PRODUCE, BY_ID):
            for opened in (False, True):
                for label in wrong_batches(other, other, 0):
                    who = probe.producer(f"{version} {opened} {label}")
                    if opened:
                        probe.add(who, place)
                        first = probe.produce(place, sequenced(who, 0, b"first"), who=who)
                        assert first[0] == "NONE"
                    batch, asking = wrong_batches(who, other, int(opened))[label]
                    error, _ = probe.produce(place, batch, who=asking, version=version)
                    probe.note(f"v{version} open={opened} {label}", error)
                    if not opened:
                        probe.note(f"v{version} {label}, state", probe.state_of(who))


def two_in_one_request(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A request may bring transactional batches of one producer only; others may be beside them."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=2)
        for version in (TV1_PRODUCE, TV2_PRODUCE, BY_ID):
            who, other = probe.producer(f"who-{version}"), probe.producer(f"other-{version}")
            probe.add(who, (topic, 0))
            mine = ((topic, 0), sequenced(who, 0, b"a"))
            rows = [mine, ((topic, 1), sequenced(other, 0, b"b"))]
            probe.note(f"v{version} two", probe.produce_all(rows, who=who, version=version))
            rows = [mine, ((topic, 1), sequenced(other, 0, b"b", transactional=False))]
            probe.note(f"v{version} beside", probe.produce_all(rows, who=who, version=version))
            probe.ended(who, commit=True)


def sequences_of_old_clients(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Version 1 of transactions: one epoch, sequences go on from one transaction to the next."""
    with Probe(bootstrap, names, transcript) as probe:
        place, who = (probe.topic(), 0), probe.producer("old")

        def send(label: str, base: int, value: bytes) -> None:
            probe.note(label, probe.produce(place, sequenced(who, base, value), who=who))

        probe.add(who, place)
        send("first", 0, b"a")
        send("second", 1, b"b")
        probe.ended(who, commit=True)
        send("between", 2, b"c")
        probe.add(who, place)
        send("next", 2, b"c")
        send("next, a repeat of the one before", 1, b"b")
        send("next, a repeat", 2, b"c")
        send("next, a gap", 5, b"x")
        probe.note("a late end of the first", probe.end(who, commit=True))
        probe.settle(who)
        probe.note("ends", probe.ends(place))
        probe.note("records", probe.fetch(place))


def sequences_of_new_clients(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Version 2 of transactions: a new epoch for each, which begins at zero."""
    with Probe(bootstrap, names, transcript) as probe:
        place, who = (probe.topic(), 0), probe.producer("new")

        def send(label: str, sender: Identity, base: int, value: bytes) -> None:
            batch = sequenced(sender, base, value)
            answer = probe.produce(place, batch, who=sender, version=TV2_PRODUCE)
            probe.note(label, answer)

        send("not from zero", who, 3, b"x")
        send("first", who, 0, b"a")
        send("second", who, 1, b"b")
        after = probe.ended(who, commit=True, version=TV2_END)
        send("late, of the old epoch", who, 2, b"c")
        send("late, a repeat", who, 1, b"b")
        send("next, a gap", after, 2, b"x")
        probe.note("refused, but open", probe.described(who.transactional_id))
        send("next", after, 0, b"c")
        for commit in (True, False):
            answer = probe.end(who, commit=commit, version=TV2_END)
            probe.note(f"a late end of the first, commit={commit}", answer)
        probe.note("state", probe.state_of(after))
        send("goes on", after, 1, b"d")
        send("late, of the old epoch, while open", who, 2, b"x")
        send("future epoch", after.with_epoch(1), 0, b"x")
        probe.note("ends", probe.ends(place))
        probe.ended(after, commit=False, version=TV2_END)
        probe.note("records", probe.fetch(place))


def mixed_clients(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """New requests and old ones in one transaction."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=2)
        ways: list[tuple[int, int]] = [(TV1_PRODUCE, TV2_END), (TV2_PRODUCE, TV1_END)]
        for produce, end in ways:
            who = probe.producer(f"mixed-{produce}")
            for commit in (True, False):
                probe.add(who, (topic, 0))
                label = f"produce v{produce}, end v{end} commit={commit}"
                base = 0 if commit or end == TV2_END else 1
                rows: list[tuple[Place, bytes]] = [((topic, 0), sequenced(who, base, b"x"))]
                probe.note(label, probe.produce_all(rows, who=who, version=produce))
                after = probe.ended(who, commit=commit, version=end)
                probe.note(f"{label} epochs", after.producer_epoch - who.producer_epoch)
                who = after
        probe.note("records", probe.fetch((topic, 0)))


def one_transaction_over_partitions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """One transaction over several partitions ends in all of them, also where nothing was sent."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=4)
        who = probe.producer("many")
        for commit in (True, False):
            batches = [((topic, p), sequenced(who, 0, b"%d" % p)) for p in range(3)]
            answer = probe.produce_all(batches, who=who, version=TV2_PRODUCE)
            probe.note(f"produce, commit={commit}", answer)
            probe.note("added, nothing sent", probe.add(who, (topic, 3)))
            before = [probe.ends((topic, p)) for p in range(4)]
            who = probe.ended(who, commit=commit, version=TV2_END)
            probe.note("before", before)
            seen: list[Any] = [probe.fetch((topic, p)) for p in range(4)]
            probe.note("after", seen)


SCRIPTS: tuple[Script, ...] = (
    views,
    versions,
    produce_refusals,
    two_in_one_request,
    sequences_of_old_clients,
    sequences_of_new_clients,
    mixed_clients,
    one_transaction_over_partitions,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_transactional_produce(script: Script, compare: Compare) -> None:
    compare(script)
