"""Where partitions begin and end, what their offset was at a time, and moving their beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from onceflow.client.errors import AnswerMalformed, ApiNotServed, ClientError
from onceflow.client.net import Cluster, check, error_in
from onceflow.client.types import (
    EARLIEST,
    LATEST,
    EpochEndOffset,
    OffsetRange,
    TimedOffset,
    by_topic,
)
from onceflow.runtime import message_library
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.response import DeleteRecordsResponse
    from kio.schema.list_offsets.v7.response import ListOffsetsResponse
    from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse

NOT_A_REPLICA: Final = -1


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, TimedOffset]:
    """For each partition the first offset whose timestamp is not before the one that is given, in
    milliseconds; or its first offset (`EARLIEST`) or the one behind its last (`LATEST`), which is
    the last stable offset for readers of committed records."""

    async def attempt() -> dict[TopicPartition, TimedOffset]:
        leaders = await cluster.by_leader(wanted)
        parts = await asyncio.gather(
            *(
                offsets_of(cluster, leader, {each: wanted[each] for each in led}, read_committed)
                for leader, led in leaders.items()
            )
        )
        return {partition: offset for part in parts for partition, offset in part.items()}

    return await cluster.retrying(attempt)


async def offsets_of(
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, TimedOffset]:
    """`list_offsets` from the one broker that leads all of them, tried once."""
    found: dict[TopicPartition, TimedOffset] = {}
    for partition, each in (await _ask_offsets(cluster, leader, wanted, read_committed)).items():
        if isinstance(each, ClientError):
            raise each
        found[partition] = each
    return found


async def try_ends(
    cluster: Cluster,
    wanted: Collection[TopicPartition],
    time: int,
    on_found: Callable[[Mapping[TopicPartition, int]], None],
    *,
    read_committed: bool,
) -> dict[TopicPartition, ClientError]:
    """The `EARLIEST` or `LATEST` offset of each partition, asked for once, and each for itself:
    `on_found` is called as soon as a broker has said some; the result is why others are missing."""
    errors: dict[TopicPartition, ClientError] = {}
    leaders: dict[int, list[TopicPartition]] = {}
    for partition in wanted:
        try:
            leaders.setdefault(await cluster.leader(partition), []).append(partition)
        except ClientError as error:
            errors[partition] = error

    async def ask(leader: int, led: list[TopicPartition]) -> None:
        try:
            asked = dict.fromkeys(led, time)
            answers = await _ask_offsets(cluster, leader, asked, read_committed)
        except ClientError as error:
            errors.update(dict.fromkeys(led, error))
            return
        found: dict[TopicPartition, int] = {}
        for partition, each in answers.items():
            if isinstance(each, ClientError):
                errors[partition] = each
            elif each.offset < 0:
                errors[partition] = _unsaid(leader, partition)
            else:
                found[partition] = each.offset
        on_found(found)

    await asyncio.gather(*(ask(leader, led) for leader, led in leaders.items()))
    return errors


async def _ask_offsets(
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, TimedOffset | ClientError]:
    """An answer for each that was asked for."""
    with message_library:
        from kio.schema.list_offsets.v7.request import (
            ListOffsetsPartition,
            ListOffsetsRequest,
            ListOffsetsTopic,
        )

    topics = tuple(
        ListOffsetsTopic(
            name=topic,
            partitions=tuple(
                ListOffsetsPartition(
                    partition_index=number, timestamp=wanted[TopicPartition(topic, number)]
                )
                for number in numbers
            ),
        )
        for topic, numbers in by_topic(wanted).items()
    )
    connection = await cluster.broker(leader)
    request = ListOffsetsRequest(
        replica_id=NOT_A_REPLICA, isolation_level=int(read_committed), topics=topics
    )
    answer: ListOffsetsResponse = await connection.request(ApiKey.LIST_OFFSETS, request)
    found: dict[TopicPartition, TimedOffset | ClientError] = {
        each: _unsaid(leader, each) for each in wanted
    }
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            error = error_in(ApiKey.LIST_OFFSETS, each, f"partition {partition}")
            found[partition] = error or TimedOffset(each.offset, each.timestamp)
    return found


def _unsaid(leader: int, partition: TopicPartition) -> AnswerMalformed:
    return AnswerMalformed(f"broker {leader} was asked for an offset of {partition}, and said none")


async def offset_ranges(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetRange]:
    """The first and the next offset of each partition, or the last stable one."""
    partitions = list(partitions)
    # The start first: records deleted in between could move the start behind an end taken before.
    earliest = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    latest = await list_offsets(
        cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed
    )
    return {
        partition: OffsetRange(earliest[partition].offset, latest[partition].offset)
        for partition in partitions
    }


async def offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """From where to read in order to see all that is not older; the end where nothing is. A time
    before 1970 is the beginning: below zero Kafka has numbers with another meaning."""
    partitions, timestamp_ms = list(partitions), max(0, timestamp_ms)
    latest = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    found = await list_offsets(cluster, dict.fromkeys(partitions, timestamp_ms))
    return {
        partition: found[partition].offset if found[partition].offset >= 0 else end.offset
        for partition, end in latest.items()
    }


async def epoch_ends(
    cluster: Cluster, leader: int, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEndOffset]:
    """Where, in the logs of the broker that leads all of them, leader epochs end: what was read in
    such an epoch behind that is gone. Tried once; empty from a broker too old to be asked."""
    with message_library:
        from kio.schema.offset_for_leader_epoch.v4.request import (
            OffsetForLeaderEpochRequest,
            OffsetForLeaderPartition,
            OffsetForLeaderTopic,
        )

    topics = tuple(
        OffsetForLeaderTopic(
            topic=topic,
            partitions=tuple(
                OffsetForLeaderPartition(
                    partition=number, leader_epoch=epochs[TopicPartition(topic, number)]
                )
                for number in numbers
            ),
        )
        for topic, numbers in by_topic(epochs).items()
    )
    connection = await cluster.broker(leader)
    request = OffsetForLeaderEpochRequest(replica_id=NOT_A_REPLICA, topics=topics)
    try:
        answer: OffsetForLeaderEpochResponse = await connection.request(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, request
        )
    except ApiNotServed:
        return {}
    return dict(_ends(answer))


def _ends(answer: OffsetForLeaderEpochResponse) -> Iterable[tuple[TopicPartition, EpochEndOffset]]:
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.topic, each.partition)
            check(ApiKey.OFFSET_FOR_LEADER_EPOCH, each, f"partition {partition}")
            yield partition, EpochEndOffset(each.leader_epoch, each.end_offset)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Deletes what lies below an offset (-1: all there is) in each partition; the first offsets
    that are left. They cannot be restored."""
    with message_library:
        from kio.schema.delete_records.v2.request import (
            DeleteRecordsPartition,
            DeleteRecordsRequest,
            DeleteRecordsTopic,
        )

    async def ask(leader: int, led: list[TopicPartition]) -> dict[TopicPartition, int]:
        topics = tuple(
            DeleteRecordsTopic(
                name=topic,
                partitions=tuple(
                    DeleteRecordsPartition(
                        partition_index=number, offset=before[TopicPartition(topic, number)]
                    )
                    for number in numbers
                ),
            )
            for topic, numbers in by_topic(led).items()
        )
        patience = timedelta(seconds=cluster.settings.request_timeout_s / 2)
        connection = await cluster.broker(leader)
        answer: DeleteRecordsResponse = await connection.request(
            ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=topics, timeout=patience)
        )
        return dict(_low_watermarks(answer))

    async def attempt() -> dict[TopicPartition, int]:
        leaders = await cluster.by_leader(before)
        parts = await asyncio.gather(*(ask(leader, led) for leader, led in leaders.items()))
        return {partition: low for part in parts for partition, low in part.items()}

    return await cluster.retrying(attempt)


def _low_watermarks(answer: DeleteRecordsResponse) -> Iterable[tuple[TopicPartition, int]]:
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            check(ApiKey.DELETE_RECORDS, each, f"partition {partition}")
            yield partition, each.low_watermark
