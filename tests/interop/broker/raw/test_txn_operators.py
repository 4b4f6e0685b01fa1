"""What operators ask and do, request by request: listing and describing transactions and their
producers, and markers from outside, as Apache Kafka answers them."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.describe import describe_transactions
from tests.interop.broker.raw.transactions import (
    TV1_END,
    TV2_END,
    TV2_PRODUCE,
    Probe,
    markers,
    producers,
    sequenced,
    write_markers,
)
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop


def listings(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """ListTransactions: all filters of every version, states and patterns that do not exist."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        empty, opened = probe.producer("empty"), probe.producer("open")
        committed, aborted = probe.producer("committed"), probe.producer("aborted")
        for who in (opened, committed, aborted):
            probe.produce(place, sequenced(who, 0, b"x"), who=who, version=TV2_PRODUCE)
        probe.ended(committed, commit=True, version=TV2_END)
        probe.ended(aborted, commit=False, version=TV2_END)

        def ask(label: str, version: int, **filters: Any) -> None:
            fields = {"state_filters": [], "producer_id_filters": [], **filters}
            answer = probe.ask(ApiKey.LIST_TRANSACTIONS, version, fields)
            rows = answer["transaction_states"]
            mine = [row for row in rows if names.mine([row["transactional_id"]])]
            probe.note(f"v{version} {label}", answer | {"transaction_states": mine})

        for version in range(3):
            ask("all", version)
            ask("one state", version, state_filters=["Ongoing"])
            ask("two states", version, state_filters=["Empty", "CompleteAbort"])
            ask("no such state", version, state_filters=["Ongoing", "Nowhere", "ongoing"])
            ask("only no such state", version, state_filters=["Nowhere"])
            ask("fenced", version, state_filters=["PrepareEpochFence", "Dead"])
            ids = [empty.producer_id, opened.producer_id, 1 << 50]
            ask("producers", version, producer_id_filters=ids)
            ask("both", version, producer_id_filters=ids, state_filters=["Empty"])
        for version in (1, 2):
            for duration in (-1, 3_600_000, -5):
                ask(f"longer than {duration}", version, duration_filter=duration)
        for pattern in (".*open", "open", "", "[", "(?i).*OPEN", None, "*"):
            ask(f"pattern {pattern}", 2, transactional_id_pattern=pattern)
        probe.ended(opened, commit=True, version=TV2_END)


def transactions_described(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """DescribeTransactions of several at once; DescribeProducers through transactions."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=2)
        for version, produce in ((TV1_END, 11), (TV2_END, TV2_PRODUCE)):
            who = probe.producer(f"id-{version}")
            for commit in (True, False):
                probe.add(who, (topic, 0), (topic, 1))
                base = 0 if commit or version == TV2_END else 2
                batch = sequenced(who, base, b"a", b"b")
                probe.produce((topic, 0), batch, who=who, version=produce)
                probe.note(f"v{version} open", producers(probe, topic))
                who = probe.ended(who, commit=commit, version=version)
                probe.note(f"v{version} commit={commit}", producers(probe, topic))
        asked: list[str | None] = [names("id-4"), names("nobody"), names("id-5")]
        probe.note("several", describe_transactions(probe.connection, asked))
        probe.note("none", describe_transactions(probe.connection, []))


def markers_of_new_clients(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Version 2 of transactions: a marker needs a higher epoch, but for a repeat of itself."""
    with Probe(bootstrap, names, transcript) as probe:
        probe.producer("id")
        place, who = (probe.topic(), 0), probe.producer("id")
        probe.produce(place, sequenced(who, 0, b"a"), who=who, version=TV2_PRODUCE)

        def write(label: str, change: int, *, commit: bool, transaction_version: int = 2) -> None:
            answer = write_markers(
                probe,
                who.with_epoch(change),
                [place],
                commit=commit,
                version=2,
                transaction_version=transaction_version,
            )
            probe.note(label, [answer, probe.ends(place)])

        write("the same epoch", 0, commit=True)
        write("a lower epoch", -1, commit=True)
        write("the next epoch", 1, commit=True)
        write("the next epoch again", 1, commit=True)
        write("the next epoch, otherwise", 1, commit=False)
        write("the epoch of before", 0, commit=True)
        write("version 1, the epoch of before", 0, commit=True, transaction_version=1)
        write("version 0, the same", 1, commit=True, transaction_version=0)
        probe.note("records", probe.fetch(place))


def a_lost_marker(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A transaction that an operator ended in a partition, and its coordinator ends afterwards."""
    with Probe(bootstrap, names, transcript) as probe:
        place, who = (probe.topic(), 0), probe.producer("id")
        probe.produce(place, sequenced(who, 0, b"a"), who=who, version=TV2_PRODUCE)
        probe.note("marker", write_markers(probe, who, [place], commit=False))
        batch = sequenced(who, 1, b"b")
        probe.note("goes on", probe.produce(place, batch, who=who, version=TV2_PRODUCE))
        probe.note("ends", probe.ends(place))
        probe.ended(who, commit=True, version=TV2_END)
        probe.note("records", probe.fetch(place))
        fields: dict[str, Any] = {"markers": []}
        probe.note("none at all", probe.ask(ApiKey.WRITE_TXN_MARKERS, 1, fields))


SCRIPTS: tuple[Script, ...] = (
    listings,
    transactions_described,
    markers,
    markers_of_new_clients,
    a_lost_marker,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_operators(script: Script, compare: Compare) -> None:
    compare(script)
