"""Offsets in transactions, request by request: when they are seen and what is refused are Apache
Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.steps import commit, join_alone, leave, wait_for_coordinator
from tests.interop.broker.raw.transactions import (
    TV1_END,
    TV2_END,
    TV2_OFFSETS,
    Identity,
    Place,
    Probe,
)
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop


def seen(probe: Probe, group: str, place: Place) -> dict[str, Any]:
    """What the group has committed, for those that wait for transactions and those that do not."""
    return {
        "any": probe.committed(group, place),
        "stable": probe.committed(group, place, stable_only=True),
    }


def visibility(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Every version: pending until the end; then committed, or as if it had never been."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        for version in range(6):
            group, end = names(f"group-{version}"), TV2_END if version == TV2_OFFSETS else TV1_END
            wait_for_coordinator(probe.connection, group)
            who = probe.producer(f"id-{version}")
            for number, commits in enumerate((True, False, True)):
                label = f"v{version} {number}"
                if version < TV2_OFFSETS:
                    answer = probe.add_offsets(who, group, version=min(version, 4))
                    probe.note(f"{label} add", answer)
                error = probe.commit_offset(who, group, place, 10 + number, version=version)
                probe.note(f"{label} commit", error)
                probe.note(f"{label} open", seen(probe, group, place))
                probe.note(f"{label} partitions", len(probe.described(who[0])["topics"]))
                who = probe.ended(who, commit=commits, version=end)
                probe.note(f"{label} ended, commit={commits}", seen(probe, group, place))


def offset_refusals(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """TxnOffsetCommit and AddOffsetsToTxn by strangers, for absent topics, without being added."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic()
        place, group = (topic, 0), names("group")
        wait_for_coordinator(probe.connection, group)
        for version in range(6):
            who = probe.producer(f"id-{version}")
            for added in (False, True):
                label = f"v{version} added={added}"
                for what, other in strangers(who, names).items():
                    adds = min(version, 4)
                    answer = probe.add_offsets(other, group, version=adds)
                    probe.note(f"{label} add, {what}", answer)
                    error = probe.commit_offset(other, group, place, 3, version=version)
                    probe.note(f"{label} commit, {what}", error)
                if added:
                    probe.note(
                        f"{label} add", probe.add_offsets(who, group, version=min(version, 4))
                    )
                odd = {"absent topic": (names("absent"), 0), "absent partition": (topic, 9)}
                for what, where in odd.items():
                    error = probe.commit_offset(who, group, where, 3, version=version)
                    probe.note(f"{label} {what}", error)
                error = probe.commit_offset(who, group, place, 3, version=version)
                probe.note(f"{label} good", error)
                probe.note(f"{label} state", probe.state_of(who))
            error = probe.commit_offset(who, "", place, 3, version=version)
            probe.note(f"v{version} no group", error)
            probe.note(
                f"v{version} add no group", probe.add_offsets(who, "", version=min(version, 4))
            )
            probe.ended(who, commit=False)
        probe.note("nothing of it", seen(probe, group, place))


def strangers(who: Identity, names: Names) -> dict[str, Identity]:
    return {
        "another id": who._replace(producer_id=who.producer_id + (1 << 40)),
        "an old epoch": who.with_epoch(-1),
        "a future epoch": who.with_epoch(1),
        "an unknown name": who._replace(transactional_id=names("unknown")),
        "an empty name": who._replace(transactional_id=""),
    }


