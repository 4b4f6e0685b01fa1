"""What a member of a group asks its coordinator for; each asked once. Errors are `BrokerError`s,
for the error table to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from onceflow.client.assignors import MemberSubscription, log_unreadable_subscription, user_data
from onceflow.client.codec import (
    ConsumerProtocolSubscription,
    GroupMember,
    OffsetToCommit,
    read_subscription,
    write_subscription,
)
from onceflow.client.errors import AnswerMalformed, BrokerError, ClientError
from onceflow.client.group.member import Membership
from onceflow.client.net import Cluster, ConnectionLane, check, error_in
from onceflow.client.settings import ConsumerSettings
from onceflow.client.types import by_topic
from onceflow.errors import MessageMalformed
from onceflow.runtime import message_library
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.response import HeartbeatResponse
    from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
    from kio.schema.leave_group.v5.response import LeaveGroupResponse
    from kio.schema.offset_commit.v8.response import OffsetCommitResponse
    from kio.schema.offset_fetch.v8.response import OffsetFetchResponse
    from kio.schema.sync_group.v5.response import SyncGroupResponse

_CONSUMER: Final = "consumer"
_JOIN_MARGIN_S: Final = 5.0
"""How much longer than the broker waits for the members we wait for its answer."""
_NOTHING_COMMITTED: Final = -1

Committed: TypeAlias = OffsetToCommit | ClientError | None
"""What a group has committed of a partition, None for nothing, or why that is not known."""


class Joined(NamedTuple):
    """The answer to a JoinGroup."""

    membership: Membership
    strategy: str
    is_leader: bool
    skips_assignment: bool
    """The leader is to leave everything as it was: it has only come back."""
    members: tuple[MemberSubscription, ...]
    """All, if this one leads."""


class MemberIdGiven(NamedTuple):
    """The answer to the first JoinGroup of a member: this is its id, and it is to ask again."""

    member_id: str


async def join(
    cluster: Cluster,
    settings: ConsumerSettings,
    member: GroupMember,
    subscription: ConsumerProtocolSubscription,
    why: str,
) -> Joined | MemberIdGiven:
    """Waits until all members have come, or their time is up."""
    with message_library:
        from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol

    rebalance_s = settings.max_poll_interval_ms / 1000
    request = JoinGroupRequest(
        group_id=member.group_id,
        session_timeout=timedelta(milliseconds=settings.session_timeout_ms),
        rebalance_timeout=timedelta(seconds=rebalance_s),
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        protocol_type=_CONSUMER,
        protocols=tuple(
            JoinGroupRequestProtocol(
                name=each.name,
                metadata=write_subscription(
                    replace(subscription, user_data=user_data(each, subscription))
                ),
            )
            for each in settings.assignors
        ),
        reason=why,
    )
    connection = await cluster.coordinator(member.group_id, lane=ConnectionLane.GROUP)
    limit_s = max(cluster.settings.request_timeout_s, rebalance_s + _JOIN_MARGIN_S)
    answer: JoinGroupResponse = await connection.request(
        ApiKey.JOIN_GROUP, request, timeout_s=limit_s
    )
    if answer.error_code.value == ErrorCode.MEMBER_ID_REQUIRED:
        return MemberIdGiven(answer.member_id)
    check(ApiKey.JOIN_GROUP, answer, _subject(member))
    return Joined(
        membership=Membership(answer.member_id, answer.generation_id),
        strategy=answer.protocol_name or "",
        is_leader=answer.leader == answer.member_id,
        skips_assignment=answer.skip_assignment,
        members=tuple(map(_want, answer.members)),
    )


def _want(member: JoinGroupResponseMember) -> MemberSubscription:
    try:
        subscription = read_subscription(member.metadata)
    except MessageMalformed as error:  # the others are not to go without anything for it
        log_unreadable_subscription(member.member_id, error)
        subscription = ConsumerProtocolSubscription(topics=())
    return MemberSubscription(
        member_id=member.member_id,
        topics=frozenset(subscription.topics),
        owned=subscription.owned,
        generation=subscription.generation,
        instance_id=member.group_instance_id,
    )


async def sync(
    cluster: Cluster, member: GroupMember, strategy: str, assignments: Mapping[str, bytes]
) -> bytes:
    """Tells what everybody gets, if this member leads; what this one gets."""
    with message_library:
        from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment

    request = SyncGroupRequest(
        group_id=member.group_id,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        protocol_type=_CONSUMER,
        protocol_name=strategy,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=each, assignment=assignment)
            for each, assignment in assignments.items()
        ),
    )
    connection = await cluster.coordinator(member.group_id, lane=ConnectionLane.GROUP)
    answer: SyncGroupResponse = await connection.request(ApiKey.SYNC_GROUP, request)
    check(ApiKey.SYNC_GROUP, answer, _subject(member))
    return answer.assignment


async def beat(cluster: Cluster, member: GroupMember, timeout_s: float) -> None:
    """Says that the member is alive."""
    with message_library:
        from kio.schema.heartbeat.v4.request import HeartbeatRequest

    request = HeartbeatRequest(
        group_id=member.group_id,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
    )
    connection = await cluster.coordinator(member.group_id)
    answer: HeartbeatResponse = await connection.request(
        ApiKey.HEARTBEAT, request, timeout_s=timeout_s
    )
    check(ApiKey.HEARTBEAT, answer, _subject(member))


async def leave(cluster: Cluster, member: GroupMember, why: str) -> None:
    """Gives up the membership, so that other members need not wait for its session to end."""
    with message_library:
        from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity

    leaving = MemberIdentity(
        member_id=member.member_id, group_instance_id=member.instance_id, reason=why
    )
    request = LeaveGroupRequest(group_id=member.group_id, members=(leaving,))
    connection = await cluster.coordinator(member.group_id)
    answer: LeaveGroupResponse = await connection.request(ApiKey.LEAVE_GROUP, request)
    check(ApiKey.LEAVE_GROUP, answer, _subject(member))


async def commit(
    cluster: Cluster, member: GroupMember, offsets: Mapping[TopicPartition, OffsetToCommit]
) -> dict[TopicPartition, BrokerError | None]:
    """Writes down how far the group has come, each partition for itself; why not. With a generation
    of -1 for a group that has no members."""
    with message_library:
        from kio.schema.offset_commit.v8.request import (
            OffsetCommitRequest,
            OffsetCommitRequestPartition,
            OffsetCommitRequestTopic,
        )

    def row(topic: str, number: int) -> OffsetCommitRequestPartition:
        offset = offsets[TopicPartition(topic, number)]
        return OffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )

    request = OffsetCommitRequest(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(
                name=topic, partitions=tuple(row(topic, number) for number in numbers)
            )
            for topic, numbers in by_topic(sorted(offsets)).items()
        ),
    )
    connection = await cluster.coordinator(member.group_id)
    answer: OffsetCommitResponse = await connection.request(ApiKey.OFFSET_COMMIT, request)
    errors: dict[TopicPartition, BrokerError | None] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            where = f"{_subject(member)}, partition {partition}"
            errors[partition] = error_in(ApiKey.OFFSET_COMMIT, each, where)
    return errors


async def committed(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Committed]:
    """What the group has committed of each of these. Only a broker that says so makes it nothing
    (None): an error, also of one partition, and an answer in which one is missing, are errors.
    Offsets that a transaction is just committing are an error that is worth another try."""
    with message_library:
        from kio.schema.offset_fetch.v8.request import (
            OffsetFetchRequest,
            OffsetFetchRequestGroup,
            OffsetFetchRequestTopics,
        )

    topics = tuple(
        OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(numbers))
        for topic, numbers in by_topic(partitions).items()
    )
    group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    connection = await cluster.coordinator(group_id)
    request = OffsetFetchRequest(groups=(group,), require_stable=True)
    answer: OffsetFetchResponse = await connection.request(ApiKey.OFFSET_FETCH, request)
    unsaid = f"group {group_id!r}: the coordinator did not say what is committed of "
    offsets: dict[TopicPartition, Committed] = {
        each: AnswerMalformed(f"{unsaid}{each}") for each in partitions
    }
    offsets |= _committed(answer, group_id)
    return offsets


def _committed(
    answer: OffsetFetchResponse, group_id: str
) -> Iterable[tuple[TopicPartition, Committed]]:
    for group in answer.groups:
        if group.group_id != group_id:
            continue
        check(ApiKey.OFFSET_FETCH, group, f"group {group_id!r}")
        for topic in group.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                where = f"group {group_id!r}, partition {partition}"
                error = error_in(ApiKey.OFFSET_FETCH, each, where)
                if error is None and each.committed_offset != _NOTHING_COMMITTED:
                    note, epoch = each.metadata or "", each.committed_leader_epoch
                    yield partition, OffsetToCommit(each.committed_offset, note, epoch)
                else:
                    yield partition, error


def _subject(member: GroupMember) -> str:
    return f"group {member.group_id!r}"
