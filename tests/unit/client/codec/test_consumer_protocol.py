"""What members of a group tell each other: the bytes, as other clients write and read them."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, strategies as st

from onceflow.client.codec.consumer_protocol import (
    ConsumerProtocolSubscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition

with warnings.catch_warnings():
    # It reads its message schemas, while it is imported, by a function that Python deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.protocol.consumer.metadata import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription as TheirSubscription,
    )

P = TopicPartition
WISH = ConsumerProtocolSubscription(
    topics=("b", "a"),
    user_data=b"\x00\x00\x00\x07",
    owned=(P("b", 1), P("a", 2), P("b", 0)),
    generation=7,
    rack="east",
)
# Version 3; topics a, b; user data; owned a: 2, b: 0, 1; generation; rack.
WISH_BYTES = bytes.fromhex(
    "0003"
    "00000002 0001 61 0001 62"
    "00000004 00000007"
    "00000002 0001 61 00000001 00000002 0001 62 00000002 00000000 00000001"
    "00000007"
    "0004 65617374"
)
ASSIGNMENT_BYTES = bytes.fromhex(
    "0000 00000002 0001 61 00000001 00000002 0001 62 00000002 00000000 00000001 ffffffff"
)


def test_a_subscription_is_the_same_bytes_in_whatever_order_it_was_made() -> None:
    assert write_subscription(WISH) == WISH_BYTES
    assert read_subscription(WISH_BYTES) == ConsumerProtocolSubscription(
        topics=("a", "b"),
        user_data=b"\x00\x00\x00\x07",
        owned=(P("a", 2), P("b", 0), P("b", 1)),
        generation=7,
        rack="east",
    )


def test_an_assignment_is_version_0() -> None:
    assert write_assignment(WISH.owned) == ASSIGNMENT_BYTES
    assert read_assignment(ASSIGNMENT_BYTES) == (P("a", 2), P("b", 0), P("b", 1))
    assert read_assignment(b"") == ()


def test_others_read_what_we_write() -> None:
    theirs = TheirSubscription.decode(write_subscription(WISH))
    assert (theirs.version, list(theirs.topics), theirs.generation_id) == (3, ["a", "b"], 7)
    assert [(each.topic, each.partitions) for each in theirs.owned_partitions] == [
        ("a", [2]),
        ("b", [0, 1]),
    ]
    assert theirs.rack_id == "east"
    given_out = ConsumerProtocolAssignment.decode(write_assignment(WISH.owned))
    assert [(each.topic, each.partitions) for each in given_out.assigned_partitions] == [
        ("a", [2]),
        ("b", [0, 1]),
    ]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_we_read_what_others_write_in_every_version(version: int) -> None:
    owned = [TheirSubscription.TopicPartition(topic="a", partitions=[3])]
    theirs = TheirSubscription(
        version=version,
        topics=["a"],
        user_data=None,
        owned_partitions=owned,
        generation_id=5,
        rack_id="west",
    )
    assert read_subscription(theirs.encode()) == ConsumerProtocolSubscription(
        topics=("a",),
        owned=(P("a", 3),) if version >= 1 else (),
        generation=5 if version >= 2 else -1,
        rack="west" if version >= 3 else None,
    )


def test_later_versions_are_read_as_far_as_they_are_known() -> None:
    newer = b"\x00\x09" + WISH_BYTES[2:] + b"something new"
    assert read_subscription(newer) == read_subscription(WISH_BYTES)
    assert read_assignment(b"\x00\x05" + ASSIGNMENT_BYTES[2:] + b"more") == (
        P("a", 2),
        P("b", 0),
        P("b", 1),
    )


@given(st.integers(0, len(WISH_BYTES) - 1))
def test_what_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(MessageMalformed):
        read_subscription(WISH_BYTES[:length])


@pytest.mark.parametrize("read", [read_subscription, read_assignment])
def test_versions_below_zero_are_refused(read: object) -> None:
    assert callable(read)
    with pytest.raises(MessageMalformed, match="version -1"):
        read(b"\xff\xff\x00\x00\x00\x00")
