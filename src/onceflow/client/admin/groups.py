"""Consumer groups: list, describe with lag, set offsets, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from onceflow.client.consumer import PartitionLag, count_records
from onceflow.client.errors import (
    BrokerError,
    ClientError,
    GroupNotEmpty,
    GroupNotFound,
    TopicNotFound,
)
from onceflow.client.net import Cluster, check
from onceflow.client.offsets import list_offsets, offset_ranges
from onceflow.client.settings import ReaderSettings
from onceflow.client.types import (
    EARLIEST,
    LATEST,
    GroupDescription,
    GroupOffset,
    ListedGroup,
    MemberDescription,
    OffsetRange,
    by_topic,
)
from onceflow.errors import MessageMalformed
from onceflow.runtime import message_library
from onceflow.types import TopicPartition
from onceflow.wire import INT16, INT32, ApiKey, read_count, read_int, read_text

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
    from kio.schema.describe_groups.v5.response import (
        DescribedGroup,
        DescribedGroupMember,
        DescribeGroupsResponse,
    )
    from kio.schema.list_groups.v4.response import ListGroupsResponse
    from kio.schema.offset_commit.v8.response import OffsetCommitResponse
    from kio.schema.offset_fetch.v8.response import OffsetFetchResponse

DEAD: Final = "Dead"
_NOTHING_COMMITTED: Final = -1
_CONSUMER: Final = "consumer"


async def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """The groups of all brokers, by name."""
    with message_library:
        from kio.schema.list_groups.v4.request import ListGroupsRequest

    async def ask(node_id: int) -> list[ListedGroup]:
        connection = await cluster.broker(node_id)
        answer: ListGroupsResponse = await connection.request(
            ApiKey.LIST_GROUPS, ListGroupsRequest()
        )
        check(ApiKey.LIST_GROUPS, answer, f"broker {node_id}")
        return [
            ListedGroup(each.group_id, each.group_state, each.protocol_type)
            for each in answer.groups
        ]

    async def attempt() -> list[ListedGroup]:
        await cluster.metadata([])
        parts = await asyncio.gather(*map(ask, cluster.node_ids))
        return sorted((each for part in parts for each in part), key=lambda each: each.group_id)

    return await cluster.retrying(attempt)


async def describe_group(cluster: Cluster, group_id: str) -> GroupDescription:
    """A group, its members, and how far it is behind; raises `GroupNotFound`."""
    found, coordinator = await _describe(cluster, group_id)
    members = tuple(_member(each, found.protocol_type) for each in found.members)
    committed = await committed_offsets(cluster, group_id)
    if found.group_state == DEAD and not committed:
        raise GroupNotFound(f"there is no group {group_id!r}")
    owners = {partition: member for member in members for partition in member.assignment}
    partitions = sorted(committed.keys() | owners.keys())
    ranges = await _known_ranges(cluster, partitions)
    return GroupDescription(
        group_id=group_id,
        state=found.group_state,
        protocol=found.protocol_data,
        coordinator=coordinator,
        members=members,
        offsets=tuple(
            GroupOffset(each, committed.get(each), ranges.get(each), owners.get(each))
            for each in partitions
        ),
    )


async def _describe(cluster: Cluster, group_id: str) -> tuple[DescribedGroup, str]:
    with message_library:
        from kio.schema.describe_groups.v5.request import DescribeGroupsRequest

    request = DescribeGroupsRequest(groups=(group_id,), include_authorized_operations=False)

    async def attempt() -> tuple[DescribedGroup, str]:
        connection = await cluster.coordinator(group_id)
        answer: DescribeGroupsResponse = await connection.request(ApiKey.DESCRIBE_GROUPS, request)
        for found in answer.groups:
            check(ApiKey.DESCRIBE_GROUPS, found, f"group {group_id!r}")
            return found, str(connection.address)
        raise GroupNotFound(f"there is no group {group_id!r}")

    return await cluster.retrying(attempt)


def _member(found: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == _CONSUMER and found.member_assignment:
        assignment = read_assignment(found.member_assignment)
    return MemberDescription(
        member_id=found.member_id,
        group_instance_id=found.group_instance_id,
        client_id=found.client_id,
        host=found.client_host,
        assignment=assignment,
    )


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions that the group's leader assigned to a member; empty for an unknown format."""
    view = memoryview(data)
    partitions = []
    try:
        _, at = read_int(INT16, view, 0)
        topic_count, at = read_count(False, view, at)
        for _ in range(topic_count):
            topic, at = read_text(False, view, at)
            partition_count, at = read_count(False, view, at)
            for _ in range(partition_count):
                number, at = read_int(INT32, view, at)
                partitions.append(TopicPartition(topic or "", number))
    except MessageMalformed:
        return ()
    return tuple(partitions)


