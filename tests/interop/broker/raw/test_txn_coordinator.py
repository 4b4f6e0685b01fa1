"""The transaction coordinator request by request: states, epochs, refusals are Apache Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.transactions import (
    TV1_END,
    TV2_END,
    TV2_PRODUCE,
    VERSIONS,
    Identity,
    Probe,
    sequenced,
)
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop

MAX_TIMEOUT_MS = 900_000
FENCED_BY_NAME = (1, 2, 3)
"""Versions around the first one that has a name of its own for a fenced producer."""


def initialisation(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """InitProducerId: good in every version; each refusal."""
    with Probe(bootstrap, names, transcript) as probe:
        probe.producer("warm")
        for version in range(6):
            name = names(f"id-{version}")
            probe.note(f"v{version}", probe.init(name, version=version))
            probe.note(f"v{version} again", probe.init(name, version=version))
            probe.note(f"v{version} without a name", probe.init(None, version=version))
            probe.note(f"v{version} empty name", probe.init("", version=version))
        for timeout in (0, -1, 1, MAX_TIMEOUT_MS, MAX_TIMEOUT_MS + 1):
            answer = probe.init(names("timeouts"), timeout_ms=timeout)
            probe.note(f"timeout {timeout}", answer)
            answer = probe.init(None, timeout_ms=timeout)
            probe.note(f"timeout {timeout} without a name", answer)
        who = probe.producer("known")
        wrong: dict[str, tuple[int, int]] = {
            "no epoch": (who.producer_id, -1),
            "no id": (-1, 0),
            "another id": (who.producer_id + (1 << 40), 0),
            "a future epoch": (who.producer_id, 5),
            "as it is": (who.producer_id, 0),
            "the same again": (who.producer_id, 0),
            "the new one": (who.producer_id, 1),
            "an old one": (who.producer_id, 0),
            "older than the last": (who.producer_id, -5),
        }
        for label, (producer_id, epoch) in wrong.items():
            answer = probe.init(who.transactional_id, producer_id=producer_id, epoch=epoch)
            probe.note(label, answer)
        for version in (3, 4, 5):
            answer = probe.init(
                who.transactional_id, producer_id=who.producer_id, epoch=9, version=version
            )
            probe.note(f"a future epoch v{version}", answer)
        answer = probe.init(names("never seen"), producer_id=who.producer_id, epoch=3)
        probe.note("a name never seen, with an id", answer)
        probe.note("without a name, with an id", probe.init(None, producer_id=4, epoch=4))


def states(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """DescribeTransactions through a life, by clients of both kinds."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=2)
        probe.note("never seen", probe.described(names("nobody")))
        probe.note("empty name", probe.described(""))
        for end, produce in ((TV1_END, 11), (TV2_END, TV2_PRODUCE)):
            who = probe.producer(f"life-{end}")
            probe.note(f"v{end} new", probe.described(who.transactional_id))
            for commit in (True, False):
                if end == TV1_END:
                    probe.note("add", probe.add(who, (topic, 0), (topic, 1)))
                    probe.note("add again", probe.add(who, (topic, 1)))
                batch = sequenced(who, 0 if end == TV2_END or commit else 1, b"x")
                answer = probe.produce((topic, 0), batch, who=who, version=produce)
                probe.note(f"v{end} produce, commit={commit}", answer)
                probe.note(f"v{end} open, commit={commit}", probe.described(who.transactional_id))
                who = probe.ended(who, commit=commit, version=end)
                probe.note(f"v{end} commit={commit}", probe.described(who.transactional_id))
        probe.note("records", probe.fetch((topic, 0)))


