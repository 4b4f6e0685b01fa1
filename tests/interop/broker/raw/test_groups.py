"""The group protocol request by request: states, refusals and offsets are Apache Kafka's."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import (
    NO_TOPICS,
    RANGE,
    commit,
    commit_fields,
    create_topic,
    join_alone,
    join_fields,
    leave,
    sync_fields,
    wait_for_coordinator,
)
from tests.interop.broker.raw.world import stable
from tests.interop.harness import Compare, Names, Script, Transcript, eventually

pytestmark = pytest.mark.interop


def describe(connection: RawConnection, group: str) -> Any:
    answer = connection.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [group]})
    return answer["groups"][0]


def heartbeat(connection: RawConnection, group: str, generation: int, member: str) -> Any:
    fields = {"group_id": group, "generation_id": generation, "member_id": member}
    return connection.ask(ApiKey.HEARTBEAT, 2, fields)["error_code"]


def offsets(connection: RawConnection, group: str, version: int = 7) -> Any:
    fields = {"group_id": group, "topics": None, "require_stable": True}
    return connection.ask(ApiKey.OFFSET_FETCH, version, fields)


def a_life(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """One member joins, syncs, commits, leaves; the group is described, listed and deleted."""
    topic, group = names("topic"), names("group")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        wait_for_coordinator(connection, group)
        transcript.note("before", stable(describe(connection, group), bootstrap))
        joined = connection.ask(ApiKey.JOIN_GROUP, 4, join_fields(group))
        transcript.note("join without a name", joined)
        joined = connection.ask(ApiKey.JOIN_GROUP, 4, join_fields(group, joined["member_id"]))
        transcript.note("join with the name", joined)
        generation, member = joined["generation_id"], joined["member_id"]
        transcript.note("joined", stable(describe(connection, group), bootstrap))
        early = commit(connection, group, topic, 1, generation=generation, member=member)
        transcript.note("commit before sync", early)
        transcript.note("heartbeat before sync", heartbeat(connection, group, generation, member))
        transcript.note("sync", connection.ask(ApiKey.SYNC_GROUP, 3, sync_fields(group, joined)))
        transcript.note("stable", stable(describe(connection, group), bootstrap))
        transcript.note("heartbeat", heartbeat(connection, group, generation, member))
        error = commit(connection, group, topic, 5, generation=generation, member=member)
        transcript.note("commit", error)
        transcript.note("leave", leave(connection, group, member))
        transcript.note("left", stable(describe(connection, group), bootstrap))
        transcript.note("heartbeat after it", heartbeat(connection, group, generation, member))
        transcript.note("commit after it", commit(connection, group, topic, 6, generation=1))
        transcript.note("offsets", offsets(connection, group))
        assert offsets(connection, group)["topics"][0]["partitions"][0]["committed_offset"] == 5
        deletion = {"groups_names": [group]}
        transcript.note("delete", connection.ask(ApiKey.DELETE_GROUPS, 2, deletion))
        transcript.note("delete again", connection.ask(ApiKey.DELETE_GROUPS, 2, deletion))
        transcript.note("offsets after it", offsets(connection, group))
        transcript.note("after", stable(describe(connection, group), bootstrap))


def join_refusals(bootstrap: str, names: Names, transcript: Transcript) -> None:
    group = names("group")
    with RawConnection(bootstrap) as connection:
        join_alone(connection, group)
        odd: dict[str, dict[str, Any]] = {
            "session too short": {"session_timeout": 5_999},
            "session too long": {"session_timeout": 1_800_001},
            "no group": {"group_id": ""},
            "no protocol": {"protocols": []},
            "no protocol type": {"protocol_type": ""},
            "another protocol type": {"protocol_type": "connect"},
            "no common protocol": {"protocols": [{"name": "other", "metadata": NO_TOPICS}]},
            "an unknown member": {"member_id": "nobody"},
        }
        for label, change in odd.items():
            for version in (2, 5, 9):
                fields = join_fields(group, group_instance_id=None) | change
                answer = connection.ask(ApiKey.JOIN_GROUP, version, fields)
                transcript.note(f"{label} v{version}", answer)
        absent = join_fields(names("absent"), "nobody")
        transcript.note("into an absent group", connection.ask(ApiKey.JOIN_GROUP, 5, absent))


def member_refusals(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Unknown members, wrong generations, absent groups, for each request that names a member."""
    topic, group = names("topic"), names("group")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        joined = join_alone(connection, group)
        member = joined["member_id"]
        wait_for_coordinator(connection, names("absent"))
        for name, who, generation in (
            (group, member, 0),
            (group, member, 9),
            (group, "nobody", 1),
            (group, "", 1),
            (group, "", -1),
            (names("absent"), member, 1),
            (names("absent"), "", 1),
            ("", "", -1),
        ):
            label = f"{names.hide(name)!r} {'member' if who == member else who!r} {generation}"
            transcript.note(f"heartbeat {label}", heartbeat(connection, name, generation, who))
            fields = sync_fields(name, {"member_id": who, "generation_id": generation})
            answer = connection.ask(ApiKey.SYNC_GROUP, 3, fields)
            transcript.note(f"sync {label}", answer["error_code"])
            more: dict[str, Any] = {"generation": generation, "member": who}
            for version in (2, 8, 9):
                fields = commit_fields(name, topic, 3, **more)
                answer = connection.ask(ApiKey.OFFSET_COMMIT, version, fields)
                transcript.note(f"commit v{version} {label}", answer["topics"])
        for who in ("nobody", ""):
            transcript.note(f"leave {who!r}", leave(connection, group, who))
        answer = leave(connection, names("absent"), member)
        transcript.note("leave an absent group", answer)
        rows = [("nobody", None), ("", "no-instance"), (member, "no-instance"), (member, None)]
        identities = [{"member_id": who, "group_instance_id": what} for who, what in rows]
        fields = {"group_id": group, "members": identities}
        transcript.note("leave v3", connection.ask(ApiKey.LEAVE_GROUP, 3, fields))


