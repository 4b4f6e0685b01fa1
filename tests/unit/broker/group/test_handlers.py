"""The group APIs over the wire, in every version that is served."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceflow.broker.group.coordinator import GroupService
from onceflow.group.state import GroupState
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.broker.group.group_requests import nested, send, versions
from tests.unit.group.coordinator_under_test import Asked, Bench, subscription


class Host:
    """A broker, as far as the handlers of groups look at it."""

    def __init__(self, bench: Bench) -> None:
        self.groups: GroupService = bench.groups


def ask(bench: Bench, key: ApiKey, version: int, **fields: Any) -> Asked[Any]:
    """Sends a request to the groups."""
    return send(Host(bench), key, version, **fields)


def join_fields(version: int, **more: Any) -> dict[str, Any]:
    protocol = nested(
        ApiKey.JOIN_GROUP,
        version,
        "JoinGroupRequestProtocol",
        name="range",
        metadata=subscription("orders"),
    )
    return {
        "group_id": "g",
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=60),
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": (protocol,),
        **more,
    }


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_join_group(version: int) -> None:
    bench = Bench()
    member_id = ""
    if version >= 4:
        first = ask(bench, ApiKey.JOIN_GROUP, version, **join_fields(version)).answer
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert first.protocol_name == ("" if version < 7 else None)
        member_id = first.member_id
    asked = ask(bench, ApiKey.JOIN_GROUP, version, **join_fields(version, member_id=member_id))
    bench.advance(3)
    joined = asked.answer
    assert joined.error_code == ErrorCode.NONE
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert joined.members[0].metadata == subscription("orders")
    (member,) = bench.group.members.values()
    assert member.rebalance_timeout_ms == (60_000 if version else 10_000)
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_sync_group(version: int) -> None:
    bench = Bench()
    member_id, _ = bench.new_member()
    bench.advance(3)
    assignment = nested(
        ApiKey.SYNC_GROUP,
        version,
        "SyncGroupRequestAssignment",
        member_id=member_id,
        assignment=b"A",
    )
    fields = {
        "group_id": "g",
        "generation_id": 1,
        "member_id": member_id,
        "assignments": (assignment,),
    }
    if version >= 5:
        nameless = ask(bench, ApiKey.SYNC_GROUP, version, **fields).answer
        assert nameless.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
    synced = ask(bench, ApiKey.SYNC_GROUP, version, **fields).answer
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"A")


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeat(version: int) -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    fields = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    alive = ask(bench, ApiKey.HEARTBEAT, version, **fields).answer
    assert alive.error_code == ErrorCode.NONE
    stale = ask(bench, ApiKey.HEARTBEAT, version, **fields | {"generation_id": 0}).answer
    assert stale.error_code == ErrorCode.ILLEGAL_GENERATION
    nameless = ask(bench, ApiKey.HEARTBEAT, version, **fields | {"group_id": ""}).answer
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_leave_group(version: int) -> None:
    bench = Bench()
    member_id, _ = bench.stable(2)

    def leave(member_id: str) -> Any:
        fields: dict[str, Any] = {"group_id": "g", "member_id": member_id}
        if version >= 3:
            identity = nested(ApiKey.LEAVE_GROUP, version, "MemberIdentity", member_id=member_id)
            fields["members"] = (identity,)
        return ask(bench, ApiKey.LEAVE_GROUP, version, **fields).answer

    unknown, left = leave("stranger"), leave(member_id)
    if version >= 3:
        assert unknown.error_code == left.error_code == ErrorCode.NONE
        assert left.members[0].member_id == member_id
        unknown, left = unknown.members[0], left.members[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert left.error_code == ErrorCode.NONE
    assert bench.state() is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_offset_commit(version: int) -> None:
    bench = Bench()
    key = ApiKey.OFFSET_COMMIT

    def topic(name: str) -> Any:
        partition = nested(
            key,
            version,
            "OffsetCommitRequestPartition",
            partition_index=1,
            committed_offset=7,
            committed_leader_epoch=2,
            committed_metadata="m",
        )
        return nested(key, version, "OffsetCommitRequestTopic", name=name, partitions=(partition,))

    topics = (topic("orders"), topic("nowhere"))
    simple = {"generation_id_or_member_epoch": -1, "retention_time": timedelta(milliseconds=-1)}
    answer = ask(bench, key, version, group_id="g", topics=topics, **simple).answer
    codes = [(each.name, each.partitions[0].error_code) for each in answer.topics]
    assert codes == [
        ("orders", ErrorCode.NONE),
        ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    value = bench.fetch_all()[0][1][0][1]
    assert value is not None
    assert (value.offset, value.metadata) == (7, "m")
    assert value.leader_epoch == (2 if version >= 6 else -1)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offset_fetch(version: int) -> None:
    bench = Bench()
    bench.commit(7, partition=1, metadata="m")
    name = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
    some = (nested(ApiKey.OFFSET_FETCH, version, name, name="orders", partition_indexes=(0, 1)),)

    def fetch(topics: Any) -> Any:
        fields: dict[str, Any] = {"group_id": "g", "topics": topics}
        if version >= 8:
            group = nested(ApiKey.OFFSET_FETCH, version, "OffsetFetchRequestGroup", **fields)
            fields = {"groups": (group,)}
        answer = ask(bench, ApiKey.OFFSET_FETCH, version, **fields).answer
        return answer.groups[0] if version >= 8 else answer

    (topic,) = fetch(some).topics
    none, found = topic.partitions
    assert (none.partition_index, none.committed_offset, none.metadata) == (0, -1, "")
    assert (found.partition_index, found.committed_offset, found.metadata) == (1, 7, "m")
    assert none.error_code == found.error_code == ErrorCode.NONE
    assert not fetch(()).topics
    if version >= 2:
        everything = fetch(None)
        assert everything.error_code == ErrorCode.NONE
        assert [len(each.partitions) for each in everything.topics] == [1]


def test_offset_fetch_of_many_groups() -> None:
    bench = Bench()
    bench.commit(1, group_id="a")
    bench.commit(2, group_id="b")
    key = ApiKey.OFFSET_FETCH
    groups = tuple(
        nested(key, 9, "OffsetFetchRequestGroup", group_id=each, topics=None) for each in "abc"
    )
    answer = ask(bench, key, 9, groups=groups, require_stable=True).answer
    found = {
        each.group_id: [topic.partitions[0].committed_offset for topic in each.topics]
        for each in answer.groups
    }
    assert found == {"a": [1], "b": [2], "c": []}


def test_offset_delete() -> None:
    bench = Bench()
    bench.commit(1)
    key = ApiKey.OFFSET_DELETE
    partition = nested(key, 0, "OffsetDeleteRequestPartition", partition_index=0)
    topics = tuple(
        nested(key, 0, "OffsetDeleteRequestTopic", name=name, partitions=(partition,))
        for name in ("orders", "nowhere")
    )
    answer = ask(bench, key, 0, group_id="g", topics=topics).answer
    codes = [(each.name, each.partitions[0].error_code) for each in answer.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [("orders", ErrorCode.NONE), ("nowhere", unknown)]
    assert bench.fetch() is None
    missing = ask(bench, key, 0, group_id="nobody", topics=topics).answer
    assert (missing.error_code, missing.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, ())


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_list_groups(version: int) -> None:
    bench = Bench()
    bench.stable()
    bench.commit(1, group_id="simple")

    def listed(**filters: Any) -> list[str]:
        answer = ask(bench, ApiKey.LIST_GROUPS, version, **filters).answer
        assert answer.error_code == ErrorCode.NONE
        return [each.group_id for each in answer.groups]

    assert listed() == ["g", "simple"]
    answer = ask(bench, ApiKey.LIST_GROUPS, version).answer
    assert [each.protocol_type for each in answer.groups] == ["consumer", ""]
    if version >= 4:
        assert [each.group_state for each in answer.groups] == ["Stable", "Empty"]
        assert listed(states_filter=("stable", "Dead")) == ["g"]
    if version >= 5:
        assert {each.group_type for each in answer.groups} == {"classic"}
        assert listed(types_filter=("Classic",)) == ["g", "simple"]
        assert listed(types_filter=("consumer",)) == []


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_describe_groups(version: int) -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    fields = {"groups": ("g", "nobody"), "include_authorized_operations": True}
    described, missing = ask(bench, ApiKey.DESCRIBE_GROUPS, version, **fields).answer.groups
    assert (described.error_code, described.group_state) == (ErrorCode.NONE, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.client_id) == (member_id, "client")
    assert member.member_metadata == subscription("orders")
    assert member.member_assignment == member_id.encode()
    assert missing.group_state == "Dead"
    if version >= 3:
        assert described.authorized_operations == 3400
    if version >= 6:
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert missing.error_message == "Group nobody not found."
        assert missing.authorized_operations == -(2**31)
    else:
        assert missing.error_code == ErrorCode.NONE
    bench.new_member()
    (moving, _) = ask(bench, ApiKey.DESCRIBE_GROUPS, version, groups=("g", "x")).answer.groups
    assert (moving.group_state, moving.protocol_data) == ("PreparingRebalance", "")
    assert {each.member_metadata for each in moving.members} == {b""}


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_delete_groups(version: int) -> None:
    bench = Bench()
    bench.stable()
    bench.commit(1, group_id="simple")
    names = ("simple", "g", "nobody")
    answer = ask(bench, ApiKey.DELETE_GROUPS, version, groups_names=names).answer
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("simple", ErrorCode.NONE),
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