def members(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Who is named as a member must be one, of this generation; who is not named is not asked."""
    with Probe(bootstrap, names, transcript) as probe:
        place, group = (probe.topic(), 0), names("group")
        joined = join_alone(probe.connection, group)
        generation, member = joined["generation_id"], joined["member_id"]
        rows: dict[str, dict[str, Any]] = {
            "the member": {"generation_id": generation, "member_id": member},
            "an old generation": {"generation_id": generation - 1, "member_id": member},
            "a future generation": {"generation_id": generation + 1, "member_id": member},
            "no generation": {"generation_id": -1, "member_id": member},
            "a stranger": {"generation_id": generation, "member_id": "stranger"},
            "a stranger without generation": {"generation_id": -1, "member_id": "stranger"},
            "only a generation": {"generation_id": generation, "member_id": ""},
            "an instance": {"generation_id": -1, "member_id": "", "group_instance_id": "i"},
            "nobody": {},
        }
        for version in (3, 4, 5):
            who = probe.producer(f"id-{version}")
            # A group that only a transaction knows is known, too: so each version has its own.
            for name in (group, names(f"absent-{version}")):
                wait_for_coordinator(probe.connection, name)
                probe.add_offsets(who, name)
                for label, more in rows.items():
                    error = probe.commit_offset(who, name, place, 1, version=version, **more)
                    probe.note(f"v{version} {names.hide(name)} {label}", error)
            probe.ended(who, commit=False)
            fields = {"groups": [names(f"absent-{version}")]}
            probe.note("after the abort", probe.ask(ApiKey.DESCRIBE_GROUPS, 5, fields))
        leave(probe.connection, group, member)


def with_plain_commits(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A plain commit beside a pending one: the later of the two in the log stays."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        for commits in (True, False):
            for first in ("plain", "transactional"):
                label = f"{first} first, commit={commits}"
                group, who = names(f"{first} {commits}"), probe.producer(f"{first} {commits}")
                wait_for_coordinator(probe.connection, group)
                order = ["plain", "transactional"]
                for kind in order if first == "plain" else reversed(order):
                    if kind == "plain":
                        commit(probe.connection, group, place[0], 5)
                    else:
                        probe.commit_offset(who, group, place, 9, version=TV2_OFFSETS)
                probe.note(f"{label}, open", seen(probe, group, place))
                probe.ended(who, commit=commits, version=TV2_END)
                probe.note(f"{label}, ended", seen(probe, group, place))


def several_producers(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Two transactions on one offset; each ends by itself, the offset is stable after both."""
    with Probe(bootstrap, names, transcript) as probe:
        place, group = (probe.topic(), 0), names("group")
        wait_for_coordinator(probe.connection, group)
        one, two = probe.producer("one"), probe.producer("two")
        probe.commit_offset(one, group, place, 1, version=TV2_OFFSETS)
        probe.commit_offset(two, group, place, 2, version=TV2_OFFSETS)
        probe.commit_offset(one, group, place, 3, version=TV2_OFFSETS)
        probe.note("both open", seen(probe, group, place))
        probe.ended(one, commit=True, version=TV2_END)
        probe.note("the later one is committed", seen(probe, group, place))
        probe.ended(two, commit=True, version=TV2_END)
        probe.note("both are", seen(probe, group, place))


def deletions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """OffsetDelete and DeleteGroups while offsets are pending."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        for kind in ("offset", "group"):
            for committed_before in (False, True):
                label = f"{kind}, committed before={committed_before}"
                group, who = names(f"g {label}"), probe.producer(f"id {label}")
                wait_for_coordinator(probe.connection, group)
                if committed_before:
                    commit(probe.connection, group, place[0], 5)
                probe.commit_offset(who, group, place, 9, version=TV2_OFFSETS)
                topics = [{"name": place[0], "partitions": [{"partition_index": 0}]}]
                if kind == "offset":
                    fields: dict[str, Any] = {"group_id": group, "topics": topics}
                    answer = probe.ask(ApiKey.OFFSET_DELETE, 0, fields)
                else:
                    fields = {"groups_names": [group]}
                    answer = probe.ask(ApiKey.DELETE_GROUPS, 2, fields)
                probe.note(f"{label}: deleted", answer)
                probe.note(f"{label}: open", seen(probe, group, place))
                probe.ended(who, commit=True, version=TV2_END)
                probe.note(f"{label}: ended", seen(probe, group, place))


def all_at_once(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """OffsetFetch of several groups and of all topics, while some offsets are pending; metadata
    that is too long; a group that only a transaction knows."""
    with Probe(bootstrap, names, transcript) as probe:
        topic, who = probe.topic(partitions=2), probe.producer("id")
        one, two = names("one"), names("two")
        for group in (one, two):
            wait_for_coordinator(probe.connection, group)
        probe.note("groups before", probe.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [one]}))
        commit(probe.connection, two, topic, 5)
        probe.commit_offset(who, one, (topic, 0), 7, version=TV2_OFFSETS)
        probe.commit_offset(who, two, (topic, 1), 8, version=TV2_OFFSETS)
        for stable in (False, True):
            for asked in (None, [{"name": topic, "partition_indexes": [0, 1]}]):
                groups = [{"group_id": name, "topics": asked} for name in (one, two)]
                fields = {"groups": groups, "require_stable": stable}
                label = f"stable={stable}, all={asked is None}"
                probe.note(label, probe.ask(ApiKey.OFFSET_FETCH, 8, fields))
        probe.note("groups open", probe.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [one]}))
        part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
        long = [{"name": topic, "partitions": [{**part, "committed_metadata": "x" * 4097}]}]
        error = probe.commit_offset(who, one, (topic, 0), 1, version=TV2_OFFSETS, topics=long)
        probe.note("long metadata", error)
        probe.ended(who, commit=True, version=TV2_END)
        probe.note("groups ended", probe.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [one]}))
        probe.note("one", seen(probe, one, (topic, 0)))
        probe.note("two", seen(probe, two, (topic, 1)))


SCRIPTS: tuple[Script, ...] = (
    visibility,
    offset_refusals,
    members,
    with_plain_commits,
    several_producers,
    deletions,
    all_at_once,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_offsets_in_transactions(script: Script, compare: Compare) -> None:
    compare(script)
