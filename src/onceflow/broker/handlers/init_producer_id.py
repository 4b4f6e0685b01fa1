"""InitProducerId, versions 0-6: an identity for a producer, answered when no other can get it.

Without a transactional id it is a new producer id. With one it is that id's own in a new epoch, and
the open transaction is aborted first; this fences the previous producer. Version 6 is for two-phase
commit, and advertised only where `transaction.two.phase.commit.enable` is set.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
from kio.schema.init_producer_id.v6.response import InitProducerIdResponse

from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.txn import ProducerIdRequest, Result

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_MILLISECOND = timedelta(milliseconds=1)


def handle(
    node: Node, client: RequestContext, request: InitProducerIdRequest
) -> Answer[InitProducerIdResponse]:
    """Asks the coordinator, which is always this broker."""
    init = ProducerIdRequest(
        transactional_id=request.transactional_id,
        timeout_ms=request.transaction_timeout // _MILLISECOND,
        producer_id=request.producer_id,
        epoch=request.producer_epoch,
        enable_2pc=request.enable2_pc,
        keep_prepared_txn=request.keep_prepared_txn,
    )
    return then(node.transactions.init_producer_id(init, client.version), _response)


def _response(result: Result) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=timedelta(0),
        error_code=result.error,
        producer_id=result.producer_id,
        producer_epoch=result.epoch,
        ongoing_txn_producer_id=result.ongoing_producer_id,
        ongoing_txn_producer_epoch=result.ongoing_epoch,
    )
