"""EndTxn, versions 0-5: commits or aborts, answered when the decision and its markers are durable.

From version 5 on every transaction has an epoch of its own, and the answer says which identity the
next one has. The answer to a repeat is that of the first request.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse

from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.txn import Result
from onceflow.wire import ProducerIdAndEpoch

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(node: Node, client: RequestContext, request: EndTxnRequest) -> Answer[EndTxnResponse]:
    """Asks the coordinator, which is always this broker."""
    identity = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    answer = node.transactions.end(
        request.transactional_id, identity, request.committed, client.version
    )
    return then(answer, _response)


def _response(result: Result) -> EndTxnResponse:
    return EndTxnResponse(
        throttle_time=timedelta(0),
        error_code=result.error,
        producer_id=result.producer_id,
        producer_epoch=result.epoch,
    )
