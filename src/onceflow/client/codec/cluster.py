"""The messages about the cluster itself, and the few others that a worker process needs, by hand:
one that writes for a second must not load a message library first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.request import Request
from onceflow.client.codec.transactions import INT64, OffsetToCommit
from onceflow.client.codec.versions import SPOKEN, VersionRange
from onceflow.client.errors import TopicNameInvalid
from onceflow.client.types import PartitionMetadata, TopicMetadata, by_topic
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire import (
    INT16,
    INT32,
    LONGEST_NAME,
    ApiKey,
    ErrorCode,
    count,
    is_flexible,
    read_count,
    read_int,
    read_text,
    read_uvarint,
    skip_tags,
    text,
)

GROUP: Final = 0
TRANSACTION: Final = 1
"""Whose coordinator is looked for."""
_FLEXIBLE: Final = True
_NO_TAGS: Final = b"\x00"
_UUID: Final = 16
_NO_LEADER_EPOCH: Final = -1


# --- ApiVersions --------------------------------------------------------------------------------

_FINALIZED_EPOCH: Final = 1
_FINALIZED: Final = 2
_WITH_FINALIZED: Final = 3
UNKNOWN_EPOCH: Final = -1


class BrokerOffer(NamedTuple):
    """The versions that a broker speaks, and the feature levels that its cluster has finalized."""

    error: int
    versions: dict[int, VersionRange]
    features: dict[str, int]
    features_epoch: int
    """How new the knowledge of the features is; -1 without any."""


NO_OFFER: Final = BrokerOffer(0, {}, {}, UNKNOWN_EPOCH)


def write_api_versions(version: int, software: str, software_version: str) -> bytes:
    if not is_flexible(ApiKey.API_VERSIONS, version):
        return b""
    return text(_FLEXIBLE, software) + text(_FLEXIBLE, software_version) + _NO_TAGS


def read_api_versions(version: int, buffer: memoryview) -> BrokerOffer:
    """A broker that does not know the version answers in version 0, with an error."""
    error, at = read_int(INT16, buffer, 0)
    if error == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    flexible = is_flexible(ApiKey.API_VERSIONS, version)
    number, at = read_count(flexible, buffer, at)
    versions = {}
    for _ in range(number):
        key, at = read_int(INT16, buffer, at)
        oldest, at = read_int(INT16, buffer, at)
        newest, at = read_int(INT16, buffer, at)
        at = skip_tags(buffer, at) if flexible else at
        versions[key] = VersionRange(oldest, newest)
    features: dict[str, int] = {}
    epoch = UNKNOWN_EPOCH
    if version >= _WITH_FINALIZED:
        _, at = read_int(INT32, buffer, at)  # how long the request was throttled
        tagged = _tags(buffer, at)
        if _FINALIZED_EPOCH in tagged:
            epoch = read_int(INT64, tagged[_FINALIZED_EPOCH], 0)[0]
        if epoch >= 0 and _FINALIZED in tagged:  # else they are not valid
            features = _features(tagged[_FINALIZED])
    return BrokerOffer(error, versions, features, epoch)


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

_OFFLINE_FROM: Final = 5
_LEADER_EPOCH_FROM: Final = 7
_OPERATIONS_FROM: Final = 8
_TOPIC_ID_FROM: Final = 10
_CLUSTER_OPERATIONS_TO: Final = 10
_BOOLEAN: Final = struct.Struct(">?")
_PARTITION: Final = struct.Struct(">hii")
"""Its error, number and leader."""


class FoundTopic(NamedTuple):
    """A topic in a metadata response; with an error it has no partitions."""

    error: int
    topic: TopicMetadata


class MetadataResponse(NamedTuple):
    """The brokers that are alive, and the topics that were asked for."""

    brokers: dict[int, BrokerAddress]
    controller: int
    topics: tuple[FoundTopic, ...]


def metadata_request(
    topics: Iterable[str] | None, *, create: bool = False
) -> Request[MetadataResponse]:
    """None asks for all topics. `create` lets brokers with `auto.create.topics.enable` create those
    that do not exist. Raises `TopicNameInvalid`."""
    names = None if topics is None else tuple(topics)
    for name in names or ():
        if len(name) > LONGEST_NAME:  # longer ones may not fit into the message
            raise TopicNameInvalid(name)
    return Request(
        ApiKey.METADATA,
        SPOKEN[ApiKey.METADATA],
        partial(_write_metadata, names, create),
        _read_metadata,
    )


def _write_metadata(names: tuple[str, ...] | None, create: bool, version: int) -> bytes:
    flexible = is_flexible(ApiKey.METADATA, version)
    topic_id = bytes(_UUID) if version >= _TOPIC_ID_FROM else b""
    tags = _NO_TAGS if flexible else b""
    parts = [count(flexible, -1 if names is None else len(names))]
    parts += [topic_id + text(flexible, name) + tags for name in names or ()]
    parts.append(b"\x01" if create else b"\x00")
    if version >= _OPERATIONS_FROM:  # of the topic and, in some versions, of the cluster
        parts.append(b"\x00\x00" if version <= _CLUSTER_OPERATIONS_TO else b"\x00")
    return b"".join((*parts, tags))


def _read_metadata(version: int, buffer: memoryview) -> MetadataResponse:
    flexible = is_flexible(ApiKey.METADATA, version)
    number, at = read_count(flexible, buffer, INT32.size)
    brokers = {}
    for _ in range(number):
        node_id, at = read_int(INT32, buffer, at)
        host, at = read_text(flexible, buffer, at)
        port, at = read_int(INT32, buffer, at)
        _, at = read_text(flexible, buffer, at)
        at = skip_tags(buffer, at) if flexible else at
        brokers[node_id] = BrokerAddress(host or "", port)
    _, at = read_text(flexible, buffer, at)
    controller, at = read_int(INT32, buffer, at)
    number, at = read_count(flexible, buffer, at)
    topics = []
    for _ in range(number):
        found, at = _read_topic(version, flexible, buffer, at)
        topics.append(found)
    return MetadataResponse(brokers, controller, tuple(topics))


def _read_topic(
    version: int, flexible: bool, buffer: memoryview, at: int
) -> tuple[FoundTopic, int]:
    error, at = read_int(INT16, buffer, at)
    name, at = read_text(flexible, buffer, at)
    topic_id = b""
    if version >= _TOPIC_ID_FROM:
        topic_id = bytes(buffer[at : at + _UUID])
        at += _UUID
    internal, at = read_int(_BOOLEAN, buffer, at)
    number, at = read_count(flexible, buffer, at)
    partitions = []
    for _ in range(number):
        partition, at = _read_partition(version, flexible, buffer, at)
        partitions.append(partition)
    if version >= _OPERATIONS_FROM:
        at += INT32.size
    if flexible:
        at = skip_tags(buffer, at)
    topic = TopicMetadata(
        name=name or "",
        topic_id=UUID(bytes=topic_id) if any(topic_id) else None,
        is_internal=bool(internal),
        partitions=tuple(sorted(partitions, key=lambda each: each.partition)),
    )
    return FoundTopic(error, topic), at


def _read_partition(
    version: int, flexible: bool, buffer: memoryview, at: int
) -> tuple[PartitionMetadata, int]:
    if at + _PARTITION.size > len(buffer):
        raise MessageMalformed(f"the message is cut off at byte {at}")
    _, number, leader = _PARTITION.unpack_from(buffer, at)
    at += _PARTITION.size + (INT32.size if version >= _LEADER_EPOCH_FROM else 0)
    replicas, at = _read_nodes(flexible, buffer, at)
    in_sync, at = _read_nodes(flexible, buffer, at)
    if version >= _OFFLINE_FROM:
        _, at = _read_nodes(flexible, buffer, at)
    if flexible:
        at = skip_tags(buffer, at)
    return PartitionMetadata(number, leader, replicas, in_sync), at


def _read_nodes(flexible: bool, buffer: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    number, at = read_count(flexible, buffer, at)
    end = at + max(number, 0) * INT32.size
    if end > len(buffer):
        raise MessageMalformed(f"the message is cut off at byte {at}")
    return struct.unpack_from(f">{max(number, 0)}i", buffer, at), end


# --- FindCoordinator ----------------------------------------------------------------------------


class FoundCoordinator(NamedTuple):
    """Who looks after a group or a transactional id."""

    error: int
    message: str | None
    node_id: int
    address: BrokerAddress


def find_coordinator_request(kind: int, name: str) -> Request[FoundCoordinator]:
    body = bytes((kind,)) + count(_FLEXIBLE, 1) + text(_FLEXIBLE, name) + _NO_TAGS
    return Request(
        ApiKey.FIND_COORDINATOR, VersionRange(4, 4), lambda _: body, _read_find_coordinator
    )


def _read_find_coordinator(_version: int, buffer: memoryview) -> FoundCoordinator:
    number, at = read_count(_FLEXIBLE, buffer, INT32.size)
    if number <= 0:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return FoundCoordinator(code, None, -1, BrokerAddress("", 0))
    if number != 1:
        raise MessageMalformed(f"{number} coordinators where one was asked for")
    _, at = read_text(_FLEXIBLE, buffer, at)
    node_id, at = read_int(INT32, buffer, at)
    host, at = read_text(_FLEXIBLE, buffer, at)
    port, at = read_int(INT32, buffer, at)
    error, at = read_int(INT16, buffer, at)
    message, _ = read_text(_FLEXIBLE, buffer, at)
    return FoundCoordinator(error, message, node_id, BrokerAddress(host or "", port))


# --- ListOffsets --------------------------------------------------------------------------------

_BY_TIME: Final = struct.Struct(">iiq")
_PLACE: Final = struct.Struct(">ihqqi")


class ListedOffset(NamedTuple):
    """The offset of one partition."""

    error: int
    offset: int


def list_offset_request(
    partition: TopicPartition, timestamp: int, *, read_committed: bool
) -> Request[ListedOffset]:
    """Asks for one offset by time, or for the earliest or latest."""
    top = struct.pack(">ib", -1, read_committed) + count(_FLEXIBLE, 1)
    wanted = _BY_TIME.pack(partition.partition, _NO_LEADER_EPOCH, timestamp)
    one = text(_FLEXIBLE, partition.topic) + count(_FLEXIBLE, 1) + wanted
    body = top + one + _NO_TAGS * 3
    return Request(ApiKey.LIST_OFFSETS, VersionRange(7, 7), lambda _: body, _read_list_offsets)


def _read_list_offsets(_version: int, buffer: memoryview) -> ListedOffset:
    topics, at = read_count(_FLEXIBLE, buffer, INT32.size)
    _, at = read_text(_FLEXIBLE, buffer, at)
    partitions, at = read_count(_FLEXIBLE, buffer, at)
    if topics != 1 or partitions != 1 or at + _PLACE.size > len(buffer):
        raise MessageMalformed("not the one offset that was asked for")
    _, error, _, offset, _ = _PLACE.unpack_from(buffer, at)
    return ListedOffset(error, offset)


# --- OffsetFetch --------------------------------------------------------------------------------

_COMMITTED: Final = struct.Struct(">iqi")


class FetchedOffsets(NamedTuple):
    """What a group has committed; offset -1 where it has nothing."""

    error: int
    offsets: dict[TopicPartition, tuple[int, OffsetToCommit]]
    """Each with an error code of its own."""


def offset_fetch_request(
    group_id: str, topics: Mapping[str, Iterable[int]], *, require_stable: bool
) -> Request[FetchedOffsets]:
    """`require_stable`: offsets of a transaction that is open are refused, not hidden."""
    parts = [count(_FLEXIBLE, 1), text(_FLEXIBLE, group_id), count(_FLEXIBLE, len(topics))]
    for topic, partitions in topics.items():
        numbers = [INT32.pack(each) for each in partitions]
        parts += (text(_FLEXIBLE, topic), count(_FLEXIBLE, len(numbers)), *numbers, _NO_TAGS)
    stable = b"\x01" if require_stable else b"\x00"
    body = b"".join((*parts, _NO_TAGS, stable, _NO_TAGS))
    return Request(ApiKey.OFFSET_FETCH, VersionRange(8, 8), lambda _: body, _read_offset_fetch)


def _read_offset_fetch(_version: int, buffer: memoryview) -> FetchedOffsets:
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
    return FetchedOffsets(error, found)


# --- DescribeProducers --------------------------------------------------------------------------

_NONE_OPEN: Final = -1
_PRODUCER: Final = struct.Struct(">qiiqiq")


class HangingTransaction(NamedTuple):
    """A transaction that a leader holds open."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int