def offsets_of_groups(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Commits without a group, what is fetched of them, limits, deletion of single offsets."""
    topic, group = names("topic"), names("group")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, partitions=2)
        wait_for_coordinator(connection, group)
        transcript.note("fetch from no group", offsets(connection, group))
        transcript.note("commit", commit(connection, group, topic, 7))
        transcript.note("simple group", stable(describe(connection, group), bootstrap))
        for size in (4096, 4097):
            error = commit(connection, group, topic, 8, committed_metadata="x" * size)
            transcript.note(f"metadata of {size}", error)
        assert error == "OFFSET_METADATA_TOO_LARGE"
        transcript.note(
            "null metadata", commit(connection, group, topic, 9, committed_metadata=None)
        )
        transcript.note("absent topic", commit(connection, group, names("absent"), 1))
        transcript.note("absent partition", commit(connection, group, topic, 1, partition_index=9))
        transcript.note("negative", commit(connection, group, topic, -5, partition_index=1))
        answer = commit(connection, group, topic, 3, partition_index=1, committed_leader_epoch=4)
        transcript.note("with an epoch", answer)
        for version in (2, 5, 7):
            transcript.note(
                f"all of them v{version}", stable(offsets(connection, group, version), bootstrap)
            )
        rows = [{"name": names("absent"), "partition_indexes": [0]}]
        rows.append({"name": topic, "partition_indexes": [0, 1, 2]})
        fields = {"group_id": group, "topics": rows, "require_stable": False}
        answer = connection.ask(ApiKey.OFFSET_FETCH, 6, fields)
        transcript.note("some of them", stable(answer, bootstrap))
        some = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": rows}
        every = {**some, "group_id": names("absent"), "topics": None}
        answer = connection.ask(ApiKey.OFFSET_FETCH, 9, {"groups": [some, every]})
        transcript.note("of two groups", stable(answer, bootstrap))
        parts = [{"partition_index": 0}, {"partition_index": 7}]
        deletion: dict[str, Any] = {"group_id": group}
        deletion["topics"] = [{"name": name, "partitions": parts} for name in (topic, "nothing")]
        answer = connection.ask(ApiKey.OFFSET_DELETE, 0, deletion)
        transcript.note("delete", stable(answer, bootstrap))
        deletion["group_id"] = names("absent")
        transcript.note("delete of no group", connection.ask(ApiKey.OFFSET_DELETE, 0, deletion))
        transcript.note("what is left", stable(offsets(connection, group), bootstrap))


def subscription(*topics: str) -> bytes:
    """What a consumer tells the group: the topics that it wants."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def offsets_in_use(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Offsets of a topic that the group subscribes to cannot be deleted; others can."""
    mine, other, group = names("mine"), names("other"), names("group")
    with RawConnection(bootstrap) as connection:
        for topic in (mine, other):
            create_topic(connection, topic)
        wait_for_coordinator(connection, group)
        protocols = [{"name": "range", "metadata": subscription(mine)}]
        joined = connection.ask(ApiKey.JOIN_GROUP, 3, join_fields(group, protocols=protocols))
        connection.ask(ApiKey.SYNC_GROUP, 3, sync_fields(group, joined))
        who = {"generation": joined["generation_id"], "member": joined["member_id"]}
        for topic in (mine, other):
            assert commit(connection, group, topic, 4, **who) == "NONE"
        parts = [{"partition_index": 0}]
        topics = [{"name": name, "partitions": parts} for name in (mine, other)]
        answer = connection.ask(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
        transcript.note("delete", stable(answer, bootstrap))
        transcript.note("what is left", stable(offsets(connection, group), bootstrap))
        answer = connection.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [group]})
        assert answer["results"][0]["error_code"] == "NON_EMPTY_GROUP"
        transcript.note("delete the group", answer)


