"""OffsetDelete, version 0: a group forgets its offsets in topics that it does not read.

A topic that a member is subscribed to is refused with GROUP_SUBSCRIBED_TO_TOPIC; a group with
members that are not consumers is refused as a whole (NON_EMPTY_GROUP).
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from onceflow.broker.group import GroupHost, GroupOutcome
from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.types import TopicPartition


def handle(
    node: GroupHost, client: RequestContext, request: OffsetDeleteRequest
) -> Answer[OffsetDeleteResponse]:
    """Answers when the offsets are durably gone."""
    places = [
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]

    def response(deleted: GroupOutcome) -> OffsetDeleteResponse:
        remaining = iter(deleted.errors)
        topics = () if deleted.error else request.topics
        return OffsetDeleteResponse(
            error_code=deleted.error,
            throttle_time=timedelta(0),
            topics=tuple(
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        OffsetDeleteResponsePartition(
                            partition_index=each.partition_index, error_code=next(remaining)
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in topics
            ),
        )

    return then(node.groups.delete_offsets(request.group_id, places), response)
