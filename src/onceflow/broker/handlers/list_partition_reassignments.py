"""ListPartitionReassignments, version 0: there is one broker, so that none is ever under way."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import (
    ListPartitionReassignmentsResponse,
)

from onceflow.broker.requests import RequestContext
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node


def handle(
    node: Node, client: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Lists none. Topics that there are not are not refused, as by Apache Kafka."""
    return ListPartitionReassignmentsResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.NONE, error_message=None, topics=()
    )
