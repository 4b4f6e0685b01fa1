"""TxnOffsetCommit, versions 0-6: a client's progress becomes part of its transaction.

The offsets count when the transaction is committed, and are dropped when it is aborted; the answer
says that they are durable as such. Before version 5 the group must have been added to the
transaction (AddOffsetsToTxn), from then on this adds it. From version 3 on a client may say which
member of which generation it is, and is refused if it is not. Each partition has its own code.
Version 6 names topics by their ids; the partitions of one that is not there get UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, TypeAlias

from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
)
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from onceflow.broker.group import GroupHost, OffsetsAdmission
from onceflow.broker.handlers.offset_commit import entries_of
from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.broker.topics import TopicNames
from onceflow.group import MemberIdentity, TxnCommitRequest
from onceflow.wire import ErrorCode, ProducerIdAndEpoch
from onceflow.wire.newer import txn_offset_commit_v6 as by_id

OLD_SHAPE_UNTIL = 5
"""Until then topics go by their names."""
Request: TypeAlias = TxnOffsetCommitRequest | by_id.TxnOffsetCommitRequest
Topic: TypeAlias = tuple[str | None, tuple[TxnOffsetCommitRequestPartition, ...]]
"""Its name, None for an unknown id, and what is to be committed of it."""
Response: TypeAlias = TxnOffsetCommitResponse | by_id.TxnOffsetCommitResponse


class TransactionHost(GroupHost, Protocol):
    """What this handler is given."""

    @property
    def transactions(self) -> OffsetsAdmission: ...

    @property
    def topics(self) -> TopicNames: ...


def handle(node: TransactionHost, client: RequestContext, request: Request) -> Answer[Response]:
    """Writes what can be committed."""
    topics = _topics(node.topics, request)
    commit = TxnCommitRequest(
        request.transactional_id,
        request.group_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.generation_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        entries_of((name, partitions) for name, partitions in topics if name is not None),
        client.version,
    )
    codes = node.groups.txn_commit(commit, node.transactions)
    return then(codes, lambda codes: _response(request, topics, codes))


def _topics(topics: TopicNames, request: Request) -> list[Topic]:
    if isinstance(request, TxnOffsetCommitRequest):
        return [(topic.name, topic.partitions) for topic in request.topics]
    return [(topics.name_of(topic.topic_id), topic.partitions) for topic in request.topics]


def _response(request: Request, topics: Sequence[Topic], codes: tuple[ErrorCode, ...]) -> Response:
    remaining = iter(codes)
    partitions = [
        tuple(
            TxnOffsetCommitResponsePartition(
                partition_index=each.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID if name is None else next(remaining),
            )
            for each in wanted
        )
        for name, wanted in topics
    ]
    if isinstance(request, TxnOffsetCommitRequest):
        return TxnOffsetCommitResponse(
            throttle_time=timedelta(0),
            topics=tuple(
                TxnOffsetCommitResponseTopic(name=topic.name, partitions=each)
                for topic, each in zip(request.topics, partitions, strict=True)
            ),
        )
    return by_id.TxnOffsetCommitResponse(
        throttle_time=timedelta(0),
        topics=tuple(
            by_id.TxnOffsetCommitResponseTopic(topic_id=topic.topic_id, partitions=each)
            for topic, each in zip(request.topics, partitions, strict=True)
        ),
    )
