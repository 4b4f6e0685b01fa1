"""TxnOffsetCommit, versions 0-5: how far a client has come becomes part of its transaction.

The offsets count when the transaction is committed, and are dropped when it is aborted; the answer
says that they are durable as such. Before version 5 the group must have been added to the
transaction (AddOffsetsToTxn), from then on this adds it. From version 3 on a client may say which
member of which generation it is, and is refused if it is not. Each partition has its own code.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from onceflow.broker.group_service import GroupHost
from onceflow.broker.handlers.offset_commit import entries_of
from onceflow.broker.promise import Answer, then
from onceflow.broker.request import Client
from onceflow.group.events import Identity, Producer, TxnCommitRequest
from onceflow.txn.state import Identity as TransactionIdentity
from onceflow.wire.error_code import ErrorCode


class Transactions(Protocol):
    """The transaction coordinator, as far as it is asked here."""

    def enter_offsets(
        self, transactional_id: str, identity: TransactionIdentity, group_id: str, version: int
    ) -> ErrorCode:
        """Whether a request of this version may write offsets of the group in the transaction."""
        ...


class TransactionHost(GroupHost, Protocol):
    """What this handler is given."""

    @property
    def transactions(self) -> Transactions: ...


def handle(
    node: TransactionHost, client: Client, request: TxnOffsetCommitRequest
) -> Answer[TxnOffsetCommitResponse]:
    """Writes what can be committed."""
    commit = TxnCommitRequest(
        request.group_id,
        Identity(request.member_id, request.group_instance_id),
        request.generation_id,
        Producer(request.producer_id, request.producer_epoch),
        entries_of(request.topics),
    )

    def verify() -> ErrorCode:
        return node.transactions.enter_offsets(
            request.transactional_id,
            TransactionIdentity(request.producer_id, request.producer_epoch),
            request.group_id,
            client.version,
        )

    codes = node.groups.txn_commit(commit, verify)
    return then(codes, lambda codes: _response(request, codes))


def _response(
    request: TxnOffsetCommitRequest, codes: tuple[ErrorCode, ...]
) -> TxnOffsetCommitResponse:
    remaining = iter(codes)
    return TxnOffsetCommitResponse(
        throttle_time=timedelta(0),
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=next(remaining),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
