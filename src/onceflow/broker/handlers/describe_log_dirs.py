"""DescribeLogDirs, versions 1-5: the one directory, its disk, and how large the partitions are.

Partitions that there are not are left out, as Apache Kafka does. No partition moves to another
directory, and no directory is cordoned off.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

from onceflow.broker.requests import RequestContext, refusal_of
from onceflow.errors import OnceflowError
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_UNKNOWN = -1


def handle(
    node: Node, client: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Describes the partitions asked for, or all of them."""
    code, total, usable = ErrorCode.NONE, _UNKNOWN, _UNKNOWN
    try:
        total, usable = node.store.disk_bytes
    except OnceflowError as error:
        code = refusal_of(error).code
    directory = DescribeLogDirsResult(
        error_code=code,
        log_dir=str(node.config.data_dir.absolute()),
        topics=tuple(
            DescribeLogDirsTopic(
                name=name,
                partitions=tuple(_partition(node, name, index) for index in indexes),
            )
            for name, indexes in _wanted(node, request)
        ),
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=False,
    )
    return DescribeLogDirsResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.NONE, results=(directory,)
    )


def _wanted(node: Node, request: DescribeLogDirsRequest) -> Iterator[tuple[str, list[int]]]:
    """What there is of that, each once."""
    if request.topics is None:
        for name, topic in node.topics.by_name.items():
            yield name, [partition.index for partition in topic.partitions]
        return
    asked: dict[str, dict[int, None]] = {}
    for each in request.topics:
        asked.setdefault(each.topic, {}).update(dict.fromkeys(each.partitions))
    for name, indexes in asked.items():
        found = [index for index in indexes if node.topics.partition(name, index) is not None]
        if found:
            yield name, found


def _partition(node: Node, topic: str, index: int) -> DescribeLogDirsPartition:
    partition = node.topics.partition(topic, index)
    return DescribeLogDirsPartition(
        partition_index=index,
        partition_size=0 if partition is None else partition.log.size,
        offset_lag=0,
        is_future_key=False,
    )