def static_member(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """An instance that comes back takes its old place, and its old self is fenced."""
    group, instance = names("group"), "instance"
    with RawConnection(bootstrap) as connection:
        first = join_alone(connection, group, instance=instance)
        transcript.note("first", first)
        fields = join_fields(group, group_instance_id=instance)
        second = connection.ask(ApiKey.JOIN_GROUP, 9, fields)
        transcript.note("came back", second)
        old = {"generation_id": 1, "group_instance_id": instance, "member_id": first["member_id"]}
        answer = connection.ask(ApiKey.HEARTBEAT, 4, {"group_id": group, **old})
        assert answer["error_code"] == "FENCED_INSTANCE_ID"
        transcript.note("heartbeat of the old self", answer)
        answer = connection.ask(ApiKey.JOIN_GROUP, 9, fields | {"member_id": first["member_id"]})
        transcript.note("join of the old self", answer)
        transcript.note("described", stable(describe(connection, group), bootstrap))
        identity = {"member_id": "", "group_instance_id": instance, "reason": "admin"}
        answer = connection.ask(ApiKey.LEAVE_GROUP, 5, {"group_id": group, "members": [identity]})
        transcript.note("removed by its instance", answer)
        transcript.note("at the end", describe(connection, group)["group_state"])


def two_members(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A second member starts a rebalance; the first one learns of it and both go on."""
    group = names("group")
    with (
        RawConnection(bootstrap) as one,
        RawConnection(bootstrap) as two,
        ThreadPoolExecutor(1) as pool,
    ):
        first = join_alone(one, group)
        member = first["member_id"]
        protocols = [*RANGE, {"name": "other", "metadata": NO_TOPICS}]
        joining = pool.submit(
            two.ask, ApiKey.JOIN_GROUP, 3, join_fields(group, protocols=protocols)
        )
        error = eventually(
            lambda: heartbeat(one, group, first["generation_id"], member),
            lambda error: error != "NONE",
        )
        transcript.note("heartbeat", error)
        assert error == "REBALANCE_IN_PROGRESS"
        transcript.note("preparing", describe(one, group)["group_state"])
        late = commit(one, group, names("topic"), 1, generation=1, member=member)
        transcript.note("commit while preparing", late)
        answer = one.ask(ApiKey.SYNC_GROUP, 3, sync_fields(group, first))
        transcript.note("sync while preparing", answer)
        again = one.ask(ApiKey.JOIN_GROUP, 3, join_fields(group, member))
        other = joining.result()
        transcript.note("leader", again | {"members": len(again["members"])})
        transcript.note("follower", other)
        waiting = pool.submit(two.ask, ApiKey.SYNC_GROUP, 3, sync_fields(group, other))
        fields = sync_fields(group, again)
        row = {"member_id": other["member_id"], "assignment": b"for the second"}
        fields["assignments"].append(row)
        transcript.note("leader's part", one.ask(ApiKey.SYNC_GROUP, 3, fields))
        transcript.note("follower's part", waiting.result())
        transcript.note("one leaves", leave(one, group, member))
        error = heartbeat(two, group, other["generation_id"], other["member_id"])
        transcript.note("the other one hears of it", error)


SCRIPTS: tuple[Script, ...] = (
    a_life,
    join_refusals,
    member_refusals,
    offsets_of_groups,
    offsets_in_use,
    static_member,
    two_members,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_groups(script: Script, compare: Compare) -> None:
    compare(script)
