"""A coordinator that answers by script what a group has committed."""

from __future__ import annotations

from typing import Any

from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.client.scripted_broker import ADDRESS, NO_TIME, new

GROUP = "shop"


def coordinator(*_: Any) -> Any:
    found = new(ApiKey.FIND_COORDINATOR, "response", "Coordinator")(
        key=GROUP,
        node_id=1,
        host=ADDRESS.host,
        port=ADDRESS.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )
    return new(ApiKey.FIND_COORDINATOR, "response")(throttle_time=NO_TIME, coordinators=(found,))


def offsets(
    places: dict[int, tuple[int, ErrorCode]],
    error: ErrorCode = ErrorCode.NONE,
    group: str = GROUP,
) -> Any:
    """What a coordinator says of partitions of `orders`."""
    partition = new(ApiKey.OFFSET_FETCH, "response", "OffsetFetchResponsePartitions")
    topic = new(ApiKey.OFFSET_FETCH, "response", "OffsetFetchResponseTopics")
    whole = new(ApiKey.OFFSET_FETCH, "response", "OffsetFetchResponseGroup")
    partitions = tuple(
        partition(
            partition_index=number,
            committed_offset=offset,
            committed_leader_epoch=-1,
            metadata="",
            error_code=code,
        )
        for number, (offset, code) in places.items()
    )
    topics = (topic(name="orders", partitions=partitions),)
    found = whole(group_id=group, topics=topics, error_code=error)
    return new(ApiKey.OFFSET_FETCH, "response")(throttle_time=NO_TIME, groups=(found,))