def adding_partitions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """AddPartitionsToTxn as clients send it: each refusal; and the ends of transactions."""
    with Probe(bootstrap, names, transcript) as probe:
        topic, absent = probe.topic(partitions=2), names("absent")
        for version in range(4):
            who = probe.producer(f"adds-{version}")
            good = (topic, 0)
            wrong = {
                "another id": who._replace(producer_id=who.producer_id + (1 << 40)),
                "an old epoch": who.with_epoch(-1),
                "a future epoch": who.with_epoch(1),
                "an unknown name": who._replace(transactional_id=names("unknown")),
                "an empty name": who._replace(transactional_id=""),
            }
            for label, other in wrong.items():
                probe.note(f"v{version} {label}", probe.add(other, good, version=version))
            mixed = (good, (topic, 7), (absent, 0))
            probe.note(f"v{version} some unknown", probe.add(who, *mixed, version=version))
            probe.note(f"v{version} nothing", probe.add(who, version=version))
            probe.note(f"v{version} state", probe.state_of(who))
            probe.note(f"v{version} good", probe.add(who, good, (topic, 1), version=version))
            for label, other in wrong.items():
                probe.note(f"v{version} open, {label}", probe.add(other, good, version=version))
            probe.note(f"v{version} open, unknown", probe.add(who, *mixed, version=version))
            probe.note(f"v{version} end", probe.end(who, commit=False, version=version))
            probe.settle(who)


