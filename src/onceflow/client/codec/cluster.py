"""The few messages that blocking clients need besides Produce, Fetch and those of transactions, by
hand: a worker process that writes for a second must not load a message library first.

One flexible version of each, offered by every broker since Apache Kafka 3.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from onceflow.client.codec.transactions import INT64, OffsetToCommit
from onceflow.client.net import BrokerAddress, VersionRange
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire import (
    INT16,
    INT32,
    ApiKey,
    count,
    read_count,
    read_int,
    read_text,
    read_uvarint,
    skip_tags,
    text,
)

VERSIONS: Final[Mapping[ApiKey, int]] = {
    ApiKey.API_VERSIONS: 3,
    ApiKey.METADATA: 12,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.DESCRIBE_PRODUCERS: 0,
}
GROUP: Final = 0
TRANSACTION: Final = 1
"""Whose coordinator is looked for."""
_FLEXIBLE: Final = True
_NO_TAGS: Final = b"\x00"
_UUID: Final = 16
_FINALIZED_EPOCH: Final = 1
_FINALIZED: Final = 2
_NO_LEADER_EPOCH: Final = -1


# --- ApiVersions --------------------------------------------------------------------------------


class Offer(NamedTuple):
    """What a broker speaks, and the levels that its cluster has finalized."""

    error: int
    versions: dict[int, VersionRange]
    features: dict[str, int]


def write_api_versions(software: str, version: str) -> bytes:
    return text(_FLEXIBLE, software) + text(_FLEXIBLE, version) + _NO_TAGS


def read_api_versions(buffer: memoryview) -> Offer:
    error, at = read_int(INT16, buffer, 0)
    if error:  # what follows is of the oldest version, where this one is not known
        return Offer(error, {}, {})
    number, at = read_count(_FLEXIBLE, buffer, at)
    versions = {}
    for _ in range(number):
        key, at = read_int(INT16, buffer, at)
        oldest, at = read_int(INT16, buffer, at)
        newest, at = read_int(INT16, buffer, at)
        at = skip_tags(buffer, at)
        versions[key] = VersionRange(oldest, newest)
    _, at = read_int(INT32, buffer, at)
    tagged = _tags(buffer, at)
    epoch = read_int(INT64, tagged[_FINALIZED_EPOCH], 0)[0] if _FINALIZED_EPOCH in tagged else -1
    features = _features(tagged[_FINALIZED]) if epoch >= 0 and _FINALIZED in tagged else {}
    return Offer(error, versions, features)


def _tags(buffer: memoryview, at: int) -> dict[int, memoryview]:
    number, at = read_uvarint(buffer, at)
    found = {}
    for _ in range(number):
        tag, at = read_uvarint(buffer, at)
        size, at = read_uvarint(buffer, at)
        if at + size > len(buffer):
            raise MessageMalformed("a tagged field reaches past the end of the message")
        found[tag] = buffer[at : at + size]
        at += size
    return found


def _features(buffer: memoryview) -> dict[str, int]:
    number, at = read_count(_FLEXIBLE, buffer, 0)
    found = {}
    for _ in range(number):
        name, at = read_text(_FLEXIBLE, buffer, at)
        newest, at = read_int(INT16, buffer, at)
        _, at = read_int(INT16, buffer, at)
        at = skip_tags(buffer, at)
        found[name or ""] = newest
    return found


# --- Metadata -----------------------------------------------------------------------------------


class Leaders(NamedTuple):
    """The brokers, and who leads what."""

    brokers: dict[int, BrokerAddress]
    topics: dict[str, int]
    """The error code of each topic."""
    leaders: dict[TopicPartition, int]
    """-1 where there is none now."""
    ids: dict[str, str]
    """Of the topics that have one."""


def write_metadata(topics: Iterable[str]) -> bytes:
    """Asks for topics, which are not made by asking."""
    names = [bytes(_UUID) + text(_FLEXIBLE, topic) + _NO_TAGS for topic in topics]
    return b"".join((count(_FLEXIBLE, len(names)), *names, b"\x00\x00", _NO_TAGS))


def read_metadata(buffer: memoryview) -> Leaders:
    number, at = read_count(_FLEXIBLE, buffer, INT32.size)
    found = Leaders({}, {}, {}, {})
    for _ in range(number):
        node_id, at = read_int(INT32, buffer, at)
        host, at = read_text(_FLEXIBLE, buffer, at)
        port, at = read_int(INT32, buffer, at)
        _, at = read_text(_FLEXIBLE, buffer, at)
        at = skip_tags(buffer, at)
        found.brokers[node_id] = BrokerAddress(host or "", port)
    _, at = read_text(_FLEXIBLE, buffer, at)
    number, at = read_count(_FLEXIBLE, buffer, at + INT32.size)
    for _ in range(number):
        at = _read_topic(found, buffer, at)
    return found


def _read_topic(found: Leaders, buffer: memoryview, at: int) -> int:
    error, at = read_int(INT16, buffer, at)
    name, at = read_text(_FLEXIBLE, buffer, at)
    topic = name or ""
    found.topics[topic] = error
    topic_id = bytes(buffer[at : at + _UUID])
    number, at = read_count(_FLEXIBLE, buffer, at + _UUID + 1)
    if any(topic_id):
        found.ids[topic] = str(UUID(bytes=topic_id))
    for _ in range(number):
        _, at = read_int(INT16, buffer, at)
        partition, at = read_int(INT32, buffer, at)
        leader, at = read_int(INT32, buffer, at)
        at += INT32.size  # its epoch
        for _ in range(3):  # replicas, those in sync, those offline
            replicas, at = read_count(_FLEXIBLE, buffer, at)
            at += max(replicas, 0) * INT32.size
        at = skip_tags(buffer, at)
        found.leaders[TopicPartition(topic, partition)] = leader
    return skip_tags(buffer, at + INT32.size)


# --- FindCoordinator ----------------------------------------------------------------------------


class FoundCoordinator(NamedTuple):
    """Who looks after a group or a transactional id."""

    error: int
    address: BrokerAddress
    message: str | None


def write_find_coordinator(kind: int, name: str) -> bytes:
    return bytes((kind,)) + count(_FLEXIBLE, 1) + text(_FLEXIBLE, name) + _NO_TAGS


def read_find_coordinator(buffer: memoryview) -> FoundCoordinator:
    number, at = read_count(_FLEXIBLE, buffer, INT32.size)
    if number != 1:
        raise MessageMalformed(f"{number} coordinators where one was asked for")
    _, at = read_text(_FLEXIBLE, buffer, at)
    _, at = read_int(INT32, buffer, at)
    host, at = read_text(_FLEXIBLE, buffer, at)
    port, at = read_int(INT32, buffer, at)
    error, at = read_int(INT16, buffer, at)
    message, _ = read_text(_FLEXIBLE, buffer, at)
    return FoundCoordinator(error, BrokerAddress(host or "", port), message)


# --- ListOffsets --------------------------------------------------------------------------------

_BY_TIME: Final = struct.Struct(">iiq")
_PLACE: Final = struct.Struct(">ihqqi")


def write_list_offsets(partition: TopicPartition, timestamp: int, *, read_committed: bool) -> bytes:
    """Asks for one offset by time, or for the earliest or latest."""
    top = struct.pack(">ib", -1, read_committed) + count(_FLEXIBLE, 1)
    wanted = _BY_TIME.pack(partition.partition, _NO_LEADER_EPOCH, timestamp)
    one = text(_FLEXIBLE, partition.topic) + count(_FLEXIBLE, 1) + wanted
    return top + one + _NO_TAGS * 3


def read_list_offsets(buffer: memoryview) -> tuple[int, int]:
    """Error code and offset."""
    topics, at = read_count(_FLEXIBLE, buffer, INT32.size)
    _, at = read_text(_FLEXIBLE, buffer, at)
    partitions, at = read_count(_FLEXIBLE, buffer, at)
    if topics != 1 or partitions != 1 or at + _PLACE.size > len(buffer):
        raise MessageMalformed("not the one offset that was asked for")
    _, error, _, offset, _ = _PLACE.unpack_from(buffer, at)
    return error, offset


# --- OffsetFetch --------------------------------------------------------------------------------

_COMMITTED: Final = struct.Struct(">iqi")


class Committed(NamedTuple):
    """What a group has committed; offset -1 where it has nothing."""

    error: int
    offsets: dict[TopicPartition, tuple[int, OffsetToCommit]]
    """Each with an error code of its own."""


def write_offset_fetch(
    group_id: str, topics: Mapping[str, Iterable[int]], *, require_stable: bool
) -> bytes:
    """`require_stable`: offsets of a transaction that is open are refused, not hidden."""
    parts = [count(_FLEXIBLE, 1), text(_FLEXIBLE, group_id), count(_FLEXIBLE, len(topics))]
    for topic, partitions in topics.items():
        numbers = [INT32.pack(each) for each in partitions]
        parts += (text(_FLEXIBLE, topic), count(_FLEXIBLE, len(numbers)), *numbers, _NO_TAGS)
    stable = b"\x01" if require_stable else b"\x00"
    return b"".join((*parts, _NO_TAGS, stable, _NO_TAGS))


def read_offset_fetch(buffer: memoryview) -> Committed:
    groups, at = read_count(_FLEXIBLE, buffer, INT32.size)
    if groups != 1:
        raise MessageMalformed(f"{groups} groups where one was asked for")
    _, at = read_text(_FLEXIBLE, buffer, at)
    topics, at = read_count(_FLEXIBLE, buffer, at)
    found = {}
    for _ in range(topics):
        topic, at = read_text(_FLEXIBLE, buffer, at)
        partitions, at = read_count(_FLEXIBLE, buffer, at)
        for _ in range(partitions):
            if at + _COMMITTED.size > len(buffer):
                raise MessageMalformed(f"the answer is cut off at byte {at}")
            number, offset, leader_epoch = _COMMITTED.unpack_from(buffer, at)
            metadata, at = read_text(_FLEXIBLE, buffer, at + _COMMITTED.size)
            error, at = read_int(INT16, buffer, at)
            at = skip_tags(buffer, at)
            place = TopicPartition(topic or "", number)
            found[place] = error, OffsetToCommit(offset, metadata or "", leader_epoch)
        at = skip_tags(buffer, at)
    error, _ = read_int(INT16, buffer, at)
    return Committed(error, found)
