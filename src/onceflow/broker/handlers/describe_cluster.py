"""DescribeCluster, versions 0-2: a cluster of this one broker. Not served: controller endpoints."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)

from onceflow.broker.requests import RequestContext
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_BROKERS = 1
CLUSTER_OPERATIONS = 0x1FA0
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, the two for configs, IDEMPOTENT_WRITE."""
_NOT_ASKED_FOR = -(2**31)


def handle(
    node: Node, client: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Describes the broker."""
    if request.endpoint_type != _BROKERS:
        return _response(node, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, (), _NOT_ASKED_FOR)
    host, port = node.address
    broker = DescribeClusterBroker(
        broker_id=node.config.node_id, host=host, port=port, rack=None, is_fenced=False
    )
    asked = request.include_cluster_authorized_operations
    return _response(
        node, ErrorCode.NONE, (broker,), CLUSTER_OPERATIONS if asked else _NOT_ASKED_FOR
    )


def _response(
    node: Node, code: ErrorCode, brokers: tuple[DescribeClusterBroker, ...], operations: int
) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        throttle_time=timedelta(0),
        error_code=code,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=node.topics.cluster_id,
        controller_id=node.config.node_id,
        brokers=brokers,
        cluster_authorized_operations=operations,
    )
