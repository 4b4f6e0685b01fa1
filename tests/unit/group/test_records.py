"""The records of `__consumer_offsets`: byte for byte, and back to the same groups."""

from __future__ import annotations

import struct

import pytest

from onceflow.errors import NewerRecord, RecordError, RecordMalformed
from onceflow.group.persistence import group_of
from onceflow.group.records import (
    GroupKey,
    GroupRecordMalformed,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
)
from onceflow.group.state import Group, GroupState, subscribed_topics
from onceflow.records.partitioning import coordinator_partition
from onceflow.records.plain import PlainRecord, write_records
from onceflow.wire.error_codes import ErrorCode
from tests.unit.group.coordinator_under_test import RANGE, Bench, subscription

GROUP = GroupValue(
    protocol_type="consumer",
    generation=7,
    protocol="range",
    leader="m",
    state_timestamp_ms=1_700_000_000_000,
    members=(MemberValue("m", "i", "c", "/h", 60_000, 10_000, b"\x01\x02", b"\x03"),),
)
GROUP_BYTES = bytes.fromhex(
    "0003"  # version
    "0008 636f6e73756d6572"  # consumer
    "00000007"  # generation
    "0005 72616e6765"  # range
    "0001 6d"  # leader
    "0000018bcfe56800"  # state timestamp
    "00000001"  # one member
    "0001 6d 0001 69 0001 63 0002 2f68"  # member, instance, client, host
    "0000ea60 00002710"  # rebalance and session timeouts
    "00000002 0102 00000001 03"  # subscription, assignment
)


def test_keys_are_written_as_kafka_does() -> None:
    offset = OffsetKey("g", "orders", 3)
    assert encode_key(offset) == bytes.fromhex("0001 0001 67 0006 6f7264657273 00000003")
    assert encode_key(GroupKey("gé")) == bytes.fromhex("0002 0003 67c3a9")
    assert decode_key(encode_key(offset)) == offset
    assert decode_key(b"\x00\x00" + encode_key(offset)[2:]) == offset
    assert decode_key(encode_key(GroupKey("gé"))) == GroupKey("gé")


def test_offsets_are_written_as_kafka_does() -> None:
    value = OffsetValue(258, 5, "hi", 1_700_000_000_000)
    data = bytes.fromhex("0003 0000000000000102 00000005 0002 6869 0000018bcfe56800")
    assert encode_offset(value) == data
    assert decode_offset(data) == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("0000 0000000000000001 0001 6d 0000000000000009", OffsetValue(1, -1, "m", 9)),
        (
            "0001 0000000000000001 0001 6d 0000000000000009 000000000000000a",
            OffsetValue(1, -1, "m", 9, 10),
        ),
        (
            "0001 0000000000000001 0001 6d 0000000000000009 ffffffffffffffff",
            OffsetValue(1, -1, "m", 9),
        ),
        ("0002 0000000000000001 0001 6d 0000000000000009", OffsetValue(1, -1, "m", 9)),
        ("0004 0000000000000001 00000002 02 6d 0000000000000009 00", OffsetValue(1, 2, "m", 9)),
        (
            "0004 0000000000000001 00000002 01 0000000000000009 01 00 10" + "ab" * 16,
            OffsetValue(1, 2, "", 9),
        ),
    ],
)
def test_offsets_of_other_versions_are_read(data: str, value: OffsetValue) -> None:
    assert decode_offset(bytes.fromhex(data)) == value


def test_groups_are_written_as_kafka_does() -> None:
    assert encode_group(GROUP) == GROUP_BYTES
    assert decode_group(GROUP_BYTES) == GROUP
    empty = GroupValue("", 0, None, None, -1, ())
    assert encode_group(empty) == bytes.fromhex(
        "0003 0000 00000000 ffff ffff" + "ff" * 8 + "00" * 4
    )
    assert decode_group(encode_group(empty)) == empty


def older(version: int) -> bytes:
    head = "0008 636f6e73756d6572 00000007 0005 72616e6765 0001 6d"
    since = "0000018bcfe56800" if version >= 2 else ""
    rebalance = "0000ea60" if version >= 1 else ""
    member = f"0001 6d 0001 63 0002 2f68 {rebalance} 00002710 00000002 0102 00000001 03"
    return struct.pack(">h", version) + bytes.fromhex(f"{head} {since} 00000001 {member}")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_groups_of_older_versions_are_read(version: int) -> None:
    member = GROUP.members[0]._replace(
        group_instance_id=None, rebalance_timeout_ms=60_000 if version else 10_000
    )
    since_ms = GROUP.state_timestamp_ms if version == 2 else -1
    expected = GROUP._replace(members=(member,), state_timestamp_ms=since_ms)
    assert decode_group(older(version)) == expected


def test_groups_of_the_flexible_version_are_read() -> None:
    data = bytes.fromhex(
        "0004 09 636f6e73756d6572 00000007 06 72616e6765 02 6d 0000018bcfe56800 02"
        "02 6d 02 69 02 63 03 2f68 0000ea60 00002710 03 0102 02 03 00 00"
    )
    assert decode_group(data) == GROUP


@pytest.mark.parametrize("cut", range(len(GROUP_BYTES)))
def test_a_group_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(GroupRecordMalformed):
        decode_group(GROUP_BYTES[:cut])


