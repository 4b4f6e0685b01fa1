"""AddOffsetsToTxn, versions 0-4: the offsets of a group become part of the open transaction.

What is added is the partition of `__consumer_offsets` that keeps the group. As with
AddPartitionsToTxn, the answer does not wait for the disk: what follows it makes it durable.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse

from onceflow.broker.requests import RequestContext
from onceflow.wire import ProducerIdAndEpoch

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Asks the coordinator, which is always this broker."""
    identity = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    code = node.transactions.add_offsets(
        request.transactional_id, identity, request.group_id, client.version
    )
    return AddOffsetsToTxnResponse(throttle_time=timedelta(0), error_code=code)
