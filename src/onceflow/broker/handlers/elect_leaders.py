"""ElectLeaders, versions 0-2: every partition has its one leader, so that no election is needed.

Asked about all partitions (a null list), Apache Kafka names those that were elected: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.elect_leaders.v2.response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

from onceflow.broker.requests import RequestContext, RequestRefused
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_PREFERRED, _UNCLEAN = 0, 1


def handle(
    node: Node, client: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Elects no leader, and says why."""
    code = ErrorCode.NONE
    # A request without partitions gets no error about its election type, as in Apache Kafka.
    if request.election_type not in (_PREFERRED, _UNCLEAN) and request.topic_partitions != ():
        code = ErrorCode.INVALID_REQUEST
    return ElectLeadersResponse(
        throttle_time=timedelta(0),
        error_code=code,
        replica_election_results=tuple(_results(node, request)),
    )


def _results(node: Node, request: ElectLeadersRequest) -> Iterator[ReplicaElectionResult]:
    if request.topic_partitions is None:
        for name in node.topics.by_name:
            yield ReplicaElectionResult(topic=name, partition_result=())
        return
    for asked in request.topic_partitions:
        yield ReplicaElectionResult(
            topic=asked.topic,
            partition_result=tuple(
                PartitionResult(
                    partition_id=index, error_code=refused.code, error_message=refused.message
                )
                for index, refused in _refusals(node, request.election_type, asked)
            ),
        )


def _refusals(
    node: Node, kind: int, asked: TopicPartitions
) -> Iterator[tuple[int, RequestRefused]]:
    for index in asked.partitions:
        if kind not in (_PREFERRED, _UNCLEAN):
            yield index, RequestRefused(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}")
        elif node.topics.partition(asked.topic, index) is None:
            reason = "There is no such partition."  # its name is once in the answer
            yield index, RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
        else:
            reason = "The partition has one replica, which is its leader."
            yield index, RequestRefused(ErrorCode.ELECTION_NOT_NEEDED, reason)