def batched_adding(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """AddPartitionsToTxn as brokers send it: several transactions in one, some only to verify.
    None at all is not among them: Apache Kafka never answers it."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=2)
        for version in (4, 5):
            one, two = probe.producer(f"one-{version}"), probe.producer(f"two-{version}")
            probe.add(two, (topic, 0))

            def ask(*rows: tuple[Identity, bool, list[int]], version: int = version) -> Any:
                transactions = [
                    {
                        **who.fields(),
                        "verify_only": verify,
                        "topics": [{"name": topic, "partitions": partitions}],
                    }
                    for who, verify, partitions in rows
                ]
                fields = {"transactions": transactions}
                return probe.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)

            probe.note("verify", ask((one, True, [0]), (two, True, [0, 1])))
            probe.note("add", ask((one, False, [0, 1]), (two, True, [1])))
            probe.note("verify again", ask((one, True, [0, 1]), (two, True, [0])))
            probe.note("unknown partition", ask((one, False, [0, 7]), (two, True, [0, 7])))
            for verify in (True, False):
                wrong = {
                    "another id": two._replace(producer_id=two.producer_id + (1 << 40)),
                    "an old epoch": two.with_epoch(-1),
                    "a future epoch": two.with_epoch(1),
                    "an unknown name": two._replace(transactional_id=names("unknown")),
                    "an empty name": two._replace(transactional_id=""),
                }
                for label, who in wrong.items():
                    probe.note(f"v{version} {label} verify={verify}", ask((who, verify, [0])))
            probe.ended(two, commit=True)
            probe.note("verify after the end", ask((two, True, [0])))
            probe.ended(one, commit=False)


def endings(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """EndTxn in the wrong state, twice, the other way, by strangers; both kinds of clients."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic()
        for version in range(6):
            who = probe.producer(f"ends-{version}")
            wrong = {
                "another id": who._replace(producer_id=who.producer_id + (1 << 40)),
                "an old epoch": who.with_epoch(-1),
                "a future epoch": who.with_epoch(1),
                "an unknown name": who._replace(transactional_id=names("unknown")),
                "an empty name": who._replace(transactional_id=""),
            }
            for commit in (True, False):
                label = f"v{version} commit={commit}"
                for what, other in wrong.items():
                    answer = probe.end(other, commit=commit, version=version)
                    probe.note(f"{label} {what}", answer)
            probe.note(
                f"v{version} commit of nothing", probe.end(who, commit=True, version=version)
            )
            for commit in (True, False):
                who = _end_and_repeat(probe, (topic, 0), who, commit=commit, version=version)


def _end_and_repeat(
    probe: Probe, place: tuple[str, int], who: Identity, *, commit: bool, version: int
) -> Identity:
    """One transaction; then each way to end it a second time."""
    assert probe.add(who, place)[0][2] == "NONE"
    after = probe.ended(who, commit=commit, version=version)
    label = f"v{version} after commit={commit}:"
    probe.note(f"{label} epoch", after.producer_epoch - who.producer_epoch)
    for again in (commit, not commit):
        answer = probe.end(who, commit=again, version=version)
        probe.note(f"{label} commit={again} by the old epoch", answer)
        if version == TV2_END:
            older = probe.end(who.with_epoch(-1), commit=again, version=version)
            probe.note(f"{label} commit={again} by an older one", older)
    if version == TV2_END:
        probe.note(f"{label} commit by the new epoch", probe.end(after, commit=True, version=5))
        answer = probe.end(after, commit=False, version=5)
        probe.note(f"{label} abort by the new epoch", answer)
        probe.settle(after)
        if answer["error_code"] == "NONE":
            after = after._replace(producer_epoch=answer["producer_epoch"])
    probe.note(f"{label} state", probe.state_of(after))
    return after


def empty_aborts(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Transactions without anything in them, by clients of both kinds."""
    with Probe(bootstrap, names, transcript) as probe:
        for version in (TV1_END, TV2_END):
            who = probe.producer(f"empty-{version}")
            for commit in (False, True, False):
                answer = probe.end(who, commit=commit, version=version)
                probe.note(f"v{version} commit={commit}", answer)
                probe.settle(who)
                probe.note(f"v{version} state", probe.described(who.transactional_id))
                if answer["error_code"] == "NONE" and version == TV2_END:
                    who = who._replace(producer_epoch=answer["producer_epoch"])
            probe.note(f"v{version} init", probe.init(who.transactional_id))


def fencing(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A second producer of one name aborts the open transaction of the first and shuts it out."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        for version, produce in ((TV1_END, 11), (TV2_END, TV2_PRODUCE)):
            old = probe.producer(f"fenced-{version}")
            probe.note("empty", probe.init(old.transactional_id))
            old = old.with_epoch(1)
            probe.add(old, place)
            probe.note("produce", probe.produce(place, sequenced(old, 0, b"a"), who=old))
            probe.note(f"v{version} while open", probe.init(old.transactional_id))
            new = probe.producer(f"fenced-{version}")
            probe.note(f"v{version} epochs between", new.producer_epoch - old.producer_epoch)
            probe.note("state", probe.described(new.transactional_id))
            answer = probe.produce(place, sequenced(old, 1, b"b"), who=old, version=produce)
            probe.note(f"v{produce} the old one produces", answer)
            for api_version in FENCED_BY_NAME:
                answer = probe.add(old, place, version=api_version)
                probe.note(f"v{api_version} the old one adds", answer)
                answer = probe.add_offsets(old, names("group"), version=api_version)
                probe.note(f"v{api_version} the old one adds offsets", answer)
                answer = probe.end(old, commit=True, version=api_version)
                probe.note(f"v{api_version} the old one commits", answer)
            for commit in (True, False):
                for which in (old, old.with_epoch(1)):
                    answer = probe.end(which, commit=commit, version=version)
                    label = f"v{version} commit={commit} by {which.producer_epoch}"
                    probe.note(label, answer)
            answer = probe.init(
                old.transactional_id, producer_id=old.producer_id, epoch=old.producer_epoch
            )
            probe.note("the old one starts again", answer)
            probe.note("records", probe.fetch(place))


def coordinators(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """FindCoordinator for transactions, in every version that can ask; features of the broker."""
    with Probe(bootstrap, names, transcript) as probe:
        probe.producer("warm")
        for version in range(1, 7):
            keys = [names("a"), names("b")]
            fields = {"key": keys[0], "key_type": 1, "coordinator_keys": keys}
            probe.note(f"v{version}", probe.ask(ApiKey.FIND_COORDINATOR, version, fields))
            fields = {"key": "", "key_type": 1, "coordinator_keys": [""]}
            probe.note(f"v{version} empty", probe.ask(ApiKey.FIND_COORDINATOR, version, fields))
        fields = {"key": "x", "key_type": 3, "coordinator_keys": ["x"]}
        probe.note("unknown kind", probe.ask(ApiKey.FIND_COORDINATOR, 4, fields))
        software = {"client_software_name": "raw-probe", "client_software_version": "1.0"}
        for version in (3, 4):
            answer = probe.ask(ApiKey.API_VERSIONS, version, software)
            for kind in ("supported_features", "finalized_features"):
                rows = [row for row in answer[kind] if row["name"] == "transaction.version"]
                probe.note(f"v{version} {kind}", rows)
            assert answer["finalized_features_epoch"] >= 0
        ranges = {row["api_key"]: row for row in answer["api_keys"]}
        for api in VERSIONS:
            probe.note(api.name, ranges.get(api))


SCRIPTS: tuple[Script, ...] = (
    initialisation,
    states,
    adding_partitions,
    batched_adding,
    endings,
    empty_aborts,
    fencing,
    coordinators,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_coordinator(script: Script, compare: Compare) -> None:
    compare(script)