@pytest.mark.parametrize(
    "data", ["00", "0003 0000000000000102 00000005 ffff", "0003" + "00" * 12 + "0001 ff"]
)
def test_offsets_that_contradict_the_schema_are_refused(data: str) -> None:
    with pytest.raises(GroupRecordMalformed):
        decode_offset(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("number", "error"),
    [
        ("0005", NewerRecord),
        ("00ff", NewerRecord),
        ("0100", RecordMalformed),
        ("ffff", RecordMalformed),
    ],
)
def test_what_a_newer_version_may_write_is_told_from_what_nobody_does(
    number: str, error: type[RecordError]
) -> None:
    with pytest.raises(error, match="a key of type"):
        decode_key(bytes.fromhex(number + "0001ff"))
    for decode in (decode_offset, decode_group):
        with pytest.raises(error, match="a value of version"):
            decode(bytes.fromhex(number) + GROUP_BYTES[2:])


TWO = (GROUP.members[0], GROUP.members[0]._replace(member_id="other"))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (GROUP._replace(generation=-1), "generation -1"),
        (GROUP._replace(protocol=None), "without a protocol"),
        (GROUP._replace(members=GROUP.members * 2), "one member id"),
        (GROUP._replace(members=TWO), "one group instance id"),
    ],
)
def test_a_group_that_cannot_be_is_not_read_back(value: GroupValue, what: str) -> None:
    with pytest.raises(GroupRecordMalformed, match=what):
        group_of("g", decode_group(encode_group(value)))


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(GroupRecordMalformed, match="32768 bytes"):
        encode_key(GroupKey("x" * 32_768))


# --- placement and subscriptions --------------------------------------------------------------


@pytest.mark.parametrize(
    ("group_id", "partition"),
    # As Apache Kafka places them; Java's hash of the last two is negative.
    [("", 0), ("g", 3), ("group-a", 47), ("my-transactional-id", 46), ("polygenelubricants", 0)],
)
def test_groups_are_placed_by_javas_hash(group_id: str, partition: int) -> None:
    assert coordinator_partition(group_id, 50) == partition


def test_topics_are_read_from_subscriptions_of_any_version_and_nothing_else() -> None:
    assert subscribed_topics(subscription("a", "bc")) == frozenset({"a", "bc"})
    assert subscribed_topics(b"\x00\x07\x00\x00\x00\x00") == frozenset()
    whole = subscription("abc")
    assert all(subscribed_topics(whole[:cut]) is None for cut in range(len(whole) - 8))
    assert subscribed_topics(b"\xff\xff\x00\x00\x00\x00") is None
    assert subscribed_topics(b"\x00\x00\x00\x00\x00\x01\x00\x01\xff") is None
    assert subscribed_topics(b"\x00\x00\x00\x00\x00\x01\xff\xff") is None


# --- replay -----------------------------------------------------------------------------------


def essence(group: Group) -> object:
    """What a record keeps of a group."""
    members = sorted(
        (
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            each.session_timeout_ms,
            each.rebalance_timeout_ms,
            each.assignment,
        )
        for each in group.members.values()
    )
    return (group.state, group.generation, group.protocol_type, group.leader, members)


def test_groups_and_offsets_come_back_from_the_log() -> None:
    bench = Bench()
    leader, _ = bench.stable(2, instances=True)
    bench.commit(5, member_id=leader, generation=1, metadata="note")
    bench.commit(6, group_id="simple", partition=1)
    bench.join(version=3, group_id="gone")
    after = Bench(bench.log)
    assert essence(after.group) == essence(bench.group)
    assert after.group.protocol_name == "range"
    assert after.group.subscribed_topics == frozenset({"orders"})
    assert after.fetch_all() == bench.fetch_all()
    assert after.fetch_all("simple") == bench.fetch_all("simple")
    states = {each.group_id: each.state for each in after.groups.all_groups()}
    assert states == {"g": GroupState.STABLE, "simple": GroupState.EMPTY, "gone": GroupState.EMPTY}


def test_members_that_come_back_go_on_and_others_expire() -> None:
    before = Bench()
    leader, follower = before.stable(2)
    bench = Bench(before.log)
    bench.advance(9)
    assert bench.heartbeat(leader, 1) is ErrorCode.NONE
    assert bench.sync(leader, 1).answer.assignment == leader.encode()
    bench.advance(2)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert follower not in bench.group.members
    assert bench.join(leader).answer.generation == 2


def test_an_empty_group_keeps_counting_generations_after_a_restart() -> None:
    before = Bench()
    (member_id,) = before.stable()
    before.leave(member_id)
    bench = Bench(before.log)
    joined = bench.join(version=3, protocols=RANGE)
    bench.advance(3)
    assert joined.answer.generation == 3


def test_records_of_other_protocols_are_those_of_a_newer_version() -> None:
    bench = Bench()
    key = b"\x00\x03\x00\x01g"
    batch = write_records([PlainRecord(key, b"\x00\x00"), PlainRecord(key, None)], 0)
    ((offset, error),) = bench.groups.replay(0, batch.assign(7, 0))
    assert offset == 7
    assert isinstance(error, NewerRecord)
    assert bench.groups.find("g") is None
