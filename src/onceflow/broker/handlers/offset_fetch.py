"""OffsetFetch, versions 1-9: how far groups have come, as far as that is durable.

From version 8 on a request asks for several groups, before for one. No topics at all (null, from
version 2 on) means every offset that the group has. A partition without an offset gives -1 and no
error, also when there is no such group. `require_stable` (version 7) waits for commits that are on
their way, and answers UNSTABLE_OFFSET_COMMIT for an offset that an open transaction may change;
without it the offset is the committed one. Not looked at: member ids and epochs (version 9): there
are classic groups only.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.offset_fetch.v9.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

from onceflow.broker.group import GroupHost
from onceflow.broker.requests import Answer, RequestContext, then
from onceflow.group import FoundOffset, FoundOffsets, OffsetQuery, OffsetValue
from onceflow.wire import ErrorCode, recast

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as RequestForOne
    from kio.schema.offset_fetch.v7.response import OffsetFetchResponse as ResponseForOne

OLD_SHAPE_UNTIL = 7
"""Until then a request asks for one group."""
_NOTHING = OffsetValue(offset=-1, leader_epoch=-1, metadata="", commit_timestamp_ms=-1)


def upgrade(request: RequestForOne) -> OffsetFetchRequest:
    topics = None
    if request.topics is not None:
        topics = tuple(recast(topic, OffsetFetchRequestTopics) for topic in request.topics)
    return OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=request.group_id, topics=topics),),
        require_stable=request.require_stable,
    )


def downgrade(response: OffsetFetchResponse, older: type[ResponseForOne]) -> ResponseForOne:
    # The fields of the one group and those of the old answer have the same names.
    (only,) = response.groups
    return recast(only, older)


def handle(
    node: GroupHost, client: RequestContext, request: OffsetFetchRequest
) -> Answer[OffsetFetchResponse]:
    """Looks the offsets up."""
    queries = _queries(request.groups)

    def response(found: tuple[FoundOffsets, ...]) -> OffsetFetchResponse:
        return OffsetFetchResponse(
            throttle_time=timedelta(0),
            groups=tuple(
                OffsetFetchResponseGroup(
                    group_id=query.group_id,
                    topics=_topics(offsets),
                    error_code=ErrorCode.NONE,
                )
                for query, offsets in zip(queries, found, strict=True)
            ),
        )

    return then(node.groups.fetch(queries, require_stable=request.require_stable), response)


def _queries(groups: Iterable[OffsetFetchRequestGroup]) -> list[OffsetQuery]:
    """Every partition of a group once, however often it is named: each may have a long text."""
    wanted: dict[str, dict[str, dict[int, None]] | None] = {}
    for group in groups:
        topics = wanted.setdefault(group.group_id, {})
        if group.topics is None or topics is None:
            wanted[group.group_id] = None
            continue
        for topic in group.topics:
            topics.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [
        OffsetQuery(
            group_id,
            None if topics is None else tuple((name, (*each,)) for name, each in topics.items()),
        )
        for group_id, topics in wanted.items()
    ]


def _topics(offsets: FoundOffsets) -> tuple[OffsetFetchResponseTopics, ...]:
    return tuple(
        OffsetFetchResponseTopics(
            name=topic, partitions=tuple(_partition(each) for each in partitions)
        )
        for topic, partitions in offsets
    )


def _partition(found: FoundOffset) -> OffsetFetchResponsePartitions:
    told = found.value or _NOTHING
    return OffsetFetchResponsePartitions(
        partition_index=found.partition,
        committed_offset=told.offset,
        committed_leader_epoch=told.leader_epoch,
        metadata=told.metadata,
        error_code=found.error,
    )