class DescribedProducers(NamedTuple):
    """The open transactions that a leader reports, and the partitions that it refuses to report."""

    open: list[HangingTransaction]
    errors: dict[TopicPartition, int]


def describe_producers_request(
    partitions: Iterable[TopicPartition],
) -> Request[DescribedProducers]:
    topics = by_topic(partitions)
    parts = [count(_FLEXIBLE, len(topics))]
    for topic, numbers in topics.items():
        packed = [INT32.pack(each) for each in numbers]
        parts += (text(_FLEXIBLE, topic), count(_FLEXIBLE, len(packed)), *packed, _NO_TAGS)
    body = b"".join((*parts, _NO_TAGS))
    key = ApiKey.DESCRIBE_PRODUCERS
    return Request(key, VersionRange(0, 0), lambda _: body, _read_describe_producers)


def _read_describe_producers(_version: int, buffer: memoryview) -> DescribedProducers:
    found = DescribedProducers([], {})
    topics, at = read_count(_FLEXIBLE, buffer, INT32.size)
    for _ in range(topics):
        topic, at = read_text(_FLEXIBLE, buffer, at)
        partitions, at = read_count(_FLEXIBLE, buffer, at)
        for _ in range(partitions):
            at = _read_producers(found, topic or "", buffer, at)
        at = skip_tags(buffer, at)
    return found


def _read_producers(found: DescribedProducers, topic: str, buffer: memoryview, at: int) -> int:
    number, at = read_int(INT32, buffer, at)
    error, at = read_int(INT16, buffer, at)
    _, at = read_text(_FLEXIBLE, buffer, at)
    place = TopicPartition(topic, number)
    if error:
        found.errors[place] = error
    producers, at = read_count(_FLEXIBLE, buffer, at)
    for _ in range(producers):
        if at + _PRODUCER.size > len(buffer):
            raise MessageMalformed(f"the answer is cut off at byte {at}")
        producer_id, epoch, _, _, _, start = _PRODUCER.unpack_from(buffer, at)
        at = skip_tags(buffer, at + _PRODUCER.size)
        if start != _NONE_OPEN:
            found.open.append(HangingTransaction(place, producer_id, epoch, start))
    return skip_tags(buffer, at)
