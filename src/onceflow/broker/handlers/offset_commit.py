"""OffsetCommit, versions 2-9: a client says how far it has come; answered when that is durable.

Members commit in their generation; any client may commit without one while the group is empty,
also under an empty group id. Each partition has its own error code. Not honoured: a retention time
of the client's own (versions 2-4), and member epochs (version 9): there are classic groups only.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from kio.schema.offset_commit.v9.request import OffsetCommitRequest
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.group import CommitRequest, MemberIdentity, OffsetEntry
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9.request import OffsetCommitRequestPartition
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequestPartition

    CommittedPartition: TypeAlias = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition


def handle(
    node: GroupHost, client: RequestContext, request: OffsetCommitRequest
) -> Answer[OffsetCommitResponse]:
    """Commits what can be committed."""
    commit = CommitRequest(
        request.group_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.generation_id_or_member_epoch,
        client.version,
        entries_of((topic.name, topic.partitions) for topic in request.topics),
    )

    def response(codes: tuple[ErrorCode, ...]) -> OffsetCommitResponse:
        remaining = iter(codes)
        return OffsetCommitResponse(
            throttle_time=timedelta(0),
            topics=tuple(
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        OffsetCommitResponsePartition(
                            partition_index=each.partition_index, error_code=next(remaining)
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    return then(node.groups.commit(commit), response)


def entries_of(
    topics: Iterable[tuple[str, Iterable[CommittedPartition]]],
) -> tuple[OffsetEntry, ...]:
    """What a request wants to be committed, with or without a transaction, by topic."""
    return tuple(
        OffsetEntry(
            name,
            each.partition_index,
            each.committed_offset,
            each.committed_leader_epoch,
            each.committed_metadata,
        )
        for name, partitions in topics
        for each in partitions
    )
