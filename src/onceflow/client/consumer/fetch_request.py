"""One Fetch, to one broker, asked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from onceflow.client.codec import FetchAnswer, FetchFrom, read_fetch, write_fetch
from onceflow.client.consumer.metrics import FetchMetrics
from onceflow.client.errors import BrokerError, OffsetOutOfRange
from onceflow.client.net import Cluster, ConnectionLane
from onceflow.client.offsets import offset_ranges
from onceflow.client.settings import ReaderSettings
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode


def _nothing() -> None:
    return None


async def fetch(
    cluster: Cluster,
    leader: int,
    offsets: Iterable[tuple[TopicPartition, int]],
    settings: ReaderSettings,
    *,
    max_bytes: int | None = None,
    when_sent: Callable[[], None] = _nothing,
    measured: FetchMetrics | None = None,
) -> list[FetchAnswer]:
    """What a broker has of partitions from offsets on; errors of single partitions are in there."""
    connection = await cluster.broker(leader, lane=ConnectionLane.FETCH)
    version = connection.version_of(ApiKey.FETCH)
    topics: dict[str, list[FetchFrom]] = {}
    for (topic, number), offset in offsets:
        wanted = FetchFrom(number, offset, settings.max_partition_fetch_bytes)
        topics.setdefault(topic, []).append(wanted)
    body = write_fetch(
        version,
        topics,
        max_wait_ms=settings.fetch_max_wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes if max_bytes is None else max_bytes,
        read_committed=settings.read_committed,
    )
    limit_s = cluster.settings.request_timeout_s + settings.fetch_max_wait_ms / 1000
    answer = connection.submit(ApiKey.FETCH, version, (body,), timeout_s=limit_s)
    sent_at = 0.0 if measured is None else measured.now()
    when_sent()
    frame = await answer
    try:
        answers = read_fetch(version, frame)
    except MessageMalformed as error:
        raise connection.malformed(ApiKey.FETCH, version, error) from error
    connection.throttled(ApiKey.FETCH, answers.throttle_ms)
    if measured is not None:
        measured.fetched(sent_at, len(frame), answers.throttle_ms)
    if answers.error:
        raise BrokerError(answers.error, ApiKey.FETCH.name, f"broker {leader}")
    return answers.partitions


def refusal(answer: FetchAnswer) -> BrokerError:
    """The error that a partition was answered with."""
    return BrokerError(answer.error, ApiKey.FETCH.name, f"partition {answer.partition}")


def is_out_of_range(answer: FetchAnswer) -> bool:
    """Whether the log does not hold the offset that was asked for."""
    return answer.error == ErrorCode.OFFSET_OUT_OF_RANGE


async def out_of_range(
    cluster: Cluster, partition: TopicPartition, offset: int
) -> OffsetOutOfRange:
    """The error that says which offsets there are instead."""
    held = (await offset_ranges(cluster, [partition]))[partition]
    return OffsetOutOfRange(
        partition,
        f"there is no offset {offset}; it holds the offsets from {held.earliest} up to "
        f"{held.latest}",
    )