async def _known_ranges(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """The offset ranges of the partitions that still exist: groups outlive topics."""
    existing = []
    for name, numbers in by_topic(partitions).items():
        try:
            topic = await cluster.find_topic(name)
        except TopicNotFound:
            continue
        there = {each.partition for each in topic.partitions}
        existing += [TopicPartition(name, number) for number in numbers if number in there]
    return await offset_ranges(cluster, existing)


async def committed_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, int]:
    """All offsets that a group has committed."""
    with message_library:
        from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup

    group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    # Stable: else these may be overtaken by the offsets of a transaction that is about to commit.
    request = OffsetFetchRequest(groups=(group,), require_stable=True)

    async def attempt() -> dict[TopicPartition, int]:
        connection = await cluster.coordinator(group_id)
        answer: OffsetFetchResponse = await connection.request(ApiKey.OFFSET_FETCH, request)
        return dict(_committed(answer, group_id))

    return await cluster.retrying(attempt)


def _committed(answer: OffsetFetchResponse, group_id: str) -> Iterable[tuple[TopicPartition, int]]:
    for group in answer.groups:
        check(ApiKey.OFFSET_FETCH, group, f"group {group_id!r}")
        for topic in group.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                check(ApiKey.OFFSET_FETCH, each, f"group {group_id!r}, partition {partition}")
                if each.committed_offset != _NOTHING_COMMITTED:
                    yield partition, each.committed_offset


async def commit_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Commits for a group without members; raises `GroupNotEmpty` when it has some."""
    with message_library:
        from kio.schema.offset_commit.v8.request import (
            OffsetCommitRequest,
            OffsetCommitRequestPartition,
            OffsetCommitRequestTopic,
        )

    topics = tuple(
        OffsetCommitRequestTopic(
            name=name,
            partitions=tuple(
                OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offsets[TopicPartition(name, number)],
                    committed_metadata="",
                )
                for number in numbers
            ),
        )
        for name, numbers in by_topic(offsets).items()
    )
    request = OffsetCommitRequest(group_id=group_id, member_id="", topics=topics)

    async def attempt() -> None:
        connection = await cluster.coordinator(group_id)
        answer: OffsetCommitResponse = await connection.request(ApiKey.OFFSET_COMMIT, request)
        for topic in answer.topics:
            for each in topic.partitions:
                subject = f"group {group_id!r}, partition {topic.name}-{each.partition_index}"
                check(ApiKey.OFFSET_COMMIT, each, subject)

    try:
        await cluster.retrying(attempt)
    except BrokerError as error:
        if error.name in ("UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS"):
            raise GroupNotEmpty(_in_use(group_id)) from error
        raise


async def require_empty(cluster: Cluster, group_id: str) -> None:
    """Raise `GroupNotEmpty` if the group has members, and name them."""
    found, _ = await _describe(cluster, group_id)
    if found.members:
        clients = ", ".join(
            sorted({f"{each.client_id}{each.client_host}" for each in found.members})
        )
        raise GroupNotEmpty(f"{_in_use(group_id)}: {len(found.members)} connected ({clients})")


async def delete_group(cluster: Cluster, group_id: str) -> None:
    """Deletes a group and its offsets; raises `GroupNotFound` or `GroupNotEmpty`."""
    with message_library:
        from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

    async def attempt() -> None:
        connection = await cluster.coordinator(group_id)
        request = DeleteGroupsRequest(groups_names=(group_id,))
        answer: DeleteGroupsResponse = await connection.request(ApiKey.DELETE_GROUPS, request)
        for each in answer.results:
            check(ApiKey.DELETE_GROUPS, each, f"group {group_id!r}")

    try:
        await cluster.retrying(attempt)
    except BrokerError as error:
        if error.name == "GROUP_ID_NOT_FOUND":
            raise GroupNotFound(f"there is no group {group_id!r}") from error
        if error.name == "NON_EMPTY_GROUP":
            await require_empty(cluster, group_id)
        raise


def _in_use(group_id: str) -> str:
    return f"group {group_id!r} has members; stop its consumers first"


COUNTED: Final = 10_000
"""Up to this many offsets of a partition are read to count their records."""
_NO_WAIT_MS: Final = 50


async def lag_behind(
    cluster: Cluster, committed: Mapping[TopicPartition, int], *, count_up_to: int | None = COUNTED
) -> dict[TopicPartition, PartitionLag]:
    """How many committed records a group has still to read, from these offsets on.

    Offsets are not records: transaction markers and aborted records have them too. So a span of up
    to `count_up_to` offsets (None: any span) is read and counted; in a longer one each offset
    counts as a record.
    """
    stable, end, start = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(committed, LATEST), read_committed=True),
        list_offsets(cluster, dict.fromkeys(committed, LATEST)),
        list_offsets(cluster, dict.fromkeys(committed, EARLIEST)),
    )
    found: dict[TopicPartition, PartitionLag] = {}
    for partition, offset in committed.items():
        first, last = max(offset, start[partition].offset), stable[partition].offset
        span = max(0, last - first)
        counted = None
        if span and (count_up_to is None or span <= count_up_to):
            counted = await _count(cluster, partition, first, last)
        found[partition] = PartitionLag(
            records=span if counted is None else counted,
            is_exact=not span or counted is not None,
            held_back=max(0, end[partition].offset - last),
        )
    return found


async def _count(cluster: Cluster, partition: TopicPartition, first: int, last: int) -> int | None:
    """The number of committed records; None where they cannot be read: not authorized, or gone."""
    settings = ReaderSettings(fetch_max_wait_ms=_NO_WAIT_MS)
    try:
        return await count_records(cluster, settings, partition, first, last)
    except ClientError:
        return None
